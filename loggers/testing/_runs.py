"""The contract of everything around the lines: who the logger is, the other verbs, bad input, the end."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loggers import verbs
from loggers.contract import STATUSES
from loggers.errors import LoggerFinishedError, StatusError
from loggers.testing import _cases
from loggers.testing._backend import Backend, Run, promise


class RunTests(Backend):
    """From the first verb to the last."""

    # --- the object -----------------------------------------------------------------------------------

    def test_a_driver_can_call_every_verb(self, run: Run) -> None:
        """Nothing is missing, nothing has a signature of its own."""
        verbs.check_logger(run.open())

    @promise("logger_state()", "resumes")
    def test_it_says_who_it_is_at_any_time(self, run: Run) -> None:
        """Before the first verb, between verbs, after the end; always the same."""
        logger = run.open()
        told = [(verbs.run_id(logger), verbs.run_url(logger))]
        states = [verbs.logger_state(logger)]
        logger.log_metrics({"loss": 0.5}, step=1)
        told.append((verbs.run_id(logger), verbs.run_url(logger)))
        states.append(verbs.logger_state(logger))
        run.end("completed")
        told.append((verbs.run_id(logger), verbs.run_url(logger)))
        states.append(verbs.logger_state(logger))

        assert len({run_id for run_id, _ in told}) == 1
        assert all(text is None or (isinstance(text, str) and text) for pair in told for text in pair)
        for state in states:
            assert (state is not None) == self.resumes
            assert state is None or json.loads(json.dumps(state, allow_nan=False)) == state

    # --- bad input ------------------------------------------------------------------------------------

    def _bad_calls(self) -> list[_cases.BadCall]:
        holds = {
            "log_params": self.holds_params,
            "log_tags": self.holds_tags,
            "log_other": self.holds_other,
            "log_confusion": self.holds_confusions,
        }
        return [call for call in _cases.bad_calls() if holds.get(call.verb, True)]

    def test_bad_input_begins_no_run(self, run: Run) -> None:
        """It is refused by name before anything is written."""
        logger = run.open()
        for call in self._bad_calls():
            with pytest.raises(call.error):
                getattr(logger, call.verb)(*call.args, **call.kwargs)
        found = run.read()

        assert (found.metrics, found.params, found.tags, found.other, found.confusions) == ({}, {}, {}, {}, {})
        assert found.status not in set(self.statuses.values()) - {self.statuses.get("interrupted")}

    def test_bad_input_changes_nothing(self, run: Run) -> None:
        """Not even the next line."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1, epoch=1)
        for call in self._bad_calls():
            with pytest.raises(call.error):
                getattr(logger, call.verb)(*call.args, **call.kwargs)
        logger.log_metrics({"loss": 0.25}, step=2, epoch=1)
        run.end("completed")
        found = run.read()

        run.holds({"train/loss": [(1, 0.5), (2, 0.25)]})
        assert (found.params, found.tags, found.other, found.confusions) == ({}, {}, {}, {})
        assert found.status == self.statuses.get("completed")

    # --- the other verbs ------------------------------------------------------------------------------

    @promise("log_params({…}) twice", "holds_params")
    def test_later_params_win(self, run: Run) -> None:
        """Numbers and text as they are; what was not named again stays."""
        logger = run.open()
        logger.log_params({"lr": 0.1, "layers": 3, "optimizer": "adam"})
        logger.log_params({"lr": 0.2, "warm-up": np.int64(500)})

        expected = {"lr": 0.2, "layers": 3, "optimizer": "adam", "warm-up": 500}
        assert run.read().params == (expected if self.holds_params else {})

    @promise('log_params({"net": {"widths": [64, 32]}, "seed": None, …})', "holds_params", "holds_nested_params")
    def test_params_may_be_anything(self, run: Run) -> None:
        """Nested ones stay nested where that is possible; objects become text, and none is refused."""
        nested = {"net": {"widths": [64, 32], "bias": True}, "seed": None, "size": (8, 8)}
        logger = run.open()
        logger.log_params({**nested, "path": Path("/data"), "object": object(), "huge": 2**70, "lr": 0.1})
        found = run.read().params

        if self.holds_params:
            assert found.keys() == {*nested, "path", "object", "huge", "lr"}
            assert (found["path"], found["lr"]) == ("/data", 0.1)
            if self.holds_nested_params:
                assert {name: found[name] for name in nested} == {**nested, "size": [8, 8]}

    @promise("log_tags(…) three times", "holds_tags")
    def test_tags_add_up(self, run: Run) -> None:
        """One string, several, or a mapping."""
        logger = run.open()
        logger.log_tags("baseline")
        logger.log_tags(tag for tag in ("small", "café"))
        logger.log_tags({"dataset": "digits", "small": True})

        expected = {"baseline": True, "small": True, "café": True, "dataset": "digits"}
        assert run.read().tags == (expected if self.holds_tags else {})

    @promise('log_other("report", …)', "holds_other")
    def test_other_takes_text_numbers_and_data(self, run: Run) -> None:
        """The last value of a key counts."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1)
        logger.log_other("report", "first")
        logger.log_other("report", "all\nis **well**")
        logger.log_other("score", np.float32(0.5))
        logger.log_other("folds", {"best": [1, {"fold": None}]})

        expected = {"report": "all\nis **well**", "score": 0.5, "folds": {"best": [1, {"fold": None}]}}
        assert run.read().other == (expected if self.holds_other else {})

    @promise("log_confusion(…)", "holds_confusions")
    def test_a_confusion_matrix_has_a_place(self, run: Run) -> None:
        """The one that is given, or the current step."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=7)
        logger.log_confusion([[3, 1], [0, 2]], ["cat", "dog"])
        logger.log_confusion(np.array([[0.5, 0.5], [0, 1]]), ["cat", "dog"], step=8, epoch=1, context="validate")
        logger.log_confusion([[5]], ["one"], step=9, context="validate", name="single class")

        expected = {
            "confusion": [(7, ["cat", "dog"], [[3, 1], [0, 2]])],
            "validate/confusion": [(8, ["cat", "dog"], [[0.5, 0.5], [0, 1]])],
            "validate/single class": [(9, ["one"], [[5]])],
        }
        assert run.read().confusions == (expected if self.holds_confusions else {})

    # --- the end --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", STATUSES)
    @promise("finish(status)", "statuses")
    def test_the_status_reads_back(self, run: Run, status: str) -> None:
        """And everything that was logged is there whatever the status."""
        logger = run.open()
        logger.log_params({"lr": 0.1})
        logger.log_metrics({"loss": 0.5}, step=1)
        run.end(status)

        run.holds({"train/loss": [(1, 0.5)]})
        assert run.read().status == self.statuses.get(status)

    def test_a_run_without_a_line_can_end(self, run: Run) -> None:
        """Training may fail before its first step."""
        run.open()
        run.end("error")

        run.holds({})

    def test_finishing_twice_is_harmless(self, run: Run) -> None:
        """The first status stays. The second call may do nothing or say that the run has ended."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1)
        run.end("completed")
        with suppress(LoggerFinishedError):
            logger.finish("error")

        run.holds({"train/loss": [(1, 0.5)]})
        assert run.read().status == self.statuses.get("completed")

    def test_a_verb_after_the_end_says_so(self, run: Run) -> None:
        """And changes nothing. (One that never does anything may stay silent.)"""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1)
        run.end("error")
        before = run.read()
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any], bool]] = [
            ("log_metrics", ({"loss": 0.25},), {"step": 2}, True),
            ("log_params", ({"lr": 0.1},), {}, self.holds_params),
            ("log_tags", ("late",), {}, self.holds_tags),
            ("log_other", ("report", "late"), {}, self.holds_other),
            ("log_confusion", ([[1]], ["a"]), {"step": 2}, self.holds_confusions),
        ]
        for verb, args, kwargs, has_to_say_so in calls:
            if has_to_say_so:
                with pytest.raises(LoggerFinishedError):
                    getattr(logger, verb)(*args, **kwargs)
            else:
                with suppress(LoggerFinishedError):
                    getattr(logger, verb)(*args, **kwargs)

        assert run.read() == before

    def test_a_status_that_is_none_ends_nothing(self, run: Run) -> None:
        """The run goes on, and can end as it should."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1)
        with pytest.raises(StatusError):
            logger.finish("failed")
        logger.log_metrics({"loss": 0.25}, step=2)
        run.end("early_stop")

        run.holds({"train/loss": [(1, 0.5), (2, 0.25)]})
        assert run.read().status == self.statuses.get("early_stop")
