"""Reads of damaged runs."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plattli import Reader
from plattli.errors import NotARunError, PlattliError
from tests.test_plattli.byhand import append_hot, append_steps, append_values, pack, write_manifest

JUNK = [b"NaN", b"-1", b'"', b"{", b"}", b"[", b",", b"null", b"\xff", b"\n", b"\r", b"99999999999999999999", b"i8"]


@st.composite
def damage(draw, data):
    """Bytes with a piece cut off, replaced or put in."""
    at = draw(st.integers(0, len(data)))
    end = draw(st.sampled_from([at, at, min(len(data), at + 1), min(len(data), at + 5), len(data)]))
    return data[:at] + draw(st.sampled_from([b"", *JUNK]) | st.binary(max_size=4)) + data[end:]


def exercise(path):
    """Read everything in many ways; only errors of the package may come."""
    with Reader(path) as reader:
        calls = [reader.config, reader.metrics, reader.manifest, reader.when_exported, reader.approx_max_rows]
        for name in ("a", "b/c", "j", "h"):
            calls += [
                lambda name=name: reader.metric(name, dtype="storage"),
                lambda name=name: reader.metric(name, idx=-1),
                lambda name=name: reader.metric(name, start=1, stop=2),
                lambda name=name: reader.rows(name),
                lambda name=name: reader.table(["a", name]),
            ]
        for call in calls:
            with contextlib.suppress(PlattliError):
                call()


@settings(max_examples=200)
@given(st.data())
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_any_bytes_give_data_or_an_error_of_ours(data):
    """Whatever a file holds, a read returns rows or says what is wrong, and never anything else."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "plattli"
        folder.mkdir()
        append_values(folder, "a", "f32", [1.0, 2.0, 3.0])
        append_values(folder, "b/c", "i16", [1, 2])
        append_steps(folder, "b/c", [0, 2])
        append_values(folder, "j", "jsonl", [None, {"k": [1]}])
        (folder / "config.json").write_text("{}")
        append_hot(folder, 3, {"a": 1.5, "h": 1, "j": "x"})
        append_hot(folder, 4, {"b/c": 7})
        specs = {
            "a": {"indices": [{"start": 0, "stop": 2, "step": 1}, {"start": 2, "step": 1}], "dtype": "f32"},
            "b/c": {"indices": "indices", "dtype": "i16", "monotonic": "inc"},
            "j": {"indices": [{"start": 0, "stop": 4, "step": 2}], "dtype": "jsonl"},
        }
        write_manifest(folder, specs)
        path = Path(root)
        if data.draw(st.booleans(), label="archive"):
            path = Path(root) / "x.plattli"
            pack(folder, path)
        files = sorted(file for file in Path(root).rglob("*") if file.is_file())
        file = data.draw(st.sampled_from(files), label="file")
        file.write_bytes(data.draw(damage(file.read_bytes()), label="bytes"))
        try:
            exercise(path)
        except NotARunError:
            assert file.suffix == ".plattli"
