"""The Python of the README and of other pages runs, in order, and prints what they say it prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(text: str) -> list[tuple[str, str]]:
    """Each Python block, with the text block that follows it directly."""
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(text)]
    pairs = zip(blocks, [*blocks[1:], ("", "")], strict=True)
    return [(code, after if kind == "text" else "") for (lang, code), (kind, after) in pairs if lang == "python"]


def run(code: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<docs>", "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize(
    ("page", "shares"),
    [("README.md", False), ("docs/values.md", True), ("docs/metrics-group.md", False), ("docs/fanout.md", True)],
)
def test_every_example_prints_what_the_page_says(
    page: str, shares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one directory, as a reader would type them."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    found = examples(text)

    assert len(found) == text.count("```python") > 0
    names = {"__name__": "docs"}
    for code, expected in found:
        assert expected == run(code, names if shares else dict(names)), code


def test_the_readme_s_commands_work_after_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the server's, as they are printed."""
    text = (ROOT / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for code, _ in examples(text.partition("## Look at runs")[0]):
        run(code, {"__name__": "docs"})
    commands = [block[2] for block in BLOCK.finditer(text) if block[1] == "sh" and "plattli show" in block[2]]
    lines = [line for line in commands[0].splitlines() if not line.startswith("tensorboard ")]
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=240, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in sorted(Path("runs").iterdir())] == [
        "imported", "quick", "quick.csv", "quick.notes.jsonl", "resumed", "teed", "text"
    ]  # fmt: skip
    assert Path("runs/text/a/metrics.plattli").exists()


def test_an_example_that_prints_something_else_is_noticed() -> None:
    """The check above can fail."""
    ((code, expected),) = examples("```python\nprint(1)\n```\n\n```text\n2\n```\n")

    assert (run(code, {}), expected) == ("1\n", "2\n")
