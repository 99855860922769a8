"""loggers.stdout_logger: lines for a pipe, a table for a terminal, and no training that stops over either."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pty
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from loggers import StdoutLogger, TrainingSession
from loggers.errors import LoggerError, LoggerFinishedError, MetricValueError

ROOT = Path(__file__).parents[2]

TRAIN = """
import sys
from loggers import StdoutLogger, TrainingSession
with TrainingSession(StdoutLogger(total=40), params={"lr": 0.1}) as session:
    for step in range(40):
        session.train({"loss": 1 / (step + 1), "acc": 0.5})
    session.validate({"loss": 0.123456})
print("done", file=sys.stderr)
"""


def test_lines_are_koochaks(capsys: pytest.CaptureFixture[str]) -> None:
    """Key and value, tabs between them; step, loss and lr first, the rest by name; four significant digits."""
    logger = StdoutLogger()
    logger.log_params({"lr": 0.1})
    logger.log_metrics({"zeta": 0.123456, "lr": 1e-4, "acc": 1, "detail/loss": 2.0, "loss": 1234.56}, step=3, epoch=2)
    logger.log_metrics({"acc": 0.5, "loss": 0.29142}, step=3, context="validate")
    logger.log_metrics({"step": 7, "two words": "a\tb", "why": "warm-up"}, step=4)
    logger.log_tags("baseline")
    logger.log_other("checkpoint", {"path": "a.pt", "step": 3})
    logger.finish("completed")

    assert capsys.readouterr().out.splitlines() == [
        'params {"lr": 0.1}',
        "step 3\tloss 1235\tlr 0.0001\tacc 1\ttrain/detail/loss 2\tepoch 2\tzeta 0.1235",
        "step 3\tvalidate/loss 0.2914\tvalidate/acc 0.5",
        'step 4\ttrain/step 7\t"two words" "a\\tb"\twhy warm-up',
        'tags {"baseline": true}',
        'other {"checkpoint": {"path": "a.pt", "step": 3}}',
        "finish completed",
    ]


def test_it_prints_to_whatever_stdout_is(capfd: pytest.CaptureFixture[str]) -> None:
    """In the order of what others print, to the process's own or to a stream in memory."""
    logger = StdoutLogger()
    print("before")
    logger.log_metrics({"loss": 0.5}, step=1)
    print("after")
    stream = io.StringIO()
    StdoutLogger(file=stream).log_metrics({"loss": 0.5}, step=1)

    assert capfd.readouterr().out == "before\nstep 1\tloss 0.5\nafter\n"
    assert stream.getvalue() == "step 1\tloss 0.5\n"


class Copying:
    """What programs and notebooks put in place of stdout: everything goes elsewhere as well, the rest is stdout's."""

    def __init__(self, stream: Any, copy: io.StringIO) -> None:
        self._stream, self._copy = stream, copy

    def write(self, text: str) -> int:
        self._copy.write(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def test_a_stream_in_place_of_stdout_gets_the_lines(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it names the file of what it stands for."""
    copied = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Copying(sys.stdout, copied))
    StdoutLogger().log_metrics({"loss": 0.5}, step=1)

    assert copied.getvalue() == capfd.readouterr().out == "step 1\tloss 0.5\n"


def test_a_compressed_file_is_one(tmp_path: Path) -> None:
    """The text goes through the compression, not past it."""
    with gzip.open(tmp_path / "log.gz", "wt") as file:
        StdoutLogger(file=file).log_metrics({"loss": 0.5}, step=1)

    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"step 1\tloss 0.5\n"


def test_a_closed_pipe_stops_nothing() -> None:
    """It is said once, and the process ends as it would."""
    code = TRAIN.replace("StdoutLogger(total=40)", "StdoutLogger()").replace("import sys", "import os, sys, time", 1)
    code = code.replace("    for step", "    os.close(reading)\n    for step")
    code = code.replace("with Tr", "reading, writing = os.pipe()\nos.dup2(writing, 1)\nos.close(writing)\nwith Tr")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "StdoutLogger cannot print (BrokenPipeError" in done.stderr
    assert done.stderr.endswith("done\n")


def test_a_stream_that_is_closed_or_full_stops_nothing(tmp_path: Path) -> None:
    """The one for good, the other for a while."""
    stream = (tmp_path / "out.txt").open("w")
    logger = StdoutLogger(file=stream)
    stream.close()
    with pytest.warns(RuntimeWarning, match="cannot print .ValueError"):
        logger.log_metrics({"loss": 0.5}, step=1)
    logger.finish("completed")
    with open("/dev/full", "w") as full, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        logger = StdoutLogger(file=full)
        for step in (1, 2):
            logger.log_metrics({"loss": 0.5}, step=step)
    assert [str(warning.message)[:36] for warning in said] == ["StdoutLogger cannot print (OSError: "]


def on_a_terminal(code: str, **env: str) -> str:
    """Run a program whose stdout is a terminal; return what it printed there."""
    reading, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", **env}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=terminal, stderr=subprocess.PIPE
    )
    os.close(terminal)
    printed = b""
    while True:
        try:
            printed += (block := os.read(reading, 65536))
        except OSError:  # how Linux says that nobody has the other end any more
            break
        if not block:
            break
    os.close(reading)
    assert process.stderr is not None
    problems = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0, problems
    return printed.decode()


def test_a_terminal_gets_a_table() -> None:
    """Newest values by context, and how far training is; the cursor is shown again at the end."""
    printed = on_a_terminal(TRAIN)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)

    assert "40/40" in plain
    assert re.search(r"loss\s+│\s+0\.025\s+│\s+0\.1235", plain)
    assert "step 40" in plain
    assert plain.rstrip().endswith("finish completed")
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")


def test_a_terminal_without_rich_or_wits_gets_lines() -> None:
    """The package is optional; and TERM=dumb can draw nothing."""
    hidden = "import sys\nsys.modules['rich'] = None\n" + TRAIN

    for printed in (on_a_terminal(hidden), on_a_terminal(TRAIN, TERM="dumb")):
        lines = printed.splitlines()
        assert "step 40\tloss 0.025\tacc 0.5\tepoch 1" in lines
        assert "step 40\tvalidate/loss 0.1235\tepoch 1" in lines


def test_the_table_has_to_have_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for it by name is told how to get it; so is who asks for what cannot be."""
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match=r"pip install 'plattli-loggers\[console\]'"):
        StdoutLogger(live=True)
    with pytest.raises(LoggerError, match="total must be a positive number of steps"):
        StdoutLogger(total=0)


def test_the_time_that_is_left_is_of_this_attempt() -> None:
    """A resumed training begins at its step: those before say nothing about its speed. Pictures are some time apart."""
    from loggers._live import LiveTable

    now = [100.0]
    stream = io.StringIO()
    table = LiveTable(1000, stream, clock=lambda: now[0])
    for step in range(500, 601):
        table.update("train", step, None, {"loss": str(step)})
        now[0] += 1.0
    pictures = stream.getvalue()
    left = table._progress.tasks[0].time_remaining
    for number in range(40):
        table.update("train", 601, 3, {f"m{number}": "1"})
    table.print("a line between")
    table.stop()
    other = io.StringIO()
    full = LiveTable(1000, other)
    full.update("train", 990, None, {"loss": "1"})
    full.stop(completed=True)

    assert left == 400
    assert pictures == ""  # no terminal: only the last picture is drawn
    assert "601/1000" in stream.getvalue()
    assert "1000/1000" in other.getvalue()
    assert "epoch 3" in stream.getvalue()
    assert "and 11 more metrics" in stream.getvalue()
    assert "a line between" in stream.getvalue()


def test_values_that_cannot_be_printed_are_named() -> None:
    """After the others were printed, in lines as in the table."""
    for live in (False, True):
        stream = io.StringIO()
        logger = StdoutLogger(live=live, file=stream)
        with pytest.raises(MetricValueError, match="'model'"):
            logger.log_metrics({"loss": 0.5, "model": object()}, step=1)
        logger.finish("error")
        with pytest.raises(LoggerFinishedError):
            logger.log_tags("late")

        assert re.search(r"loss\W+0\.5", stream.getvalue())


def test_copies_print_nothing() -> None:
    """A forked child's, and one that was pickled after the first line."""
    stream = io.StringIO()
    logger = StdoutLogger(file=stream)
    fresh: Any = pickle.loads(pickle.dumps(StdoutLogger(total=3)))
    logger.log_metrics({"loss": 0.5}, step=1)
    copy = pickle.loads(pickle.dumps(StdoutLogger()))
    copy._pid = -1
    copy.log_metrics({"loss": 0.5}, step=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        before = stream.getvalue()
        logger.log_metrics({"loss": 0.5}, step=3)
        logger.finish("error")
        os._exit(int(stream.getvalue() != before))

    assert os.waitpid(pid, 0)[1] == 0
    assert repr(fresh) == "StdoutLogger(total=3)"
    assert stream.getvalue() == "step 1\tloss 0.5\n"


def test_a_session_needs_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    """It has every verb; rich is not loaded for lines."""
    code = "import sys\n" + TRAIN + "\nassert 'rich' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    with TrainingSession(StdoutLogger()) as session:
        session.train({"loss": 0.5})

    assert done.stdout.splitlines()[1] == "step 1\tloss 1\tacc 0.5\tepoch 1"
    assert capsys.readouterr().out == "step 1\tloss 0.5\tepoch 1\nfinish completed\n"
    assert isinstance(StdoutLogger().logger_info()["live"], bool)
