"""The contract as a whole: calls in any order, and what is left of them, beside a logger that keeps every call."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from loggers import verbs
from loggers.contract import CONTEXTS
from loggers.testing._backend import Backend, Run, promise
from loggers.testing.recording import RecordingLogger


class ProgramTests(Backend):
    """Made-up trainings. The number of each is the seed it was made up from."""

    def _line(self, chance: random.Random) -> dict[str, Any]:
        values: dict[str, Any] = {
            "float": chance.choice([0.0, 0.125, -2.5, 1e6, math.nan, math.inf, -math.inf]),
            "int": chance.randrange(-1000, 1000),
            "both": chance.choice([1, 2.5, 0, -0.75, True]),
        }
        if self.holds_text:
            values["text"] = chance.choice(["", "a", "größer\n", None, [1, "b"], {"c": [0.5]}])
        return {name: values[name] for name in chance.sample(sorted(values), chance.randint(1, len(values)))}

    def _same_points(self, run: Run, model: RecordingLogger) -> None:
        """Check that the run holds the points that the model was told."""
        metrics = model.stored().metrics
        run.holds({name: metrics[name] for name in metrics if not name.endswith("/epoch")}, newest=True)

    def _same(self, run: Run, model: RecordingLogger) -> None:
        """Check that the run holds what the model was told."""
        expected, found = model.stored(), run.read()

        self._same_points(run, model)
        assert found.params == (expected.params if self.holds_params else {})
        assert found.tags == (expected.tags if self.holds_tags else {})
        assert found.status == self.statuses.get(expected.status or "")

    @pytest.mark.parametrize("seed", range(4))
    @promise("log_metrics() with steps that rise, repeat and go back", "holds_late", "replaces", "precision")
    def test_calls_in_any_order(self, run: Run, seed: int) -> None:
        """Steps go forth, stand still and, where that is possible, go back, in each context on its own."""
        chance = random.Random(seed)
        both = (run.open(), RecordingLogger())
        steps = dict.fromkeys(CONTEXTS, 0)
        for _ in range(chance.randint(20, 80)):
            context = chance.choice(CONTEXTS)
            steps[context] += chance.choice([0, 1, 1, 1, 7])
            back = chance.randint(0, steps[context]) if self.holds_late and chance.random() < 0.2 else 0
            line, step = self._line(chance), steps[context] - back
            params = {chance.choice("abc"): chance.randrange(9)} if chance.random() < 0.1 else None
            for logger in both:
                logger.log_metrics(line, step=step, epoch=1, context=context)
                if params:
                    logger.log_params(params)
        status = chance.choice(sorted(self.statuses) or ["completed"])
        both[1].finish(status)
        run.end(status)

        self._same(run, both[1])

    @pytest.mark.parametrize("seed", range(4))
    @promise("reattach(state) at any checkpoint", "resumes", "cuts")
    def test_resumes_in_any_order(self, run: Run, seed: int) -> None:
        """A training goes back to any of its checkpoints, any number of times, or goes through without."""
        chance = random.Random(seed)
        both = (run.open(), RecordingLogger())
        step = validated = 0
        checkpoints: list[tuple[int, int, Any, Any]] = []
        for _ in range(chance.randint(40, 100)):
            action = chance.random()
            if action < 0.7:
                step += 1
                line, context = self._line(chance), "train"
            elif action < 0.8 and validated < step:
                validated = step
                line, context = self._line(chance), "validate"
            elif action < 0.9 or not checkpoints:
                states = [json.loads(json.dumps(verbs.logger_state(logger), allow_nan=False)) for logger in both]
                checkpoints.append((step, validated, *states))
                continue
            elif self.resumes and self.cuts:
                at = chance.randrange(len(checkpoints))
                del checkpoints[at + 1 :]
                status = chance.choice(("completed", "error", "interrupted"))
                both[1].finish(status)
                run.end(status)
                both = (run.open(), RecordingLogger(both[1].calls))
                step, validated, *states = checkpoints[at]
                for logger, state in zip(both, states, strict=True):
                    logger.reattach(state)
                if self.live:
                    self._same_points(run, both[1])
                continue
            else:
                continue
            for logger in both:
                logger.log_metrics(line, step=step, epoch=1, context=context)
        both[1].finish("completed")
        run.end("completed")

        self._same(run, both[1])
