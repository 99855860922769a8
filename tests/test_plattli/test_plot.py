"""``plattli plot``: which metrics, which points, and what the picture shows."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plattli import CompactingWriter
from plattli.cli import main
from plattli.commands._chart import Look, chart
from plattli.commands._series import Series, box_of, make_series, thin
from plattli.commands._ticks import labels, log_ticks, ticks

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden"
NAN = float("nan")
PLAIN = Look(unicode=True, colour=False)
ASCII = Look(unicode=False, colour=False)
COLOUR = Look(unicode=True, colour=True)


def line(values: Any, label: str = "x", steps: Any = None, *, log_y: bool = False) -> Series:
    """Return a line over the steps 0, 1, … or those given."""
    array = np.asarray(values)
    return make_series(label, np.arange(len(array)) if steps is None else np.asarray(steps), array, log_y=log_y)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A dead run with losses, a schedule, an axis, JSON that is no number and JSON that is."""
    root = tmp_path / "digits"
    writer = CompactingWriter(root, hotsize=8)
    for step in range(30):
        row: dict[str, Any] = {"train/epoch": step // 10, "train/loss": 3 - step / 10, "train/lr": 0.1}
        if step % 10 == 9:
            row |= {"validate/loss": 4 - step / 10, "report": {"step": step}, "ok": step > 10}
        writer.write(row)
        writer.end_step()
    writer.close()
    return root


def plot(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of ``plattli plot``."""
    code = main(["plot", *map(str, args)])
    return code, *capsys.readouterr()


# ---- choosing -------------------------------------------------------------------------------------


def test_losses_are_drawn_if_nobody_says(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without -m the two losses are drawn, and the program says so."""
    code, out, err = plot(capsys, run)

    assert code == 0
    assert err == (
        "plattli plot: drawing 'train/loss', 'validate/loss'; -m chooses others, --list shows them\n"
    )
    assert out.splitlines()[0] == "digits"
    assert out.splitlines()[-2:] == [
        "• train/loss     30 points, last 0.1 at step 29",
        "× validate/loss  3 points, last 1.1 at step 29",
    ]


def test_first_numbers_are_drawn_where_there_are_no_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the usual names the first four numbers are drawn, axes and JSON left out."""
    writer = CompactingWriter(tmp_path / "a", hotsize=8)
    for step in range(3):
        writer.write({"train/epoch": 0, "word": "w", **{f"m{at}": step * at for at in range(6)}})
        writer.end_step()
    writer.finish()

    code, _, err = plot(capsys, tmp_path / "a")

    assert code == 0
    assert "drawing 'm0', 'm1', 'm2', 'm3';" in err


def test_run_without_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to draw in a run that holds only JSON."""
    code, out, err = plot(capsys, GOLDEN / "jsonl_zip" / "run")

    assert (code, out) == (1, "")
    assert err.endswith("holds numbers; --list shows what is there\n")


def test_globs_and_json_that_is_numbers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A glob draws what it can, booleans and all, and says what it leaves out."""
    code, out, err = plot(capsys, run, "-m", "*o*")

    assert code == 0
    assert [entry.split("  ")[0] for entry in out.splitlines()[-4:]] == [
        "• train/epoch",
        "× train/loss",
        "+ validate/loss",
        "○ ok",
    ]
    assert out.endswith("ok             3 points, last 1 at step 29\n")
    assert err == (
        f"plattli plot: {run}: metric 'report' is left out: only numbers can be drawn, and it holds JSON "
        'such as {"step": 9}\n'
    )


def test_a_glob_leaves_walltimes_out_unless_it_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A walltime beside a loss makes a flat line of the loss."""
    writer = CompactingWriter(tmp_path / "run", hotsize=8)
    for step in range(3):
        writer.write({"train/loss": 1 / (step + 1), "train/walltime": 1.8e9 + step})
        writer.end_step()
    writer.finish()
    for pattern, drawn in {
        "train/*": ["train/loss"],
        "*": ["train/loss"],
        "*/walltime": ["train/walltime"],
        "train/walltime": ["train/walltime"],
        "train/[v-x]*": ["train/walltime"],  # nothing else is meant
    }.items():
        code, out, _ = plot(capsys, tmp_path / "run", "-m", pattern)
        assert code == 0
        assert [name for name in ("train/loss", "train/walltime") if f"{name}  " in out] == drawn


def test_metric_that_is_no_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who asks for such a metric by its name gets an error, not an empty picture."""
    code, out, err = plot(capsys, run, "-m", "report")

    assert (code, out) == (1, "")
    assert "metric 'report' is no line: only numbers can be drawn" in err


def test_unknown_metric(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists what was perhaps meant, and nothing is drawn."""
    code, out, err = plot(capsys, run, "-m", "train/loss", "-m", "validat/los")

    assert (code, out) == (1, "")
    assert err.startswith(f"plattli plot: no metric 'validat/los' in {run}; close to it: 'validate/loss'")


def test_several_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines carry the names of their runs; what a run lacks, or a missing run, is said."""
    other = CompactingWriter(tmp_path / "other", hotsize=8)
    other.write({"train/loss": 1.0})
    other.end_step()
    other.finish()

    metrics = ("-m", "train/loss", "-m", "validate/loss")
    code, out, err = plot(capsys, run, tmp_path / "other", tmp_path / "no", *metrics)

    assert code == 1
    assert out.splitlines()[0] == "digits, other"
    assert [entry.split("  ")[0] for entry in out.splitlines()[-3:]] == [
        "• digits: train/loss",
        "× other: train/loss",
        "+ digits: validate/loss",
    ]
    assert err.splitlines() == [
        f"plattli plot: {tmp_path}/no: no such file or directory",
        f"plattli plot: {tmp_path}/other has no metric 'validate/loss'",
    ]


def test_runs_of_the_same_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that share a name go by their paths."""
    _, out, _ = plot(capsys, run, run / "plattli", "-m", "train/loss")

    assert [entry.split("  ")[0] for entry in out.splitlines()[-2:]] == [
        f"• {run}: train/loss",
        f"× {run}/plattli: train/loss",
    ]


def test_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--list names the metrics and their types, and draws nothing."""
    code, out, err = plot(capsys, run, "--list")

    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "train/epoch    i64",
        "train/loss     f32",
        "train/lr       f32",
        "validate/loss  f32",
        "report         jsonl",
        "ok             jsonl",
    ]


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--last", "5"], "5 points, last 0.1 at step 29"),
        (["--start", "20"], "10 points, last 0.1 at step 29"),
        (["--stop", "9"], "10 points, last 2.1 at step 9"),
        (["--start", "3", "--stop", "3"], "1 point, last 2.7 at step 3"),
    ],
)
def test_which_points(
    run: Path, capsys: pytest.CaptureFixture[str], options: list[str], facts: str
) -> None:
    """--last counts points, --start and --stop are steps, both inclusive."""
    code, out, _ = plot(capsys, run, "-m", "train/loss", *options)

    assert code == 0
    assert out.splitlines()[-1] == f"train/loss  {facts}"


def test_nothing_in_range(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty picture is an error that says why it would be empty."""
    code, out, err = plot(capsys, run, "-m", "train/loss", "--start", "1000")

    assert (code, out) == (1, "")
    assert err == "plattli plot: nothing to draw: 'train/loss' has 0 points\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--last", "3", "--start", "0"],
        ["--last", "3", "--stop", "0"],
        ["--last", "0"],
        ["--width", "-1"],
        ["-o", "a.gif"],
        ["-o", "png"],
    ],
)
def test_wrong_usage(run: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    """Options that make no sense end in a usage error."""
    with pytest.raises(SystemExit) as caught:
        plot(capsys, run, *options)

    assert caught.value.code == 2


def test_metric_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged metric does not hide the others."""
    with CompactingWriter(tmp_path / "a", hotsize=8) as writer:
        for step in range(3):
            writer.write(ok=None, loss=step / 2)
            writer.end_step()
        writer.finish(zip=False)
    (tmp_path / "a" / "plattli" / "ok.jsonl").write_bytes(b"null\n{\nnull\n")

    code, out, err = plot(capsys, tmp_path / "a", "-m", "ok", "-m", "loss")

    assert code == 1
    assert out.splitlines()[-1] == "loss  3 points, last 1 at step 2"
    assert f"{tmp_path}/a: metric 'ok' cannot be read: " in err


# ---- the terminal ---------------------------------------------------------------------------------


def test_picture_in_braille() -> None:
    """A straight line, dot by dot, with both axes."""
    picture = chart([line(np.arange(21))], width=24, height=8, log_y=False, look=PLAIN)

    assert picture.splitlines() == [
        "20 ┤                 ⡠⠤⠊",
        "   │              ⡠⠊⠉",
        "10 ┤          ⡠⠤⠊⠉",
        "   │       ⡠⠤⠊",
        "   │    ⡠⠊⠉",
        " 0 ┤⡠⠤⠊⠉",
        "   └┬─────────┬────────┬",
        "    0        10       20",
        "x  21 points, last 20 at step 20",
    ]


def test_picture_in_ascii() -> None:
    """Terminals without Unicode get the same with what they have."""
    both = [line([0.0, 1.0], "up"), line([1.0, 0.0], "down")]
    picture = chart(both, width=24, height=7, log_y=False, look=ASCII)

    assert picture.isascii()
    assert picture.splitlines()[-2:] == ["* up    2 points, last 1 at step 1", "x down  2 points, last 0 at step 1"]
    top = picture.splitlines()[0]
    assert (top.index("x"), top[-1]) == (top.index("+") + 1, "*")


def test_lines_are_told_apart_by_colour() -> None:
    """With colours each line has its own, in the picture and in the legend."""
    both = [line([0.0, 0.0], "low"), line([1.0, 1.0], "high")]
    rows = chart(both, width=30, height=8, log_y=False, look=COLOUR).splitlines()

    assert re.findall(r"\x1b\[(\d+)m", rows[0]) == ["33", "0"]
    assert re.findall(r"\x1b\[(\d+)m", rows[5]) == ["36", "0"]
    assert not any("\x1b" in row for row in rows[1:5])
    assert [row.startswith(f"\x1b[{colour}m━━\x1b[0m {name}") for row, colour, name in zip(
        rows[-2:], (36, 33), ("low ", "high"), strict=True
    )] == [True, True]


def test_gap_where_values_are_missing() -> None:
    """NaN and infinities leave a gap, which the legend counts."""
    values = np.r_[np.ones(40), [NAN, np.inf, -np.inf] * 10, np.ones(30)]
    picture = chart([line(values)], width=54, height=7, log_y=False, look=PLAIN)

    drawn = next(row for row in picture.splitlines() if "⠒" in row or "⠤" in row or "⣀" in row or "⠉" in row)
    assert re.search(r"\S {10,}\S", drawn)
    assert picture.endswith("x  100 points, last 1 at step 99, 30 not finite")


def test_spike_stays_visible() -> None:
    """One value in a million still reaches the top of the picture."""
    values = np.zeros(1_000_000, np.float32)
    values[654_321] = 1
    picture = chart([line(values)], width=80, height=20, log_y=False, look=PLAIN).splitlines()

    columns = {row.rstrip().rindex(row.rstrip()[-1]) for row in picture[:16]}
    assert len(columns) == 1
    assert all(len(row.split("│")[-1].split("┤")[-1].strip()) == 1 for row in picture[:16])


def test_logarithmic_axis() -> None:
    """Decades are evenly spaced; what a logarithm cannot show is counted and left out."""
    values = [100.0, 10.0, 1.0, 0.0, -5.0]
    picture = chart([line(values, log_y=True)], width=40, height=11, log_y=True, look=PLAIN)

    rows = [row for row in picture.splitlines() if "┤" in row]
    assert [row.split("┤")[0].strip() for row in rows] == ["100", "10", "1"]
    at = [picture.splitlines().index(row) for row in rows]
    assert at == [0, 4, 8]
    assert picture.endswith("x  5 points, last 1 at step 2, 2 not above 0")


def test_values_that_strain_floats() -> None:
    """Constants, single points, the ends of the float range: a picture, never an exception."""
    extremes: list[Any] = [
        [5.0],
        [0.0, 0.0],
        [-1e308, 1e308],
        [5e-324, 0.0],
        [1.0, np.nextafter(1.0, 2.0)],
        [1e16, 1e16 + 2],
        np.array([2**64 - 1, 0], np.uint64),
        [-(2**63), 2**63 - 1],
    ]
    for values in extremes:
        for log_y in (False, True):
            series = [line(values, log_y=log_y)]
            rows = chart(series, width=40, height=8, log_y=log_y, look=PLAIN).splitlines()
            assert len(rows) == (9 if np.isfinite(series[0].values).any() else 1)


def test_unsorted_steps_are_sorted() -> None:
    """Writers that went back in time left steps out of order; the picture is in order."""
    assert line([3.0, 1.0, 2.0], steps=[9, 2, 5]).values.tolist() == [1.0, 2.0, 3.0]


def test_json_numbers() -> None:
    """Of JSON values, null is a gap and booleans are 0 and 1."""
    values = np.array([None, True, False, 2, 0.5, 10**30], object)

    np.testing.assert_array_equal(line(values).values, [NAN, 1, 0, 2, 0.5, 1e30])


def test_terminal_gets_colours(run: Path) -> None:
    """On a real terminal the program uses its colours and its width."""
    code, out = in_a_terminal(run, "-m", "train/*", COLUMNS="50", TERM="xterm")

    assert code == 0
    assert "\x1b[36m" in out
    assert max(len(re.sub(r"\x1b\[\d+m", "", row)) for row in out.splitlines()[1:-3]) == 50


def test_terminal_without_colours(run: Path) -> None:
    """Who sets NO_COLOR gets none."""
    code, out = in_a_terminal(run, "-m", "train/*", TERM="xterm", NO_COLOR="1")

    assert code == 0
    assert "\x1b" not in out


def in_a_terminal(run: Path, *args: str, **environment: str) -> tuple[int, str]:
    """Return the exit code and the output of ``plattli plot`` on a terminal of its own."""
    ours, theirs = pty.openpty()
    inherited = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "plattli", "plot", str(run), *args],
        cwd=ROOT,
        env=inherited | {"PYTHONIOENCODING": "utf-8"} | environment,
        stdout=theirs,
        stdin=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        pieces = []
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and select.select([ours], [], [], 240)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end was closed
                break
            if not piece:
                break
            pieces.append(piece)
        os.close(ours)
    return process.returncode, b"".join(pieces).decode()


# ---- thinning -------------------------------------------------------------------------------------

POINTS = st.lists(
    st.one_of(st.just(NAN), st.floats(-1e6, 1e6).map(lambda value: round(value, 2))), min_size=1, max_size=300
)


@given(values=POINTS, columns=st.integers(1, 12))
def test_thinned_line_covers_the_same_pixels(values: list[float], columns: int) -> None:
    """Every pixel column keeps its first, lowest, highest and last point, and every gap between columns."""
    whole = line(values)
    box = box_of([whole], log_y=False)
    if box is None:
        return
    steps, kept = thin(whole, box, columns)

    def by_column(xs: Any, ys: Any) -> dict[int, tuple[float, ...]]:
        finite = np.isfinite(ys)
        column = ((xs - box.left) / (box.right - box.left) * columns).astype(int).clip(0, columns - 1)[finite]
        return {
            int(at): (inside[0], inside.min(), inside.max(), inside[-1])
            for at in np.unique(column)
            if len(inside := ys[finite][column == at])
        }

    def torn_columns(xs: Any, ys: Any) -> set[tuple[int, int]]:
        finite = np.flatnonzero(np.isfinite(ys))
        column = ((xs[finite] - box.left) / (box.right - box.left) * columns).astype(int).clip(0, columns - 1)
        pairs = zip(finite[:-1], finite[1:], column[:-1], column[1:], strict=True)
        return {(int(a), int(b)) for left, right, a, b in pairs if a != b and right - left > 1}

    assert by_column(steps, kept) == by_column(whole.steps, whole.values)
    assert torn_columns(steps, kept) == torn_columns(whole.steps, whole.values)
    assert len(steps) <= max(5 * columns, 4 * columns)
    assert (np.diff(steps) >= 0).all()


# ---- ticks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        (ticks(0, 2.4, 6), ["0.0", "0.5", "1.0", "1.5", "2.0"]),
        (ticks(-0.13, 0.13, 4), ["-0.1", "0.0", "0.1"]),
        (ticks(0.1234, 0.1237, 4), ["0.1234", "0.1235", "0.1236", "0.1237"]),
        (ticks(1e-6, 3e-6, 4), ["1e-6", "2e-6", "3e-6"]),
        (ticks(0, 3e9, 4), ["0", "1e9", "2e9", "3e9"]),
        (ticks(4.5, 5.5, 4, whole=True), ["5"]),
        (ticks(1, 500, 6, whole=True), ["100", "200", "300", "400", "500"]),
        (log_ticks(0.5, 2000, 5), ["1", "10", "100", "1000"]),
        (log_ticks(1e-12, 1, 5), ["1e-12", "1e-9", "1e-6", "0.001", "1"]),
        (log_ticks(3, 3.4, 5), ["3.0", "3.1", "3.2", "3.3", "3.4"]),
    ],
)
def test_round_numbers(numbers: list[float], texts: list[str]) -> None:
    """Ticks are round, few enough, inside the range, and labelled with no digit too many."""
    assert labels(numbers) == texts


# ---- files ----------------------------------------------------------------------------------------


def test_png(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is a picture of the size asked for, with a line in it, and no leftover beside it."""
    image = pytest.importorskip("matplotlib.image")
    target = tmp_path / "out" / "loss.png"
    target.parent.mkdir()

    code, out, _ = plot(capsys, run, "-o", target, "--width", 600, "--height", 300)

    assert (code, out) == (0, f"wrote {target}\n")
    pixels = image.imread(target)
    assert pixels.shape[:2] == (300, 600)
    blue = (np.abs(pixels[..., :3] - (0.122, 0.467, 0.706)) < 0.02).all(axis=-1)
    assert blue.any(axis=0).sum() > 300  # the line spans most of the width
    assert [path.name for path in target.parent.iterdir()] == ["loss.png"]


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF-"), (".PNG", b"\x89PNG")])
def test_other_formats(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, magic: bytes
) -> None:
    """The suffix says what the file becomes."""
    pytest.importorskip("matplotlib")
    target = tmp_path / f"loss{suffix}"

    code, _, _ = plot(capsys, run, "-o", target, "--log-y", "--last", 10)

    assert code == 0
    assert target.read_bytes().startswith(magic)


def test_names_are_not_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dollar signs and leading underscores in names are text in the picture."""
    pytest.importorskip("matplotlib")
    writer = CompactingWriter(tmp_path / "$x$ run", hotsize=8)
    writer.write({"_hidden": 1.0, "cost$a^{$": 2.0, "nan": NAN})
    writer.end_step()
    writer.finish()

    code, _, err = plot(capsys, tmp_path / "$x$ run", "-m", "*", "-o", tmp_path / "a.svg")

    assert (code, err) == (0, "")
    assert all(f"<!-- {text} -->" in (tmp_path / "a.svg").read_text() for text in ("_hidden", "cost$a^{$", "$x$ run"))


def test_file_that_cannot_be_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing directory is named."""
    pytest.importorskip("matplotlib")
    code, _, err = plot(capsys, run, "-m", "train/loss", "-o", tmp_path / "no" / "a.png")

    assert code == 1
    assert err == f"plattli plot: cannot write {tmp_path}/no/a.png: there is no directory {tmp_path}/no\n"


def test_matplotlib_is_optional(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the error names the extra to install, and the terminal picture still works."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    code, _, err = plot(capsys, run, "-m", "train/loss", "-o", tmp_path / "a.png")
    in_terminal, _, _ = plot(capsys, run, "-m", "train/loss")

    assert (code, in_terminal) == (1, 0)
    assert err == (
        "plattli plot: drawing into a file needs the package 'matplotlib', which is not installed: "
        "pip install 'plattli-loggers[plot]'\n"
    )
