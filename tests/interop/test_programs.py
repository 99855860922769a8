"""Random programs, played by our CompactingWriter, by the reference's, and by both in turn.

All three must come to the same run, and both Readers must say so, whatever the writers before them were, and
whether they left, finished, or were killed.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.interop.programs import Lifetime, Program, programs
from tests.interop.respelling import respell
from tests.interop.workers import Command, Worker, differences

#: What is said of files that differ, though the runs are the same.
FILES = ("when_exported", "manifest", "max_rows")
#: What a Reader can't say for sure of a run while a batch is under way.
MOMENTARY = (*FILES, "text")


class Bench:
    """One program's three runs."""

    def __init__(self, folder: Path, ours: Worker, reference: Worker, program: Program) -> None:
        self.by_reference = False
        self.workers = {"ours": ours, "reference": reference}
        self.roots = {kind: folder / kind / "run" for kind in ("ours", "reference", "mixed")}
        for root in self.roots.values():
            root.mkdir(parents=True)
            for name, text in program.files.items():
                (root / name).write_text(text)

    def play(self, lifetime: Lifetime) -> None:
        """Play a lifetime on all three, compare what the calls raised and what can be read afterwards."""
        respell(self.roots["reference"])
        if lifetime.by == "reference":
            if self.by_reference:
                respell(self.roots["mixed"])
            self.by_reference = True
        if lifetime.looked is None:
            self._play(lifetime, lifetime.opening, lifetime.ops, lifetime.end)
        else:
            self._play(lifetime, lifetime.opening, lifetime.ops[: lifetime.looked], ["stay"])
            self.read(live=True)
            self._play(lifetime, None, lifetime.ops[lifetime.looked :], lifetime.end)
        self.read()

    def _play(self, lifetime: Lifetime, opening: Any, ops: list[Any], end: list[Any]) -> None:
        commands: dict[str, list[Command]] = {"ours": [], "reference": []}
        for kind, root in self.roots.items():
            arguments = {"root": str(root), "ops": ops, "end": end, "opening": opening}
            commands[lifetime.by if kind == "mixed" else kind].append(("play", arguments))
        answers = self._ask(commands)
        calls = [*([opening] if opening else []), *ops, end]
        mixed = answers[lifetime.by].pop()
        mine, theirs = (one_mistake(calls, answers[kind][0]) for kind in ("ours", "reference"))
        agree(mine, theirs, "calls", calls=calls)
        agree(one_mistake(calls, mixed), theirs, "calls of the mixed run", calls=calls)

    def read(self, *, live: bool = False) -> None:
        """Read all three with both Readers."""
        hidden = [False] if live else [False, True]
        which = list(itertools.product(self.roots, hidden))
        commands: list[Command] = [
            ("read", {"root": str(self.roots[kind]), "exclude_hot": exclude_hot}) for kind, exclude_hot in which
        ]
        answers = self._ask({"ours": commands, "reference": commands})
        if live:
            answers["reference"] = self._calm(commands, answers)
        for (kind, exclude_hot), mine, theirs in zip(which, answers["ours"], answers["reference"], strict=True):
            agree(mine, theirs, f"Readers of the {kind} run, {exclude_hot=}", *(MOMENTARY if live else ()))
        everything = dict(zip(which, answers["reference"], strict=True))
        for kind in ("ours", "mixed"):
            agree(everything[kind, False], everything["reference", False], f"runs, {kind} and reference", *FILES)

    def _calm(self, commands: list[Command], answers: dict[str, list[Any]]) -> list[Any]:
        """Return what the reference's Reader says once no writer moves rows any more.

        It reads the manifest and then the columns, so that a compaction in between shows it new values at old steps.
        Ours has to be right at once.
        """
        for _ in range(5):
            if not any(map(self._differ, answers["ours"], answers["reference"])):
                break
            again = self._ask({"ours": commands, "reference": commands})
            for before, after in zip(answers["ours"], again["ours"], strict=True):
                agree(before, after, "our Reader, during a compaction and after it,", *MOMENTARY)
            answers = again
        return answers["reference"]

    @staticmethod
    def _differ(mine: Any, theirs: Any) -> bool:
        return next(differences(mine, theirs, *MOMENTARY), None) is not None

    def _ask(self, commands: dict[str, list[Command]]) -> dict[str, list[Any]]:
        for kind, worker in self.workers.items():
            worker.send(commands[kind])
        return {kind: worker.answers() for kind, worker in self.workers.items()}


def one_mistake(calls: list[Any], outcomes: list[Any]) -> list[Any]:
    """Leave out what was raised by a write of several metrics: which of several mistakes it is may differ."""
    return [
        {"error": [], "text": "an error"} if outcome and list(call)[:1] == ["write"] and len(call[1]) > 1 else outcome
        for call, outcome in zip(calls, outcomes, strict=False)
    ]


def agree(ours: Any, theirs: Any, what: str, *ignored: str, calls: Any = None) -> None:
    found = list(differences(ours, theirs, *ignored))
    if found:
        raise AssertionError("\n".join([f"{what} differ:", *found[:9], *([f"calls: {calls}"] if calls else [])]))


@pytest.mark.timeout(0)  # takes what --programs asks for
def test_random_programs(tmp_path: Path, ours: Worker, reference: Worker, request: pytest.FixtureRequest) -> None:
    """Same outcome of every call, same metrics, steps, values to the bit, dtypes and config."""
    numbers = itertools.count()

    def play(program: Program) -> None:
        folder = tmp_path / str(next(numbers))
        bench = Bench(folder, ours, reference, program)
        for lifetime in program.lifetimes:
            bench.play(lifetime)
        shutil.rmtree(folder)

    checks = HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much
    amount = settings(max_examples=request.config.getoption("--programs"), deadline=None, suppress_health_check=checks)
    amount(given(programs())(play))()
