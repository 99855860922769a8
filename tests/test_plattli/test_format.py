"""Names, spellings and constants of the format."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from plattli import _format
from plattli.errors import MetricNameError


@pytest.mark.parametrize(
    "name",
    [
        "loss",
        "train/loss",
        "hot/x",
        "train/step",
        "Step",
        "config",
        "plattli.json",
        "ab:c",
        "1:x",
        "é:x",
        "...",
        ".hidden",
        " ",
        "a\nb",
        "日本",
        "\x7f",
        np.str_("loss"),
    ],
)
def test_names_that_can_be_stored(name):
    """Every clean relative path is a name, however odd, and comes back as a plain string."""
    assert _format.check_name(name, "run") == name
    assert type(_format.check_name(name, "run")) is str


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (7, "must be a str, got int"),
        (None, "must be a str"),
        ("", "empty"),
        ("a\0b", "NUL"),
        ("a\\b", "backslash"),
        ("step", "reserved"),
        ("run_rows", "reserved"),
        ("when_exported", "reserved"),
        ("hot", "reserved"),
        ("hot.compacting", "reserved"),
        ("/a", "absolute"),
        ("C:", "absolute"),
        ("c:x", "absolute"),
        ("a//b", "part"),
        ("a/", "part"),
        ("./a", "part"),
        ("a/../b", "part"),
        ("..", "part"),
        ("a\ud800", "surrogate"),
    ],
)
def test_names_that_cannot(name, why):
    """The error says what is wrong with which name of which run; it is a ValueError and a TypeError."""
    with pytest.raises(MetricNameError, match=why) as caught:
        _format.check_name(name, "run7")

    assert repr(name) in str(caught.value)
    assert "run7" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)


def test_files_of_a_metric():
    """A metric's files are its name and a suffix."""
    assert _format.value_file("a/b", "f32") == "a/b.f32"
    assert _format.value_file("a.b", "jsonl") == "a.b.jsonl"
    assert _format.indices_file("a/b") == "a/b.indices"
    assert _format.indices_file("a/b", wide=True) == "a/b.steps64"
    assert len(_format.WIDE_INDICES_FILE) <= len(_format.INDICES_FILE), "a name that fits must fit for good"


def test_json_spelling():
    """Text is raw, separators have a space, and non-finite numbers are bare tokens."""
    value = {"a": [1, 2.5, None, True], "ü\u2028": "\x01\x7f/", "n": [math.nan, -math.inf]}

    assert (
        _format.dumps(value)
        == '{"a": [1, 2.5, null, true], "ü\u2028": "\\u0001\x7f/", "n": [NaN, -Infinity]}'
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/run7/plattli", "run7"),
        ("/x/run7/metrics.plattli", "run7"),
        ("/x/run7.plattli", "run7"),
        ("/x/run.7.plattli", "run.7"),
        ("/x/run7.zip", "run7.zip"),
        ("/x/folder", "folder"),
    ],
)
def test_run_names(path, name):
    """A run is called after its folder, or after its archive."""
    assert _format.run_name(Path(path)) == name


def test_dtypes_are_little_endian():
    """Every code says its kind and its bits."""
    assert len(_format.DTYPES) == 10
    for code, dtype in _format.DTYPES.items():
        assert dtype == np.dtype(f"<{code[0]}{int(code[1:]) // 8}")
