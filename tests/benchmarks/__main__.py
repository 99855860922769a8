"""``python -m tests.benchmarks``: what everything costs, beside what else one could use."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import format, hotpath, scale
from tests.benchmarks._harness import Bench
from tests.benchmarks._report import Row, markdown, put, text

_GROUPS = {"hotpath": hotpath.BENCHMARKS, "scale": scale.BENCHMARKS, "format": format.BENCHMARKS}


def _machine() -> dict[str, Any]:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    return {
        "cpu": f"{os.cpu_count()} x {cpu}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run benchmarks; return 1 if a target was missed or a benchmark failed."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="only those named like this")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: less than a minute, and less certain")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the headlines of that --json file")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="with --markdown: between the markers of that page")
    options = parser.parse_args(arguments)
    if options.markdown:
        part = markdown(json.loads(options.markdown.read_text()))
        if options.into:
            options.into.write_text(put(options.into.read_text(), part))
        else:
            print(part)
        return 0
    chosen = {
        f"{group}/{name}": run
        for group, benchmarks in _GROUPS.items()
        for name, run in benchmarks.items()
        if any(part in f"{group}/{name}" for part in options.only)
    }
    if options.list:
        for name, run in chosen.items():
            print(f"{name:24} {(run.__doc__ or '').splitlines()[0]}")
        return 0
    machine = _machine()
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    bench = Bench(quick=options.quick, say=lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    took = {}
    for name, run in chosen.items():
        begin = time.perf_counter()
        try:
            run(bench)
        except Exception as error:
            traceback.print_exc()
            why = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), repr(error))
            bench.add(Row(name, None, "", note=f"failed, see the traceback: {why}", passed=False))
        took[name] = round(time.perf_counter() - begin, 1)
        print(f"{name}: {took[name]} s", file=sys.stderr, flush=True)
    machine["load at the end"] = [round(load, 2) for load in os.getloadavg()]
    results = {"machine": machine, "seconds": took, **bench.results()}
    print(text(results))
    before, after = machine["load"][0], machine["load at the end"][0]
    print(f"\n{sum(took.values()):.0f} s; load average {before} before, {after} after")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(any(row.verdict == "FAIL" for row in bench.rows))


if __name__ == "__main__":
    sys.exit(main())
