"""The ten verbs as functions of a logger: what a driver calls.

``log_metrics(lgr, {"loss": 0.3}, step=4)`` does what ``lgr.log_metrics({"loss": 0.3}, step=4)`` does,
and three things that a method cannot do:

- ``None`` is a logger that logs nothing, for every verb;
- a verb that ``lgr`` lacks is a :class:`~loggers.errors.MissingVerbError` that names it, so nothing is
  dropped unnoticed; only ``logger_state``, ``run_id`` and ``run_url`` carry no data and are ``None``;
- a type that somebody else owns can be given verbs with :func:`register_verbs`, or a logger of its own by an
  entry point (:mod:`loggers.backends`): so a raw ``wandb.Run`` or ``SummaryWriter`` is a logger as it is.

Which function serves a verb of an object: its own methods alone, if it has all six that carry data,
since then it was written for this contract. Otherwise what was registered for its type or the nearest
base, or by the logger that an entry point makes of it, then a method of that name. Those two go first because a
tracker's object may have a method called ``finish`` that means something else.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from loggers.backends import REQUIRED_VERBS, adapted
from loggers.contract import JSON, VERBS, Logger
from loggers.errors import MissingVerbError, VerbSignatureError

_REGISTRABLE: Final = (*VERBS, "backend", "logger_info")

_registered: dict[type, dict[str, Callable[..., Any]]] = {}


def register_verbs(cls: type, **functions: Callable[..., Any]) -> None:
    """Give verbs to a type that one does not own.

    Args:
        cls: the type. Its subclasses have the verbs too.
        **functions: verb (or ``backend``, ``logger_info``) -> function whose first argument is the
            object and whose others are the verb's. A later registration replaces an earlier one.

    Raises:
        MissingVerbError: a name that is no verb.
    """
    for verb in functions:
        if verb not in _REGISTRABLE:
            raise MissingVerbError(
                f"cannot register {verb!r} for {_name(cls)}: the verbs are {', '.join(_REGISTRABLE)}"
            )
    _registered.setdefault(cls, {}).update(functions)


def as_logger(obj: Any) -> Any:
    """Return what logs to ``obj``, for who keeps it or asks it for more than verbs.

    Args:
        obj: a logger, a raw object of a tracker that somebody has declared a logger for (see
            :mod:`loggers.backends`), one whose type was given verbs by :func:`register_verbs`, or ``None``.

    Returns:
        For a raw object its logger, always the same one; everything else as it is.

    Raises:
        MissingVerbError: it cannot be logged to; names the verbs that are missing and how to define them.
    """
    if obj is None:
        return None
    if isinstance(obj, type):
        raise MissingVerbError(f"the logger is the class {_name(obj)} itself: pass an instance of it")
    logger = resolved(obj)
    missing = [verb for verb in REQUIRED_VERBS if _find(logger, verb) is None]
    if missing:
        raise MissingVerbError(_lacks(logger, missing))
    return logger


def resolved(obj: Any) -> Any:
    """Return the logger that is declared for a raw object, else the object, whether or not it has verbs."""
    return obj if _is_registered(obj) else adapted(obj)


def log_metrics(
    lgr: Any,
    metrics: Mapping[str, Any],
    *,
    step: int,
    epoch: int | None = None,
    context: str = "train",
    **axes: Any,
) -> None:
    """Log one line. See :meth:`loggers.contract.Logger.log_metrics`."""
    if lgr is not None:
        verb_of(lgr, "log_metrics")(metrics, step=step, epoch=epoch, context=context, **axes)


def log_params(lgr: Any, params: Mapping[str, Any]) -> None:
    """Log hyperparameters. See :meth:`loggers.contract.Logger.log_params`."""
    if lgr is not None:
        verb_of(lgr, "log_params")(params)


def log_tags(lgr: Any, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
    """Tag the run. See :meth:`loggers.contract.Logger.log_tags`."""
    if lgr is not None:
        verb_of(lgr, "log_tags")(tags)


def log_other(lgr: Any, key: str, value: Any) -> None:
    """Log a free-form value. See :meth:`loggers.contract.Logger.log_other`."""
    if lgr is not None:
        verb_of(lgr, "log_other")(key, value)


def log_confusion(
    lgr: Any,
    matrix: Any,
    labels: Iterable[str],
    *,
    epoch: int | None = None,
    step: int | None = None,
    context: str | None = None,
    name: str = "confusion",
) -> None:
    """Log a confusion matrix. See :meth:`loggers.contract.Logger.log_confusion`."""
    if lgr is not None:
        verb_of(lgr, "log_confusion")(
            matrix, labels, epoch=epoch, step=step, context=context, name=name
        )


def finish(lgr: Any, status: str) -> None:
    """End the run. See :meth:`loggers.contract.Logger.finish`."""
    if lgr is not None:
        verb_of(lgr, "finish")(status)


def run_id(lgr: Any) -> str | None:
    """Return what the run is called by its backend, or ``None``."""
    answer: str | None = _ask(lgr, "run_id", None)
    return answer


def run_url(lgr: Any) -> str | None:
    """Return where a human can look at the run, or ``None``."""
    answer: str | None = _ask(lgr, "run_url", None)
    return answer


def logger_state(lgr: Any) -> dict[str, JSON] | None:
    """Return what a new process needs to go on with the run, or ``None``.

    Prefer :func:`loggers.records.checkpoint_record`, which checks it and notes whose it is.
    """
    answer: dict[str, JSON] | None = _ask(lgr, "logger_state", None)
    return answer


def reattach(lgr: Any, state: Any) -> None:
    """Go on with the run that ``state`` describes; ``None`` describes none, and nothing is done.

    Prefer :func:`loggers.records.resume`, which checks that the state is this logger's.
    """
    if lgr is not None and state is not None:
        verb_of(lgr, "reattach")(state)


def backend(lgr: Any) -> Any:
    """Return the native object behind a logger: the logger itself if it names no other."""
    return _ask(lgr, "backend", lgr)


def logger_info(lgr: Any) -> dict[str, Any]:
    """Return a small plain dict about the run for people and tools; empty by default."""
    answer: dict[str, Any] = _ask(lgr, "logger_info", {})
    return answer


def check_logger(lgr: Any) -> None:
    """Find out before training starts whether a driver can use ``lgr`` to the end.

    Calls no verb.

    Raises:
        MissingVerbError: names every missing verb and how to define it.
        VerbSignatureError: a verb cannot be called with the contract's arguments.
    """
    lgr = as_logger(lgr)
    if lgr is None:
        return
    for verb in VERBS:
        function = _find(lgr, verb)
        if function is None:
            continue
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # built in C: it does not say what it takes
            continue
        args, kwargs = _CALLS[verb]
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise VerbSignatureError(
                f"{_name(type(lgr))}.{verb}{signature} cannot be called as drivers do ({error}): "
                f"define it as {verb}{_contract_signature(verb)}"
            ) from None


def has_verb(lgr: Any, verb: str) -> bool:
    """Return whether ``lgr`` has ``verb``, of its own or registered."""
    return _find(lgr, verb) is not None


#: How drivers call each verb; ``walltime`` stands for any axis that a logger may not know.
_CALLS: Final[dict[str, tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "log_metrics": (({},), {"step": 1, "epoch": None, "context": "train", "walltime": 0.0}),
    "log_params": (({},), {}),
    "log_tags": (({},), {}),
    "log_other": (("key", 0), {}),
    "log_confusion": (
        ([], []),
        {"epoch": None, "step": None, "context": None, "name": "confusion"},
    ),
    "finish": (("completed",), {}),
    "run_id": ((), {}),
    "run_url": ((), {}),
    "logger_state": ((), {}),
    "reattach": (({},), {}),
}


def verb_of(lgr: Any, verb: str) -> Callable[..., Any]:
    """Return a logger's verb as a function of the verb's arguments, for who calls it many times.

    Raises:
        MissingVerbError: the logger lacks it.
    """
    function = _find(lgr, verb)
    if function is None:
        raise MissingVerbError(_lacks(lgr, [verb]))
    return function


def _ask(lgr: Any, verb: str, default: Any) -> Any:
    function = None if lgr is None else _find(lgr, verb)
    return default if function is None else function()


def _find(lgr: Any, verb: str) -> Callable[..., Any] | None:
    if _is_registered(lgr):
        function = _find_registered(lgr, verb)
        if function is not None:
            return function
    # what is registered adds to what is declared, unless it is a logger by itself: then no other one answers for it
    complete = _is_registered(lgr) and all(_find_registered(lgr, required) for required in REQUIRED_VERBS)
    method = getattr(lgr if complete else adapted(lgr), verb, None)
    return method if callable(method) else None


def _is_registered(lgr: Any) -> bool:
    return bool(_registered) and any(cls in _registered for cls in type(lgr).__mro__)


def _find_registered(lgr: Any, verb: str) -> Callable[..., Any] | None:
    for cls in type(lgr).__mro__:
        function = _registered.get(cls, {}).get(verb)
        if function is not None:
            own = all(callable(getattr(lgr, name, None)) for name in REQUIRED_VERBS)
            return None if own else functools.partial(function, lgr)
    return None


def _lacks(lgr: Any, verbs: list[str]) -> str:
    if isinstance(lgr, str | os.PathLike):
        return f"got {os.fspath(lgr)!r}, a path, for a logger: pass PlattliLogger({os.fspath(lgr)!r}), or another one"
    how = "; ".join(f"{verb}{_contract_signature(verb)}" for verb in verbs)
    return (
        f"{_name(type(lgr))} is used as a logger and lacks {', '.join(verbs)}: define {how} "
        "as a method (one that does nothing, if there is nothing to do), or register_verbs() for the type"
    )


def _contract_signature(verb: str) -> inspect.Signature:
    signature = inspect.signature(getattr(Logger, verb))
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=signature.empty)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
