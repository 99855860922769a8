"""The contract's tests can fail: each of these loggers breaks one promise, and is found out."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loggers.contract import STATUSES
from loggers.errors import LoggerFinishedError, MetricValueError
from loggers.testing import Call, LoggerContract, RecordingLogger, Run, Stored, stored_by


def failures(logger: type[RecordingLogger], home: Path, only: str = "", **declared: Any) -> set[str]:
    """Return the tests of the contract that a logger fails, by name without ``test_``."""
    return set(notes(logger, home, only, **declared))


def notes(logger: type[RecordingLogger], home: Path, only: str = "", **declared: Any) -> dict[str, str]:
    """Return the tests of the contract that a logger fails, by name without ``test_``, and what they say of it.

    Args:
        logger: what is tested.
        home: an empty directory.
        only: the one test to try, else all.
        **declared: attributes of the contract.
    """
    failed = {}
    for number, (name, arguments) in enumerate(contract_tests()):
        if only not in ("", name.removeprefix("test_")):
            continue
        runs: dict[Path, list[Call]] = {}

        class Contract(LoggerContract):
            replaces = False

            def build(self, directory: Path) -> RecordingLogger:
                return logger(runs.setdefault(directory, []))  # noqa: B023

            def stored(self, directory: Path) -> Stored:
                return stored_by(runs.get(directory, []))  # noqa: B023

        for attribute, value in declared.items():
            setattr(Contract, attribute, value)
        contract = Contract()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                getattr(contract, name)(Run(contract, home / str(number)), **arguments)
        except (Exception, pytest.fail.Exception) as error:
            failed[name.removeprefix("test_")] = "\n".join(getattr(error, "__notes__", ()))
    return failed


def contract_tests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every test of the contract, with the arguments that pytest would give it."""
    for name, function in inspect.getmembers(LoggerContract, inspect.isfunction):
        if name.startswith("test_"):
            (mark,) = [m for m in getattr(function, "pytestmark", ()) if m.name == "parametrize"] or [None]
            yield from [(name, {mark.args[0]: value}) for value in mark.args[1]] if mark else [(name, {})]


class KeepsReferences(RecordingLogger):
    def log_metrics(self, metrics: Any, *, step: Any, **place: Any) -> None:
        super().log_metrics(metrics, step=step, **place)
        for name, value in metrics.items():
            if isinstance(value, np.ndarray) and value.size == 1:
                self.calls[-1].args[0][name] = value


class RoundsToFloat32(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics":
            with np.errstate(over="ignore"):
                args = ({k: float(np.float32(v)) if isinstance(v, float) else v for k, v in args[0].items()},)
        super()._keep(verb, *args, **kwargs)


class LosesTheSignOfZero(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics":
            args = ({k: v or (0 if isinstance(v, float) else v) for k, v in args[0].items()},)
        super()._keep(verb, *args, **kwargs)


class DropsNaN(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics":
            args = ({k: v for k, v in args[0].items() if not (isinstance(v, float) and math.isnan(v))},)
        super()._keep(verb, *args, **kwargs)


class LetsBadValuesCostTheLine(RecordingLogger):
    def log_metrics(self, metrics: Any, *, step: Any, **place: Any) -> None:
        count = len(self.calls)
        try:
            super().log_metrics(metrics, step=step, **place)
        except MetricValueError:
            del self.calls[count:]
            raise


class DropsBadValuesInSilence(RecordingLogger):
    def log_metrics(self, metrics: Any, *, step: Any, **place: Any) -> None:
        try:
            super().log_metrics(metrics, step=step, **place)
        except MetricValueError:
            if not isinstance(metrics, Mapping):
                raise


class TakesAnyStep(RecordingLogger):
    def log_metrics(self, metrics: Any, *, step: Any, **place: Any) -> None:
        super().log_metrics(metrics, step=int(step), **place)


class WrapsSteps(RecordingLogger):
    def log_metrics(self, metrics: Any, *, step: Any, **place: Any) -> None:
        super().log_metrics(metrics, step=step % 2**32 if type(step) is int and step > 0 else step, **place)


class DropsLatePoints(RecordingLogger):
    last = -1

    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics":
            if kwargs["step"] < self.last:
                return
            self.last = kwargs["step"]
        super()._keep(verb, *args, **kwargs)


class MixesContexts(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        super()._keep(verb, *args, **(kwargs if verb != "log_metrics" else {**kwargs, "context": "train"}))


class RefusesNewAxes(RecordingLogger):
    def log_metrics(  # type: ignore[override]
        self, metrics: Any, *, step: Any, epoch: Any = None, context: Any = "train"
    ) -> None:
        super().log_metrics(metrics, step=step, epoch=epoch, context=context)


class ForgetsEarlierParams(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_params":
            self.calls[:] = [call for call in self.calls if call.verb != verb]
        super()._keep(verb, *args, **kwargs)


class TakesAnyStatus(RecordingLogger):
    def finish(self, status: str) -> None:
        super().finish(status if status in STATUSES else "completed")


class FinishesTwice(RecordingLogger):
    def finish(self, status: str) -> None:
        self._status = None
        super().finish(status)


class LogsAfterTheEnd(RecordingLogger):
    def _check_open(self, verb: str) -> None:
        if verb == "finish":
            super()._check_open(verb)


class SaysSoAndLogsAfterTheEnd(RecordingLogger):
    def _check_open(self, verb: str) -> None:
        try:
            super()._check_open(verb)
        except LoggerFinishedError:
            self._keep("log_other", "late", 1)
            raise


class CutsNothing(RecordingLogger):
    def reattach(self, state: Any) -> None:
        calls = list(self.calls)
        super().reattach(state)
        self.calls[:] = calls


class CutsOneContext(RecordingLogger):
    def reattach(self, state: Any) -> None:
        calls = list(self.calls)
        super().reattach(state)
        kept = len(self.calls) - 1
        self.calls += [call for call in calls[kept:] if call.kwargs.get("context") == "validate"]


class CutsTheParams(RecordingLogger):
    def reattach(self, state: Any) -> None:
        super().reattach(state)
        self.calls[:] = [call for call in self.calls if call.verb not in ("log_params", "log_tags")]


class TakesAnyState(RecordingLogger):
    def reattach(self, state: Any) -> None:
        if isinstance(state, Mapping) and "calls" in state:
            super().reattach(state)


class HasStateThatIsNoJSON(RecordingLogger):
    def logger_state(self) -> Any:
        return {**super().logger_state(), "steps": {1: 2}}


class DropsWhatIsCalledLikeAnAxis(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics":
            args = ({name: value for name, value in args[0].items() if name != "epoch"},)
        super()._keep(verb, *args, **kwargs)


class LogsToTheNewestRun(RecordingLogger):
    newest: RecordingLogger

    def __init__(self, calls: list[Call] | None = None) -> None:
        super().__init__(calls)
        type(self).newest = self

    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        RecordingLogger._keep(self.newest, verb, *args, **kwargs)


class FoldsCase(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb == "log_metrics":
            args = ({name.lower(): value for name, value in args[0].items()},)
        super()._keep(verb, *args, **kwargs)


class StartsOver(RecordingLogger):
    def __init__(self, calls: list[Call] | None = None) -> None:
        super().__init__(calls)
        self.begun = False

    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if not self.begun and verb != "reattach":
            self.calls.clear()
        self.begun = True
        super()._keep(verb, *args, **kwargs)


@pytest.mark.parametrize(
    ("logger", "expected"),
    [
        (RecordingLogger, ""),
        (KeepsReferences, "values_are_taken_at_the_call"),
        (RoundsToFloat32, "every_number_reads_back"),
        (LosesTheSignOfZero, "every_number_reads_back"),
        (DropsNaN, "every_number_reads_back"),
        (LetsBadValuesCostTheLine, "a_refused_value_costs_its_siblings_nothing"),
        (DropsBadValuesInSilence, "a_refused_value_costs_its_siblings_nothing"),
        (TakesAnyStep, "bad_input_begins_no_run"),
        (WrapsSteps, "a_large_step_is_kept_or_refused"),
        (DropsLatePoints, "a_late_point_is_put_where_it_belongs"),
        (MixesContexts, "a_line_goes_to_its_context"),
        (RefusesNewAxes, "unknown_axes_break_nothing"),
        (RefusesNewAxes, "a_driver_can_call_every_verb"),
        (ForgetsEarlierParams, "later_params_win"),
        (TakesAnyStatus, "a_status_that_is_none_ends_nothing"),
        (FinishesTwice, "finishing_twice_is_harmless"),
        (LogsAfterTheEnd, "a_verb_after_the_end_says_so"),
        (SaysSoAndLogsAfterTheEnd, "a_verb_after_the_end_says_so"),
        (CutsNothing, "a_resume_goes_on_where_the_state_was_taken"),
        (CutsOneContext, "a_resume_goes_on_where_the_state_was_taken"),
        (CutsOneContext, "lines_behind_the_newest_are_cut_too"),
        (CutsTheParams, "a_resume_goes_on_where_the_state_was_taken"),
        (TakesAnyState, "the_state_of_another_logger_is_refused"),
        (HasStateThatIsNoJSON, "it_says_who_it_is_at_any_time"),
        (DropsWhatIsCalledLikeAnAxis, "a_metric_called_like_an_axis_is_kept_or_said"),
        (LogsToTheNewestRun, "two_runs_at_once_are_two_runs"),
        (DropsLatePoints, "calls_in_any_order"),
        (CutsNothing, "resumes_in_any_order"),
        (StartsOver, "a_run_that_is_there_is_not_lost"),
        (FoldsCase, "an_odd_name_is_kept_or_refused"),
    ],
)
def test_a_broken_promise_is_noticed(logger: type[RecordingLogger], expected: str, tmp_path: Path) -> None:
    """By the test that is about it; a logger that keeps them all passes all."""
    assert failures(logger, tmp_path, only=expected) == ({expected} if expected else set())


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"holds_text": False}, "text_reads_back_or_is_refused"),
        ({"holds_late": False}, "a_late_point_is_put_where_it_belongs"),
        ({"holds_epochs": False}, "epochs_are_per_context"),
        ({"holds_params": False}, "later_params_win"),
        ({"holds_tags": False}, "tags_add_up"),
        ({"holds_other": False}, "other_takes_text_numbers_and_data"),
        ({"holds_confusions": False}, "a_confusion_matrix_has_a_place"),
        ({"replaces": True}, "the_same_step_again"),
        ({"statuses": {}}, "the_status_reads_back"),
        ({"resumes": False}, "without_state_nothing_is_reattached"),
        ({"cuts": False}, "a_resume_goes_on_where_the_state_was_taken"),
    ],
)
def test_a_wrong_declaration_is_noticed(declared: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """What a logger is said to lack is tested, not skipped."""
    assert failures(RecordingLogger, tmp_path, only=expected, **declared) == {expected}


@pytest.mark.parametrize("logger", [RecordingLogger, RoundsToFloat32])
def test_what_is_more_precise_than_declared_is_fine(logger: type[RecordingLogger], tmp_path: Path) -> None:
    """A backend may round, and need not."""
    assert failures(logger, tmp_path, precision="float32") == set()


class KeepsNoParams(RecordingLogger):
    def log_params(self, params: Any) -> None:
        pass


class KeepsNoStatus(RecordingLogger):
    def _keep(self, verb: str, *args: Any, **kwargs: Any) -> None:
        if verb != "finish":
            super()._keep(verb, *args, **kwargs)


class RefusesText(RecordingLogger):
    def log_metrics(self, metrics: Any, *, step: Any, **place: Any) -> None:
        text = {name for name, value in metrics.items() if isinstance(value, str)}
        super().log_metrics({name: metrics[name] for name in metrics if name not in text}, step=step, **place)
        if text:
            raise MetricValueError(f"no text: {text}")


class HasNoState(RecordingLogger):
    def logger_state(self) -> Any:
        return None


class HasTheStateOfAnObject(RecordingLogger):
    def logger_state(self) -> Any:
        return {**super().logger_state(), "kind": Kind("recording")}


class Kind(str):
    """A string that pickle has to look up."""


@pytest.mark.parametrize(
    ("logger", "test", "said"),
    [
        (KeepsNoParams, "later_params_win", ["log_params({…})", "holds_params = True", "say holds_params = False"]),
        (RefusesText, "text_reads_back_or_is_refused", ['{"text": "diverged"', "say holds_text = False"]),
        (RoundsToFloat32, "every_number_reads_back", ["log_metrics", 'precision = "float64" or precision = "float32"']),
        (DropsLatePoints, "a_late_point_is_put_where_it_belongs", ["step=3) after step=5", "say holds_late = False"]),
        (KeepsNoStatus, "the_status_reads_back", ["finish(status)", "say statuses = {"]),
        (HasNoState, "it_says_who_it_is_at_any_time", ["logger_state()", "say resumes = False"]),
        (CutsNothing, "a_resume_goes_far_back", ["reattach(state) 800 lines later", "cuts = False"]),
        (HasTheStateOfAnObject, "a_state_comes_back_from_any_checkpoint", ["from a checkpoint file"]),
    ],
)
def test_a_failure_names_the_call_and_what_may_be_declared(
    logger: type[RecordingLogger], test: str, said: list[str], tmp_path: Path
) -> None:
    """An author who did not know of the declaration finds it in the failure."""
    note = notes(logger, tmp_path, only=test)[test]

    assert [text for text in said if text not in note] == []
    assert note.startswith("This is about ")
    assert "else the logger breaks its promise" in note


def test_a_failure_of_a_promise_that_all_have_names_no_declaration(tmp_path: Path) -> None:
    """There is none that would help."""
    assert notes(MixesContexts, tmp_path, only="a_line_goes_to_its_context") == {"a_line_goes_to_its_context": ""}


@pytest.mark.parametrize("declared", ["holds_params", "holds_tags", "holds_other", "holds_confusions", "holds_text"])
def test_a_wrong_declaration_is_named(declared: str, tmp_path: Path) -> None:
    """The other way round, too: the backend does what it is said not to do."""
    said = notes(RecordingLogger, tmp_path, **{declared: False})

    assert any(f"Contract says {declared} = False" in note for note in said.values())
    assert any(f"say {declared} = True" in note for note in said.values())
