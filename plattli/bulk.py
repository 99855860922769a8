"""``BulkWriter``: collect a whole run in memory, write it at the end."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plattli import _bulk, _config, _fs, _packing, _planning
from plattli._dtypes import PACK, Promote
from plattli._format import ARCHIVE, JSONL, METRIC_DIR, dumps
from plattli._pathnames import PathNames
from plattli._writing import check_run_root, check_step, check_unwritten, merge_arguments, next_step
from plattli.errors import RunExistsError, RunFinishedError


class BulkWriter:
    """Write a run that is known already: rows are collected in memory, files appear at the end.

    ::

        w = BulkWriter("runs/a", config={"lr": 3e-4})
        for step, loss in enumerate(losses):
            w.write(loss=loss)
            w.end_step()
        w.finish()

    A number takes as many bytes as in its column, and four for its step, or eight above 2**32 - 1.
    """

    def __init__(
        self,
        outdir: str | Path,
        step: int = 0,
        config: Any = "config.json",
        overwrite: bool = False,
        *,
        promote: Promote = None,
    ) -> None:
        """Reserve the run in ``outdir`` for this writer; a run that is there stays until :meth:`finish`.

        Args:
            outdir: the run root, made if needed.
            step: the first step.
            config: JSON data for ``config.json``; or the path of a file, relative to ``outdir``, to copy
                from (with ``zip=False``, to link to), if it exists at the end; or ``None`` for ``{}``.
            overwrite: replace the run that is there. Files beside it that are none of its own move to
                the new one.
            promote: ``"float"`` lets a float join an integer metric, which then becomes floats;
                ``None`` refuses it.

        Raises:
            StepError: the step is no integer in 0 … 2**63 - 1.
            ConfigError: JSON cannot hold the config.
            RunExistsError: there is a run, and ``overwrite`` is not set.
            RunLockedError: another live process writes this run.
        """
        self.run_root = Path(outdir)
        self._run = check_run_root(self.run_root)
        #: the step that :meth:`write` writes to; may be assigned
        self.step: int = check_step(step, self._run)
        self.root = self.run_root / METRIC_DIR
        self._take_config(config)
        for existing in (self.run_root / ARCHIVE, self.root):
            if os.path.lexists(existing) and not overwrite:
                raise RunExistsError(f"found existing {existing}; pass overwrite=True to replace it")
        self._promote: Promote = promote
        self._buffers: dict[str, _Buffer] = {}
        self._names = PathNames()
        self._written: set[str] = set()
        self._finished = False
        self.run_root.mkdir(parents=True, exist_ok=True)
        self._lock = _fs.RunLock(self.run_root)
        weakref.finalize(self, self._lock.release)
        _packing.remove_temporaries(self.run_root)

    def _take_config(self, config: Any) -> None:
        checked = _config.check(config, self.run_root, self._run)
        self._config_path = config if isinstance(config, str) else None
        self._config_text = checked if isinstance(checked, str) else "{}"

    def _check_alive(self) -> None:
        if self._finished:
            raise RunFinishedError(f"the writer of run {self._run!r} is finished; open a new one to go on")
        if self._lock.lost is not None:
            raise RunFinishedError(f"the writer of run {self._run!r} cannot go on: {self._lock.lost}")

    def write(self, /, *args: dict[str, Any] | None, **kwargs: Any) -> None:
        """Add metrics to the current step: one dict, keywords, or both.

        All values are checked before anything changes, and are taken at once. Steps may come in any
        order; a value for a metric's step that has one replaces it.

        Args:
            *args: at most one dict, for names that are no identifiers.
            **kwargs: more metrics.

        Raises:
            TypeError, ValueError, OverflowError: from :mod:`plattli.errors`; nothing of the call was
                applied.
            DuplicateError: a metric has been written in this step already.
        """
        self._check_alive()
        step = check_step(self.step, self._run)
        metrics = merge_arguments(args, kwargs)
        check_unwritten(metrics, self._written, step, self._run)
        plan, unfit = _planning.plan(
            metrics.items(),
            self._buffers,
            self._names,
            self._run,
            integer_range=_Buffer.range,
            floats="f32",
            promote=self._promote,
        )
        if unfit:
            raise _planning.first_error(unfit)
        for name, (code, value) in plan.items():
            buffer = self._buffers.get(name)
            if buffer is None:
                buffer = self._buffers[name] = _Buffer(code)
                self._names.add(name)
            elif buffer.code != code:
                buffer.widen(code)
            buffer.add(step, value)
        self._written.update(plan)

    def end_step(self) -> None:
        """Go to the next step."""
        self._check_alive()
        self._written.clear()
        self.step = next_step(self.step, self._run)

    def set_config(self, config: Any) -> None:
        """Choose another config; the rules are those of the constructor's ``config``."""
        self._check_alive()
        self._take_config(config)

    def finish(
        self, optimize: bool = True, zip: bool = True, config_overrides: dict[str, Any] | None = None
    ) -> None:
        """Write the run, in the place of the one that was there.

        After an error the old run is there as it was, and the call can be repeated. After a kill at any
        point the old run or the new one can be read.

        Args:
            optimize: narrow integer columns and write regular steps as segments.
            zip: write ``<outdir>/metrics.plattli``; else the folder ``<outdir>/plattli``.
            config_overrides: shallowly merged into the config.

        Raises:
            ConfigError: bad overrides.
            ExtraFileError: a file of unknown origin lies where one of the run's has to go.
            CorruptRunError: the run to replace can't be read, so what else is there is not known.
        """
        self._check_alive()
        config = self._final_config(config_overrides, may_link=not zip)
        if os.path.lexists(self.root) and not self.root.is_dir():
            raise RunExistsError(f"expected {self.root} to be a directory: move it away")
        run = _bulk.Run(_Columns(self._buffers), config, _bulk.extras_of(self.run_root), optimize)
        _bulk.publish(self.run_root, run, zip=zip)
        self._finished = True
        self._lock.release()

    def close(self) -> None:
        """Let go of the run without writing it; what was there stays."""
        self._buffers.clear()
        self._lock.release()

    def _final_config(self, overrides: dict[str, Any] | None, *, may_link: bool) -> bytes | Path:
        """Return the bytes of the config, or the file to link to."""
        target = None
        if self._config_path is not None:
            target = _config.check(self._config_path, self.run_root, self._run)
        if not isinstance(target, Path):
            config = self._config_text.encode()
        elif may_link and overrides is None and self.root.resolve() not in target.resolve().parents:
            return target
        else:  # also what lies in the old output, and goes with it
            config = target.read_bytes()
        return config if overrides is None else _config.merged(config, overrides, self._run)


class _Buffer:
    """A metric's rows in memory: its steps, and its values as their file will hold them."""

    __slots__ = ("_last", "_rises", "_steps", "_values", "code")

    def __init__(self, code: str) -> None:
        self.code = code
        self._steps = array("I")
        self._values: Any = bytearray() if code == JSONL else array(PACK[code])
        self._last = -1
        self._rises = True

    def add(self, step: int, value: Any) -> None:
        """Add a row whose value fits."""
        if self.code == JSONL:
            self._values += f"{dumps(value)}\n".encode()
        else:
            self._values.append(value)
        try:
            self._steps.append(step)
        except OverflowError:  # beyond uint32
            self._steps = array("q", self._steps)
            self._steps.append(step)
        if step <= self._last:
            self._rises = False
        self._last = step

    def _numbers(self) -> np.ndarray[Any, Any]:
        # a copy: while a view exists the array could not grow
        return np.array(self._values)

    def range(self) -> tuple[int, int]:
        """Return (min, max) over 0 and all values of an integer column."""
        numbers = self._numbers()
        return min(0, int(numbers.min())), max(0, int(numbers.max()))

    def widen(self, code: str) -> None:
        """Turn the numbers into another type."""
        values = array(PACK[code])
        values.frombytes(self._numbers().astype(values.typecode).tobytes())
        self.code, self._values = code, values

    def column(self) -> _bulk.BulkColumn:
        """Return the rows in the order of their steps; of several at one step, the last that came."""
        steps = np.array(self._steps)
        values = bytes(self._values) if self.code == JSONL else self._numbers()
        if self._rises:
            return _bulk.BulkColumn(steps, values)
        order = np.argsort(steps, kind="stable")
        steps = steps[order]
        stay = np.append(steps[1:] != steps[:-1], True)
        order = order[stay]
        if isinstance(values, bytes):
            lines = values.splitlines(keepends=True)
            return _bulk.BulkColumn(steps[stay], b"".join([lines[i] for i in order]))
        return _bulk.BulkColumn(steps[stay], values[order])


class _Columns(Mapping[str, _bulk.BulkColumn]):
    """The buffers as columns, each copied when its turn comes."""

    def __init__(self, buffers: dict[str, _Buffer]) -> None:
        self._buffers = buffers

    def __getitem__(self, name: str) -> _bulk.BulkColumn:
        return self._buffers[name].column()

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)
