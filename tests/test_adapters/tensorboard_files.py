"""Reads event files back with TensorBoard's own accumulator, and asks a real TensorBoard server."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.lazy import Lazy

tb = Lazy("tensorboard.backend.event_processing.event_accumulator", "tensorboard.compat.proto.event_pb2")
hparams = Lazy("tensorboard.plugins.hparams.metadata")

#: The names of TensorBoard's status codes.
STATUSES = {0: "STATUS_UNKNOWN", 1: "STATUS_SUCCESS", 2: "STATUS_FAILURE", 3: "STATUS_RUNNING"}


class Files:
    """A run directory as TensorBoard's accumulator reads it."""

    def __init__(self, directory: Path) -> None:
        sizes = {"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
        self._read = tb.EventAccumulator(str(directory), size_guidance=sizes)
        self._read.Reload()

    def tags(self) -> list[str]:
        """Return the tags of all scalars."""
        return sorted(self._read.Tags()["scalars"])

    def scalars(self, tag: str) -> list[tuple[int, float]]:
        """Return step and value of each point."""
        return [(point.step, point.value) for point in self._read.Scalars(tag)]

    def wall_times(self, tag: str) -> list[float]:
        """Return the time of each point."""
        return [point.wall_time for point in self._read.Scalars(tag)]

    def texts(self, tag: str) -> list[tuple[int, str]]:
        """Return step and markdown of each text."""
        return [(e.step, e.tensor_proto.string_val[0].decode()) for e in self._read.Tensors(tag)]

    def images(self, tag: str) -> list[Any]:
        """Return the pictures, with step, width, height and encoded_image_string."""
        return list(self._read.Images(tag))

    def histograms(self, tag: str) -> list[Any]:
        """Return the histograms, with step and histogram_value."""
        return list(self._read.Histograms(tag))

    def params(self) -> dict[str, Any]:
        """Return what the HParams table gets."""
        content = self._read.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
        info = hparams.parse_session_start_info_plugin_data(content)
        return {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}

    def status(self) -> str:
        """Return the status that the HParams table gets."""
        try:
            metadata = self._read.SummaryMetadata(hparams.SESSION_END_INFO_TAG)
        except KeyError:
            return STATUSES[0]
        info = hparams.parse_session_end_info_plugin_data(metadata.plugin_data.content)
        return STATUSES[info.status]


def events(path: Path) -> list[Any]:
    """Return the events of one file, by TensorBoard's own classes; the checksums are not looked at."""
    data, found = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        found.append(tb.Event.FromString(data[12 : 12 + size]))
        data = data[size + 16 :]
    return found


class Server:
    """A running TensorBoard."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON that a route answers."""
        return json.loads(self.fetch(f"{path}?{urllib.parse.urlencode(query)}"))

    def fetch(self, path: str) -> bytes:
        """Return the bytes that a route answers."""
        with urllib.request.urlopen(self._address + path, timeout=240) as reply:
            return bytes(reply.read())

    def runs(self) -> list[str]:
        """Return the names of the runs."""
        return sorted(self.get("/data/runs"))

    def tags(self, run: str) -> list[str]:
        """Return the scalar tags of a run."""
        return sorted(self.get("/data/plugin/scalars/tags").get(run, {}))

    def scalars(self, run: str, tag: str) -> list[tuple[int, Any]]:
        """Return step and value of each point; NaN and the infinities are text."""
        points = self.get("/data/plugin/scalars/scalars", run=run, tag=tag)
        return [(step, value) for _, step, value in points]

    def texts(self, run: str, tag: str) -> list[tuple[int, str]]:
        """Return step and HTML of each text."""
        found = self.get("/data/plugin/text/text", run=run, tag=tag)
        return [(text["step"], text["text"]) for text in found]

    def images(self, run: str, tag: str) -> list[tuple[int, bytes]]:
        """Return step and bytes of each picture."""
        found = self.get("/data/plugin/images/images", run=run, tag=tag, sample="0")
        return [
            (image["step"], self.fetch(f"/data/plugin/images/individualImage?{image['query']}"))
            for image in found
        ]

    def histograms(self, run: str, tag: str) -> list[tuple[int, float]]:
        """Return step and number of values of each histogram."""
        found = self.get("/data/plugin/histograms/histograms", run=run, tag=tag)
        return [(step, sum(bucket[2] for bucket in buckets)) for _, step, buckets in found]

    def charts(self, run: str) -> dict[str, dict[str, list[tuple[int, Any]]]]:
        """Return chart -> tag -> points of a run, as the Custom Scalars tab draws it."""
        layout = self.get("/data/plugin/custom_scalars/layout")
        found: dict[str, dict[str, list[tuple[int, Any]]]] = {}
        for category in layout.get("category", ()):
            for chart in category["chart"]:
                curves = found.setdefault(chart["title"], {})
                for pattern in chart["multiline"]["tag"]:
                    reply = self.get("/data/plugin/custom_scalars/scalars", run=run, tag=pattern)
                    assert reply["regex_valid"]
                    for tag, points in reply["tag_to_events"].items():
                        curves[tag] = [(step, value) for _, step, value in points]
        return found

    def chart_titles(self) -> list[str]:
        """Return the titles of all charts of the Custom Scalars tab, as often as they are there."""
        layout = self.get("/data/plugin/custom_scalars/layout")
        return [chart["title"] for category in layout.get("category", ()) for chart in category["chart"]]

    def hparams(self) -> dict[str, tuple[dict[str, Any], dict[str, float], str]]:
        """Return params, last metrics and status of each row of the HParams table."""
        self._post("experiment", {})
        wanted = {"startIndex": 0, "sliceSize": 100, "allowedStatuses": [*STATUSES.values()], "colParams": []}
        rows = self._post("session_groups", wanted)["sessionGroups"]
        return {
            row["name"]: (
                row["hparams"],
                {metric["name"]["tag"]: metric["value"] for metric in row.get("metricValues", ())},
                row["sessions"][0].get("status", STATUSES[0]),
            )
            for row in rows
        }

    def _post(self, route: str, question: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self._address}/data/plugin/hparams/{route}",
            data=json.dumps(question).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=240) as reply:
            return json.loads(reply.read())


@contextlib.contextmanager
def serve(logdir: Path, log: Path, *, fast: bool) -> Iterator[Server]:
    """Run ``tensorboard`` on a free port, from when it has read ``logdir`` to the end of the block."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1"]
    command += ["--port", "0", "--reload_interval", "1", f"--load_fast={str(fast).lower()}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, close_fds=True
        )
    try:
        server = Server(poll(lambda: _address(process, log)))
        count = len({path.parent for path in logdir.rglob("*tfevents*")})
        poll(lambda: len(server.runs()) == count)
        yield server
    finally:
        process.terminate()
        process.wait(240)


def poll(answer: Any, seconds: float = 240) -> Any:
    """Return what ``answer()`` returns once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = answer()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {answer}")
        time.sleep(0.05)


def _address(process: subprocess.Popen[bytes], log: Path) -> str | None:
    output = log.read_text(errors="replace")
    if process.poll() is not None:
        raise RuntimeError(f"tensorboard ended with {process.returncode}:\n{output}")
    found = re.search(r"http://127\.0\.0\.1:\d+", output)
    return found[0] if found else None
