"""Metrics groups as docs/metrics-group.md describes them, read with zarr and json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from loggers.testing import Stored
from tests.lazy import Lazy

zarr = Lazy("zarr")

#: One point: its step (``None`` if it has none), its value, its time.
Point = tuple[int | None, float, str]


class ByHand:
    """A group: key -> points, and the events that are no points."""

    def __init__(self, folder: Path, *, log: bool = True) -> None:
        self.points: dict[str, list[Point]] = {}
        self._places: dict[str, dict[int | None, int]] = {}
        self.events: list[dict[str, Any]] = []
        covered = self._arrays(folder) if (folder / "zarr.json").exists() else 0
        if log and covered is not None and (folder / "metrics.jsonl").exists():
            for line in (folder / "metrics.jsonl").read_bytes()[covered:].split(b"\n")[:-1]:
                self._event(json.loads(line))

    def _arrays(self, folder: Path) -> int | None:
        group = zarr.open_group(folder, mode="r", zarr_format=3)
        catalog = group.attrs.asdict()
        whole = "densifying" not in catalog
        names = {unquote(path.name): path.name for path in (folder / "series").glob("*") if path.is_dir()}
        assert not whole or names.keys() <= catalog.get("series", {}).keys()
        for key, entry in catalog.get("series", {}).items():
            name, count = names.get(key, ""), entry["count"]
            if count == 0:
                continue
            for node in ("series", "steps", "wall_time"):
                assert not whole or f"{node}/{name}" not in group or group[f"{node}/{name}"].shape == (count,)
            steps = [None] * count
            if f"steps/{name}" in group:
                steps = [None if step == -(2**63) else step for step in group[f"steps/{name}"][:count].tolist()]
            values = group[f"series/{name}"][:count].tolist()
            times = group[f"wall_time/{name}"][:count].tolist() if f"wall_time/{name}" in group else [""] * count
            self.points[key] = list(zip(steps, values, times, strict=True))
            assert not whole or (entry["latest_step"], entry["latest_timestamp"]) == (steps[-1], times[-1] or None)
        if count := catalog.get("events", {}).get("count", 0):
            assert not whole or group["events"].shape == (count,)
            self.events = [json.loads(line) for line in group["events"][:count].tolist()]
        return catalog["wal"]["bytes"] if "wal" in catalog else None

    def _event(self, event: dict[str, Any]) -> None:
        if event["type"] != "scalar":
            self.events.append(event)
            return
        values = {event["key"]: event["value"]} if "value" in event else None
        for key, value in (values or {f"{event['key']}/{name}": v for name, v in event["values"].items()}).items():
            self.add(key, event.get("step"), float(value), event["time"])

    def add(self, key: str, step: int | None, value: float, time: str) -> None:
        """Add a point by the format's rule."""
        points = self.points.setdefault(key, [])
        places = self._places.setdefault(key, {})
        if not places:
            places |= {point[0]: at for at, point in enumerate(points)}
        if step is not None and step in places:
            points[places[step]] = step, value, time
        else:
            places[step] = len(points)
            points.append((step, value, time))

    def stored(self) -> Stored:
        """Return what a contract test wants to know."""
        found = Stored()
        for key, points in self.points.items():
            found.metrics[key] = sorted((step or 0, value) for step, value, _ in points)
        for event in self.events:
            value = event["value"]
            match event["type"]:
                case "params":
                    found.params |= value
                case "tags":
                    found.tags |= value
                case "other":
                    found.other[event["key"]] = value
                case "confusion":
                    place = event["step"], value["labels"], value["matrix"]
                    found.confusions.setdefault(event["key"], []).append(place)
                case "finish" | "resume":
                    found.status = value
        return found
