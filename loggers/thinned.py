"""A logger that gets less than all: for a hosted tracker beside a local run that keeps everything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from loggers import verbs
from loggers.contract import JSON
from loggers.errors import LoggerError, RecordError
from loggers.records import checkpoint_record, resume
from loggers.values import check_step, plain, raise_for

#: The contexts that drivers log a line of at every step.
_EVERY_STEP: Final = ("train", "data")


class Thinned:
    """Passes some lines on to another logger, and everything that is no line.

    ::

        TeeLogger(
            PlattliLogger("runs/digits"),
            Thinned(WandbLogger("digits"), every_n_steps=50, metrics=("loss", "acc*", "schedule/lr")),
        )

    In a tee the replica is what is thinned, so it runs where the logger itself would run, and what it does not get is
    in the run all the same.

    Args:
        logger: who gets the rest.
        every_n_steps: of ``train`` and ``data`` only the lines of steps that are multiples of it, the first line, and
            the last one, which is passed on by :meth:`finish`. Of other contexts, such as ``validate``, every line. A
            mapping says which context is thinned how far.
        contexts: only lines, and confusion matrices, of these contexts.
        metrics: only metrics that match one of these patterns (``*``, ``?``, ``[…]``; case counts), by their name or
            by ``<context>/<name>``. A line with none of them is left out.

    Raises:
        LoggerError: an argument that cannot be.
        MissingVerbError: ``logger`` lacks a verb.
    """

    def __init__(
        self,
        logger: Any,
        *,
        every_n_steps: int | Mapping[str, int] = 1,
        contexts: Iterable[str] | None = None,
        metrics: Iterable[str] | None = None,
    ) -> None:
        verbs.check_logger(logger)
        every = every_n_steps
        if not isinstance(every, Mapping):
            every = dict.fromkeys(_EVERY_STEP, every)
        for context, steps in every.items():
            if type(steps) is not int or steps < 1:
                raise LoggerError(f"every_n_steps must be an int of 1 or more, got {steps!r} (context {context!r})")
        for name, strings in (("contexts", contexts), ("metrics", metrics)):
            if isinstance(strings, str):
                raise LoggerError(f"{name} must be several strings, got the one string {strings!r}: put it in a tuple")
        #: the logger that gets the rest
        self.wrapped = verbs.as_logger(logger)
        self._every = dict(every)
        self._contexts = None if contexts is None else frozenset(contexts)
        self._patterns = None if metrics is None else tuple(metrics)
        #: full name -> whether its metric passes; worked out once
        self._passes: dict[str, bool] = {}
        #: context -> its newest line, if that was left out by its step
        self._held: dict[str, dict[str, Any]] = {}
        #: contexts that have had a line -> its step, where that is known
        self._begun: dict[str, int | None] = {}
        self._left_out = 0

    # --- the verbs ------------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Pass a line on, or what of it is wanted, or nothing. Raises what the logger raises."""
        if self._contexts is not None and context not in self._contexts:
            self._left_out += 1
            return
        kept = metrics if self._patterns is None else self._matching(context, metrics)
        if not kept and metrics:
            self._left_out += 1
            return
        if type(step) is not int:
            step = check_step(step)
        place = {"step": step, "epoch": epoch, **axes}
        every = self._every.get(context, 1)
        # a step may be logged in several calls
        if every > 1 and step % every and self._begun.get(context, step) != step:
            self._left_out += 1
            before = self._held.get(context)
            if before is None or before["place"]["step"] <= step:  # a late line is not the last one
                values, problems = plain(kept)
                taken = {name: v.item() if hasattr(v, "item") else v for name, v in values.items()}
                if before is not None and before["place"]["step"] == step:
                    taken = before["metrics"] | taken
                    place = before["place"] | {axis: given for axis, given in place.items() if given is not None}
                    self._left_out -= 1  # they are one line now
                self._held[context] = {"metrics": taken, "place": place}
                raise_for(problems, where=f"the {context} line of step {step}")
            return
        verbs.log_metrics(self.wrapped, kept, context=context, **place)
        self._begun.setdefault(context, step)
        if context in self._held and self._held[context]["place"]["step"] <= step:
            del self._held[context]

    def _matching(self, context: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in metrics.items() if self._is_wanted(context, name)}

    def _is_wanted(self, context: str, name: str) -> bool:
        full = f"{context}/{name}"
        if full not in self._passes:
            if len(self._passes) >= 4096:  # callers whose names never repeat
                self._passes.clear()
            patterns = self._patterns or ()
            self._passes[full] = any(fnmatchcase(name, p) or fnmatchcase(full, p) for p in patterns)
        return self._passes[full]

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Pass them on."""
        verbs.log_params(self.wrapped, params)

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Pass them on."""
        verbs.log_tags(self.wrapped, tags)

    def log_other(self, key: str, value: Any) -> None:
        """Pass it on."""
        verbs.log_other(self.wrapped, key, value)

    def log_confusion(
        self,
        matrix: Sequence[Sequence[float]],
        labels: Sequence[str],
        *,
        epoch: int | None = None,
        step: int | None = None,
        context: str | None = None,
        name: str = "confusion",
    ) -> None:
        """Pass it on, unless it is of a context that is not wanted."""
        if context is None or self._contexts is None or context in self._contexts:
            verbs.log_confusion(self.wrapped, matrix, labels, epoch=epoch, step=step, context=context, name=name)

    def finish(self, status: str) -> None:
        """Pass the last line of each context on, and the end."""
        while self._held:
            context, line = next(iter(self._held.items()))
            verbs.log_metrics(self.wrapped, line["metrics"], context=context, **line["place"])
            del self._held[context]
            self._left_out -= 1
        verbs.finish(self.wrapped, status)

    def run_id(self) -> str | None:
        """Return the logger's."""
        return verbs.run_id(self.wrapped)

    def run_url(self) -> str | None:
        """Return the logger's."""
        return verbs.run_url(self.wrapped)

    def logger_state(self) -> dict[str, JSON] | None:
        """Return the logger's record, and the lines that would be the last ones if the run ended now."""
        record = checkpoint_record(self.wrapped)
        if record is None and not self._held and not self._begun:
            return None
        begun: dict[str, JSON] = {**self._begun}
        return {"logger": record, "held": json.dumps(self._held), "begun": begun}  # as text, which may hold NaN

    def reattach(self, state: Any) -> None:
        """Go on where the logger was, and with the lines that were left out by then.

        Raises:
            RecordError: it is no state of this class, or one of another type of logger.
        """
        if not isinstance(state, Mapping) or not {"logger", "held", "begun"} <= state.keys():
            raise RecordError(f"expected the state of a Thinned (logger, held, begun), got {state!r:.200}")
        resume(self.wrapped, state["logger"])
        self._held = json.loads(state["held"])
        # those of earlier releases do not know the steps
        begun = state["begun"]
        self._begun = dict(begun) if isinstance(begun, Mapping) else dict.fromkeys(begun)

    # --- beside the verbs -----------------------------------------------------------------------------

    @property
    def placement(self) -> str:
        """Where a tee calls it: where it would call the logger."""
        return str(getattr(self.wrapped, "placement", "inline"))

    @property
    def private_environment(self) -> tuple[str, ...]:
        """What a process for it must not inherit: as for the logger."""
        return tuple(getattr(self.wrapped, "private_environment", ()))

    @property
    def rewind(self) -> Any:
        """The logger's, with which it forgets what it has from a step on; ``None`` if it has none."""
        return None if getattr(self.wrapped, "rewind", None) is None else self._rewind

    def _rewind(self, step: int) -> None:
        self.wrapped.rewind(step)
        self._held = {context: line for context, line in self._held.items() if line["place"]["step"] < step}

    @property
    def preflight(self) -> Any:
        """The logger's, which says at the start what would keep it from ever starting; ``None`` if it has none."""
        return getattr(self.wrapped, "preflight", None)

    def adopt(self, directory: str | os.PathLike[str]) -> None:
        """Hand a driver's directory to a logger that has none."""
        if hasattr(self.wrapped, "adopt"):
            self.wrapped.adopt(directory)

    def backend(self) -> Any:
        """Return the logger's native object."""
        return verbs.backend(self.wrapped)

    def logger_info(self) -> dict[str, JSON]:
        """Return the logger's info, and how many lines were left out."""
        return {**verbs.logger_info(self.wrapped), "left_out": self._left_out}

    def __repr__(self) -> str:
        """Return what is thinned."""
        return f"Thinned({self.wrapped!r})"
