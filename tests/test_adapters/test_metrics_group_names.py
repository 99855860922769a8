"""Safe names: total, reversible, and what Zarr and file systems take as the name of one folder."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.backends.metrics_group import safe_name, series_key
from loggers.errors import MetricNameError

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("train/loss", "train%2Floss"),
        (".", "%2E"),
        ("..", "%2E."),
        ("__x", "%5F_x"),
        ("__", "%5F_"),
        # what only looks like one of these
        ("...", "..."),
        (".x", ".x"),
        ("_x", "_x"),
        ("x__", "x__"),
        ("__/x", "%5F_%2Fx"),
        # a percent sign is a byte like any other, so that no escape is taken for one
        ("%2E", "%252E"),
        ("100%", "100%25"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("損", "%E6%90%8D"),
        ("a b~c\\d\0", "a%20b%7Ec%5Cd%00"),
        ("A-Z_a.z09", "A-Z_a.z09"),
        # the document of the folder in which the arrays are
        ("zarr.json", "%7Aarr.json"),
    ],
)
def test_a_key_has_the_name_of_the_specification(key: str, name: str) -> None:
    """Uppercase hex, byte by byte of UTF-8."""
    assert safe_name(key) == name
    assert series_key(name) == key


@settings(max_examples=500)
@given(KEYS)
@example("__")
@example("zarr.json")
def test_every_key_has_a_name_that_reads_back(key: str) -> None:
    """And the name is a legal one."""
    name = safe_name(key)

    assert series_key(name) == key
    assert re.fullmatch(r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+", name)
    assert name not in (".", "..", "zarr.json")
    assert not name.startswith("__")


@settings(max_examples=500)
@given(st.one_of(st.text("._%2E5Fzarjson/"), st.text()))
def test_a_name_that_no_key_has_is_refused(name: str) -> None:
    """So no two names are one key's."""
    try:
        key = series_key(name)
    except MetricNameError:
        key = unquote(name)
        assert not key or safe_name(key) != name
    else:
        assert safe_name(key) == name


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_what_is_no_key_is_refused(key: str) -> None:
    """The empty one, and what UTF-8 cannot spell."""
    with pytest.raises(MetricNameError, match="series key"):
        safe_name(key)
