"""Other packages' own objects as loggers: a raw ``wandb.Run``, a ``SummaryWriter``, an MLflow run.

Whoever knows how to log to a type declares it as an entry point of the group ``loggers.backends``. Its name is
the type's, with the module in which the type is defined; its value is called with the object and returns a logger::

    [project.entry-points."loggers.backends"]
    "wandb.sdk.wandb_run.Run" = "adapters.backends.wandb:WandbLogger"

Declarations are read when an object without verbs is met for the first time, and only the one that fits is loaded.
That of a backend's own package wins over ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from loggers.contract import OPTIONAL_VERBS, VERBS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The group of entry points.
GROUP: Final = "loggers.backends"
#: Verbs that carry data, which every logger has.
REQUIRED_VERBS: Final = tuple(verb for verb in VERBS if verb not in (*OPTIONAL_VERBS, "reattach"))
_OURS: Final = "plattli-loggers"

#: Type -> what makes loggers of its instances, ``None`` if they are loggers by themselves or nobody can.
_makers: dict[type, Callable[[Any], Any] | None] = {type(None): None}
#: Where an object keeps itself and its logger, so that they live as long as each other. A copy has it, too, and shall
#: have a logger of its own.
_LOGGER: Final = "_plattli_logger"
#: The same for objects that take no attributes, by their id, which they keep by being in here.
_loggers: dict[int, tuple[Any, Any]] = {}
_making: Final = threading.RLock()
_declared: dict[str, list[EntryPoint]] | None = None


def adapted(obj: Any) -> Any:
    """Return the logger of a raw object, always the same one, or ``obj`` itself if nothing is declared for it.

    Raises:
        Exception: what loading or calling the declared maker raises.
    """
    cls = type(obj)
    try:
        maker = _makers[cls]
    except KeyError:
        maker = _maker(cls, obj)
    if maker is None:
        return obj
    place: dict[Any, tuple[Any, Any]] = getattr(obj, "__dict__", _loggers)
    key = id(obj) if place is _loggers else _LOGGER
    known = place.get(key)
    if known is None or known[0] is not obj:
        with _making:
            known = place.get(key)  # another thread may have been faster
            if known is None or known[0] is not obj:
                known = place[key] = obj, maker(obj)
    return known[1]


def _maker(cls: type, obj: Any) -> Callable[[Any], Any] | None:
    if all(callable(getattr(cls, verb, None)) for verb in REQUIRED_VERBS):
        maker = None
    elif all(callable(getattr(obj, verb, None)) for verb in REQUIRED_VERBS):
        return None  # this one instance has them
    else:
        entry = find(cls, _declarations())
        maker = None if entry is None else entry.load()
    _makers[cls] = maker
    return maker


def find(cls: type, declared: dict[str, list[EntryPoint]]) -> EntryPoint | None:
    """Return what is declared for a type or its nearest base: of several, that of the backend's own package."""
    for base in cls.__mro__[:-1]:
        entries = declared.get(f"{base.__module__}.{base.__qualname__}")
        if entries:
            top = base.__module__.partition(".")[0]
            return min(entries, key=lambda entry: (_distance(entry, top), entry.value))
    return None


def _distance(entry: EntryPoint, package: str) -> int:
    """Return how far who declares an entry is from the package that the type comes from."""
    if entry.module.partition(".")[0] == package:
        return 0
    return 2 if entry.dist is not None and entry.dist.name == _OURS else 1


def _declarations() -> dict[str, list[EntryPoint]]:
    global _declared
    if _declared is None:
        from importlib.metadata import entry_points  # noqa: PLC0415 - only who meets a raw object pays for it

        _declared = by_name(entry_points(group=GROUP))
    return _declared


def by_name(entries: Iterable[EntryPoint]) -> dict[str, list[EntryPoint]]:
    """Return entry points by their names; several packages may declare the same."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    return found
