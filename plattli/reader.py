"""Read a run: finished or live, folder or archive, while it is being written."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice, zip_longest
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import numpy as np

from plattli import _casting, _follow, _indices
from plattli._format import (
    ARCHIVE,
    CONFIG,
    DTYPES,
    MANIFEST,
    METRIC_DIR,
    indices_file,
    run_name,
    step_dtype,
    value_file,
)
from plattli._fs import lock_owner
from plattli._hotreader import NO_HOT_ROWS, HotReader, HotRows, LazyHotRows
from plattli._jsonlines import LineIndex
from plattli._manifest import Manifest, load
from plattli._remote import RemoteArchive, is_url
from plattli._select import Array, Selection, join
from plattli._source import Archive, Folder
from plattli._stored import OBJECT, MetricRows, Stored, open_stored, storage_dtype
from plattli.errors import (
    CorruptRunError,
    MissingFileError,
    NotARunError,
    PlattliError,
    ReaderClosedError,
    RowIndexError,
    UnknownMetricError,
    UnstableRunError,
)
from plattli.runs import is_run, is_run_dir, locate, resolve_run_dir

__all__ = ["Reader", "is_run", "is_run_dir", "resolve_run_dir"]

_ATTEMPTS = 10
_EVERYTHING = Selection(None, None, None)
_NOTHING = Selection("row", 0, 0)
T = TypeVar("T")


class Reader:
    """The metrics of one run.

    A read returns rows that belong together, whatever a writer does meanwhile. Values and steps are
    read anew by each call; the manifest, the config, the hot rows and row counts are kept until
    :meth:`refresh`, or until a read finds that the manifest was replaced. If the folder of a run is
    turned into an archive, its reader goes on with the archive.

    Not for use by several threads at once: give each its own.

    Example::

        with Reader("runs/42") as reader:
            steps, losses = reader.metric("train/loss")
            step, loss = reader.metric("train/loss", idx=-1)

    Attributes:
        exclude_hot: whether rows that are not in the columns yet are left out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: Literal["dir", "zip"] | None = None,
        exclude_hot: bool = False,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open a run.

        Args:
            path: a run's folder, the ``plattli/`` folder in it, or an archive. Of a run that has both,
                the archive is read. Or the URL of an archive: ``https://…``, ``s3://…``, ``gs://…`` or any
                other that ``fsspec`` knows (``pip install 'plattli-loggers[remote]'``). Of such an archive
                its directory is read, and then what is asked for, not the file.
            kind: skip the search: ``path`` is a metric folder (``"dir"``) or an archive (``"zip"``).
                A folder is not even looked at before the first read.
            exclude_hot: leave out rows that a live writer has not moved into the columns yet; much
                faster where there are thousands of metrics.
            storage_options: for a URL: what its ``fsspec`` file system takes, such as credentials or an
                ``endpoint_url``.

        Raises:
            NotARunError: there is no run at ``path``.
            RemoteError: the server of a URL cannot be reached, or refuses. Later reads raise it, too.
            ImportError: a package for such URLs is not installed; the message names the extra.
            TypeError: ``path`` is no path, or ``exclude_hot`` no bool.
            ValueError: an unknown kind, or one that ``path`` cannot be.
        """
        if not isinstance(exclude_hot, bool):
            raise TypeError(f"exclude_hot must be a bool, got {type(exclude_hot).__name__}: {exclude_hot!r}")
        if kind not in (None, "dir", "zip"):
            raise ValueError(f"kind must be 'dir', 'zip' or None, got {kind!r}")
        self.exclude_hot = exclude_hot
        source: Folder | Archive | RemoteArchive | None
        if isinstance(path, str) and is_url(path):
            if kind == "dir":
                raise ValueError(f"a URL can only be an archive, not a folder: {path}")
            source = RemoteArchive(path, storage_options)
        elif storage_options is not None:
            raise ValueError(f"storage_options are for URLs, and {path} is none")
        elif kind is None:
            source = locate(path)
            if source is None:
                raise NotARunError(f"not a plattli run: {path}")
        else:
            absolute = Path(path).expanduser().absolute()
            source = Folder(absolute) if kind == "dir" else Archive(absolute)
        self._source: Folder | Archive | RemoteArchive = source
        self._run = run_name(source.root)
        self._hot_reader = HotReader(source.root, self._run)
        self._is_closed = False
        self._config: Any = None
        self._hot: HotRows | LazyHotRows | None = None
        self._loaded: Manifest | None = None
        self._stamp: object = None  # of the manifest that is loaded
        self._parsed: dict[str, list[_indices.Segment] | None] = {}
        self._counts: dict[str, int] = {}
        self._lines: dict[str, LineIndex] = {}

    @property
    def kind(self) -> Literal["dir", "zip"]:
        """What is being read: a folder, or an archive."""
        return self._source.kind

    @property
    def root(self) -> Path | str:
        """Where it is: a path, or a URL without its query and password."""
        return self._source.root

    def __repr__(self) -> str:
        return f"Reader({str(self.root)!r}, kind={self.kind!r}, exclude_hot={self.exclude_hot})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the archive; later reads from it raise. A folder is not held open. Ends :meth:`follow`."""
        self._is_closed = True
        self._source.close()

    def refresh(self) -> None:
        """Make new metrics, hot rows and counts of a live run show up.

        Reads nothing yet. The next read parses the manifest only if it was replaced, and of the hot log
        only what was appended.
        """
        self._config = None
        self._hot = None
        self._counts.clear()
        if self._loaded is None or self._source.stamp() != self._stamp:
            self._forget_manifest()

    # ---- what the run holds

    def metrics(self) -> list[str]:
        """Return the names of all metrics, sorted."""
        hot = self._hot_rows()
        return sorted(hot.names.union(self._manifest().specs))

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Return how each metric is stored: name -> its entry of ``plattli.json``. Don't change it."""
        return self._manifest().specs

    def config(self) -> Any:
        """Return the run's config, usually a dict.

        Raises:
            MissingFileError: the run has none.
            CorruptRunError: it is not JSON.
        """
        if self._config is None:
            try:
                self._config = json.loads(self._config_bytes().decode())
            except (ValueError, RecursionError) as error:
                raise CorruptRunError(f"{CONFIG} of run {self._run!r} is not JSON: {error}") from error
        return self._config

    def _config_bytes(self) -> bytes:
        try:
            return self._source.read(CONFIG)
        except MissingFileError:
            if not self._follow():
                raise
            return self._source.read(CONFIG)

    def when_exported(self) -> str | None:
        """Return when the manifest was last written, such as ``2026-01-03T12:34:56Z``."""
        return self._manifest().when_exported

    def rows(self, name: str) -> int:
        """Return how many rows a metric has. Kept until :meth:`refresh`.

        Raises:
            UnknownMetricError: the run has no such metric.
        """

        def count() -> int:
            with self._metric(name) as rows:
                return rows.rows

        if name not in self._counts:
            count_now = self._read([name], count)
            self._counts[name] = count_now
        return self._counts[name]

    def approx_max_rows(self, nprobes: int = 12) -> int:
        """Estimate the row count of the longest metric, cheaply and never too high.

        Finished runs know it. For others, steps that the manifest spells out are free, and the sizes of
        at most ``nprobes`` files are looked at, spread over metrics of different cadence. Hot rows do
        not count, nor do JSON columns whose end the manifest leaves open.

        Args:
            nprobes: how many files to look at.

        Raises:
            TypeError, ValueError: ``nprobes`` is not an integer >= 0.
        """
        if isinstance(nprobes, bool):
            raise TypeError("nprobes must be an int, got a bool")
        if index(nprobes) < 0:
            raise ValueError(f"nprobes must be >= 0, got {nprobes}")
        known = self._manifest().run_rows
        return known if known is not None else self._read([], lambda: self._probe(nprobes))

    # ---- rows of one metric

    def metric(
        self,
        name: str,
        idx: Any = None,
        start: float | None = None,
        stop: float | None = None,
        istart: int | None = None,
        istop: int | None = None,
        vstart: Any = None,
        vstop: Any = None,
        *,
        dtype: Any = "standard",
    ) -> tuple[Any, Any]:
        """Return the steps and values of a metric.

        At most one kind of range can be given.

        Args:
            name: the metric.
            idx: an integer returns the scalars of that row, negative ones counted from the end, and
                reads only that row; anything else indexes the selected arrays as NumPy does.
            start, stop: a range of steps, both inclusive.
            istart, istop: a range of row numbers, as in a slice.
            vstart, vstop: a range of values, both inclusive. NaN is in no range. For a float32 column
                the bounds are rounded to float32, so that 0.1 is in 0.1 .. 0.1.
            dtype: ``"standard"`` for int64, or float32, float64 and Python objects as stored;
                ``"storage"`` for whatever is stored; or a NumPy dtype. Integers are converted exactly or
                not at all.

        Returns:
            Steps [n] and values [n] in the order in which they were logged, or two scalars. Steps are
            uint32, or uint64 if the metric has any above 2**32 - 1. The arrays may be read-only. JSON values
            are Python objects in a 1-D object array.

        Raises:
            UnknownMetricError: the run has no such metric.
            RowIndexError: it has no such row.
            ValueError: ranges of two kinds.
            ValueRangeError, ConversionError, DtypeError: a selected value does not fit ``dtype``.
            CorruptRunError, MissingFileError: the run is damaged.
            UnstableRunError: a writer changes the run faster than it can be read.
        """
        target = _casting.check(dtype)
        selection = Selection.of(start, stop, istart, istop, vstart, vstop)
        if isinstance(idx, bool | np.bool_):
            raise TypeError(f"idx must be an integer, a slice or an array, got the bool {idx}")
        if selection.by is None and isinstance(idx, int | np.integer):
            steps, values = self._read([name], lambda: self._row(name, int(idx)))
            idx = 0
        else:
            steps, values = self._read([name], lambda: self._select(name, selection))
        values = _casting.convert(values, target, name, self._run)
        return (steps, values) if idx is None else (steps[idx], values[idx])

    def metric_values(
        self,
        name: str,
        start: float | None = None,
        stop: float | None = None,
        istart: int | None = None,
        istop: int | None = None,
        vstart: Any = None,
        vstop: Any = None,
        *,
        dtype: Any = "standard",
    ) -> Array:
        """Return the values of a metric. Arguments and errors are those of :meth:`metric`."""
        target = _casting.check(dtype)
        selection = Selection.of(start, stop, istart, istop, vstart, vstop)

        def read() -> Array:
            with self._metric(name) as rows:
                return rows.values(rows.select(selection))

        return _casting.convert(self._read([name], read), target, name, self._run)

    def metric_indices(
        self,
        name: str,
        start: float | None = None,
        stop: float | None = None,
        istart: int | None = None,
        istop: int | None = None,
        vstart: Any = None,
        vstop: Any = None,
    ) -> Array:
        """Return the steps of a metric. Arguments, errors and dtype are those of :meth:`metric`."""
        selection = Selection.of(start, stop, istart, istop, vstart, vstop)

        def read() -> Array:
            with self._metric(name) as rows:
                return rows.steps(rows.select(selection))

        return self._read([name], read)

    # ---- rows of several metrics

    def table(
        self,
        names: Iterable[str],
        on: str = "step",
        start: float | None = None,
        stop: float | None = None,
        istart: int | None = None,
        istop: int | None = None,
        vstart: Any = None,
        vstop: Any = None,
        *,
        dtype: Any = "standard",
    ) -> tuple[Array, dict[str, Array]]:
        """Return several metrics at the steps that all of them have.

        Args:
            names: the metrics; repeated names count once.
            on: what the ranges select from: ``"step"`` for the joined rows, or a metric, whose rows
                decide which steps are looked at. It need not be among ``names``.
            start, stop, istart, istop, vstart, vstop: see :meth:`metric`. Values need a metric as ``on``.
            dtype: see :meth:`metric`; or a mapping from names to dtypes, the others being standard.

        Returns:
            Steps [n], uint32 unless one of the metrics needs uint64, and the values [n] of each metric in the
            order asked for.

        Raises:
            ValueError: no names, dtypes for metrics that were not asked for, or ranges that do not fit.
            TypeError: a string as ``names``.
            PlattliError: as :meth:`metric`.
        """
        if isinstance(names, str):
            raise TypeError(f"names must be an iterable of metric names, got {names!r}: use [{names!r}]")
        wanted = list(dict.fromkeys(names))
        if not wanted:
            raise ValueError(f"table needs at least one metric name (run {self._run!r})")
        dtypes = _dtypes_for(wanted, dtype)
        selection = Selection.of(start, stop, istart, istop, vstart, vstop)
        if on == "step" and selection.by == "value":
            raise ValueError("a range of values (vstart/vstop) needs a metric as `on`, got on='step'")

        def read() -> tuple[Array, list[Array]]:
            if on != "step":
                return self._table_on(wanted, on, selection)
            window = selection if selection.by == "step" else _EVERYTHING
            steps, columns = join([self._select(name, window) for name in wanted])
            if selection.by == "row":
                cut = slice(selection.low, selection.high)
                return steps[cut], [values[cut] for values in columns]
            return steps, columns

        steps, columns = self._read([*wanted, on], read)
        return steps, {
            name: _casting.convert(values, target, name, self._run)
            for name, values, target in zip(wanted, columns, dtypes, strict=True)
        }

    def _table_on(self, wanted: Sequence[str], on: str, selection: Selection) -> tuple[Array, list[Array]]:
        chosen = self._select(on, selection)
        steps = chosen[0]
        window = Selection("step", int(steps.min()), int(steps.max())) if len(steps) else _NOTHING
        columns = [chosen if name == on else self._select(name, window) for name in wanted]
        if on not in wanted:
            columns.append(chosen)
        common, values = join(columns)
        return common, values[: len(wanted)]

    # ---- points as they come

    @overload
    def follow(  # type: ignore[overload-overlap]  # a str is an iterable of names, too
        self,
        name: str,
        *,
        poll: float = ...,
        start: float | None = ...,
        stop: float | None = ...,
        timeout: float | None = ...,
        dtype: Any = ...,
    ) -> Generator[tuple[Array, Array]]: ...

    @overload
    def follow(
        self,
        name: Iterable[str],
        *,
        poll: float = ...,
        start: float | None = ...,
        stop: float | None = ...,
        timeout: float | None = ...,
        dtype: Any = ...,
    ) -> Generator[tuple[str, Array, Array]]: ...

    def follow(
        self,
        name: str | Iterable[str],
        *,
        poll: float = 0.25,
        start: float | None = None,
        stop: float | None = None,
        timeout: float | None = None,
        dtype: Any = "standard",
    ) -> Generator[tuple[Array, Array]] | Generator[tuple[str, Array, Array]]:
        """Yield the points of a metric: those that are there, then new ones as they are written.

        Every point comes once, whatever the writer does with it meanwhile: moves it to the columns, widens
        its column, archives the run. Each look is a :meth:`refresh` and reads only what was appended.

        - A **late point**, between earlier ones, comes when it is there. A value that replaces another at
          the same step is not promised to come.
        - A **resume that cuts the run** takes back what was yielded. What it then writes is new and comes,
          so steps go back to where it goes on; of a point that it writes again just as it was before,
          perhaps only the first. Whoever keeps the latest value of each step ends with what the run has,
          plus what was cut and not written again.
        - A metric that the run **does not have yet** is waited for.

        It ends when all is delivered and no process writes the run (any more), when ``stop`` is reached,
        after ``timeout``, or when the reader is closed.

        Args:
            name: a metric, or several.
            poll: seconds between two looks.
            start, stop: a range of steps, both inclusive.
            timeout: end when nothing came for so many seconds. Without one, a run that nobody writes is
                read once. With one, it is waited for a writer, unless the run is finished: so give one to
                follow a run across a restart, or a writer that keeps no lock, such as those of plattli
                0.19.0.
            dtype: as of :meth:`metric`.

        Yields:
            Steps [n] and values [n], n > 0, in the order in which the run has them; of several metrics,
            their name before. The arrays may be read-only. An integer metric may go on as floats.

        Raises:
            UnknownMetricError: all is there, and the run has no such metric.
            ReaderClosedError: the reader was closed before.
            ValueError: ``poll`` or ``timeout`` is negative.
            PlattliError: what :meth:`metric` raises.
        """
        for what, seconds in (("poll", poll), ("timeout", timeout)):
            if seconds is not None and not seconds >= 0:
                raise ValueError(f"{what} must be a number of seconds >= 0, got {seconds!r}")
        if self._is_closed:
            raise ReaderClosedError(f"the reader of run {self._run!r} was closed: open a new one")
        target = _casting.check(dtype)
        names = dict.fromkeys([name] if isinstance(name, str) else name)
        metrics = [_follow.Points(each, self._stored_from) for each in names]
        pieces = (
            (metric, steps, _casting.convert(values, target, metric, self._run))
            for metric, steps, values in _follow.follow(metrics, self._moment, poll, start, stop, timeout)
        )
        return ((steps, values) for _, steps, values in pieces) if isinstance(name, str) else pieces

    def _stored_from(self, name: str, row: int) -> tuple[Array, Array]:
        steps, values = self.metric(name, istart=row, dtype="storage")
        return steps, values

    def _moment(self) -> _follow.Moment | None:
        """Look at the run anew, ``None`` if the reader was closed."""
        if self._is_closed:
            return None
        owner = None
        # only where a writer puts its lock: beside plattli/, or beside the archive of a resumed run
        if isinstance(self.root, Path) and self.root.name in (METRIC_DIR, ARCHIVE):
            owner = lock_owner(self.root.parent)
            if owner is not None and self.kind == "zip":
                self._return_to_folder(self.root.parent / METRIC_DIR)
        self.refresh()
        try:
            is_final = self.kind == "zip" or self._manifest().run_rows is not None
        except MissingFileError:
            is_final = False
        token = None if owner is None else owner.get("token")
        # a writer publishes a manifest when it opens a run, before it writes
        return _follow.Moment(owner is not None, is_final, self._source.stamp() if token is None else token)

    def _return_to_folder(self, folder: Path) -> None:
        """Go on with the folder that a resume turned the archive into, if it did."""
        if not os.path.exists(self.root) and (folder / MANIFEST).is_file():
            self._source.close()
            self._source = Folder(folder)
            self._hot_reader = HotReader(folder, self._run)
            self._forget_manifest()

    # ---- reading, once

    def _row(self, name: str, row: int) -> tuple[Array, Array]:
        with self._metric(name) as rows:
            at = row + rows.rows if row < 0 else row
            if not 0 <= at < rows.rows:
                raise RowIndexError(
                    f"index {row} is out of range for metric {name!r} with {rows.rows} rows (run {self._run!r})"
                )
            chosen = rows.select(Selection("row", at, at + 1))
            return rows.steps(chosen), rows.values(chosen)

    def _select(self, name: str, selection: Selection) -> tuple[Array, Array]:
        with self._metric(name) as rows:
            chosen = rows.select(selection)
            return rows.steps(chosen), rows.values(chosen)

    @contextmanager
    def _metric(self, name: str) -> Iterator[MetricRows]:
        hot = self._hot_rows()  # before the columns: a row that moves meanwhile is seen in both, not in none
        spec = self._manifest().specs.get(name)
        where = f"metric {name!r} (run {self._run!r})"
        with ExitStack() as files:
            if spec is not None:
                try:
                    stored = open_stored(
                        files,
                        self._source,
                        name,
                        spec,
                        self._segments(name, spec),
                        self._line_index(name),
                        self._run,
                        # a server sends a whole column of JSON anyway: see RemoteArchive
                        is_final=self._manifest().run_rows is not None and not self._is_remote,
                    )
                except MissingFileError:
                    # a live run may have announced a metric whose files it has not made yet
                    live = self.kind == "dir" and (self.exclude_hot or hot.exists)
                    if not live or self._is_outdated() or self._has_successor():
                        raise
                    stored = Stored(where, storage_dtype(spec, where))
            elif name in hot.names:
                stored = Stored(where, OBJECT)
            else:
                known = (*self._manifest().specs, *hot.names)
                meant = min((one for one in known if one.endswith(f"/{name}")), default=None)  # without its context
                raise UnknownMetricError(f"unknown {where}{f': there is {meant!r}' if meant else ''}")
            yield MetricRows(name, self._run, stored, hot)

    def _line_index(self, name: str) -> LineIndex:
        if name not in self._lines:
            # writers publish another manifest before they write over what a column has
            path = None if self._stamp is None else (self.root, name)
            self._lines[name] = LineIndex(counts_first=not self._is_remote, path=path, edition=self._stamp)
        return self._lines[name]

    @property
    def _is_remote(self) -> bool:
        return isinstance(self._source, RemoteArchive)

    def _probe(self, budget: int) -> int:
        longest = 0
        # what is worth a look, by cadence, with step files first: (closed rows, first step, file, row size)
        groups: dict[int, list[tuple[int, int, str, int]]] = defaultdict(list)
        for name, spec in self._manifest().specs.items():
            segments = self._segments(name, spec)
            if segments is None:
                wide = _indices.is_wide(spec["indices"])
                groups[0].append((0, 0, indices_file(name, wide), step_dtype(wide).itemsize))
            elif not segments or segments[-1].stop is not None:
                longest = max(longest, _indices.count(segments, sys.maxsize))
            elif spec["dtype"] in DTYPES:
                closed = _indices.count(segments[:-1], sys.maxsize)
                file = value_file(name, spec["dtype"])
                groups[segments[-1].step].append(
                    (closed, segments[0].start, file, DTYPES[spec["dtype"]].itemsize)
                )
        # those that had more rows already come first in their group, then those that began earlier
        queues = [sorted(groups[step], key=lambda probe: (-probe[0], probe[1])) for step in sorted(groups)]
        turns = (probe for turn in zip_longest(*queues) for probe in turn if probe is not None)
        for _, _, file, size in islice(turns, budget):
            longest = max(longest, self._size(file) // size)
        return longest

    def _size(self, file: str) -> int:
        try:
            with self._source.open(file) as blob:
                return blob.size
        except MissingFileError:
            return 0

    # ---- what is kept, and for how long

    def _read(self, names: Sequence[str], read: Callable[[], T]) -> T:
        """Call ``read`` until the manifest says the same about ``names`` before and after.

        Writers publish a change of the manifest before the rows that need it. So rows that were read
        while the manifest stood still are what it says they are.
        """
        failure: PlattliError | None = None
        for _ in range(_ATTEMPTS):
            try:
                result = read()
            except (MissingFileError, UnstableRunError, CorruptRunError) as error:
                # perhaps a file was cut or replaced, and has lines elsewhere now
                again = isinstance(error, UnstableRunError) or (bool(self._lines) and failure is None)
                failure = error
                for lines in self._lines.values():
                    lines.forget()
                self._lines.clear()
                if isinstance(self._hot, LazyHotRows):
                    self._hot, again = None, True  # it is read otherwise the next time
                if not self._catch_up() and not self._follow() and not again:
                    raise
                continue
            used = self._manifest().specs
            if not self._catch_up():
                return result
            now = self._manifest().specs
            if all(used.get(name) == now.get(name) for name in names):
                return result
        raise UnstableRunError(
            f"run {self._run!r} changed {_ATTEMPTS} times while it was read: try again"
        ) from failure

    def _manifest(self) -> Manifest:
        if self._loaded is None:
            try:
                self._stamp, data = self._source.manifest()
            except MissingFileError:
                if not self._follow():
                    raise
                return self._manifest()
            self._loaded = load(data, self._run)
        return self._loaded

    def _forget_manifest(self) -> None:
        self._loaded = None
        self._stamp = None
        self._parsed.clear()
        self._counts.clear()
        self._lines.clear()

    def _segments(self, name: str, spec: Mapping[str, Any]) -> list[_indices.Segment] | None:
        if name not in self._parsed:
            self._parsed[name] = _indices.parse(spec["indices"], name, self._run)
        return self._parsed[name]

    def _hot_rows(self) -> HotRows | LazyHotRows:
        for _ in range(_ATTEMPTS):
            if self.exclude_hot or self.kind == "zip" or self._manifest().run_rows is not None:
                return NO_HOT_ROWS
            if self._hot is not None:
                return self._hot
            hot = self._hot_reader.look()
            if not self._is_outdated():
                self._hot = hot
                return hot
            # The old manifest may lack metrics of these rows. And the new one may say that a column was cut for a late
            # point, whose tail went to the hot log after we had looked there.
            self._forget_manifest()
        raise UnstableRunError(f"run {self._run!r} changed {_ATTEMPTS} times while its hot log was read: try again")

    def _is_outdated(self) -> bool:
        # a folder without a manifest is being removed: what was read from it is still true
        return self._source.stamp() not in (self._stamp, None)

    def _catch_up(self) -> bool:
        """Forget what a new manifest has outdated. Return whether there is one."""
        outdated = self._is_outdated()
        if outdated:
            self.refresh()
        return outdated

    def _has_successor(self) -> bool:
        archive = self._source.successor()
        if archive is not None:
            archive.close()
        return archive is not None

    def _follow(self) -> bool:
        """Go on with the archive that the folder was turned into. Return whether there is one."""
        archive = self._source.successor()
        if archive is None:
            return False
        self._source = archive
        self.refresh()
        return True


def _dtypes_for(names: Sequence[str], dtype: Any) -> list[np.dtype[Any] | str]:
    if not isinstance(dtype, Mapping):
        return [_casting.check(dtype)] * len(names)
    unknown = [name for name in dtype if name not in names]
    if unknown:
        raise ValueError(f"dtype names metrics that were not asked for: {unknown}")
    return [_casting.check(dtype.get(name, "standard")) for name in names]
