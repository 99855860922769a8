"""Figures and verdicts: rows of the main table, what a line costs, the slowest calls; as text, and for the README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MARKERS: Final = ("<!-- benchmarks: python -m tests.benchmarks --markdown FILE --into README.md -->", "<!-- end -->")


@dataclass(frozen=True)
class Target:
    """What a ratio has to be."""

    #: ours is at least this many times faster: the ratio is peer / ours
    faster: float | None = None
    #: ours costs at most this many times the peer: the ratio is ours / peer
    within: float | None = None
    #: ours is at most this much more, in the unit of the row
    beyond: float | None = None

    def ratio(self, ours: float, peer: float) -> float:
        if self.beyond is not None:
            return ours - peer
        top, bottom = (ours, peer) if self.within is not None else (peer, ours)
        return top / bottom if bottom else float("inf")

    def met(self, ratio: float) -> bool:
        if self.beyond is not None:
            return ratio <= self.beyond
        return ratio <= self.within if self.within is not None else ratio >= (self.faster or 0.0)

    def __str__(self) -> str:
        if self.beyond is not None:
            return f"<= +{self.beyond:g}"
        return f"<= {self.within:g}x" if self.within is not None else f">= {self.faster:g}x faster"


@dataclass
class Row:
    """One line of the table.

    Without a target, or a peer, the row is only reported. ``passed`` overrides what the ratio says. A ``headline``
    is for the README.
    """

    name: str
    ours: float | None
    unit: str
    peer_name: str = ""
    peer: float | None = None
    target: Target | None = None
    note: str = ""
    passed: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)
    headline: bool = False

    @property
    def ratio(self) -> float | None:
        if self.ours is None or self.peer is None:
            return None
        return (self.target or Target(faster=0.0)).ratio(self.ours, self.peer)

    @property
    def verdict(self) -> str:
        passed = self.passed
        if passed is None and self.target is not None and self.ratio is not None:
            passed = self.target.met(self.ratio)
        return "reported" if passed is None else "pass" if passed else "FAIL"

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return {
            "name": self.name,
            "ours": self.ours,
            "unit": self.unit,
            "peer": self.peer_name,
            "peer_value": self.peer,
            "ratio": self.ratio,
            "target": None if self.target is None else str(self.target),
            "verdict": self.verdict,
            "note": self.note,
            "headline": self.headline,
            **self.more,
        }


#: unit -> (below which the next smaller one reads better, factor, that one, above which the next larger one does)
_SMALLER: Final = {"s": (1e-1, 1e3, "ms"), "ms": (1e-1, 1e3, "us"), "MB": (1e-1, 1e3, "kB")}
_LARGER: Final = {"us": (1e4, 1e3, "ms"), "ms": (1e4, 1e3, "s")}


def amount(value: float | None, unit: str) -> str:
    """Return a figure with three digits and its unit."""
    if value is None:
        return ""
    while unit in _SMALLER and 0 < abs(value) < _SMALLER[unit][0]:
        _, factor, unit = _SMALLER[unit]
        value *= factor
    while unit in _LARGER and abs(value) >= _LARGER[unit][0]:
        _, factor, unit = _LARGER[unit]
        value /= factor
    return f"{_number(value)} {unit}".strip()


def _ratio(row: dict[str, Any]) -> str:
    """Say what the ratio is one of: a target names what is compared, and without one less is better."""
    ratio, target = row["ratio"], row["target"] or ""
    if ratio is None:
        return ""
    if target.startswith("<= +"):
        return f"{'+' if ratio >= 0 else ''}{_number(ratio)}"
    if target.startswith("<="):
        return f"{_number(ratio)}x"
    less, more = ("faster", "slower") if row["unit"] in ("us", "ms", "s") else ("less", "more")
    if ratio >= 1 or not ratio:
        return f"{_number(ratio)}x {less}"
    return f"{_number(1 / ratio)}x {more}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _columns(lines: Sequence[Sequence[str]], right: Iterable[int]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    ends = set(right)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in ends else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line[:-1], widths, strict=False))
        )
        + f"  {line[-1]}".rstrip()
        for line in lines
    )


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return all rows, as :meth:`Row.plain` returns them, as one table."""
    lines = [("name", "ours", "peer", "", "compared", "target", "verdict", "note")]
    lines += [
        (
            row["name"],
            amount(row["ours"], row["unit"]),
            row["peer"],
            amount(row["peer_value"], row["unit"]),
            _ratio(row),
            row["target"] or "",
            row["verdict"],
            row["note"],
        )
        for row in rows
    ]
    return _columns(lines, (1, 3, 4))


def per_line(lines: Iterable[dict[str, Any]]) -> str:
    """Return what a line costs, by who writes it and how many metrics it has."""
    out: list[tuple[str, ...]] = [("us per line", "metrics", "p50", "p99", "p99.9", "max", "CPU", "bytes",
                                    "system calls")]  # fmt: skip
    for line in sorted(lines, key=lambda line: (line["metrics"], line["p50_us"])):
        figures = [line[f"{q}_us"] for q in ("p50", "p99", "p99.9", "max")] + [line["cpu_us_per_line"]]
        calls = line.get("calls_per_line")
        out.append(
            (
                line["subject"],
                str(line["metrics"]),
                *(amount(figure, "") for figure in figures),
                f"{line['bytes_per_line']:,.0f}",
                "" if calls is None else f"{calls:.3g}",
            )
        )  # fmt: skip
    return _columns(out, range(1, 8))


def slowest(calls: Iterable[dict[str, Any]]) -> str:
    """Return where the time of the slowest calls went."""
    out: list[tuple[str, ...]] = [("slowest calls, ms", "step", "computing", "gc", "no core", "waited",
                                    "other threads", "switches", "")]  # fmt: skip
    out += [
        (
            f"{call['ms']:.2f}",
            f"{call['step']:,}",
            *(f"{call[key]:.2f}" for key in ("cpu_ms", "gc_ms", "no_core_ms", "waited_ms", "other_threads_cpu_ms")),
            f"{call['voluntary_switches']}+{call['involuntary_switches']}",
            f"{call['ran']}; mostly {call['cause']}",
        )
        for call in calls
    ]
    return _columns(out, range(8))


def text(results: dict[str, Any]) -> str:
    """Return everything that a person wants to read."""
    parts = [table(results["rows"])]
    if results["lines"]:
        parts.append(per_line(results["lines"]))
    parts += [slowest(row["worst"]) for row in results["rows"] if row.get("worst")]
    return "\n\n".join(parts)


def markdown(results: dict[str, Any]) -> str:
    """Return the headlines as a table for the README, with machine and date."""
    machine = results["machine"]
    lines = ["| | ours | beside | compared | target |", "|---|--:|---|--:|---|"]
    for row in results["rows"]:
        if row["headline"]:
            peer = f"{row['peer']}: {amount(row['peer_value'], row['unit'])}"
            target = (row["target"] or "") + (" (missed)" if row["verdict"] == "FAIL" else "")
            cells = row["name"].partition("/")[2], amount(row["ours"], row["unit"]), peer, _ratio(row), target
            lines.append(f"| {' | '.join(cells)} |".replace(" us |", " µs |").replace("<=", "≤").replace(">=", "≥"))
    where = f"{machine['cpu']}, Python {machine['python']}, NumPy {machine['numpy']}, {machine['date'][:10]}"
    load = " and ".join(f"{machine[when][0]:.1f}" for when in ("load", "load at the end"))
    return "\n".join([f"Measured on {where}, load average {load} before and after.", "", *lines])


def put(page: str, part: str) -> str:
    """Return a page with what is between the markers replaced.

    Raises:
        ValueError: it has no markers.
    """
    begin, end = MARKERS
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part between {begin!r} and {end!r}")
    return f"{head}{begin}\n\n{part}\n\n{end}{tail}"
