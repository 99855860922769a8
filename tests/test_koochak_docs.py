"""docs/koochak.md: its blocks run one after the other, and print what the page says they print."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import examples

PAGE = Path(__file__).parents[1] / "docs" / "koochak.md"


def test_every_example_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one program, from the first block to the last."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    found = examples(PAGE.read_text())

    assert len(found) == 4
    for code, expected in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, PAGE.name, "exec"), names)
        assert printed.getvalue() == expected, code
    more, ctx = names["more_hooks"], {**names["ctx"], "step": 0}
    with pytest.warns(RuntimeWarning, match="nobody there"):
        more["on_log"][0]({"loss": 1.0}, ctx)
    more["on_train_end"][0](ctx)  # or its session would go on to watch for SIGTERM
