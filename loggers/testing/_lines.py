"""The contract of ``log_metrics``: where lines go, what becomes of values, and steps."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from loggers.errors import MetricValueError, StepError
from loggers.testing import _cases
from loggers.testing._backend import Backend, Run, promise


class LineTests(Backend):
    """One line after another."""

    # --- metrics: where they go -----------------------------------------------------------------------

    def test_a_line_goes_to_its_context(self, run: Run) -> None:
        """Each context is the first part of a metric's name; train is the default, any name is one."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5, "acc": 0.25}, step=4)
        logger.log_metrics({"loss": 0.75}, step=4, context="validate")
        logger.log_metrics({"data_wait_frac": 0.125}, step=4, context="data")
        logger.log_metrics({"loss": 1.5}, step=4, context="test clean")

        run.holds(
            {
                "train/loss": [(4, 0.5)],
                "train/acc": [(4, 0.25)],
                "validate/loss": [(4, 0.75)],
                "data/data_wait_frac": [(4, 0.125)],
                "test clean/loss": [(4, 1.5)],
            }
        )

    def test_lines_need_not_look_alike(self, run: Run) -> None:
        """Other metrics, another order, another type, any mapping, strings of any class."""
        logger = run.open()
        logger.log_metrics({"a": 0.5, "b": 1.5}, step=1)
        logger.log_metrics({"b": 2.5, "a": 3.5}, step=2)
        logger.log_metrics({"a": 4, "b": True}, step=3)
        logger.log_metrics({"c": 5.5, "a": 6.5}, step=4)
        logger.log_metrics(MappingProxyType({_cases.Name("a"): 7.5}), step=5)
        logger.log_metrics({"a": 8.5}, step=5, context=_cases.Name("validate"))

        run.holds(
            {
                "train/a": [(1, 0.5), (2, 3.5), (3, 4), (4, 6.5), (5, 7.5)],
                "train/b": [(1, 1.5), (2, 2.5), (3, 1)],
                "train/c": [(4, 5.5)],
                "validate/a": [(5, 8.5)],
            }
        )

    def test_a_long_run_is_all_there(self, run: Run) -> None:
        """Longer than the buffers of whoever has some."""
        logger = run.open()
        for step in range(1200):
            logger.log_metrics({"loss": step / 7, "count": step}, step=step)
            if step % 100 == 99:
                logger.log_metrics({"loss": step / 3}, step=step, context="validate")

        steps = range(1200)
        run.holds(
            {
                "train/loss": [(step, step / 7) for step in steps],
                "train/count": [(step, step) for step in steps],
                "validate/loss": [(step, step / 3) for step in steps if step % 100 == 99],
            }
        )

    def test_names_read_back_equal(self, run: Run) -> None:
        """Slashes, spaces, other alphabets and signs are part of a name."""
        names = ("loss", "val loss", "größe", "損失", "head/0/loss", "a.b-c:d", "top@5 (100%)", "x" * 150)
        run.open().log_metrics({name: float(i) for i, name in enumerate(names)}, step=1)

        run.holds({f"train/{name}": [(1, float(i))] for i, name in enumerate(names)})

    def test_an_odd_name_is_kept_or_refused(self, run: Run) -> None:
        """It reads back equal, or the error names it; it costs no other metric of its line anything."""
        logger = run.open()
        kept: dict[str, list[tuple[int, float]]] = {}
        refused: list[tuple[str, frozenset[str]]] = []
        for step, name in enumerate(_cases.odd_names(), 1):
            try:
                logger.log_metrics({"first": step, name: step / 2, "last": -step}, step=step)
            except MetricValueError as error:
                refused.append((name, error.metrics))
            else:
                kept[f"train/{name}"] = [(step, step / 2)]

        assert [name for name, metrics in refused if metrics != {name}] == []
        steps = range(1, step + 1)
        run.holds({**kept, "train/first": [(s, s) for s in steps], "train/last": [(s, -s) for s in steps]})

    @promise("log_metrics(…, epoch=0)", "holds_epochs")
    def test_epochs_are_per_context(self, run: Run) -> None:
        """A line with an epoch has it beside its metrics; one without has none."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1, epoch=0)
        logger.log_metrics({"loss": 0.5}, step=2, epoch=np.int64(1))
        logger.log_metrics({"loss": 0.5}, step=2, epoch=None, context="validate")
        epochs = {name: points for name, points in run.read().metrics.items() if name.endswith("/epoch")}

        assert epochs == ({"train/epoch": [(1, 0), (2, 1)]} if self.holds_epochs else {})

    def test_unknown_axes_break_nothing(self, run: Run) -> None:
        """Whoever has no use for an axis ignores it; the next driver may have another one."""
        logger = run.open()
        logger.log_metrics({"loss": 0.5}, step=1, walltime=1.7e9, tokens=10, phase="warm-up")
        logger.log_metrics({"loss": 0.25}, step=2, walltime=None, curriculum=None)

        run.holds({"train/loss": [(1, 0.5), (2, 0.25)]})

    def test_a_metric_called_like_an_axis_is_kept_or_said(self, run: Run) -> None:
        """It costs no other metric anything, and is not lost in silence."""
        line = {"step": 0.25, "epoch": 0.5, "walltime": 0.75, "context": 1.25, "type": 1.5}
        logger = run.open()
        said = ""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                logger.log_metrics({**line, "loss": 2.0}, step=3, epoch=1)
            except MetricValueError as error:
                said = str(error)
        said += " ".join(str(warning.message) for warning in warned)
        found = run.read().metrics

        assert found["train/loss"] == [(3, 2.0)]
        for name, value in line.items():
            assert name in said or (3, value) in found.get(f"train/{name}", [])

    def test_two_runs_at_once_are_two_runs(self, run: Run) -> None:
        """A process may have several."""
        other = run.beside()
        for step in (1, 2, 3):
            for each, sign in ((run, 1.0), (other, -1.0)):
                (each.open() if step == 1 else each.logger).log_metrics({"loss": sign * step}, step=step)
        other.end("completed")
        run.logger.log_metrics({"loss": 4.0}, step=4)

        other.holds({"train/loss": [(step, -1.0 * step) for step in (1, 2, 3)]})
        run.holds({"train/loss": [(step, 1.0 * step) for step in (1, 2, 3, 4)]})

    def test_the_drivers_thread_need_not_be_the_main_one(self, run: Run) -> None:
        """One thread calls every verb, whichever it is."""
        with ThreadPoolExecutor(1) as driver:
            logger = driver.submit(run.open).result()
            driver.submit(logger.log_params, {"lr": 0.1}).result()
            driver.submit(lambda: logger.log_metrics({"loss": 0.5}, step=1)).result()
            driver.submit(run.end, "completed").result()

        run.holds({"train/loss": [(1, 0.5)]})

    def test_an_empty_line_is_harmless(self, run: Run) -> None:
        """A driver may have nothing to say at a step."""
        logger = run.open()
        logger.log_params({})
        logger.log_tags([])
        logger.log_tags({})
        logger.log_metrics({}, step=1)
        logger.log_metrics({"loss": 0.5}, step=2)
        logger.log_metrics({}, step=3, epoch=1)

        run.holds({"train/loss": [(2, 0.5)]})

    @promise("log_metrics() and reading before finish()", "live")
    def test_a_line_is_there_when_the_verb_returns(self, run: Run) -> None:
        """Whoever looks at the run of a live logger finds all of it. Others find it after the end."""
        logger = run.open()
        points: list[tuple[int, float]] = []
        for step in (1, 2, 3):
            logger.log_metrics({"loss": 0.5 * step}, step=step)
            points.append((step, 0.5 * step))
            if self.live:
                run.holds({"train/loss": points})

        run.holds({"train/loss": points})

    # --- metrics: values ------------------------------------------------------------------------------

    @promise("log_metrics({name: number}) with every type of number", "precision")
    def test_every_number_reads_back(self, run: Run) -> None:
        """Whatever its type: Python's, NumPy's of any width, arrays of one value, infinities, NaN."""
        cases = _cases.numbers()
        run.open().log_metrics({name: case.given for name, case in cases.items()}, step=3)

        run.holds({f"train/{name}": [(3, case.kept)] for name, case in cases.items()})

    @promise('log_metrics({"text": "diverged", "none": None, "list": […], …})', "holds_text")
    def test_text_reads_back_or_is_refused(self, run: Run) -> None:
        """Strings, ``None``, lists and mappings: kept as they are, or named in an error."""
        cases = _cases.texts()
        logger = run.open()
        line = {"first": 1.0, **{name: case.given for name, case in cases.items()}, "last": 2.0}
        if self.holds_text:
            logger.log_metrics(line, step=3)
        else:
            with pytest.raises(MetricValueError) as raised:
                logger.log_metrics(line, step=3)
            assert [name for name in cases if name not in str(raised.value)] == []

        kept = {f"train/{name}": [(3, case.kept)] for name, case in cases.items()} if self.holds_text else {}
        run.holds({"train/first": [(3, 1.0)], **kept, "train/last": [(3, 2.0)]})

    def test_a_refused_value_costs_its_siblings_nothing(self, run: Run) -> None:
        """The error names every bad value of the line, after all good ones are stored."""
        bad = _cases.refused()
        logger = run.open()
        with pytest.raises(MetricValueError) as raised:
            logger.log_metrics({"first": 1.0, **bad, "last": 2.0}, step=3)
        with pytest.raises(MetricValueError):
            logger.log_metrics(bad, step=4)
        with pytest.raises(MetricValueError):
            logger.log_metrics({"": 1.0, 7: 2.0, "first": 3.0}, step=5)
        logger.log_metrics({"last": 4.0}, step=6)

        assert [name for name in bad if name not in str(raised.value)] == []
        run.holds({"train/first": [(3, 1.0), (5, 3.0)], "train/last": [(3, 2.0), (6, 4.0)]})

    @promise('log_metrics({"m": 1}), then 0.5, 2**53 + 1 and text', "precision", "holds_text")
    def test_one_metric_may_change_its_type(self, run: Run) -> None:
        """No value is rounded to fit those before or after it. One that cannot be beside them is named."""
        fitting = [1, 0.5, math.nan, -3, 0.1, 1e300, 2**53, math.inf, 7]
        others = [2**53 + 1, 2**64 - 1, "text", [1], None]
        logger = run.open()
        kept: list[tuple[int, Any]] = list(enumerate(fitting))
        refused = []
        for step, value in kept:
            logger.log_metrics({"m": value, "sibling": step}, step=step)
        for step, value in enumerate(others, len(fitting)):
            try:
                logger.log_metrics({"m": value, "sibling": step}, step=step)
            except MetricValueError as error:
                refused.append(str(error))
            else:
                kept.append((step, value))
        logger.log_metrics({"m": 0.25}, step=100)

        steps = range(len(fitting) + len(others))
        assert all("'m'" in message for message in refused)
        run.holds({"train/m": [*kept, (100, 0.25)], "train/sibling": [(step, step) for step in steps]})

    def test_values_are_taken_at_the_call(self, run: Run) -> None:
        """What the caller changes afterwards changes nothing."""
        array, matrix, line = np.array(1.0), np.eye(2, dtype=int), {"late": 1.0}
        inner: list[Any] = [2]
        several: list[Any] = [1, inner]
        params, report = {"widths": [1]}, {"deep": [1]}
        tags, labels = ["one"], ["a", "b"]
        logger = run.open()
        logger.log_params(params)
        logger.log_tags(tags)
        logger.log_metrics(line, step=1)
        logger.log_metrics({"array": array}, step=1)
        if self.holds_text:
            logger.log_metrics({"list": several}, step=1)
        logger.log_other("report", report)
        logger.log_confusion(matrix, labels, step=1)
        array[...] = matrix[...] = 9
        line["late"] = 9.0
        for numbers in (several, inner, params["widths"], report["deep"]):
            numbers.append(9)
        for words in (tags, labels):
            words.append("more")
        found = run.read()

        text = {"train/list": [(1, [1, [2]])]} if self.holds_text else {}
        run.holds({"train/late": [(1, 1.0)], "train/array": [(1, 1.0)], **text})
        assert found.tags == ({"one": True} if self.holds_tags else {})
        assert found.other == ({"report": {"deep": [1]}} if self.holds_other else {})
        assert found.confusions == (
            {"confusion": [(1, ["a", "b"], [[1, 0], [0, 1]])]} if self.holds_confusions else {}
        )
        if self.holds_params and self.holds_nested_params:
            assert found.params == {"widths": [1]}

    # --- metrics: steps -------------------------------------------------------------------------------

    def test_every_context_has_its_own_steps(self, run: Run) -> None:
        """A line may be at an earlier step than the last one of another context."""
        logger = run.open()
        for step in (1, 2, 3, 5):
            logger.log_metrics({"loss": 1.0 / step}, step=step)
        logger.log_metrics({"loss": 0.5}, step=3, context="validate")
        logger.log_metrics({"wait": 0.25}, step=0, context="data")
        logger.log_metrics({"loss": 0.125}, step=6)
        logger.log_metrics({"loss": 0.5}, step=5, context="validate")

        run.holds(
            {
                "train/loss": [(1, 1.0), (2, 0.5), (3, 1.0 / 3), (5, 0.2), (6, 0.125)],
                "validate/loss": [(3, 0.5), (5, 0.5)],
                "data/wait": [(0, 0.25)],
            }
        )

    def test_another_metric_joins_a_step(self, run: Run) -> None:
        """Two lines at one step are as good as one, also when the step is not the last."""
        logger = run.open()
        logger.log_metrics({"a": 1.0}, step=1)
        logger.log_metrics({"b": 2.0}, step=1)
        logger.log_metrics({"a": 3.0}, step=2)
        logger.log_metrics({"c": 4.0}, step=1)

        run.holds({"train/a": [(1, 1.0), (2, 3.0)], "train/b": [(1, 2.0)], "train/c": [(1, 4.0)]})

    @promise("log_metrics(…, step=3) after step=5", "holds_late")
    def test_a_late_point_is_put_where_it_belongs(self, run: Run) -> None:
        """Or left out and said, if the backend's readers would lose newer points over it."""
        logger = run.open()
        for step in (1, 2, 5):
            logger.log_metrics({"loss": float(step)}, step=step)
        if self.holds_late:
            logger.log_metrics({"loss": 3.0}, step=3)
        else:
            with pytest.warns(RuntimeWarning, match="train/loss"):
                logger.log_metrics({"loss": 3.0}, step=3)
        logger.log_metrics({"loss": 6.0}, step=6)
        found = [point for point in run.read().metrics["train/loss"] if self.holds_late or point[0] != 3]

        steps = (1, 2, 3, 5, 6) if self.holds_late else (1, 2, 5, 6)
        assert sorted(found) == [(step, float(step)) for step in steps]
        if self.replaces:  # one that keeps the calls in order keeps this one, too
            assert found == sorted(found)

    @promise("log_metrics(…, step=3) twice with the same metric", "replaces")
    def test_the_same_step_again(self, run: Run) -> None:
        """The later value counts: it is the only one, or the last."""
        logger = run.open()
        logger.log_metrics({"loss": 1.0, "acc": 0.5}, step=3)
        logger.log_metrics({"loss": 2.0}, step=3)
        logger.log_metrics({"loss": 4.0}, step=4)

        first = [] if self.replaces else [(3, 1.0)]
        run.holds({"train/loss": [*first, (3, 2.0), (4, 4.0)], "train/acc": [(3, 0.5)]})

    def test_whole_numbers_are_steps(self, run: Run) -> None:
        """Integral floats, NumPy integers, arrays of one of these."""
        steps = _cases.whole_steps()
        logger = run.open()
        for step in steps:
            logger.log_metrics({"loss": 0.5}, step=step.given)

        run.holds({"train/loss": [(step.kept, 0.5) for step in steps]})

    @pytest.mark.parametrize("step", [2**31 + 1, 2**32 + 1, 2**40 + 1, 2**63 - 1])
    def test_a_large_step_is_kept_or_refused(self, run: Run, step: int) -> None:
        """It never wraps around."""
        logger = run.open()
        kept = True
        try:
            logger.log_metrics({"loss": 0.5}, step=step)
        except StepError:
            kept = False

        run.holds({"train/loss": [(step, 0.5)]} if kept else {})
