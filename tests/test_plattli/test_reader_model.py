"""Reads of runs in every layout, against a naive model of their rows."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import Reader
from tests.test_plattli.byhand import append_hot, append_steps, append_values, pack, write_manifest

METRICS = {"train/loss": "f32", "walltime": "f64", "count": "i64", "small": "u8", "note": "jsonl"}


@st.composite
def models(draw):
    """Rows of a run, and how its writer happened to lay them out."""
    steps = sorted(draw(st.sets(st.integers(0, 60), max_size=25)))
    rows = {name: [] for name in METRICS}
    for step in steps:
        for name, dtype in METRICS.items():
            if draw(st.booleans()):
                value = draw(
                    {
                        "f32": st.floats(width=32, allow_nan=True),
                        "f64": st.floats(),
                        "i64": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
                        "u8": st.integers(0, 255),
                        "jsonl": st.none() | st.text(max_size=3) | st.lists(st.integers(0, 3), max_size=2),
                    }[dtype]
                )
                rows[name].append((step, value))
    watermark = draw(st.integers(-1, 61))
    return {
        "rows": rows,
        "stored_up_to": watermark,
        "hot_from": draw(st.integers(0, max(0, watermark + 1))),
        "rotated_at": draw(st.integers(0, 61)),
        "forms": {name: draw(st.sampled_from(["file", "closed", "open", "single"])) for name in METRICS},
        "archive": draw(st.booleans()),
        # how wrong the size of the JSON column is, by which a finished run says that it needs no counting
        "bytes": draw(st.sampled_from([None, 0, 0, -1, 3])),
    }


def lay_out(root, model):
    """Write the files of a model."""
    folder = root / "plattli"
    folder.mkdir()
    everything_stored = model["archive"]
    stored_up_to = 61 if everything_stored else model["stored_up_to"]
    specs, hot = {}, {}
    for name, dtype in METRICS.items():
        stored = [row for row in model["rows"][name] if row[0] <= stored_up_to]
        for step, value in model["rows"][name]:
            if step >= model["hot_from"] and not everything_stored:
                hot.setdefault(step, {})[name] = value
        steps = [step for step, _ in stored]
        spec = {"indices": [], "dtype": dtype}
        if stored:
            append_values(folder, name, dtype, [value for _, value in stored])
            spec["indices"] = spell(model["forms"][name], steps)
        if spec["indices"] == "indices":
            append_steps(folder, name, steps)
        values = [value for _, value in stored]
        if dtype != "jsonl" and values and not any(value != value for value in values):
            for flag, ordered in (("dec", sorted(values, reverse=True)), ("inc", sorted(values))):
                if values == ordered:
                    spec["monotonic"] = flag
        if stored or name in str(hot):
            specs[name] = spec
    for step in sorted(hot):
        append_hot(folder, step, hot[step], "hot.compacting.jsonl" if step < model["rotated_at"] else "hot.jsonl")
    if everything_stored and model["bytes"] is not None and "note" in specs:
        specs["note"]["bytes"] = (folder / "note.jsonl").stat().st_size + model["bytes"]
    final = {"run_rows": max(map(len, model["rows"].values()))} if everything_stored else {}
    write_manifest(folder, specs, **final)
    if everything_stored:
        pack(folder, root / "metrics.plattli")


def spell(form, steps):
    """Spell steps in one of the ways the format has."""
    if form == "file":
        return "indices"
    segments = [{"start": step, "stop": step + 1, "step": 1} for step in steps]
    if form == "open":
        del segments[-1]["stop"]
    if form == "closed":
        stride = steps[1] - steps[0] if len(steps) > 1 else 1
        if steps == list(range(steps[0], steps[-1] + 1, stride)):
            segments = [{"start": steps[0], "stop": steps[-1] + 1, "step": stride}]
    return segments


numbers = st.none() | st.integers(-10, 70) | st.floats(-10, 70)
positions = st.none() | st.integers(-30, 30)
selectors = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"start": numbers, "stop": numbers}),
    st.fixed_dictionaries({"istart": positions, "istop": positions}),
    st.fixed_dictionaries({"vstart": numbers | st.just(math.nan), "vstop": numbers | st.just(-math.inf)}),
)


def chosen(rows, selector):
    """The rows of a selector, one by one."""
    if "istart" in selector:
        return rows[selector["istart"] : selector["istop"]]
    low, high = (selector.get(key) for key in (("start", "stop") if "start" in selector else ("vstart", "vstop")))
    return [
        row
        for row in rows
        if (low is None or row["start" not in selector] >= low)
        and (high is None or row["start" not in selector] <= high)
    ]


def rounded(selector, dtype):
    """The selector with the bounds that a column of that dtype can tell apart."""
    if dtype != "f32" or "vstart" not in selector:
        return selector
    return {key: bound if bound is None else float(np.float32(bound)) for key, bound in selector.items()}


def as_rows(steps, values):
    """Rows as the model has them, comparable with NaN among them."""
    return repr(list(zip(steps.tolist(), values.tolist(), strict=True)))


@settings(max_examples=150)
@given(models(), st.lists(selectors, min_size=3, max_size=3))
def test_reads_equal_a_naive_model(model, wanted):
    """Whatever part of the rows is in columns, hot logs or both, reads return each row once."""
    with tempfile.TemporaryDirectory() as root:
        lay_out(Path(root), model)
        with Reader(root) as reader:
            assert reader.metrics() == sorted(name for name in METRICS if model["rows"][name])
            for name in reader.metrics():
                rows = model["rows"][name]
                assert reader.rows(name) == len(rows)
                step, value = reader.metric(name, idx=-1)
                assert repr((int(step), value.item() if isinstance(value, np.generic) else value)) == repr(rows[-1])
                for selector in wanted:
                    if name == "note" and "vstart" in selector:
                        continue
                    expected = repr(chosen(rows, rounded(selector, METRICS[name])))
                    steps, values = reader.metric(name, **selector)
                    assert as_rows(steps, values) == expected
                    assert as_rows(reader.metric_indices(name, **selector), values) == expected
                    assert as_rows(steps, reader.metric_values(name, **selector)) == expected


@given(models(), st.lists(st.sampled_from(sorted(METRICS)), min_size=1, max_size=3), selectors)
@settings(max_examples=100)
def test_tables_equal_a_naive_join(model, names, selector):
    """A table has the steps that all its metrics have."""
    with tempfile.TemporaryDirectory() as root:
        lay_out(Path(root), model)
        reader = Reader(root)
        columns = {name: dict(model["rows"][name]) for name in names}
        if not all(columns.values()) or (on := names[-1]) == "note":
            return
        common = sorted(set.intersection(*(set(column) for column in columns.values())))
        picked = {step for step, _ in chosen(model["rows"][on], rounded(selector, METRICS[on]))}
        by_metric = [step for step in common if step in picked]
        tables = [(reader.table(names, on=on, **selector), by_metric)]
        if "vstart" not in selector:
            by_step = [step for (step,) in chosen([(step,) for step in common], selector)]
            tables.append((reader.table(iter(names), **selector), by_step))

        for (steps, table), expected in tables:
            assert steps.tolist() == expected
            assert list(table) == list(dict.fromkeys(names))
            for name, values in table.items():
                assert repr(values.tolist()) == repr([columns[name][step] for step in expected])
        reader.close()
