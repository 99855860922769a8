"""loggers.names: any string as a path inside the run, and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loggers.errors import MetricNameError
from loggers.names import decode, encode
from plattli._format import check_name

ODD = [
    "a//b", "//", "/abs", "a/", "..", "../../etc/passwd", ".", "./x", "a/./b", "a/..", "...", ".hidden",
    "back\\slash", "nul\0", "C:", "C:/x", "c:x", "step", "hot", "run_rows", "when_exported", "hot.compacting",
    "%41", "%", "%%", "100%", "a%/", "%2F", "%2f", "%~", "a/%~b", "%\\", "%2\\", "/\n", "a/\n", ".\n",
    "AR@100", "timing(s)/gen", "my.loss", "Loss", "aux", "loss 🎉\nnew line", "é", "e\u0301", " ", "\t",
    "x" * 200, "x" * 201, "x" * 300, "ä" * 300, "%" * 250, "\\" * 100, "." * 300, "a/" + "y" * 500 + "/b",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_every_odd_name_is_a_clean_path_and_reads_back(name: str) -> None:
    """Its stored form passes the format's own check, no part is longer than a file name, and decode gives it back."""
    path = encode(name)

    assert check_name(path, "run") == path
    assert max(len(part.encode()) for part in path.split("/")) <= 203
    assert decode(path) == name


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("train/loss", "train/loss"),
        ("my.loss (%)", "my.loss (%)"),
        ("a//b", "a/%2Fb"),
        ("/a", "%2Fa"),
        ("a/", "a%2F"),
        ("..", "%2E."),
        ("x/./y", "x/%2E/y"),
        ("a\\b\0", "a%5Cb%00"),
        ("C:x", "C%3Ax"),
        ("step", "%73tep"),
        ("train/step", "train/step"),
        ("%41", "%2541"),
        ("100%", "100%"),
        ("x" * 250, "x" * 200 + "/%~" + "x" * 50),
    ],
)
def test_the_spelling_on_disk(name: str, path: str) -> None:
    """What runs on disk are made of stays what it is; ordinary names are stored as they are."""
    assert encode(name) == path
    assert decode(path) == name


def test_no_two_names_share_a_path() -> None:
    """Names that differ only by case, by escapes or by slashes stay apart."""
    assert len({encode(name) for name in ODD}) == len(ODD)


LETTERS = st.sampled_from("aC%/.\\:~25F\0é\n") | st.characters(exclude_categories=["Cs"])
SHORT = st.text(st.sampled_from("aC/.%\\:"), min_size=1, max_size=8)


@given(st.text(LETTERS, min_size=1, max_size=400))
@example("%25%5C\\")
@example("a" * 199 + "%41")
@example("a" * 199 + "\\")
def test_any_text_reads_back(name: str) -> None:
    """decode is the inverse of encode, and what is stored is a relative path without surprises."""
    path = encode(name)

    assert decode(path) == name
    assert check_name(path, "run") == path
    assert max(len(part.encode()) for part in path.split("/")) <= 203


@given(SHORT, SHORT)
def test_a_contexts_prefix_does_not_depend_on_the_metric(context: str, metric: str) -> None:
    """A resume finds the metrics of a context by what their paths begin with."""
    prefix = encode(f"{context}/x").removesuffix("x")

    assert encode(f"{context}/{metric}").startswith(prefix)


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "must not be empty"), ("a\ud800b", "lone surrogate"), ("x" * 2001, "2001 bytes"), ("\\" * 700, "shorten it")],
)
def test_what_no_path_can_hold_is_refused(name: str, why: str) -> None:
    """The message says what to do; it can be printed."""
    with pytest.raises(MetricNameError, match=why) as caught:
        encode(name)
    str(caught.value).encode()
