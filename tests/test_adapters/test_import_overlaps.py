"""A file that every attempt appended to, imported, is the run that resumed: whatever the attempts were."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.importers.finding import find_sources
from adapters.importers.importing import import_run
from adapters.importers.items import Options
from adapters.importers.overlaps import Cut, Overlaps
from loggers import JSONLogger, PlattliLogger
from tests.test_adapters.imported import points


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(2, 15)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_attempts_as_a_resume_has_them(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int, int]], every: int, says_end: bool
) -> None:
    """A training that is killed and goes on from a checkpoint ``back`` steps before, again and again."""
    folder = tmp_path_factory.mktemp("attempts")
    states = {}
    step = 0
    for number, (back, length) in enumerate(attempts):
        lines = JSONLogger(folder / "metrics.jsonl")
        run = PlattliLogger(folder / "run", walltime=False)
        resumed = max(step - back, 0)
        if number:
            # at least two lines that were there before, or none: one alone could be a correction
            resumed = resumed if back != 1 else step
            run.reattach(states[resumed])
        for step in range(resumed + 1, resumed + length + 1):
            for logger in (lines, run):
                logger.log_metrics({"loss": number + step / 8}, step=step, epoch=step // 4)
                if step % every == 0:
                    logger.log_metrics({"acc": number + step / 4}, step=step, context="validate")
            states[step] = run.logger_state()
            if step == 1:
                states[0] = {**states[1], "steps": {}, "step": -1}
        if says_end:
            lines.finish("interrupted")
        run.finish("interrupted")
    (source,) = find_sources(folder / "metrics.jsonl")
    import_run(source, folder / "imported", Options())

    assert points(folder / "imported") == points(folder / "run")


def test_every_step_back_is_a_restart_if_the_user_says_so() -> None:
    """And none is, if the user says that."""
    cut, keep = Overlaps("cut", "train"), Overlaps("keep", "train")
    for step in (1, 2, 3, 4):
        assert cut.line(step, "train", ["loss"]) is None
        assert cut.line(step, "validate", ["loss"]) is None
        assert keep.line(step, "train", ["loss"]) is None
    assert cut.line(3, "validate", ["loss"]) == Cut(3, "validate", 2)
    assert cut.line(2, "train", ["loss"]) == Cut(2, None, 3 + 2)
    assert keep.line(2, "train", ["loss"]) is None
    assert keep.attempt(1) is None


def test_contexts_with_steps_of_their_own() -> None:
    """Where an attempt shows in each context by itself, one that goes back takes nothing from the others."""
    overlaps = Overlaps("auto", "train")
    for step in range(10):
        overlaps.line(100 * step, "train", ["loss"])
        overlaps.line(step, "validate", ["loss"])
    assert overlaps.attempt(None, alone=True) is None
    assert overlaps.line(5, "validate", ["loss"]) == Cut(5, "validate", 5)
    assert overlaps.line(800, "train", ["loss"]) == Cut(800, "train", 2)
    assert overlaps.line(700, "train", ["loss"]) is None  # no second attempt
