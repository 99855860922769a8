"""docs/importing.md: its examples print what the page says, and it names every source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from adapters.importers.finding import KINDS
from tests.test_docs import examples

PAGE = (Path(__file__).parents[2] / "docs" / "importing.md").read_text(encoding="utf-8")


def test_every_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other in one directory, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    found = examples(PAGE)

    assert len(found) == PAGE.count("```python") > 1
    for code, expected in found:
        exec(compile(code, "importing.md", "exec"), namespace)
        assert capsys.readouterr().out == expected, code


def test_every_source_is_explained() -> None:
    """By the word that the command has for it."""
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(KINDS)
