"""Manifests in and out."""

from __future__ import annotations

import json
import re

import pytest

from plattli import _manifest
from plattli.errors import CorruptRunError, MetricNameError


def test_dump_and_load():
    """What was dumped is loaded: entries in order, their unknown keys, row count and time."""
    specs = {
        "z": {"monotonic": "inc", "note": 1, "dtype": "f32", "indices": [{"start": 0, "step": 1}]},
        "a/ü": {"indices": "indices", "dtype": "jsonl"},
    }

    loaded = _manifest.load(_manifest.dump(specs, run_rows=7), "run")

    assert loaded.specs == specs
    assert list(loaded.specs) == ["z", "a/ü"]
    assert loaded.run_rows == 7
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", loaded.when_exported)


def test_key_order():
    """Entries lead with indices and dtype; the run's own keys come last, row count only if finished."""
    text = _manifest.dump({"a": {"monotonic": "dec", "dtype": "i8", "indices": []}}).decode()

    assert text.startswith('{"a": {"indices": [], "dtype": "i8", "monotonic": "dec"}, "when_exported": "')
    assert list(json.loads(_manifest.dump({}, run_rows=0))) == ["when_exported", "run_rows"]


@pytest.mark.parametrize("text", ["{}", '{"run_rows": null, "when_exported": null}', '{"when_exported": 5}'])
def test_manifests_without_the_runs_own_keys(text):
    """Both keys are optional, and a time that is no text is no time."""
    loaded = _manifest.load(text.encode(), "run")

    assert (loaded.specs, loaded.run_rows, loaded.when_exported) == ({}, None, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {}}',
        b'{"a": {"indices": [], "dtype": 5}}',
        b'{"a": {"dtype": "f32"}}',
        b'{"run_rows": -1}',
        b'{"run_rows": true}',
        b'{"run_rows": "5"}',
    ],
)
def test_what_is_no_manifest(data):
    """The error names the run, and is a ValueError."""
    with pytest.raises(CorruptRunError, match="'run7'") as caught:
        _manifest.load(data, "run7")

    assert isinstance(caught.value, ValueError)


def test_names_are_checked():
    """A name that would not be a path inside the run is refused."""
    with pytest.raises(MetricNameError, match="run7"):
        _manifest.load(b'{"a/../../b": {"indices": [], "dtype": "f32"}}', "run7")
