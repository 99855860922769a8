"""The benchmarks' own machinery: what a run says, and how it gets into the README. No figure is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks._harness import Bench, Side, TookTooLong
from tests.benchmarks._report import MARKERS, Row, Target, amount, put

ROOT = Path(__file__).parents[1]


def test_a_quick_run_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the same as JSON, and from that a table for the README."""
    main(["--quick", "--only", "hotpath/imports", "--json", str(tmp_path / "found.json")])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    (row,) = found["rows"]

    assert set(found) == {"machine", "seconds", "rows", "lines"}
    assert (row["name"], row["peer"], row["target"]) == ("hotpath/import loggers", "import numpy", "<= +60")
    assert row["ours"] > 0
    assert row["peer_value"] > 0
    assert row["ratio"] == pytest.approx(row["ours"] - row["peer_value"])
    assert row["verdict"] in ("pass", "FAIL")
    assert row["name"] in printed

    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKERS[0]}\nold\n{MARKERS[1]}\nafter\n")
    main(["--markdown", str(tmp_path / "found.json"), "--into", str(page)])

    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert any(line.startswith("| import loggers |") for line in lines)


def test_a_page_without_markers_stays_as_it_is() -> None:
    """There is no place to put a table."""
    with pytest.raises(ValueError, match="has no part between"):
        put("page", "table")


def test_the_readme_has_a_place_for_the_table() -> None:
    """So that the documented command works."""
    readme = (ROOT / "README.md").read_text()

    assert [readme.count(marker) for marker in MARKERS] == [1, 1]


def test_a_failing_subject_says_why(tmp_path: Path) -> None:
    """What it raised, or else what it left on stderr; and one that hangs is ended."""
    subjects = tmp_path / "subjects.py"
    subjects.write_text(
        "import os, sys, threading\n"
        "class Raises:\n"
        "    def __init__(self): raise ValueError('no room')\n"
        "class Dies:\n"
        "    def __init__(self): print('out of luck', file=sys.stderr, flush=True); os._exit(3)\n"
        "class Hangs:\n"
        "    def __init__(self): threading.Event().wait()\n"
    )
    with Side(subjects) as side:
        with pytest.raises(RuntimeError, match="no room"):
            side.do("open", subject="Raises", arguments={})
        with pytest.raises(RuntimeError, match=r"(?s)ended with code 3.*out of luck"):
            side.do("open", subject="Dies", arguments={})
    with Side(subjects) as side, pytest.raises(TookTooLong):
        side.do("open", limit=0.1, subject="Hangs", arguments={})


@pytest.mark.parametrize(
    ("target", "ours", "peer", "verdict"),
    [
        (Target(faster=5.0), 1.0, 5.0, "pass"),
        (Target(faster=5.0), 1.0, 4.9, "FAIL"),
        (Target(within=2.0), 2.0, 1.0, "pass"),
        (Target(within=2.0), 2.1, 1.0, "FAIL"),
        (Target(beyond=60.0), 160.0, 100.0, "pass"),
        (Target(beyond=60.0), 161.0, 100.0, "FAIL"),
        (None, 1.0, 9.0, "reported"),
        (Target(faster=5.0), 1.0, None, "reported"),
    ],
)
def test_a_target_is_met_or_missed(target: Target | None, ours: float, peer: float | None, verdict: str) -> None:
    """Each kind of target, on both sides of its bound."""
    assert Row("row", ours, "us", "peer", peer, target).verdict == verdict


def test_amounts_have_three_digits_and_a_fitting_unit() -> None:
    """Whatever the size."""
    assert [amount(0.0123, "s"), amount(12_345, "us"), amount(0.5, "ms"), amount(None, "us")] == [
        "12.3 ms",
        "12.3 ms",
        "0.5 ms",
        "",
    ]


def test_what_a_line_costs_is_noted_once() -> None:
    """The first measurement of a subject stays, and system calls join it."""
    bench = Bench(quick=True, say=lambda line: None)
    bench.line("PlattliLogger", 10, {"p50_us": 5.0})
    bench.line("PlattliLogger", 10, {"p50_us": 9.0, "calls_per_line": 1.5})
    bench.line("never timed", 10, {"calls_per_line": 1.5})

    assert bench.results()["lines"] == [
        {"subject": "PlattliLogger", "metrics": 10, "p50_us": 5.0, "calls_per_line": 1.5}
    ]
