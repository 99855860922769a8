"""Runs that other tools have logged, made Plättli runs: ``plattli import SRC RUN``.

A source is a generator of :mod:`items <adapters.importers.items>`: lines and other verb calls, in the order in which
they were logged. :mod:`adapters.importers.writing` makes them on a ``PlattliLogger``.
"""
