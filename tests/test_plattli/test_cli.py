"""The program ``plattli``: its commands, wherever they come from, and how it ends."""

from __future__ import annotations

import importlib.metadata
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plattli import CompactingWriter, __version__
from plattli._console import Progress, can_show, run_program
from plattli.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run."""
    writer = CompactingWriter(tmp_path / "run", hotsize=8)
    writer.write(loss=0.5)
    writer.end_step()
    writer.finish()
    return tmp_path / "run"


def program(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run ``python -m plattli`` from the source tree."""
    command = [sys.executable, "-m", "plattli", *map(str, args)]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, cwd=ROOT, text=True, stderr=subprocess.PIPE, timeout=240, **options
    )


def install(site: Path, module: str, source: str, commands: dict[str, str]) -> None:
    """Put a package with entry points where Python finds it."""
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in commands.items()]
    (info / "entry_points.txt").write_text("\n".join(["[plattli.commands]", *lines, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path, with its modules forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]


COUNT = """
def add(subparsers):
    parser = subparsers.add_parser("count", help="count to a number")
    parser.add_argument("to", type=int)
    parser.set_defaults(run=run)

def run(args):
    print(*range(args.to))
    return 3
"""


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """--help says what there is to do, and each command explains itself with examples."""
    for args, words in (
        (["--help"], ("show", "plot", "what a run is")),
        (["show", "--help"], ("examples:", "plattli show runs/digits", "exit code")),
        (["plot", "--help"], ("examples:", "--log-y", "exit code")),
    ):
        with pytest.raises(SystemExit) as caught:
            main(args)
        out = capsys.readouterr().out
        assert caught.value.code == 0
        assert all(word in out for word in words)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version names the distribution and its version."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"plattli-loggers {__version__}\n"


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help is shown, as a usage error."""
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "plattli COMMAND --help" in err


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command is a usage error that lists the right ones."""
    with pytest.raises(SystemExit) as caught:
        main(["shwo"])

    assert caught.value.code == 2
    assert "choose from" in capsys.readouterr().err


def test_works_as_a_module(run: Path) -> None:
    """``python -m plattli`` in the source tree is the program."""
    result = program("show", run, stdout=subprocess.PIPE)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("run  finished\n")


def test_works_without_being_installed(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own commands are there even where no metadata names them."""
    monkeypatch.setattr("plattli.cli.entry_points", lambda *, group: importlib.metadata.EntryPoints())

    assert main(["show", str(run)]) == 0
    assert main(["plot", str(run), "--list"]) == 0
    assert capsys.readouterr().out.endswith("\nloss  f32\n")


def test_other_packages_bring_commands(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry point adds a command; what it returns is the exit code."""
    install(site, "counting", COUNT, {"count": "counting:add"})

    assert main(["count", "4"]) == 3
    assert capsys.readouterr().out == "0 1 2 3\n"


def test_own_commands_cannot_be_replaced(site: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metadata that names one of ours again changes nothing."""
    install(site, "pirate", COUNT, {"show": "pirate:add", "plot": "plattli.commands.plot:add"})

    assert main(["show", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("run  finished\n")
    assert err == ""


def test_broken_commands_are_left_out(site: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else's broken command is named, and the others work."""
    install(site, "broken", "import there_is_no_such_module\n", {"bad": "broken:add"})
    install(site, "counting", COUNT, {"count": "counting:add", "again": "counting:add"})

    assert main(["show", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("run  finished\n")
    assert "command 'bad' of the package broken is left out: broken:add failed with ModuleNotFound" in err


def test_registered_commands_exist() -> None:
    """Where the package is installed, its metadata names functions that exist."""
    commands = importlib.metadata.entry_points(group="plattli.commands")
    for command in commands:
        if command.value.startswith("plattli."):
            assert callable(command.load())


def test_closed_pipe(run: Path) -> None:
    """Whoever reads may stop early: no traceback, and the exit code that shells expect."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = program("show", run, stdout=writing)
    finally:
        os.close(writing)

    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk(run: Path) -> None:
    """Output that cannot be written is an error in one line."""
    with open("/dev/full", "w") as full:
        result = program("show", run, stdout=full)

    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_terminal_without_unicode(tmp_path: Path) -> None:
    """Names that the terminal cannot spell are escaped."""
    writer = CompactingWriter(tmp_path / "run", hotsize=8)
    writer.write({"損失": 1.0})
    writer.end_step()
    writer.finish()

    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = program("show", tmp_path / "run", stdout=subprocess.PIPE, env=environment)
    plotted = program("plot", tmp_path / "run", "-m", "*", stdout=subprocess.PIPE, env=environment)

    assert (shown.returncode, plotted.returncode) == (0, 0)
    assert "\\u640d\\u5931" in shown.stdout
    assert "+------" in plotted.stdout


def test_interrupted() -> None:
    """Ctrl-C ends a program quietly, with the exit code that shells expect."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert run_program(interrupted) == 130


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def test_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar comes after a second, redraws its line, and goes away."""
    now = [100.0]
    monkeypatch.setattr("plattli._console.time.monotonic", lambda: now[0])
    terminal = Terminal()
    progress = Progress(terminal, total=200, unit="runs")
    now[0] += 0.5
    progress.update(20, "1 of 4")
    progress.clear()
    early = terminal.getvalue()
    now[0] += 1.5
    progress.update(50, "2 of 4")
    progress.update(500, "4 of 4")
    progress.clear()
    progress.clear()

    assert early == ""
    assert terminal.getvalue() == (
        "\r\x1b[K[########......................]  25%  2 of 4 runs, 6 s left"
        "\r\x1b[K[##############################] 100%  4 of 4 runs, 0 s left"
        "\r\x1b[K"
    )


def test_no_progress_bar_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of batch jobs stay free of bars."""
    now = [100.0]
    monkeypatch.setattr("plattli._console.time.monotonic", lambda: now[0])
    file = io.StringIO()
    progress = Progress(file, total=2, unit="runs")
    now[0] += 5
    progress.update(1, "1 of 2")
    progress.clear()

    assert file.getvalue() == ""


def test_what_a_terminal_can_show() -> None:
    """The encoding decides."""
    assert can_show(Terminal(), "abc")
    assert not can_show(Terminal(), "⠿")
