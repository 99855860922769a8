"""A training loop that emits Koochak's events, in Koochak's order, with checkpoints in the background if asked to.

It trains a linear model with momentum, in NumPy or PyTorch, and keeps all it needs in its checkpoints, so that a
resumed training computes exactly what an uninterrupted one does. ``python -m tests.test_adapters.koochak_loop DIR``
is a training of its own, as every rank of ``torchrun`` runs it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adapters.drivers.koochak import make_logger_hooks
from loggers import PlattliLogger

Hooks = dict[str, list[Callable[..., None]]]


def emit(hooks: Hooks, event: str, *args: Any) -> None:
    """Call the hooks of an event; swallow what they raise, as Koochak does, but for two exceptions."""
    for callback in hooks.get(event, ()):
        try:
            callback(*args)
        except Exception:
            if event == "on_train_start" or getattr(callback, "_koochak_fail_closed", False):
                raise


class NumpyTask:
    """Least squares, whose batches depend on the step alone."""

    def __init__(self) -> None:
        self.weights, self.momentum = np.zeros(3), np.zeros(3)

    def step(self, step: int) -> dict[str, Any]:
        x = np.random.default_rng(step).normal(size=(8, 3))
        error = x @ self.weights - x @ np.array([1.0, -2.0, 0.5])
        self.momentum = 0.9 * self.momentum + x.T @ error / 8
        self.weights = self.weights - 0.05 * self.momentum
        return {"loss": np.float32((error**2).mean()), "norm": np.linalg.norm(self.momentum)}

    def evaluate(self) -> dict[str, Any]:
        return {"loss": float(np.abs(self.weights - [1.0, -2.0, 0.5]).sum()), "note": "fine"}

    def dump(self) -> bytes:
        return pickle.dumps((self.weights, self.momentum))

    def load(self, data: bytes) -> None:
        self.weights, self.momentum = pickle.loads(data)


class TorchTask:
    """The same with a model and an optimizer; the loss of a step stays a tensor."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, step: int) -> dict[str, Any]:
        x = self.torch.randn(8, 3, generator=self.torch.Generator().manual_seed(step))
        loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "norm": self.model.weight.detach().norm()}

    def evaluate(self) -> dict[str, Any]:
        with self.torch.no_grad():
            return {"loss": (self.model.weight - 1).abs().sum(), "note": "fine"}

    def dump(self) -> bytes:
        buffer = io.BytesIO()
        self.torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, buffer)
        return buffer.getvalue()

    def load(self, data: bytes) -> None:
        found = self.torch.load(io.BytesIO(data))
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])


class Checkpoints:
    """Numbered files, each valid once its ready manifest is there; the last ``keep`` stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def publish(self, ckpt: dict[str, Any]) -> Path:
        path = self.folder / f"step{ckpt['step']:09d}.pt"
        ready = path.with_name(path.name + ".ready.json")
        ready.unlink(missing_ok=True)
        path.write_bytes(pickle.dumps(ckpt))
        temporary = ready.with_suffix(".tmp")
        temporary.write_text(json.dumps({"size": path.stat().st_size}))
        os.replace(temporary, ready)
        for old in sorted(self.folder.glob("*.pt"))[: -self.keep]:
            old.with_name(old.name + ".ready.json").unlink(missing_ok=True)
            old.unlink()
        return path

    def newest(self) -> Path | None:
        ready = sorted(self.folder.glob("*.ready.json"))
        return ready[-1].with_name(ready[-1].name.removesuffix(".ready.json")) if ready else None


def training_loop(
    hooks: Hooks,
    cfg: dict[str, Any],
    *,
    task: Any = None,
    at: Callable[[str, int], None] = lambda moment, step: None,
    rank: int = 0,
    world_size: int = 1,
    commit_after: int = 0,
    announce_after: int = 0,
) -> None:
    """Train; go on from the newest checkpoint of ``cfg["out_dir"]`` if there is one.

    Args:
        hooks: what is told.
        cfg: ``max_steps``, ``log_every``, ``eval_every``, ``ckpt_every``, ``out_dir``.
        task: what is trained.
        at: called at every moment at which a process may die, or be asked to evacuate: then it returns ``True``.
        rank, world_size: of this process.
        commit_after: steps until the checkpoint in the background is on the disk; 0 writes it in the loop.
        announce_after: steps until the loop notices.
    """
    task = task or NumpyTask()
    checkpoints = Checkpoints(Path(cfg["out_dir"]) / "checkpoints", cfg.get("keep_last_k", 2))
    ctx: dict[str, Any] = {
        "device": "cpu",
        "rank": rank,
        "world_size": world_size,
        "config": None,
        "config_json": {"train": cfg, "optim": {"lr": 0.05, "betas": (0.9, 0.99)}},
        "train_cfg": cfg,
        "model": task,
        "evacuation_requested": False,
        "resume_mode": "auto",
        "auto_resume_selected": False,
    }
    emit(hooks, "on_train_start", ctx)
    try:
        start, chosen = 0, checkpoints.newest()
        if chosen is not None:
            ckpt = pickle.loads(chosen.read_bytes())
            task.load(ckpt["model"])
            start = ctx["step"] = ckpt["next_step"]
            ctx["auto_resume_selected"] = True
            if rank == 0:
                emit(hooks, "on_resume_checkpoint", str(chosen), ckpt, ctx)
        _steps(hooks, cfg, task, checkpoints, ctx, start, at, commit_after, announce_after)
    except Exception as error:
        emit(hooks, "on_exception", error, ctx)
        raise


def _steps(
    hooks: Hooks,
    cfg: dict[str, Any],
    task: Any,
    checkpoints: Checkpoints,
    ctx: dict[str, Any],
    start: int,
    at: Callable[[str, int], Any],
    commit_after: int,
    announce_after: int,
) -> None:
    pending: _Publication | None = None
    step, evacuate = start - 1, False
    for step in range(start, cfg["max_steps"]):
        ctx["step"] = step
        out = task.step(step)
        at("stepped", step)
        if pending is not None:
            if step >= pending.step + commit_after:
                pending.commit()
                at("committed", step)
            if step >= pending.step + announce_after:
                pending.announce(hooks, ctx)
                pending = None
                at("announced", step)
        first = ctx["rank"] == 0
        logs = {"step": step, "loss": out["loss"]}
        if step % cfg["log_every"] == 0:
            logs = {"step": step, "loss": float(out["loss"]), "lr": 0.05, "step_time_s": 0.5, "norm": out["norm"]}
            if first:
                emit(hooks, "on_log", logs, ctx)
                at("logged", step)
        emit(hooks, "on_step_end", logs, ctx)
        if (step + 1) % cfg["eval_every"] == 0 and first:
            emit(hooks, "on_eval_end", task.evaluate(), ctx)
            at("evaluated", step)
        if (step + 1) % cfg["ckpt_every"] == 0 and first:
            if pending is not None:  # one at a time
                pending.commit()
                pending.announce(hooks, ctx)
            pending = _Publication(checkpoints, {"step": step, "next_step": step + 1, "model": task.dump()})
            at("taken", step)
            if not announce_after:
                pending.commit()
                at("committed", step)
                pending.announce(hooks, ctx)
                pending = None
                at("announced", step)
        evacuate = bool(at("done", step))
        if evacuate:
            break
    if ctx["rank"] == 0:
        if pending is not None:
            pending.commit()
            pending.announce(hooks, ctx)
        end = _Publication(checkpoints, {"step": step + 1, "next_step": step + 1, "model": task.dump()})
        end.commit()
        at("committed the last", step)
        end.announce(hooks, ctx)
        if evacuate:
            emit(hooks, "on_evacuation", str(end.path), end.ckpt, ctx)
    ctx["evacuation_requested"] = evacuate
    emit(hooks, "on_train_end", ctx)
    if evacuate:
        raise SystemExit(75)


class _Publication:
    """One checkpoint on its way to the disk, in a thread."""

    def __init__(self, checkpoints: Checkpoints, ckpt: dict[str, Any]) -> None:
        self.ckpt = ckpt
        self.step: int = ckpt["step"]
        self._may_commit = threading.Event()
        self._thread = threading.Thread(target=self._publish, args=(checkpoints,), daemon=True)
        self._thread.start()

    def _publish(self, checkpoints: Checkpoints) -> None:
        self._may_commit.wait()
        self.path = checkpoints.publish(self.ckpt)

    def commit(self) -> None:
        self._may_commit.set()
        self._thread.join()

    def announce(self, hooks: Hooks, ctx: dict[str, Any]) -> None:
        self.commit()
        emit(hooks, "on_checkpoint", str(self.path), self.ckpt, ctx)


def config(folder: Path, **more: Any) -> dict[str, Any]:
    """Return a small training in ``folder``."""
    return {"max_steps": 24, "log_every": 2, "eval_every": 5, "ckpt_every": 4, "out_dir": str(folder), **more}


def main(folder: str, how: str = "through") -> None:
    """Train in ``folder``, as one of several ranks if the environment says so; end as ``how`` says."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    gloo = how == "gloo"
    if gloo:
        import torch.distributed

        torch.distributed.init_process_group("gloo")

    def at(moment: str, step: int) -> None:
        if (moment, step) == ("done", 9):
            if how == "ctrl-c":
                raise KeyboardInterrupt
            if how == "exit":
                sys.exit(3)
            if how == "sigterm":
                os.kill(os.getpid(), signal.SIGTERM)
        if gloo and moment == "done":
            torch.distributed.barrier()

    hooks = make_logger_hooks(PlattliLogger(Path(folder) / "run", hotsize=4))
    try:
        training_loop(hooks, config(Path(folder)), at=at, rank=rank, world_size=world_size)
    finally:
        if gloo:
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
