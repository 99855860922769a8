"""docs/tensorboard.md: its examples run, and write what the page says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from adapters.backends._charts import MOST_CHARTS
from tests.test_adapters.tensorboard_files import Files
from tests.test_docs import examples

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tensorboard.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the page's examples, one after the other, as a reader would type them; return where they wrote."""
    root, before = tmp_path_factory.mktemp("page"), Path.cwd()
    page: dict[str, Any] = {"__name__": "page"}
    os.chdir(root)
    try:
        for code, _ in examples(PAGE):
            exec(compile(code, "tensorboard.md", "exec"), page)
    finally:
        os.chdir(before)
    return root / "board"


def test_every_example_writes_its_run(board: Path) -> None:
    """In a directory of its own."""
    assert PAGE.count("```python") == len(examples(PAGE)) == 4
    assert sorted(path.name for path in board.iterdir()) == ["mine", "pictures", "quick", "resumed"]
    assert Files(board / "quick").scalars("validate/loss") == [(100, pytest.approx(0.02))]
    assert Files(board / "quick").status() == "STATUS_SUCCESS"
    assert Files(board / "resumed").scalars("train/loss") == [(1, 0.5), (2, 0.25)]
    assert Files(board / "mine").scalars("train/loss") == [(1, 0.5)]
    assert Files(board / "mine").scalars("mine") == [(1, 1.0)]


def test_the_pictures_are_at_their_step(board: Path) -> None:
    """The one that was given, or the current one."""
    files = Files(board / "pictures")
    assert [point.step for point in files.histograms("weights")] == [7]
    assert [(image.step, image.width) for tag in ("sample", "grey") for image in files.images(tag)] == [(7, 28)] * 2
    assert files.texts("note") == [(7, "*very* good")]


def test_what_the_page_shows_is_there() -> None:
    """Its screenshots, and the number of charts."""
    pictures = re.findall(r"!\[[^\]]+\]\((.+?)\)", PAGE)
    assert len(pictures) == 3
    assert all((DOCS / picture).stat().st_size < 150_000 for picture in pictures)
    assert f"There are {MOST_CHARTS} charts at most" in PAGE
