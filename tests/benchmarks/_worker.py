"""One side of a comparison, in a process of its own: builds a subject, calls it, and says what it cost.

Started as ``python -I _worker.py SUBJECTS [PACKAGE_ROOT]``, where SUBJECTS is a file with classes. The
interpreter of another environment, with nothing in front of its ``sys.path``, measures what is installed
there; with our root folder in front, ours. Needs only the standard library.

Each request is one line of JSON on stdin, the answer one line on stdout. A subject is a class: made with
the arguments of ``open``, called with 0, 1, 2, …; ``settle()`` ends what it does in the background,
``close()`` ends it.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
import warnings
from typing import Any

Answer = dict[str, Any]


def memory_kib(what: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` of this process; 0 where there is no ``/proc``.

    ``ru_maxrss`` would do for the peak, but a process inherits it from the one that started it.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(what))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if what == "VmHWM" else 0


def forget_peak() -> None:
    """Let ``VmHWM`` begin again at what is resident now."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # then the peak of the preparation counts, too: an upper bound


def written_bytes() -> int:
    """Return what all threads of this process have passed to ``write`` so far."""
    try:
        with open("/proc/self/io") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("wchar"))
    except (OSError, StopIteration):
        return 0


class Worker:
    """Answers requests about one subject after another."""

    def __init__(self, subjects: Any) -> None:
        self._subjects = subjects
        self._subject: Any = None
        self._next = 0

    def open(self, subject: str, arguments: dict[str, Any]) -> Answer:
        self.close()
        self._subject, self._next = getattr(self._subjects, subject)(**arguments), 0
        return {}

    def calls(self, count: int) -> Answer:
        """Time every call; what goes on in other threads counts for the CPU time and the bytes."""
        subject, clock = self._subject, time.perf_counter_ns
        gc.collect()
        took = []
        cpu, written = time.process_time(), written_bytes()
        for number in range(self._next, self._next + count):
            begin = clock()
            subject(number)
            took.append(clock() - begin)
        self._settle()
        self._next += count
        return {"ns": took, "cpu": time.process_time() - cpu, "bytes": written_bytes() - written}

    def once(self) -> Answer:
        """Time one call, with the memory that it needs beyond what was there before."""
        gc.collect()
        forget_peak()
        resident, cpu, begin = memory_kib("VmRSS"), time.process_time(), time.perf_counter()
        answer = self._subject(self._next)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        self._next += 1
        return {"s": seconds, "cpu": cpu, "peak_kib": memory_kib("VmHWM") - resident, "answer": answer}

    def ask(self, method: str, arguments: dict[str, Any]) -> Answer:
        """Call a method that only this subject has."""
        return {"answer": getattr(self._subject, method)(**arguments)}

    def close(self) -> Answer:
        subject, self._subject = self._subject, None
        if hasattr(subject, "close"):
            subject.close()
        return {}

    def _settle(self) -> None:
        if hasattr(self._subject, "settle"):
            self._subject.settle()


def main() -> None:
    faulthandler.enable()
    # what trackers print must not end up among the answers
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = sys.argv[2:]
    warnings.simplefilter("ignore")
    spec = importlib.util.spec_from_file_location("subjects", sys.argv[1])
    if spec is None or spec.loader is None:
        raise ImportError(sys.argv[1])
    subjects = importlib.util.module_from_spec(spec)
    sys.modules["subjects"] = subjects
    spec.loader.exec_module(subjects)
    worker = Worker(subjects)
    for line in sys.stdin:
        request, arguments = json.loads(line)
        try:
            answer = getattr(worker, request)(**arguments)
        except Exception:
            answer = {"crash": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
