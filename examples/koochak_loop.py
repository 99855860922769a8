"""Train in Koochak's manner: hooks, checkpoints in the background, and one command for every attempt.

::

    python -m examples.koochak_loop --out runs/koochak        # Ctrl-C it, kill -9 it, call it again: it goes on

Koochak itself is not needed: `training_loop` calls the same hooks in the same order, as much of it as a program of
this size has use for. The logging is in `main`: all that a program of yours needs, with Koochak's own loop.
"""

from __future__ import annotations

import argparse
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adapters import TeeLogger
from adapters.drivers.koochak import make_logger_hooks
from loggers import CSVLogger, PlattliLogger, StdoutLogger

Hooks = dict[str, list[Callable[..., None]]]


class Digits:
    """A linear classifier of small images; what it computes depends on the step alone."""

    def __init__(self) -> None:
        data = np.load(Path(__file__).parent / "data" / "digits.npz")
        images, self.labels = data["images"].reshape(-1, 64) / 16, data["labels"]
        self.images = np.hstack([images, np.ones((len(images), 1))])
        self.weights = np.zeros((65, 10))

    def _loss(self, rows: np.ndarray, weights: np.ndarray) -> tuple[float, float, np.ndarray]:
        """Return loss, accuracy and gradient [65, 10] over some images."""
        x, y = self.images[rows], self.labels[rows]
        scores = x @ weights
        scores -= scores.max(1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        wrong = np.exp(logs)
        wrong[np.arange(len(y)), y] -= 1
        return -logs[np.arange(len(y)), y].mean(), (scores.argmax(1) == y).mean(), x.T @ wrong / len(y)

    def step(self, step: int, lr: float) -> dict[str, Any]:
        """Do one update on 32 of the first 1,500 images."""
        loss, accuracy, gradient = self._loss(np.random.default_rng(step).integers(0, 1500, 32), self.weights)
        self.weights = self.weights - lr * gradient
        return {"loss": loss, "accuracy": accuracy}

    def evaluate(self) -> dict[str, Any]:
        """Look at the other images."""
        loss, accuracy, _ = self._loss(np.arange(1500, len(self.labels)), self.weights)
        return {"loss": loss, "accuracy": accuracy}


def training_loop(model: Digits, cfg: dict[str, Any], hooks: Hooks) -> None:
    """Train from the newest checkpoint of ``cfg["out_dir"]``, or from step 0, to ``cfg["max_steps"]``."""

    def emit(event: str, *args: Any) -> None:
        for hook in hooks.get(event, ()):
            hook(*args, ctx)

    folder = Path(cfg["out_dir"]) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    ctx: dict[str, Any] = {"rank": 0, "world_size": 1, "train_cfg": cfg, "config_json": {"train": cfg}}
    ctx |= {"resume_mode": "auto", "auto_resume_selected": False, "evacuation_requested": False}
    emit("on_train_start")
    start, found = 0, sorted(folder.glob("*.pt"))
    if found:
        ckpt = pickle.loads(found[-1].read_bytes())
        model.weights = ckpt["model"]
        start = ctx["step"] = ckpt["next_step"]
        ctx["auto_resume_selected"] = True
        emit("on_resume_checkpoint", str(found[-1]), ckpt)
    publication: Publication | None = None
    try:
        for step in range(start, cfg["max_steps"]):
            began = time.perf_counter()
            ctx["step"] = step
            out = model.step(step, cfg["lr"])
            logs = {"step": step, "lr": cfg["lr"], "step_time_s": time.perf_counter() - began, **out}
            if step % cfg["log_every"] == 0:
                emit("on_log", logs)
            emit("on_step_end", logs)
            if (step + 1) % cfg["eval_every"] == 0:
                emit("on_eval_end", model.evaluate())
            if publication is not None and publication.is_done():
                emit("on_checkpoint", *publication.result())  # some steps after it was taken
                publication = None
            if (step + 1) % cfg["ckpt_every"] == 0:
                if publication is not None:
                    emit("on_checkpoint", *publication.result())
                ckpt = {"step": step, "next_step": step + 1, "model": model.weights}
                publication = Publication(folder, ckpt, cfg["keep_last_k"])
        if publication is not None:
            emit("on_checkpoint", *publication.result())
        ckpt = {"step": cfg["max_steps"], "next_step": cfg["max_steps"], "model": model.weights}
        emit("on_checkpoint", *Publication(folder, ckpt, cfg["keep_last_k"]).result())
    except Exception as error:
        emit("on_exception", error)
        raise
    emit("on_train_end")


class Publication:
    """A checkpoint on its way to the disk, in a thread; the newest ``keep`` stay."""

    def __init__(self, folder: Path, ckpt: dict[str, Any], keep: int) -> None:
        self._ckpt = ckpt
        self._path = folder / f"step{ckpt['step']:09d}.pt"
        self._keep = keep
        self._data = pickle.dumps(ckpt)
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(self._data)
        os.replace(temporary, self._path)
        for old in sorted(self._path.parent.glob("*.pt"))[: -self._keep]:
            old.unlink()

    def is_done(self) -> bool:
        """Tell whether the file is there."""
        return not self._thread.is_alive()

    def result(self) -> tuple[str, dict[str, Any]]:
        """Wait for the file; return its path and what is in it."""
        self._thread.join()
        return str(self._path), self._ckpt


def main(arguments: list[str] | None = None) -> None:
    """Read the command line, build the logger and train."""
    parser = argparse.ArgumentParser(description="Train in Koochak's manner; call it again after any kill.")
    parser.add_argument("--out", type=Path, default=Path("runs/koochak"), help="where everything goes (runs/koochak)")
    parser.add_argument("--steps", type=int, default=2000, help="updates in all (2000)")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    args = parser.parse_args(arguments)
    cfg = {
        "out_dir": str(args.out), "max_steps": args.steps, "lr": 0.5, "log_every": 5, "eval_every": 100,
        "ckpt_every": 50, "keep_last_k": 3,
    }  # fmt: skip
    logger = TeeLogger(
        PlattliLogger(args.out / "run"),
        CSVLogger(args.out / "log.csv"),
        None if args.quiet else StdoutLogger(total=args.steps),
    )
    training_loop(Digits(), cfg, make_logger_hooks(logger, tags=["digits"]))


if __name__ == "__main__":
    main()
