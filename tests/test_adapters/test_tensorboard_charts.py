"""Which metrics share a chart, and which tags TensorBoard would find for it."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from adapters.backends._charts import MOST_CHARTS, Charts

NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name != "epoch")
PLAIN = NAMES.filter(lambda name: "/" not in name)


def found(charts: Charts, name: str, tags: list[str]) -> list[str]:
    """Return the tags that the server finds for a chart, in the way it looks for them."""
    patterns = charts.layout()[name]
    return [tag for tag in tags if any(re.compile(pattern).match(tag) for pattern in patterns)]


@given(NAMES, st.sets(PLAIN, min_size=2), NAMES)
@example("loss", {"train", "validate"}, "loss2")
@example("a.b", {"train", "validate"}, "axb")
@example("head/loss", {"train", "validate"}, "loss")
def test_a_chart_has_the_metric_in_every_context_and_nothing_else(name: str, contexts: set[str], other: str) -> None:
    """Whatever the names are; another metric's tag is not taken for it."""
    charts = Charts({})
    first, *others = sorted(contexts)
    assert not charts.add(first, [name])
    assert [charts.add(context, [name]) for context in others] == [True, *[False] * (len(others) - 1)]
    tags = [f"{context}/{name}" for context in sorted(contexts)]
    foreign = [f"{context}/{other}" for context in contexts if other != name]

    assert found(charts, name, [*tags, *foreign]) == tags


@given(st.permutations(["train", "validate", "test", "validate/day", "validate/night"]))
def test_contexts_of_several_parts_join_one_by_one(order: list[str]) -> None:
    """They are named in the chart, always in the same order."""
    charts = Charts({})
    for context in order:
        charts.add(context, ["loss"])
    tags = [f"{context}/loss" for context in order]

    assert found(charts, "loss", [*tags, "other/day/loss"]) == tags
    assert charts.layout() == {"loss": ["[^/]+/loss$", r"validate/day/loss$", r"validate/night/loss$"]}


def test_a_metric_of_one_context_has_no_chart() -> None:
    """The Scalars tab has it; nor has the epoch, which is the same everywhere."""
    charts = Charts({})
    assert not charts.add("train", ["loss", "lr", "epoch"])
    assert not charts.add("train", ["loss"])
    assert charts.add("validate", ["loss", "epoch"])
    assert list(charts.layout()) == ["loss"]


def test_charts_survive_their_process() -> None:
    """What one hands on, the next goes on with."""
    charts = Charts({})
    for context in ("train", "validate", "validate/day"):
        charts.add(context, ["loss"])
    charts.add("train", ["lr"])
    later = Charts(charts.contexts())

    assert charts.contexts() == {"loss": ["train", "validate", "validate/day"]}
    assert later.layout() == charts.layout()
    assert not later.add("train", ["loss"])
    assert later.add("validate/night", ["loss"])


def test_charts_do_not_pile_up() -> None:
    """A loop that makes up names costs a bounded number of layouts."""
    charts, changes = Charts({}), 0
    for number in range(2 * MOST_CHARTS):
        for context in ("train", "validate"):
            changes += charts.add(context, [f"m{number}"])

    assert (changes, len(charts.layout()), len(charts.contexts())) == (MOST_CHARTS, MOST_CHARTS, MOST_CHARTS)
