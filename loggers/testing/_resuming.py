"""The contract of the next process: a run that is there, its state, and going on with it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from loggers import records, verbs
from loggers.errors import RecordError, RunExistsError
from loggers.testing import _checkpoints
from loggers.testing._backend import Backend, Run, promise
from loggers.testing.stored import Stored


class ResumeTests(Backend):
    """From a checkpoint to the same run."""

    # --- the next process -----------------------------------------------------------------------------

    def test_a_run_that_is_there_is_not_lost(self, run: Run) -> None:
        """A second logger on the same place refuses to log, or leaves alone what it finds."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1)
        logger.log_metrics({"loss": 0.25}, step=2)
        run.end("completed")
        added = [(3, 0.125)]
        try:
            run.open().log_metrics({"loss": 0.125}, step=3)
        except RunExistsError:
            added = []

        run.holds({"train/loss": [(1, 0.5), (2, 0.25), *added]})

    def _seen(self, points: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Return what a backend that cannot cut shows of all points ever logged."""
        return sorted(dict(points).items()) if self.replaces else points

    def _reattached(self, run: Run, state: Any) -> Any:
        """Return a new logger that goes on from a state, which has been in a JSON file meanwhile."""
        logger = run.open()
        logger.reattach(json.loads(json.dumps(state, allow_nan=False)))
        return logger

    @promise("logger_state()", "resumes")
    def test_without_state_nothing_is_reattached(self, run: Run) -> None:
        """Only a logger that has state needs ``reattach``, and a checkpoint holds its record."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1)
        record = records.checkpoint_record(logger)

        assert (record is not None) == self.resumes
        assert verbs.has_verb(logger, "reattach") or not self.resumes
        records.resume(logger, None)
        logger.log_metrics({"loss": 0.25}, step=2)
        run.holds({"train/loss": [(1, 0.5), (2, 0.25)]})

    @pytest.mark.parametrize("ended", ["interrupted", "completed"])
    @promise("reattach(state) after more lines", "resumes", "cuts")
    def test_a_resume_goes_on_where_the_state_was_taken(self, run: Run, ended: str) -> None:
        """Back at 10 after 15: in every context, whatever was logged, and however the run had ended."""
        logger = run.open()
        logger.log_params({"lr": 0.1})
        logger.log_tags("first")
        for step in range(1, 11):
            logger.log_metrics({"loss": 1.0 * step}, step=step, epoch=1)
        logger.log_metrics({"loss": 0.5}, step=5, context="validate")
        logger.log_metrics({"loss": 0.25}, step=10, context="validate")
        logger.log_other("report", "before")
        logger.log_confusion([[1]], ["a"], step=10, context="validate")
        run_id = verbs.run_id(logger)
        state: Any = verbs.logger_state(logger)
        for step in range(11, 16):
            logger.log_metrics({"loss": 1.0 * step, "new": 1.0}, step=step, epoch=2)
        logger.log_metrics({"loss": 0.125}, step=15, context="validate")
        logger.log_metrics({"wait": 0.5}, step=15, context="data")
        logger.log_other("report", "after")
        logger.log_confusion([[2]], ["a"], step=15, context="validate")
        run.end(ended)
        if not self.resumes:
            assert state is None
            return

        logger = self._reattached(run, state)
        logger.log_params({"warm-up": 5})
        logger.log_tags("second")
        for step in range(11, 14):
            logger.log_metrics({"loss": -1.0 * step}, step=step, epoch=2)
        assert verbs.run_id(logger) == run_id
        run.end("completed")

        old = [(step, 1.0 * step) for step in range(1, 11)]
        again = [(step, -1.0 * step) for step in range(11, 14)]
        found = run.read()
        assert found.params == ({"lr": 0.1, "warm-up": 5} if self.holds_params else {})
        assert found.tags == ({"first": True, "second": True} if self.holds_tags else {})
        assert found.status == self.statuses.get("completed")
        if self.cuts:
            run.holds({"train/loss": [*old, *again], "validate/loss": [(5, 0.5), (10, 0.25)]})
            assert found.other == ({"report": "before"} if self.holds_other else {})
            place = {"validate/confusion": [(10, ["a"], [[1]])]}
            assert found.confusions == (place if self.holds_confusions else {})
        else:
            lost = [(step, 1.0 * step) for step in range(11, 16)]
            assert found.metrics["train/loss"] == self._seen([*old, *lost, *again])
            assert found.metrics["validate/loss"] == [(5, 0.5), (10, 0.25), (15, 0.125)]

    @promise("reattach(state) with the state of an empty run", "resumes", "cuts")
    def test_a_resume_from_before_the_first_line(self, run: Run) -> None:
        """A checkpoint may be older than everything that was logged."""
        logger = run.open()
        state: Any = verbs.logger_state(logger)
        logger.log_metrics({"loss": 1.0}, step=1)
        logger.log_metrics({"loss": 1.0}, step=1, context="validate")
        run.end()
        if not self.resumes:
            assert state is None
            return

        self._reattached(run, state).log_metrics({"loss": 2.0}, step=1)
        old = {} if self.cuts else {"validate/loss": [(1, 1.0)]}
        run.holds({"train/loss": [(1, 2.0)] if self.cuts else self._seen([(1, 1.0), (1, 2.0)]), **old})

    @promise("reattach(state) 800 lines later", "resumes", "cuts")
    def test_a_resume_goes_far_back(self, run: Run) -> None:
        """Further than what a logger has at hand."""
        logger = run.open()
        for step in range(1, 401):
            logger.log_metrics({"loss": step / 7}, step=step)
        state: Any = verbs.logger_state(logger)
        for step in range(401, 1201):
            logger.log_metrics({"loss": step / 7, "new": step}, step=step)
        run.end()
        if not self.resumes:
            assert state is None
            return

        logger = self._reattached(run, state)
        for step in range(401, 411):
            logger.log_metrics({"loss": step / 3}, step=step)
        old = [(step, step / 7) for step in range(1, 401 if self.cuts else 1201)]
        again = [(step, step / 3) for step in range(401, 411)]
        new = {} if self.cuts else {"train/new": [(step, step) for step in range(401, 1201)]}
        run.holds({"train/loss": [*old, *again] if self.cuts else self._seen([*old, *again]), **new})

    @promise("reattach(state) and nothing after it", "resumes", "cuts")
    def test_a_resume_cuts_at_once(self, run: Run) -> None:
        """Also if nothing is logged afterwards; and what is logged next has the state's step as the current one."""
        logger = run.open()
        logger.log_metrics({"loss": 1.0}, step=1)
        state: Any = verbs.logger_state(logger)
        logger.log_metrics({"loss": 2.0}, step=2)
        run.end()
        if not self.resumes:
            assert state is None
            return

        logger = self._reattached(run, state)
        logger.log_confusion([[1]], ["a"])
        run.end()
        run.holds({"train/loss": [(1, 1.0)] if self.cuts else [(1, 1.0), (2, 2.0)]})
        assert run.read().confusions == ({"confusion": [(1, ["a"], [[1]])]} if self.holds_confusions else {})

    @promise("reattach(state) after lines of slower contexts", "resumes", "cuts")
    def test_lines_behind_the_newest_are_cut_too(self, run: Run) -> None:
        """After a checkpoint come its validation, and contexts that are slower than training."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=4, context="validate")
        for step in range(1, 11):
            logger.log_metrics({"loss": float(step)}, step=step)
        state: Any = verbs.logger_state(logger)
        logger.log_metrics({"loss": 0.25}, step=7, context="validate")
        logger.log_metrics({"loss": 0.125}, step=10, context="validate")
        logger.log_metrics({"wait": 0.5}, step=10, context="data")
        run.end()
        if not self.resumes:
            assert state is None
            return

        logger = self._reattached(run, state)
        logger.log_metrics({"loss": 11.0}, step=11)
        logger.log_metrics({"loss": 0.75}, step=10, context="validate")
        train = {"train/loss": [(step, float(step)) for step in range(1, 12)]}
        if self.cuts:
            run.holds({**train, "validate/loss": [(4, 0.5), (10, 0.75)]})
        else:
            seen = self._seen([(4, 0.5), (7, 0.25), (10, 0.125), (10, 0.75)])
            run.holds({**train, "validate/loss": seen, "data/wait": [(10, 0.5)]})

    def test_the_state_of_a_finished_run_is_its_end(self, run: Run) -> None:
        """A last checkpoint after the end loses nothing, nor does one taken right after a resume."""
        logger = run.open()
        for step in (1, 2, 3):
            logger.log_metrics({"loss": float(step)}, step=step)
        logger.log_other("report", "good")
        run.end("completed")
        state: Any = verbs.logger_state(logger)
        if not self.resumes:
            assert state is None
            return

        logger = self._reattached(run, state)
        state = verbs.logger_state(logger)
        run.end("error")
        self._reattached(run, state).log_metrics({"loss": 4.0}, step=4)
        found = run.read()

        run.holds({"train/loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]})
        assert found.other == ({"report": "good"} if self.holds_other else {})

    @pytest.mark.parametrize("file", _checkpoints.FILES)
    @promise("reattach(state) from a checkpoint file", "resumes")
    def test_a_state_comes_back_from_any_checkpoint(self, run: Run, file: str) -> None:
        """From JSON, and from a pickle that may hold plain data only, as ``torch.load(weights_only=True)`` reads it."""
        logger = run.open()
        logger.log_metrics({"loss": 1.0}, step=1)
        logger.log_metrics({"loss": 0.5}, step=1, context="validate")
        record = records.checkpoint_record(logger)
        logger.log_metrics({"loss": 2.0}, step=2)
        run.end()
        assert (record is not None) == self.resumes
        read = _checkpoints.through(file, record)
        assert read == record
        if record is None:
            return

        logger = run.open()
        records.resume(logger, read)
        logger.log_metrics({"loss": 4.0}, step=2)
        seen = [(1, 1.0), (2, 4.0)] if self.cuts else self._seen([(1, 1.0), (2, 2.0), (2, 4.0)])
        run.holds({"train/loss": seen, "validate/loss": [(1, 0.5)]})

    @promise("reattach(state) four times", "resumes", "cuts")
    def test_three_resumes_in_a_row(self, run: Run) -> None:
        """Each from the newest checkpoint; the last one from an old one once more."""
        logger = run.open()
        kept: list[tuple[int, float]] = []
        states: list[Any] = []
        for attempt in range(4):
            begin = 10 * attempt
            for step in range(begin + 1, begin + 11):
                logger.log_metrics({"loss": float(attempt)}, step=step)
                kept.append((step, float(attempt)))
            states.append(verbs.logger_state(logger))
            for step in range(begin + 11, begin + 14):
                logger.log_metrics({"loss": -1.0}, step=step)
                kept += [] if self.cuts else [(step, -1.0)]
            run.end("error")
            if not self.resumes:
                assert states == [None]
                return
            logger = self._reattached(run, states[-1])
        run.end()
        self._reattached(run, states[1]).log_metrics({"loss": 9.0}, step=21)

        kept = [*(point for point in kept if point[0] <= 20 or not self.cuts), (21, 9.0)]
        run.holds({"train/loss": kept if self.cuts else self._seen(kept)})

    def test_the_state_of_another_logger_is_refused(self, run: Run) -> None:
        """Nothing is written, and the logger can still begin a run of its own."""
        logger = run.open()
        record = {"logger": "elsewhere.OtherLogger", "state": {"kind": "other"}, "version": 1}
        with pytest.raises(RecordError, match=re.escape("elsewhere.OtherLogger")):
            records.resume(logger, record)
        if self.resumes:
            foreign: tuple[Any, ...] = ({"kind": "other"}, {}, [], "state", 7)
            for state in foreign:
                with pytest.raises(RecordError):
                    logger.reattach(state)
        if self.live:
            assert run.read() == Stored()
        logger.log_metrics({"loss": 0.5}, step=1)

        run.holds({"train/loss": [(1, 0.5)]})
