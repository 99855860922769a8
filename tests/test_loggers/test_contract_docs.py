"""docs/writing-a-logger.md: its logger keeps the contract, its examples print what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loggers.testing import LoggerContract, Run
from loggers.testing._backend import Backend
from tests.test_docs import examples

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-logger.md"
namespace: dict[str, Any] = {"__name__": "page"}
for code, _ in examples(PAGE.read_text(encoding="utf-8")):
    if "\nclass " in code:
        exec(compile(code, str(PAGE), "exec"), namespace)

TestLineLogger = namespace["TestLineLogger"]


def test_every_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as a reader would type them."""
    page = PAGE.read_text(encoding="utf-8")
    found = examples(page)
    fresh: dict[str, Any] = {"__name__": "page"}

    assert len(found) == page.count("```python")
    for code, expected in found:
        exec(compile(code, str(PAGE), "exec"), fresh)
        assert capsys.readouterr().out == expected, code


def test_every_capability_is_explained() -> None:
    """On the page, with its default, and in the class."""
    page = PAGE.read_text(encoding="utf-8")
    rows = {
        name: default.strip('`"')
        for names, default in re.findall(r"^\| (`.*?`) \| (.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    explained = set(re.findall(r"\w+", LoggerContract.__doc__ or ""))

    assert rows.keys() == Backend.__annotations__.keys()
    assert rows.keys() <= explained
    assert rows.pop("statuses") == "each as it is"
    assert rows == {name: str(getattr(Backend, name)) for name in rows}


def test_the_note_of_a_failure_is_the_one_on_the_page(tmp_path: Path) -> None:
    """It is what an author sees who does not declare that the page's logger keeps no params."""
    contract = type("TestLineLogger", (namespace["TestLineLogger"],), {"holds_params": True})()
    with pytest.raises(AssertionError) as caught:
        contract.test_later_params_win(Run(contract, tmp_path))

    (note,) = caught.value.__notes__
    assert note in re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
