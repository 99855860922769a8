"""Which names fit beside each other as files."""

from __future__ import annotations

import pytest

from plattli._pathnames import PathNames, unportable
from plattli.errors import MetricNameError


def test_twins_are_two_names_where_case_counts() -> None:
    """As it does on most file systems."""
    names = PathNames(["Loss", "caf\u00e9"])
    names.check("loss", "run")
    names.check("cafe\u0301", "run")


@pytest.mark.parametrize("twin", ["loss", "LOSS", "cafe\u0301", "CAF\u00c9"])
def test_twins_are_refused_where_they_are_one_file(twin: str) -> None:
    """The message names both; other names, and a name that is there, are fine."""
    names = PathNames(["Loss", "caf\u00e9"], folds=lambda: True)
    with pytest.raises(MetricNameError, match="are one file on this file system"):
        names.check(twin, "run")
    names.check("losses", "run")
    beside = names.beside()
    beside.add("x")
    with pytest.raises(MetricNameError, match="'X' and 'x'"):
        beside.check("X", "run")


@pytest.mark.parametrize("name", ["a?b", "nul", "x/AUX.y", "ab:c", "trailing.", "a /b", "com1", "a\nb"])
def test_names_that_other_systems_cannot_store_are_known(name: str) -> None:
    """They are fine here; ``plattli check`` mentions them."""
    assert unportable(name)


@pytest.mark.parametrize("name", ["loss", "train/loss", "AR@100", "timing(s)/gen", "my.loss", "auxiliary", "\u65e5"])
def test_ordinary_names_go_anywhere(name: str) -> None:
    """Letters of any script, dots inside, and most punctuation."""
    assert not unportable(name)
