"""docs/wandb.md: its examples run, in order, and print what the page says; the online ones at a stand-in server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.test_adapters.wandb_artifacts import ArtifactServer
from tests.test_adapters.wandb_scripts import environment, series
from tests.test_docs import examples

PAGE = Path(__file__).parents[2] / "docs" / "wandb.md"


def test_the_page_s_examples_print_what_it_says(tmp_path: Path) -> None:
    """One after the other in one process, as a reader would type them; and W&B has what they logged."""
    found = examples(PAGE.read_text())
    with ArtifactServer() as server:
        answer = subprocess.run(
            [sys.executable, "-W", "error", "-c", "\n".join(code for code, _ in found)],
            cwd=tmp_path,
            env=environment(tmp_path, **server.env(), WANDB_ERROR_REPORTING="false"),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        first = server.run("digits", "digits-1")
        aliases = {*server.aliases}

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "".join(expected for _, expected in found)
    assert len(found) == PAGE.read_text().count("```python")
    assert series(first.history, "train/loss") == [(step + 1, 1 / (step + 1)) for step in range(100)]
    assert (first.tags, first.params, first.summary["best/validate/loss"]) == (["baseline"], {"lr": 0.1}, 0.02)
    assert aliases == {
        f"checkpoint-digits-2:{alias}" for alias in ("latest", "step-100", "best", "best-validate-loss")
    }
