"""TensorBoard event files: scalars in both forms, texts, hparams, whoever wrote them.

The files of one directory are one run, in the order of their names, as TensorBoard has it. Each is the work of one
process; where a process says that it goes on from a step, everything behind that step is gone for TensorBoard too.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from adapters import _require
from adapters.importers.items import Attempt, Call, End, Item, Line, Options, Report, Source, as_epoch, split

WHAT: Final = "TensorBoard event files"
_WHO: Final = "importing TensorBoard files"
_HEAD: Final = struct.Struct("<QI")
_CRC: Final = struct.Struct("<I")
_HPARAMS: Final = "_hparams_/session_start_info"
_ENDED: Final = "_hparams_/session_end_info"
#: TensorBoard's status codes, where they say that a run has ended.
_STATUSES: Final = {1: "completed", 2: "error"}
#: A line of the list of tags that a TensorBoardLogger writes.
_TAG: Final = re.compile(r"- (`+) ?(?P<tag>.+?) ?\1(?:: (`+) ?(?P<value>.+?) ?\3)?\Z")
_PARAMS_TABLE: Final = "| param | value |\n"


def matches(path: Path) -> bool:
    """Tell an event file by its first record."""
    with path.open("rb") as file:
        return b"brain.Event" in file.read(64)


def below(directory: Path) -> list[Path]:
    """Return the event files in a directory, at any depth, in TensorBoard's order."""
    return [path for path in sorted(directory.rglob("*tfevents*")) if path.is_file() and matches(path)]


def sources(files: list[Path], root: Path) -> list[Source]:
    """Return a run for each directory with event files, as TensorBoard has it."""
    runs: dict[Path, list[Path]] = {}
    for path in files:
        runs.setdefault(path.parent, []).append(path)
    return [
        Source(
            "tensorboard",
            "" if len(runs) == 1 or folder == root else str(folder.relative_to(root)),
            tuple(run),
            partial(_read, tuple(run)),
        )
        for folder, run in runs.items()
    ]


def _read(files: tuple[Path, ...], report: Report, options: Options) -> Iterator[Item]:
    event_type = _require.require("tensorboard.compat.proto.event_pb2", extra="tensorboard", who=_WHO).Event
    run = _Run(report, options)
    for path in files:
        yield from run.flush()
        yield Attempt()
        for record in _records(path, report):
            yield from run.event(event_type.FromString(record))
    yield from run.flush()
    if run.status is not None:
        yield End(run.status)


class _Run:
    """Puts the events of a step together again: most writers make one of every scalar."""

    def __init__(self, report: Report, options: Options) -> None:
        self._report = report
        self._context = options.context
        self._plugins: dict[str, str] = {}
        self._step = 0
        self._lines: dict[str, dict[str, Any]] = {}
        #: context -> when its line was logged; texts have times of their own, which are not the line's
        self._times: dict[str, float] = {}
        self._has_params = self._has_ended = False
        self.status: str | None = None

    def event(self, event: Any) -> Iterator[Item]:
        kind = event.WhichOneof("what")
        if kind == "summary":
            for value in event.summary.value:
                yield from self._value(value, event)
        elif kind == "session_log":
            if event.session_log.status == event.session_log.START:
                yield from self.flush()
                yield Attempt(max(event.step, 0))
        elif kind not in ("file_version", "source_metadata", None):
            self._report.leave_out(f"{kind} events")

    def flush(self) -> Iterator[Item]:
        """Yield the lines of the step so far."""
        for context, metrics in self._lines.items():
            epoch = as_epoch(metrics.get("epoch"))
            if epoch is not None:
                del metrics["epoch"]
            yield Line(self._step, context, metrics, epoch, self._times.get(context))
        self._lines, self._times = {}, {}

    def _value(self, value: Any, event: Any) -> Iterator[Item]:
        tag = value.tag
        plugin = value.metadata.plugin_data.plugin_name
        if plugin:
            self._plugins.setdefault(tag, plugin)  # the first one counts, and later ones are often left out
        plugin = self._plugins.get(tag, "")
        if plugin == "hparams":
            yield from self._hparams(tag, value.metadata.plugin_data.content)
            return
        data = _data(value, plugin)
        if data is None:
            what = plugin or value.WhichOneof("value") or "empty values"
            self._report.leave_out(_NAMES.get(what, what))
            return
        if plugin == "text" and isinstance(data, str):
            if tag == "tags" and (tags := _tags(data)):
                yield Call("log_tags", (tags,))
                return
            if tag == "params" and data.startswith(_PARAMS_TABLE):
                return  # of a TensorBoardLogger; the same as its hparams
            if tag.startswith("other/"):
                data = _free_form(data)
        context, metric = split(tag, self._context)
        if event.step != self._step or metric in self._lines.get(context, ()):
            yield from self.flush()
        self._step = event.step
        self._lines.setdefault(context, {})[metric] = data
        if plugin != "text":
            self._times[context] = event.wall_time

    def _hparams(self, tag: str, content: bytes) -> Iterator[Item]:
        metadata = _require.require("tensorboard.plugins.hparams.metadata", extra="tensorboard", who=_WHO)
        if tag == _HPARAMS and not self._has_params:
            self._has_params = True
            info = metadata.parse_session_start_info_plugin_data(content)
            params = {name: _hparam(value) for name, value in sorted(info.hparams.items())}
            if params:
                yield Call("log_params", (params,))
        elif tag == _ENDED and not self._has_ended:
            self._has_ended = True
            info = metadata.parse_session_end_info_plugin_data(content)
            self.status = _STATUSES.get(info.status)


#: What the things are called that a run has no place for.
_NAMES: Final = {"histo": "histograms", "image": "images", "audio": "audio clips", "tensor": "tensors",
                 "custom_scalars": "chart layouts"}  # fmt: skip


def _data(value: Any, plugin: str) -> Any:
    """Return a scalar or a text, ``None`` for everything else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor" or plugin not in ("", "scalars", "text"):
        return None
    tensor_util = _require.require("tensorboard.util.tensor_util", extra="tensorboard", who=_WHO)
    try:
        array = tensor_util.make_ndarray(value.tensor)
    except (KeyError, TypeError, ValueError):  # a type that NumPy does not have
        return None
    if array.dtype.kind in "biuf":
        return array.reshape(()).item() if array.size == 1 else None
    texts = [item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return texts[0] if array.ndim == 0 or len(texts) == 1 else texts or None


def _hparam(value: Any) -> Any:
    plain = getattr(value, value.WhichOneof("kind") or "string_value")
    is_whole = isinstance(plain, float) and plain.is_integer() and abs(plain) < 2**53
    return int(plain) if is_whole else plain


def _tags(text: str) -> dict[str, Any] | None:
    """Return the tags of a list that a TensorBoardLogger wrote, ``None`` if it did not."""
    found = [_TAG.match(line) for line in text.split("\n")]
    if not all(found):
        return None
    return {m["tag"]: True if m["value"] is None else m["value"] for m in found if m is not None}


def _free_form(text: str) -> Any:
    """Return a value of ``log_other``: a TensorBoardLogger writes lists and mappings as a block of JSON."""
    block = text.removeprefix("```json\n").removesuffix("\n```")
    if len(block) + len("```json\n\n```") != len(text):
        return text
    try:
        return json.loads(block)
    except ValueError:
        return text


def _records(path: Path, report: Report) -> Iterator[bytes]:
    """Yield the records of an event file; a damaged one is left out, a torn end too."""
    crc = _crc32c()
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            at = file.tell() - len(head)
            size, check = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
            if check >= 0 and check != _masked(crc(head[:8])):
                lost = path.stat().st_size - at
                report.note(f"{path.name} is damaged at byte {at}: the {lost} bytes from there on are left out")
                report.leave_out("damaged files")
                break
            body = file.read(size + _CRC.size) if check >= 0 else b""
            if check < 0 or len(body) < size + _CRC.size:
                report.note(f"{path.name} ends inside a record, which is left out: {len(head) + len(body)} bytes")
                break
            report.bytes_read += len(head) + len(body)
            if _masked(crc(body[:size])) == _CRC.unpack_from(body, size)[0]:
                yield body[:size]
            else:
                report.leave_out("damaged records")
                report.note(f"{path.name} has a damaged record at byte {at}")


def _crc32c() -> Any:
    return _require.require("google_crc32c", extra="tensorboard", who=_WHO).value


def _masked(check: int) -> int:
    return (check >> 15 | check << 17) + 0xA282EAD8 & 0xFFFF_FFFF
