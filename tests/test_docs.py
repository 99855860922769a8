"""The README's Python runs, in order, and prints what the README says it prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(text: str) -> list[tuple[str, str]]:
    """Each Python block, with the text block that follows it directly."""
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(text)]
    pairs = zip(blocks, [*blocks[1:], ("", "")], strict=True)
    return [(code, after if kind == "text" else "") for (lang, code), (kind, after) in pairs if lang == "python"]


def run(code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    return printed.getvalue()


def test_every_example_prints_what_the_readme_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one directory, as a reader would type them."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    found = examples(README.read_text())

    assert len(found) == README.read_text().count("```python")
    for code, expected in found:
        assert expected == run(code), code


def test_an_example_that_prints_something_else_is_noticed() -> None:
    """The check above can fail."""
    ((code, expected),) = examples("```python\nprint(1)\n```\n\n```text\n2\n```\n")

    assert (run(code), expected) == ("1\n", "2\n")
