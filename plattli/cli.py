"""The program ``plattli``: one command, whose subcommands come from whoever registers them.

A subcommand is an entry point of the group ``plattli.commands``; see :mod:`plattli.commands`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from plattli import __version__
from plattli._console import run_program

GROUP: Final = "plattli.commands"
#: The package's own commands, there even if it was never installed and has no metadata.
OWN: Final = {
    "show": "plattli.commands.show:add",
    "plot": "plattli.commands.plot:add",
    "check": "plattli.commands.check:add",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program ``plattli``.

    Args:
        argv: the arguments, ``sys.argv[1:]`` by default.

    Returns:
        The exit code: 0 fine, 1 something could not be read or done, 2 wrong usage.
    """
    return run_program(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="plattli",
        description="Look at Plättli runs: live, dead or finished.",
        epilog="plattli COMMAND --help explains a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"plattli-loggers {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in _commands():
        try:
            command.load()(subparsers)
        except Exception as error:
            # somebody else's broken command must not take ours along
            owner = f" of the package {command.dist.name}" if command.dist else ""
            print(
                f"plattli: command {command.name!r}{owner} is left out: {command.value} failed with "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help(sys.stderr)
        return 2
    code: int = args.run(args)
    return code


def _commands() -> Iterator[EntryPoint]:
    # our own ones first, then the others by name; the first of a name counts
    seen = set(OWN)
    for name, value in OWN.items():
        yield EntryPoint(name, value, GROUP)
    for command in sorted(entry_points(group=GROUP), key=lambda command: command.name):
        if command.name not in seen:
            seen.add(command.name)
            yield command
