"""Runs written by plattli 0.19.0 (one by 0.9.0), some damaged on purpose, and what they must read as.

Each folder of ``tests/golden`` holds a run and an ``expected.json`` with every metric's steps, values
(as text, and as little-endian bytes in ``hex``) and errors, for a reader with and without hot rows, and
for some folders the answers to further ``queries``.
"""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from plattli import PlattliError, Reader
from plattli.errors import NotARunError

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """A run, and what is expected of it."""
    folder = tmp_path / request.param
    shutil.copytree(GOLDEN / request.param, folder)
    if request.param == "config_symlink":
        link = folder / "run" / "plattli" / "config.json"
        link.unlink()
        link.symlink_to("../../run/config.json")
    expected = json.loads((folder / "expected.json").read_text())
    return folder / expected["path"], expected


def check(expected, read):
    """Compare what ``read`` returns, or raises, with one entry of the file."""
    if isinstance(expected, dict) and "error" in expected:
        error = expected["error"]
        with pytest.raises(getattr(builtins, error["type"])) as caught:
            read()
        if error["type"] != "TypeError":
            assert all(word in str(caught.value) for word in error["mentions"])
        return None
    actual = read()
    if not isinstance(expected, dict):
        assert same(actual, expected)
    return actual


def same(actual, expected):
    """Equality in which NaN equals itself and types count."""
    return json.dumps(actual, sort_keys=True) == json.dumps(expected, sort_keys=True)


def plain(array):
    """An array's values as JSON has them."""
    assert array.ndim == 1
    return array.tolist()


@pytest.mark.parametrize("exclude_hot", [False, True])
def test_case_reads_as_expected(case, exclude_hot):
    """Metadata, every metric as stored and as standard, row counts and last rows."""
    path, everything = case
    expected = everything.get("expected_exclude_hot" if exclude_hot else "expected", everything["expected"])
    if "error" in expected:
        with pytest.raises(NotARunError, match=expected["error"]["mentions"][0]):
            Reader(path, exclude_hot=exclude_hot)
        return
    with Reader(path, exclude_hot=exclude_hot) as reader:
        assert reader.kind == expected["kind"]
        for name in ("config", "when_exported", "manifest", "approx_max_rows"):
            check(expected[name], getattr(reader, name))
            if name in ("config", "manifest") and "error" not in expected[name]:
                assert same(getattr(reader, name)(), expected[name])
        check(expected["metrics"], reader.metrics)
        for name, data in expected.get("data", {}).items():
            check_metric(reader, name, data)


def check_metric(reader, name, data):
    """Compare all that is known about one metric."""
    result = check(data, lambda: reader.metric(name, dtype="storage"))
    if result is None:
        return
    steps, values = result
    assert steps.dtype == np.uint32
    assert plain(steps) == data["steps"]
    assert values.dtype == data["storage_dtype"]
    assert same(plain(values), data["values"])
    if "hex" in data:
        assert values.astype(values.dtype.newbyteorder("<")).tobytes().hex() == data["hex"]
    assert reader.rows(name) == data["rows"]
    if "standard_dtype" in data:
        assert reader.metric_values(name).dtype == data["standard_dtype"]
    if isinstance(data.get("standard"), dict):
        check(data["standard"], lambda: reader.metric(name))
    last = check(data["last"], lambda: as_json(reader.metric(name, idx=-1, dtype="storage")))
    assert last is None or same(last, data["last"])


def as_json(pair):
    """A step and a value as JSON has them."""
    return [x.item() if isinstance(x, np.generic) else x for x in pair]


def describe(result):
    """What a query returned, spelled as in the file."""
    if isinstance(result, tuple):
        return {"tuple": [describe(part) for part in result]}
    if isinstance(result, dict):
        return {"dict": {key: describe(part) for key, part in result.items()}}
    if isinstance(result, np.ndarray):
        return {"dtype": str(result.dtype), "values": plain(result)}
    if isinstance(result, np.generic):
        return {"scalar": str(result.dtype), "value": result.item()}
    return result


QUERIES = [
    pytest.param(name, query, id=f"{name}-{number}")
    for name in CASES
    for number, query in enumerate(json.loads((GOLDEN / name / "expected.json").read_text()).get("queries", []))
]


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_query(name, query):
    """Selectors, scalars, dtypes and tables."""
    kwargs = {
        key: getattr(np, value[3:]) if isinstance(value, str) and value.startswith("np.") else value
        for key, value in query["kwargs"].items()
    }
    with Reader(GOLDEN / name / "run") as reader:
        actual = check(query, lambda: getattr(reader, query["method"])(*query["args"], **kwargs))
        if "error" not in query:
            assert same(describe(actual), query["result"])


def test_the_cases_are_there():
    """Neither the folder nor the queries went missing."""
    assert len(CASES) == 60
    assert len(QUERIES) > 40
    assert issubclass(NotARunError, PlattliError)
