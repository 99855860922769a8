"""Subcommands of the program ``plattli`` that this package brings itself.

A subcommand is an entry point of the group ``plattli.commands``: a function ``add(subparsers)`` that
adds its parser, help and all, and sets the default ``run``, a function of the parsed arguments that
returns the exit code. Loading it must be cheap: every start of the program loads all of them.
"""
