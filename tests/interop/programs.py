"""Random programs for a ``CompactingWriter``: lifetimes of writers on one run, one after another.

What the two implementations do differently on purpose does not occur in them:

- a step is left before another one is assigned, and steps only rise within a lifetime: ours writes a value
  at the step it was given at, and merges rows where the reference replaces them;
- no float16: ours stores f32, the reference JSON;
- no list as a JSON value itself (inside one, yes): the reference's Reader joins lists of one length to a
  2-D array;
- no step above 2**32 - 1, beyond which the reference cannot go;
- no two names that need one path: ours refuses them before anything happens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

MAX_STEP = 2**32 - 1

# ---- values, as Python text -----------------------------------------------------------------------

SMALL = st.integers(-300, 300)
INTS = st.one_of(
    SMALL, SMALL, st.integers(0, 2**63 + 5), st.integers(-(2**63) - 5, 2**63), st.sampled_from([2**24 + 1, 2**53 + 1])
).map(repr)
FLOATS = st.one_of(
    st.floats(width=32),
    st.floats(),
    st.sampled_from([0.1, -0.0, 3.4028235e38, 3.4028236e38, 1e39, 1e-46, 1e22, 5e-324]),
).map(repr)
WIDTHS = {"int8": (-128, 127), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1),
          "int64": (-(2**63), 2**63 - 1), "uint8": (0, 255), "uint16": (0, 2**16 - 1), "uint32": (0, 2**32 - 1),
          "uint64": (0, 2**64 - 1)}  # fmt: skip
NUMPY_INTS = st.sampled_from(sorted(WIDTHS)).flatmap(
    lambda kind: (
        st.integers(*WIDTHS[kind]) | st.integers(max(WIDTHS[kind][0], -9), min(WIDTHS[kind][1], 99))
    ).map(lambda value: f"np.{kind}({value})")
)
NUMPY_FLOATS = st.one_of(
    st.floats(width=32).map(lambda value: f"np.float32({value!r})"),
    st.floats().map(lambda value: f"np.float64({value!r})"),
    st.floats(width=32).map(lambda value: f"np.array({value!r}, '>f4')"),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), SMALL, st.floats(), st.text(max_size=6).filter(lambda text: text.isprintable()),
    st.sampled_from(["\u2028", "a\nb\0", "ü😀", '"\\/', 2**70, -(2**63), 2**64 - 1, 1e22]),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["k", "a b", "é", ""]), inside, max_size=3)
    ),
    max_leaves=6,
)
DATA = (LEAVES | st.dictionaries(st.sampled_from(["k", "step", "NaN"]), TREES, max_size=3)).map(repr)
ODD = st.sampled_from([
    "np.bool_(True)", "np.str_('x')", "np.array(3)", "np.array([1, 2])", "np.array([])", "object()", "{1}", "1j",
    "b'x'", "np.datetime64('2020-01-01')", "{1: (2, 3)}", "np.array(True)", "True", "np.uint64(2**63)", "2**64", "None",
])  # fmt: skip

#: metric name -> its values; most of them mix, and widen their column, or are refused by it
METRICS = {
    "loss": FLOATS,
    "train/acc": st.floats(0, 1, width=32).map(repr),
    "f": st.one_of(FLOATS, NUMPY_FLOATS, INTS),
    "n": SMALL.map(repr),
    "deep/er/still.u8": st.one_of(NUMPY_INTS, NUMPY_INTS, INTS),
    "big": st.one_of(INTS, st.integers(0, 2**64 - 1).map(lambda value: f"np.uint64({value})")),
    "Ünï cödé/€": NUMPY_FLOATS,
    "note": DATA.filter(lambda text: not text.startswith("[")),
    "train/flag": st.sampled_from(["True", "False"]),
    "hot/x": SMALL.map(repr) | FLOATS,
}
ANYTHING = st.one_of(INTS, FLOATS, NUMPY_INTS, NUMPY_FLOATS, DATA, ODD)
BAD_NAMES = ["", "step", "hot", "a//b", "/a", "../a", "a\\b", "C:x"]
BAD_STEPS = ["-1", "2**63", "True", "1.0", "'3'", "None", "np.bool_(1)"]
CONFIGS = st.sampled_from(
    ["'config.json'", "'config.json'", "None", "'elsewhere.json'", "'missing.json'", "{}",
     "{'lr': 0.1, 'é': [nan, None]}", "[1, 2]", "3", "{1: 2}", "object()"]
)  # fmt: skip

ROWS = st.lists(st.sampled_from(sorted(METRICS)), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: METRICS[name] for name in names})
)
OPS = st.one_of(
    *[ROWS.map(lambda row: [["write", row, False], ["end_step"]])] * 5,
    st.tuples(st.integers(1, 12), ROWS).map(lambda few: [["write", few[1], False], ["end_step"]] * few[0]),
    ROWS.map(lambda row: [["write", row, False]]),
    ROWS.map(lambda row: [["write", row, True]]),
    st.just([["end_step"]]),
    st.integers(1, 40).map(lambda gap: [["end_step"], ["jump", gap]]),
    st.tuples(st.sampled_from(sorted(METRICS)), ANYTHING).map(lambda one: [["write", {one[0]: one[1]}, False]]),
    st.sampled_from(BAD_NAMES).map(lambda name: [["write", {"never there": "0.5", name: "1.0"}, False]]),
    st.sampled_from(BAD_STEPS).map(lambda step: [["end_step"], ["bad step", step]]),
    CONFIGS.map(lambda config: [["config", config]]),
)
FINISH = st.fixed_dictionaries(
    {
        "optimize": st.booleans(),
        "zip": st.booleans(),
        "config_overrides": st.sampled_from(["None", "None", "{}", "{'done': True}", "3", "{'x': {1}}"]),
    }
)


@dataclass
class Lifetime:
    """A writer's calls, from its constructor on. After the first ``looked`` calls both Readers look at the run."""

    by: str
    opening: dict[str, str]
    ops: list[list[Any]]
    end: list[Any]
    looked: int | None = None


@dataclass
class Program:
    """What happens to one run."""

    lifetimes: list[Lifetime]
    #: files that lie beside the run, for configs that are links
    files: dict[str, str] = field(default_factory=dict)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program; steps are tracked so that they rise within each lifetime."""
    lifetimes: list[Lifetime] = []
    step = draw(st.sampled_from([0, 0, 0, 0, 9, MAX_STEP - 10_000]))  # more than a program can go
    for number in range(draw(st.integers(1, 4))):
        if number:
            step = min(draw(st.just(step) | st.integers(0, step) | st.integers(step, step + 30)), MAX_STEP)
        opening = {
            "step": str(step),
            "hotsize": str(draw(st.integers(1, 8))),
            "config": draw(CONFIGS if draw(st.booleans()) else st.just("'config.json'")),
            "allow_resume_finalized": str(draw(st.integers(0, 9)) > 0),
        }
        ops, step = _with_steps(draw(st.lists(OPS, max_size=12)), step)
        if draw(st.integers(0, 2)) == 0:
            end: list[Any] = ["die"]
            looked = None
        else:
            end = draw(st.just(["leave"]) | FINISH.map(lambda arguments: ["finish", arguments]))
            looked = draw(st.none() | st.integers(0, len(ops)))
        lifetimes.append(Lifetime(draw(st.sampled_from(["ours", "reference"])), opening, ops, end, looked))
    files = draw(st.sets(st.sampled_from(["config.json", "elsewhere.json"])))
    return Program(lifetimes, {name: json.dumps({"from": name}) for name in sorted(files)})


def _with_steps(groups: list[list[list[Any]]], step: int) -> tuple[list[list[Any]], int]:
    ops: list[list[Any]] = []
    for group in groups:
        for op in group:
            match op:
                case ["jump", gap]:
                    step += gap
                    ops.append(["step", str(step)])
                case ["bad step", text]:
                    ops += [["step", text], ["write", {"n": "1"}, False], ["step", str(step)]]
                case _:
                    step += op[0] == "end_step"
                    ops.append(op)
    return ops, step
