"""Train a digit classifier, log everything, die, go on: the whole product in one program.

::

    python -m examples.train_digits                              # trains in a few seconds
    python -m examples.train_digits --out runs/b --kill-at 777   # kill -9 in the middle of it ...
    python -m examples.train_digits --out runs/b --resume        # ... and no metric will tell

A small network learns 1,437 images and is validated on 360 others. Data, network and checkpoint
files come first; the logging and resuming is in `train`, `end_epoch`, `build_logger` and `run`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from adapters import TeeLogger, TensorBoardLogger, WandbLogger
from loggers import PlattliLogger, TrainingSession, log_confusion, log_other
from loggers.errors import PathError, RecordError, RunExistsError, RunLockedError
from plattli import Reader, is_run, run_info

TRACKERS = ("tensorboard", "wandb")  # what --tee takes
CHUNK = 8  # batches that the loader prepares at a time
KEEP = 3  # checkpoints that stay on disk


@dataclass(frozen=True)
class Settings:
    """Everything that decides what the training computes."""

    seed: int = 0
    epochs: int = 30
    batch_size: int = 32
    hidden: int = 64
    peak_lr: float = 0.1
    warmup: float = 0.05  # fraction of all steps
    momentum: float = 0.9
    weight_decay: float = 1e-4
    shift_chance: float = 0.25  # how often an image is moved by up to a pixel


# ---- data --------------------------------------------------------------------------------------
def load_digits() -> tuple[np.ndarray, ...]:
    """Return images [N, 8, 8] (0 to 1) and labels [N] to train on, then those to validate on."""
    with np.load(Path(__file__).parent / "data" / "digits.npz") as file:
        images, labels = file["images"].astype(np.float32) / 16, file["labels"]
    held_out = np.arange(len(images)) % 5 == 0  # every fifth, whatever the seed
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


class Loader:
    """An endless stream of shuffled, slightly shifted batches, prepared `CHUNK` at a time.

    A step that finds the chunk used up has to wait for the next one. `waits` counts those steps:
    a count, unlike a measured time, comes out the same when a resumed run repeats the steps.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, settings: Settings, rng: np.random.Generator):
        self.images, self.labels, self.settings, self.rng = images, labels, settings, rng
        self.order = rng.permutation(len(images))
        self.used = 0  # how much of the order went into chunks
        self.chunk_inputs, self.chunk_labels = images[:0], labels[:0]
        self.position, self.waits = 0, 0  # in the chunk; since the epoch began

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs [batch, 64] and labels [batch]."""
        if self.position == len(self.chunk_labels):
            self.waits += 1
            self._prepare_chunk()
        batch = slice(self.position, self.position + self.settings.batch_size)
        self.position = batch.stop
        return self.chunk_inputs[batch], self.chunk_labels[batch]

    def _prepare_chunk(self) -> None:
        size, picks = self.settings.batch_size, []
        for _ in range(CHUNK):
            if self.used + size > len(self.order):
                self.order, self.used = self.rng.permutation(len(self.images)), 0
            picks.append(self.order[self.used : self.used + size])
            self.used += size
        chosen = np.concatenate(picks)
        # all 8 x 8 windows of the image in a frame of one pixel: the one at (1, 1) is the image itself
        framed = np.pad(self.images[chosen], ((0, 0), (1, 1), (1, 1)))
        windows = sliding_window_view(framed, (8, 8), axis=(1, 2))
        moved = self.rng.random(len(chosen)) < self.settings.shift_chance
        down, right = 1 + moved * self.rng.integers(-1, 2, (2, len(chosen)))
        self.chunk_inputs = windows[np.arange(len(chosen)), down, right].reshape(-1, 64)
        self.chunk_labels, self.position = self.labels[chosen], 0


# ---- network -----------------------------------------------------------------------------------
def forward(weights: dict[str, np.ndarray], inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer [N, hidden] and the log-probabilities [N, 10]."""
    hidden = np.maximum(inputs @ weights["w1"] + weights["b1"], 0)
    logits = hidden @ weights["w2"] + weights["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class Training:
    """Network, optimizer, loader and running sums: all that a checkpoint has to hold."""

    def __init__(self, settings: Settings):
        images, labels, held_out, self.held_out_labels = load_digits()
        self.held_out = held_out.reshape(-1, 64)
        self.settings = settings
        self.rng = np.random.Generator(np.random.PCG64(settings.seed))
        width = settings.hidden
        self.weights = {"w1": self._random(64, width), "b1": np.zeros(width, np.float32)}
        self.weights |= {"w2": self._random(width, 10), "b2": np.zeros(10, np.float32)}
        self.parameters = sum(weight.size for weight in self.weights.values())
        self.velocity = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.loader = Loader(images, labels, settings, self.rng)
        self.steps_per_epoch = len(images) // settings.batch_size
        self.total_steps = self.steps_per_epoch * settings.epochs
        self.epoch_loss = 0.0  # sum over the steps of the running epoch
        self.best = {"accuracy": 0.0, "loss": 0.0, "step": 0}

    def _random(self, rows: int, columns: int) -> np.ndarray:
        return self.rng.standard_normal((rows, columns), np.float32) * np.float32(np.sqrt(2 / rows))

    def describe(self) -> str:
        shapes = [f"{name}: {' x '.join(map(str, weight.shape))}" for name, weight in self.weights.items()]
        return "\n".join(["MLP, ReLU, softmax cross-entropy", *shapes, f"{self.parameters} parameters"])

    def learning_rate(self, step: int) -> float:
        """Rise linearly during the warm-up, then fall along a cosine."""
        rise = min(1.0, (step + 1) / (self.settings.warmup * self.total_steps))
        return float(self.settings.peak_lr * rise * 0.5 * (1 + np.cos(np.pi * step / self.total_steps)))

    def step(self, lr: float) -> dict[str, float]:
        """Take one optimizer step and return the metrics of its batch."""
        inputs, labels = self.loader.next_batch()
        rows = np.arange(len(labels))
        hidden, log_probs = forward(self.weights, inputs)
        loss = -float(log_probs[rows, labels].mean())

        error = np.exp(log_probs)
        error[rows, labels] -= 1
        error /= len(labels)  # d loss / d logits
        back = (error @ self.weights["w2"].T) * (hidden > 0)
        grads = {"w1": inputs.T @ back, "b1": back.sum(axis=0)}
        grads |= {"w2": hidden.T @ error, "b2": error.sum(axis=0)}
        for name in ("w1", "w2"):
            grads[name] += np.float32(self.settings.weight_decay) * self.weights[name]
        for name, grad in grads.items():
            self.velocity[name] = np.float32(self.settings.momentum) * self.velocity[name] + grad
            self.weights[name] -= np.float32(lr) * self.velocity[name]
        self.epoch_loss += loss
        return {
            "loss": loss,
            "accuracy": float((log_probs.argmax(axis=1) == labels).mean()),
            "grad_norm": float(np.sqrt(sum(float(np.square(grad).sum()) for grad in grads.values()))),
        }

    def evaluate(self) -> tuple[float, np.ndarray]:
        """Return mean cross-entropy and confusion matrix [10, 10] of the held-out images."""
        labels, log_probs = self.held_out_labels, forward(self.weights, self.held_out)[1]
        confusion = np.zeros((10, 10), dtype=np.int64)  # rows true, columns predicted
        np.add.at(confusion, (labels, log_probs.argmax(axis=1)), 1)
        return -float(log_probs[np.arange(len(labels)), labels].mean()), confusion

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arrays and plain JSON data from which `restore` goes on exactly."""
        arrays = {f"weights/{name}": array for name, array in self.weights.items()}
        arrays |= {f"velocity/{name}": array for name, array in self.velocity.items()}
        arrays |= {name: getattr(self.loader, name) for name in ("order", "chunk_inputs", "chunk_labels")}
        plain = {"rng": self.rng.bit_generator.state, "epoch_loss": self.epoch_loss, "best": self.best}
        plain["loader"] = {name: getattr(self.loader, name) for name in ("used", "position", "waits")}
        return arrays, plain

    def restore(self, arrays: dict[str, np.ndarray], plain: dict[str, Any]) -> None:
        self.weights = {name: arrays.pop(f"weights/{name}") for name in self.weights}
        self.velocity = {name: arrays.pop(f"velocity/{name}") for name in self.velocity}
        vars(self.loader).update(arrays | plain["loader"])
        self.rng.bit_generator.state = plain["rng"]
        self.epoch_loss, self.best = plain["epoch_loss"], plain["best"]


# ---- checkpoints -------------------------------------------------------------------------------
def save_checkpoint(directory: Path, training: Training, session: TrainingSession) -> None:
    """Write a file that is either whole or not there: a SHA-256 digest, then an .npz archive.

    The session's record travels with the weights. It is what makes the log go on at the same step.
    """
    arrays, plain = training.state()
    plain |= {"settings": asdict(training.settings), "record": session.checkpoint_record()}
    archive = io.BytesIO()
    np.savez(archive, plain=np.array(json.dumps(plain)), **arrays)
    directory.mkdir(exist_ok=True)
    unfinished = directory / "unfinished"
    with unfinished.open("wb") as file:
        file.write(hashlib.sha256(archive.getbuffer()).digest() + archive.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(directory / f"step-{session.step:08d}.ckpt")
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)  # a power cut must not undo the renaming
    os.close(descriptor)
    for old in sorted(directory.glob("step-*.ckpt"))[:-KEEP]:
        old.unlink()


def newest_checkpoint(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and plain data of the newest checkpoint that is whole, empty if there is none."""
    for path in (paths := sorted(directory.glob("step-*.ckpt"), reverse=True)):
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            arrays = dict(np.load(io.BytesIO(content[32:])))
            return arrays, json.loads(str(arrays.pop("plain")))
        say(f"{path} is damaged: trying the checkpoint before it")
    if paths:
        raise RecordError(f"no checkpoint in {directory} is whole: start over with --overwrite")
    return {}, {}


# ---- what the user sees ------------------------------------------------------------------------
def say(message: str) -> None:
    print(f"train_digits: {message}", file=sys.stderr)


class Progress:
    """A bar that grows on a terminal; elsewhere, one line per epoch."""

    def __init__(self, total: int, quiet: bool):
        self.total, self.quiet, self.drawn = total, quiet, 0.0
        self.terminal = sys.stderr.isatty()

    def show(self, step: int, text: str, end_of_epoch: bool = False) -> None:
        if self.quiet or end_of_epoch == self.terminal:
            return
        if end_of_epoch:
            print(f"{step:>5}/{self.total}  {text}", file=sys.stderr)
        elif step == self.total or time.monotonic() - self.drawn > 0.05:
            self.drawn = time.monotonic()
            bar = f"[{'#' * (30 * step // self.total):<30}] {step}/{self.total}  {text}\033[K"
            # back to the start of the line, so that whatever comes next is written over the bar
            print(bar, end="\n" if step == self.total else "\r", file=sys.stderr, flush=True)


def show_summary(out: Path, trackers: Sequence[str]) -> None:
    """Print the table and the ways on. Every number is read back from the run on disk."""
    print(f"\n{'metric':<24}{'points':>8}{'final':>12}{'best':>12}{'at step':>9}")
    with Reader(out) as reader:
        for name in reader.metrics():
            steps, values = reader.metric(name)
            if values.dtype == object or name.endswith(("/walltime", "/epoch")):
                continue
            row = f"{name:<24}{len(steps):>8}{values[-1]:>12.5g}"
            if name.endswith(("/loss", "/accuracy")):
                best = values.argmin() if name.endswith("/loss") else values.argmax()
                row += f"{values[best]:>12.5g}{steps[best]:>9}"
            print(row)
    print(f"\nstatus       {run_info(out).status}\nrun          {out}\nlook         plattli show {out}")
    if "tensorboard" in trackers:
        print(f"TensorBoard  tensorboard --logdir {out / 'tensorboard'}")
    if "wandb" in trackers:
        print(f"W&B          wandb sync {out / 'wandb' / 'offline-run-*'}")
    print("Python       from plattli import Reader")
    print(f"             steps, values = Reader({str(out)!r}).metric('validate/accuracy')")


# ---- the run -----------------------------------------------------------------------------------
def train(training: Training, session: TrainingSession, args: argparse.Namespace) -> None:
    """Take the steps that are left. The session counts them and puts each line where it belongs."""
    progress = Progress(training.total_steps, args.quiet)
    while session.step < training.total_steps:
        lr = training.learning_rate(session.step)
        metrics = training.step(lr)
        session.train(metrics, schedules={"lr": lr})
        if session.step == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        progress.show(session.step, f"epoch {session.epoch}  loss {metrics['loss']:.4f}")
        # before the checkpoint of the same step, so that a resumed run does not end the epoch again
        if session.step % training.steps_per_epoch == 0:
            end_epoch(training, session, progress)
        if session.step % args.checkpoint_every == 0 or session.step == training.total_steps:
            save_checkpoint(args.out / "checkpoints", training, session)
    log_other(session.logger, "best", training.best)


def end_epoch(training: Training, session: TrainingSession, progress: Progress) -> None:
    """Validate, log the epoch's lines, and start the next epoch."""
    loss, confusion = training.evaluate()
    accuracy = float(confusion.trace() / confusion.sum())
    session.validate({"loss": loss, "accuracy": accuracy})
    session.data({"data_wait_frac": training.loader.waits / training.steps_per_epoch})
    log_confusion(session.logger, confusion, list("0123456789"), epoch=session.epoch, context="validate")
    if accuracy > training.best["accuracy"]:
        training.best = {"accuracy": accuracy, "loss": loss, "step": session.step}
    mean = training.epoch_loss / training.steps_per_epoch
    text = f"epoch {session.epoch}  loss {mean:.4f}  validate: loss {loss:.4f}  accuracy {accuracy:.4f}"
    progress.show(session.step, text, end_of_epoch=True)
    training.epoch_loss, training.loader.waits = 0.0, 0
    session.next_epoch()


def build_logger(args: argparse.Namespace) -> TeeLogger:
    """The run in `args.out` keeps every value; the trackers get the same lines from it."""
    replicas: list[Any] = []
    if "tensorboard" in args.tee:
        replicas.append(TensorBoardLogger(args.out / "tensorboard", if_exists="replace"))
    if "wandb" in args.tee:
        # offline unless you say WANDB_MODE=online: an example should not send anything by itself
        replicas.append(WandbLogger("digits", mode=os.environ.get("WANDB_MODE", "offline"), dir=args.out))
    # --resume without a checkpoint replaces a run that died before its first one
    primary = PlattliLogger(args.out, if_exists="replace" if args.resume or args.overwrite else "refuse")
    return TeeLogger(primary, *replicas)


def run(args: argparse.Namespace) -> None:
    """Start the run in `args.out`, or go on with it."""
    checkpoints = args.out / "checkpoints"
    if checkpoints.exists() and not (args.resume or args.overwrite):
        raise RunExistsError(checkpoints)
    arrays, saved = newest_checkpoint(checkpoints) if args.resume else ({}, {})
    asked = {name: value for name in ("seed", "epochs") if (value := getattr(args, name)) is not None}
    training = Training(Settings(**saved.get("settings", {}) | asked))
    if saved and asdict(training.settings) != saved["settings"]:
        begun = "--seed {seed} --epochs {epochs}".format(**saved["settings"])
        raise RecordError(f"{args.out} was begun with {begun}: resume it with the same, or leave them out")
    logger = build_logger(args)
    params = asdict(training.settings) | {"parameters": training.parameters}
    session = TrainingSession(logger, params=params, tags=["digits", "mlp"])
    session.resume(saved.get("record"))
    with session:
        if saved:
            training.restore(arrays, saved)
            say(f"going on after step {session.step}")
        else:
            if args.resume:
                say(f"no checkpoint in {args.out}: starting at step 0")
            shutil.rmtree(checkpoints, ignore_errors=True)  # of a run that is replaced
            log_other(logger, "model", training.describe())
        train(training, session, args)


def trackers(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    if wrong := [name for name in names if name not in TRACKERS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(TRACKERS)}, none")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    for name in missing:
        say(f"{name} is not installed, going on without it: pip install 'plattli-loggers[{name}]'")
    return [name for name in names if name not in missing]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m examples.train_digits", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/digits"), metavar="DIR", help="of the run (%(default)s)")
    add("--epochs", type=int, metavar="N", help=f"({Settings.epochs})")
    add("--seed", type=int, metavar="N", help=f"({Settings.seed})")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint; if none, start over")
    add("--overwrite", action="store_true", help="replace the run that is there")
    add("--checkpoint-every", type=int, default=100, metavar="N", help="steps (%(default)s)")
    add("--tee", type=trackers, default=",".join(TRACKERS), metavar="LIST", help="(%(default)s) or none")
    add("--kill-at", type=int, metavar="STEP", help="kill -9 itself right after the train line of this step")
    add("--quiet", action="store_true", help="no progress, no table")
    args = parser.parse_args(argv)
    for name, least in (("epochs", 1), ("seed", 0), ("checkpoint_every", 1)):
        if (value := getattr(args, name)) is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be {least} or more, got {value}")
    try:
        if args.resume and is_run(args.out) and run_info(args.out).status == "completed":
            say(f"the run in {args.out} is completed, nothing is left to do")
        else:
            run(args)
        if not args.quiet:
            show_summary(args.out, args.tee)
        return 0
    except RunExistsError:
        say(f"{args.out} holds a run: --resume goes on, --overwrite replaces it, or give another --out")
    except (PathError, RecordError, RunLockedError, OSError) as error:  # of the first: --out is a file
        say(str(error))
    except (KeyboardInterrupt, SystemExit) as stop:  # the session has finished the run as "interrupted"
        say(f"interrupted; go on with: python -m examples.train_digits --out {args.out} --resume")
        return 130 if isinstance(stop, KeyboardInterrupt) else 143
    return 2


if __name__ == "__main__":
    sys.exit(main())
