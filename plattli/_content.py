"""Check what stands in one metric folder or archive: manifest, hot logs, columns, files that nobody owns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from plattli import _jsonlines
from plattli._columncheck import MANY, UNREADABLE, ColumnCheck
from plattli._finding import Findings, MoveAway, Severity, parse_json
from plattli._format import (
    CONFIG,
    DTYPES,
    HOT,
    HOT_COMPACTING,
    INDICES_FILE,
    JSONL,
    MANIFEST,
    MAX_STEP,
    TMP_SUFFIX,
    WIDE_INDICES_FILE,
    check_name,
    run_name,
)
from plattli._hotreader import NO_HOT_ROWS, HotReader, HotRows
from plattli._pathnames import unportable
from plattli._source import Archive, Folder
from plattli.errors import MetricNameError, MissingFileError

_SUFFIXES: Final = frozenset((*DTYPES, JSONL, INDICES_FILE, WIDE_INDICES_FILE))
_OWN: Final = (MANIFEST, CONFIG, HOT, HOT_COMPACTING)


class Content:
    """What one source holds.

    Attributes:
        metrics: how many metrics there are.
        rows: how many stored rows the longest one has.
        finished: whether the manifest has ``run_rows``; ``None`` if there is no telling.
    """

    def __init__(
        self, source: Folder | Archive, files: Iterable[str], findings: Findings, tick: Callable[[str], None]
    ) -> None:
        """Check everything that ``source`` holds.

        Args:
            source: the files.
            files: the names of all of them.
            findings: where to say what is wrong.
            tick: called with each metric that is done.
        """
        self.rows = 0
        self.finished: bool | None = None
        self._source = source
        self._findings = findings
        self._run = run_name(source.root)
        self._entries: set[str] = set()  # metrics of the manifest, however bad their entries
        self._hot_lines: dict[int, tuple[str, int, int]] = {}  # step -> file, line, offset
        self._run_rows: int | None = None
        specs = self._check_manifest()
        hot = self._check_hot_logs() if source.kind == "dir" else NO_HOT_ROWS
        self._columns = ColumnCheck(source, findings, hot, self._hot_lines)
        before = len(findings.all)
        for name, spec in (specs or {}).items():
            self.rows = max(self.rows, self._columns.check(name, spec))
            if unportable(name):
                findings.add("note", "portable", MANIFEST, f"metric {name!r}: Windows cannot store a file of that name")
            tick(name)
        self.metrics = len(hot.names.union(specs or ()))
        if self._run_rows not in (None, self.rows) and not findings.has_error_since(before):
            findings.add(
                "warning", "run-rows", MANIFEST,
                f"run_rows is {self._run_rows}, but the longest metric has {self.rows} rows",
                fix=findings.amend(None, "run_rows", self.rows),
            )  # fmt: skip
        self._check_files(files, has_manifest=specs is not None)

    # ---- manifest

    def _check_manifest(self) -> dict[str, dict[str, Any]] | None:
        """Return the entries that make sense, ``None`` if there is no making sense of it."""

        def error(what: str, code: str = "manifest", **where: Any) -> None:
            self._findings.add("error", code, MANIFEST, what, **where)

        try:
            data = self._source.read(MANIFEST)
        except UNREADABLE as problem:
            error(f"cannot be read: {problem}")
            return None
        parsed, wrong = parse_json(data)
        if wrong is not None:
            error(f"is not JSON: {wrong[0]}", line=wrong[1], offset=wrong[2])
            return None
        if not isinstance(parsed, dict):
            error(f"must hold an object, not a {type(parsed).__name__}")
            return None
        run_rows, _ = parsed.pop("run_rows", None), parsed.pop("when_exported", None)
        if run_rows is not None and (type(run_rows) is not int or run_rows < 0):
            error(f"run_rows is {run_rows!r:.80}, which is no row count")
            run_rows = None
        self._run_rows = run_rows
        self.finished = run_rows is not None
        self._entries = set(parsed)
        specs = {}
        for name, spec in parsed.items():
            try:
                check_name(name, self._run)
            except MetricNameError as problem:
                error(str(problem), "name", metric=name)
                continue
            if isinstance(spec, dict) and "indices" in spec and isinstance(spec.get("dtype"), str):
                specs[name] = spec
            else:
                error(f"the entry needs indices and a dtype, got {spec!r:.80}", "entry", metric=name)
        return specs

    # ---- hot logs

    def _check_hot_logs(self) -> HotRows:
        """Return what a reader gets of them."""
        before = len(self._findings.all)
        for file in (HOT_COMPACTING, HOT):
            try:
                data = self._source.read(file)
            except MissingFileError:
                continue
            except UNREADABLE as problem:
                self._findings.add("error", "unreadable", file, f"cannot be read: {problem}")
                continue
            if self.finished:
                what = "readers ignore it, because the manifest says that the run is finished"
                self._findings.add("warning", "ignored-hot", file, what)
            else:
                if file == HOT_COMPACTING:
                    what = "holds rows on their way into the columns; readers see them"
                    self._findings.add("note", "interrupted-batch", file, what)
                self._check_hot_log(file, data)
        if self.finished:
            return NO_HOT_ROWS
        try:
            return HotReader(self._source.root, self._run).read()
        except UNREADABLE as problem:
            if not self._findings.has_error_since(before):
                self._findings.add("error", "unreadable", HOT, f"cannot be read: {problem}")
            return NO_HOT_ROWS

    def _check_hot_log(self, file: str, data: bytes) -> None:
        end = number = bad = 0
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            at, end = end, end + len(line)
            try:
                row = _jsonlines.parse(line.rstrip(b"\r\n"))
                problem = _row_problem(row, self._run)
            except ValueError as error:
                if end == len(data):
                    self._findings.torn_line(file, line, number, at, len(data))
                    return
                problem = f"is not JSON: {error}"
            if problem is None:
                self._hot_lines[int(row["step"])] = file, number, at
                continue
            bad += 1
            if bad <= MANY:
                self._findings.add("error", "bad-line", file, f"the line {problem}", line=number, offset=at)
        if bad > MANY:
            self._findings.add("error", "bad-line", file, f"{bad - MANY} more lines are bad")
        if data and not data.endswith(b"\n"):
            self._findings.unended_line(file, len(data), number)

    # ---- files that nobody owns

    def _check_files(self, files: Iterable[str], *, has_manifest: bool) -> None:
        root, live = self._source.root, self._source.kind == "dir"
        config = os.path.realpath(root / CONFIG) if live else None
        for file in files:
            if file in _OWN or file in self._columns.owned or (live and os.path.realpath(root / file) == config):
                continue
            severity, code, what = self._kind_of(file, has_manifest)
            fix = MoveAway(root / file) if code in ("temporary", "superseded") else None
            self._findings.add(severity, code, file, what, fix=fix)

    def _kind_of(self, file: str, has_manifest: bool) -> tuple[Severity, str, str]:
        if file.endswith(TMP_SUFFIX) and is_of_format(file.removesuffix(TMP_SUFFIX)):
            return "warning", "temporary", "is the temporary file of a writer that was killed"
        stem, _, suffix = file.rpartition(".")
        if suffix not in _SUFFIXES:
            return "note", "stray", "is no file of the format: readers ignore it, an archive takes it along"
        if not has_manifest:
            return "warning", "orphan", "may belong to the run, but there is no manifest to say so"
        if stem not in self._entries:
            return "warning", "orphan", "belongs to no metric of the manifest, so no reader returns it"
        if stem in self._columns.unsure:
            return "warning", "orphan", "is not what the manifest says, but what it says is missing or makes no sense"
        return "warning", "superseded", "is of another form than the manifest says of its metric: a leftover"


def is_of_format(file: str) -> bool:
    """Tell whether a file's name is one that writers give."""
    return file in _OWN or file.rpartition(".")[2] in _SUFFIXES


def _row_problem(row: Any, run: str) -> str | None:
    if not isinstance(row, dict) or "step" not in row:
        return f"is no row with a step: {row!r:.80}"
    try:
        step = int(row["step"])
    except (TypeError, ValueError, OverflowError):
        return f"has a step that is no integer: {row['step']!r:.80}"
    if not 0 <= step <= MAX_STEP:
        return f"has step {step}, which is not in 0 … {MAX_STEP}"
    try:
        for name in row:
            if name != "step":
                check_name(name, run)
    except MetricNameError as error:
        return f"has a {error}"
    return None
