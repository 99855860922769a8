"""``plattli show``: the page, the JSON, and what happens when something cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plattli import CompactingWriter, Reader
from plattli.cli import main
from plattli.commands._summary import MetricSummary, summarize
from plattli.commands._text import cells, number, pad, printable, shorten

GOLDEN = Path(__file__).parents[1] / "golden"
ABOUT = {
    "id": "digits-1",
    "status": "completed",
    "started": "2026-01-02T03:04:05Z",
    "finished": "2026-01-02T03:14:08Z",
    "tags": {"baseline": True, "seed": 3},
}
NAN = float("nan")


def make_run(root: Path, *, steps: int = 4) -> CompactingWriter:
    """Return a writer whose run has numbers with a NaN, JSON, and a metric with a single row."""
    run = CompactingWriter(root, hotsize=3, config={"lr": 3e-4, "arch": {"width": [64, 64]}, "_run": ABOUT})
    for step in range(steps):
        run.write({"train/loss": NAN if step == 1 else 2.0 - step / 4, "note": {"text": "ü" * 30, "step": step}})
        if step == 2:
            run.write({"seen": 70_000})
        run.end_step()
    return run


def show(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of ``plattli show``."""
    code = main(["show", *map(str, args)])
    return code, *capsys.readouterr()


def shown(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    """Return the one object that ``plattli show --json`` prints for a run that is fine."""
    code, out, err = show(capsys, "--json", *args)
    assert (code, err) == (0, "")

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not strict JSON")

    page: dict[str, Any] = json.loads(out, parse_constant=refuse)
    return page


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width but the one that a test sets, and a clock in UTC."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TZ", "UTC")


def test_page_of_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole page, to the character."""
    make_run(tmp_path / "digits").finish()

    code, out, err = show(capsys, tmp_path / "digits")

    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "digits  completed",
        "  id        digits-1",
        "  started   2026-01-02 03:04:05 UTC, took 10 min 3 s",
        "  finished  2026-01-02 03:14:08 UTC",
        f"  path      {tmp_path}/digits/metrics.plattli",
        "  tags      baseline, seed=3",
        "  params    lr    0.0003",
        '            arch  {"width": [64, 64]}',
        "",
        "  metric      dtype  count  steps   last    min    max",
        '  note        jsonl      4   0..3  {"text": "üüüüüüüüüüüüüüüüüüüüüüüüüüüüüü", "step": 3}',
        "  seen        u32        1      2  70000  70000  70000",
        "  train/loss  f32        4   0..3   1.25   1.25      2  nan: 1",
    ]


def test_a_walltime_is_shown_as_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is none: seconds since the start, say. For programs it stays a number."""
    with CompactingWriter(tmp_path / "run", hotsize=9) as run:
        for seconds in (1e9, 1.5e9 + 0.75):
            run.write({"train/walltime": np.float64(seconds), "odd/walltime": seconds / 10, "train/walltimes": 7})
            run.end_step()

    assert show(capsys, tmp_path / "run", "-m", "*walltime*")[1].splitlines()[-4:] == [
        "  metric           dtype  count  steps       last        min        max",
        "  odd/walltime     f32        2   0..1  150000000  100000000  150000000",
        "  train/walltime   f64        2   0..1  2017-07-14 02:40:00 UTC",
        "  train/walltimes  i64        2   0..1          7          7          7",
    ]
    walltime = shown(capsys, tmp_path / "run")["metrics"]["train/walltime"]
    assert (walltime["last"], walltime["min"]) == (1.5e9 + 0.75, 1e9)


def test_a_run_that_cannot_be_read_is_an_object_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json, and nothing on stderr, so that a program has one line per run."""
    make_run(tmp_path / "a").finish()
    code, out, err = show(capsys, "--json", tmp_path / "none", tmp_path / "a")
    first, second = map(json.loads, out.splitlines())

    assert (code, err) == (1, "")
    assert first == {"path": f"{tmp_path}/none", "error": f"{tmp_path}/none: no such file or directory"}
    assert second["status"] == "completed"


def test_json_of_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything the page shows, in full, as strict JSON."""
    make_run(tmp_path / "digits").finish()

    page = shown(capsys, tmp_path / "digits")

    assert page.pop("written").endswith("Z")
    assert page == {
        "path": f"{tmp_path}/digits/metrics.plattli",
        "kind": "zip",
        "id": "digits-1",
        "status": "completed",
        "started": "2026-01-02T03:04:05Z",
        "finished": "2026-01-02T03:14:08Z",
        "owner": None,
        "params": {"lr": 3e-4, "arch": {"width": [64, 64]}},
        "tags": {"baseline": True, "seed": 3},
        "metrics": {
            "note": {
                "dtype": "jsonl",
                "count": 4,
                "first_step": 0,
                "last_step": 3,
                "last": {"text": "ü" * 30, "step": 3},
                "min": None,
                "max": None,
                "nan": 0,
            },
            "seen": {
                "dtype": "u32",
                "count": 1,
                "first_step": 2,
                "last_step": 2,
                "last": 70000,
                "min": 70000,
                "max": 70000,
                "nan": 0,
            },
            "train/loss": {
                "dtype": "f32",
                "count": 4,
                "first_step": 0,
                "last_step": 3,
                "last": 1.25,
                "min": 1.25,
                "max": 2.0,
                "nan": 1,
            },
        },
    }


def test_live_and_dead_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that are only in the hot log count, with and without a living writer."""
    run = CompactingWriter(tmp_path / "a", hotsize=3, config={"_run": ABOUT | {"status": "running"}})
    for step in range(8):
        run.write(loss=float(step))
        run.end_step()
    live = shown(capsys, tmp_path / "a")
    _, page, _ = show(capsys, tmp_path / "a")
    run.close()
    dead = shown(capsys, tmp_path / "a" / "plattli")

    assert (live["status"], dead["status"]) == ("running", "died")
    assert live["owner"]["pid"] > 0
    assert dead["owner"] is None
    assert f"\n  writer    process {live['owner']['pid']} on host " in page
    assert live["metrics"] == dead["metrics"]
    assert {key: live["metrics"]["loss"][key] for key in ("count", "last_step", "last", "max")} == {
        "count": 8,
        "last_step": 7,
        "last": 7.0,
        "max": 7.0,
    }


def test_numbers_that_json_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN and the infinities are strings, wherever they stand."""
    inf = float("inf")
    run = CompactingWriter(tmp_path / "a", hotsize=3, config={"a": [NAN, {"b": -inf}]})
    for value in (inf, -inf, NAN):
        run.write(x=value, j=[value], n=NAN)
        run.end_step()
    run.finish()

    page = shown(capsys, tmp_path / "a")

    assert page["params"] == {"a": ["NaN", {"b": "-Infinity"}]}
    x, j, n = (page["metrics"][name] for name in "xjn")
    assert (x["last"], x["min"], x["max"], x["nan"]) == ("NaN", "-Infinity", "Infinity", 1)
    assert j["last"] == ["NaN"]
    assert (n["last"], n["min"], n["max"], n["nan"]) == ("NaN", None, None, 3)


def test_full_integer_range(capsys: pytest.CaptureFixture[str]) -> None:
    """Integers of 64 bits stay exact."""
    metrics = shown(capsys, GOLDEN / "dtypes_final_zip" / "run")["metrics"]

    assert (metrics["t_u64"]["max"], metrics["t_i64"]["min"]) == (2**64 - 1, -(2**63))


def test_metric_that_only_the_hot_log_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an entry in the manifest the values themselves say what they are."""
    shutil.copytree(GOLDEN / "hot_tail" / "run", tmp_path / "a")
    with (tmp_path / "a" / "plattli" / "hot.jsonl").open("a") as log:
        log.write('{"step":90,"new/number":2.5,"new/word":"w"}\n{"step":91,"new/number":NaN}\n')

    metrics = shown(capsys, tmp_path / "a", "-m", "new/*")["metrics"]
    _, page, _ = show(capsys, tmp_path / "a", "-m", "new/*")

    assert {name: (metric["dtype"], metric["count"]) for name, metric in metrics.items()} == {
        "new/number": ("hot", 2),
        "new/word": ("hot", 1),
    }
    assert (metrics["new/number"]["min"], metrics["new/number"]["nan"]) == (2.5, 1)
    assert page.splitlines()[-2:] == [
        "  new/number  hot        2  90..91   nan  2.5  2.5  nan: 1",
        "  new/word    hot        1      90  w",
    ]


def test_chosen_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and globs choose; a name that looks like a glob is still a name."""
    run = make_run(tmp_path / "a")
    run.write({"a[1]": 1.0, "a1": 2.0})
    run.end_step()
    run.finish()

    assert list(shown(capsys, tmp_path / "a", "-m", "train/*", "-m", "seen")["metrics"]) == ["seen", "train/loss"]
    assert list(shown(capsys, tmp_path / "a", "-m", "a[1]")["metrics"]) == ["a[1]"]


def test_unknown_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern that matches nothing is an error that lists what comes close."""
    make_run(tmp_path / "a").finish()

    code, out, err = show(capsys, tmp_path / "a", "-m", "loss")

    assert code == 1
    assert out.endswith("\n  no metric to show\n")
    assert err == f"plattli show: no metric 'loss' in {tmp_path}/a; close to it: 'train/loss'\n"


def test_unreadable_run_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other runs are shown, and the exit code tells."""
    make_run(tmp_path / "a").finish()
    make_run(tmp_path / "b").finish()
    (tmp_path / "junk.plattli").write_bytes(b"PK")

    code, out, err = show(capsys, tmp_path / "a", tmp_path / "no", tmp_path / "junk.plattli", tmp_path / "b")

    assert code == 1
    assert [line for line in out.splitlines() if line.endswith("  completed")] == ["a  completed", "b  completed"]
    lines = err.splitlines()
    assert lines[0] == f"plattli show: {tmp_path}/no: no such file or directory"
    assert lines[1].startswith(f"plattli show: {tmp_path}/junk.plattli: not a run")


def test_error_names_path_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """A run whose files break the rules is named by its path."""
    path = GOLDEN / "bad_manifest_name" / "run"

    code, out, err = show(capsys, path)

    assert (code, out) == (1, "")
    assert err.startswith(f"plattli show: {path}: metric name '../evil' ")


def test_folder_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who names the folder above is told which runs are in it."""
    for name in ("b", "a"):
        make_run(tmp_path / name).finish()

    code, _, err = show(capsys, tmp_path)

    assert code == 1
    assert err == f"plattli show: {tmp_path}: not a run itself, but a folder of runs: 'a', 'b'\n"


def test_run_without_metrics_yet(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that has only just begun is not taken for something else."""
    code, _, err = show(capsys, GOLDEN / "config_only_not_a_run" / "run")

    assert code == 1
    assert err.endswith("nothing is logged yet: there is no plattli/plattli.json\n")


def test_finished_run_without_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """A run can have ended before its first metric."""
    code, out, _ = show(capsys, GOLDEN / "empty_finished_zip" / "run")

    assert code == 0
    assert out.startswith("run  finished\n")
    assert out.endswith("\n  no metric to show\n")


def test_metric_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One damaged metric costs its own line only, and the exit code."""
    make_run(tmp_path / "a").finish(zip=False)
    (tmp_path / "a" / "plattli" / "train" / "loss.f32").unlink()

    code, out, err = show(capsys, tmp_path / "a")
    _, line, _ = show(capsys, "--json", tmp_path / "a")

    assert code == 1
    assert "  train/loss  f32    cannot be read: " in out
    assert "\n  seen        u32        1 " in out
    assert err.startswith(f"plattli show: {tmp_path}/a: metric 'train/loss' cannot be read: ")
    metrics = json.loads(line)["metrics"]
    assert "problem" in metrics["train/loss"]
    assert "problem" not in metrics["seen"]


def test_run_that_is_archived_while_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a run that finishes in the middle of it is whole, and says that it is finished."""
    run = make_run(tmp_path / "a")

    def finish_then_summarize(reader: Reader, name: str) -> MetricSummary:
        if name == "seen":
            run.finish()
        return summarize(reader, name)

    monkeypatch.setattr("plattli.commands.show.summarize", finish_then_summarize)

    page = shown(capsys, tmp_path / "a")

    assert (page["kind"], page["status"]) == ("zip", "completed")
    assert {name: metric["count"] for name, metric in page["metrics"].items()} == {
        "note": 4,
        "seen": 1,
        "train/loss": 4,
    }


@pytest.mark.parametrize("width", [200, 80, 60, 40, 24])
def test_no_line_is_wider_than_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Whatever the width, lines fit; only the path, there to be copied, may run over."""
    run = make_run(tmp_path / "a")
    run.write({"a/very/long/name/of/a/metric/that/somebody/chose": 0.125, "損失": -1e-30})
    run.end_step()
    run.finish()
    monkeypatch.setenv("COLUMNS", str(width))

    _, out, _ = show(capsys, tmp_path / "a")

    lines = [line for line in out.splitlines() if not line.startswith("  path")]
    assert max(map(cells, lines)) <= width
    for number_ in ("70000", "0.125", "-1e-30"):
        assert number_ in out


def test_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too narrow for a table, each metric is a paragraph that says what its numbers are."""
    make_run(tmp_path / "a").finish()
    monkeypatch.setenv("COLUMNS", "40")

    _, out, _ = show(capsys, tmp_path / "a", "-m", "train/loss", "-m", "note")

    assert out.splitlines()[-6:] == [
        "  note",
        "    jsonl, rows 4, steps 0..3",
        '    {"text": "üüüüüüüüüüüüüüüüüüüüüüüüü…',
        "  train/loss",
        "    f32, rows 4, steps 0..3, last 1.25,",
        "    min 1.25, max 2, nan: 1",
    ]


def test_unprintable_names(capsys: pytest.CaptureFixture[str]) -> None:
    """A name cannot move the cursor or break the table."""
    names = shown(capsys, GOLDEN / "names_live" / "run")["metrics"]
    _, out, _ = show(capsys, GOLDEN / "names_live" / "run")

    table = out[out.index("\n\n") :].splitlines()[3:]
    assert len(table) == len(names)
    assert all(line.isprintable() for line in table)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-12345678901, "-12345678901"),
        (0.1 + 0.2, "0.3"),
        (1e-7, "1e-07"),
        (123456.789, "123457"),
        (1764451234.56, "1764451235"),
        (1e12, "1e+12"),
        (NAN, "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_for_people(value: float, text: str) -> None:
    """About six digits, no exponent for what people count, integers in full."""
    assert number(value) == text


def test_text_helpers() -> None:
    """Width is counted as a terminal shows it."""
    assert (cells("ab"), cells("損失"), cells("e\u0301")) == (2, 4, 1)
    assert (pad("損", 4), pad("1", 3, right=True)) == ("損  ", "  1")
    assert (shorten("abcdef", 4), shorten("abcdefgh", 5, middle=True)) == ("abc…", "ab…gh")
    assert (shorten("損失関数", 5), shorten("abc", 3)) == ("損失…", "abc")
    assert printable("a\nb\x1b[0m\udc80") == "a\\nb\\x1b[0m\\udc80"
