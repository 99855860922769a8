"""Who may import whom, and what an import may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import loggers

ROOT = Path(__file__).parents[1]
PACKAGES = ("plattli", "loggers", "adapters")
_BACKENDS = ("loggers.contract", "loggers.errors", "loggers.values")
_FANOUT = (*_BACKENDS, "loggers.replay", "loggers.verbs", "loggers.records")
#: What a file may import from our other packages, by the longest path that its own begins with. Each
#: name stands for a module and all below it. The package ``loggers`` itself is nowhere among them, so
#: that ``from loggers.contract import …`` is the only way to spell it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "plattli": (),
    "loggers": (),
    "loggers/plattli_logger.py": ("plattli",),
    "loggers/_plattli_run.py": ("plattli",),
    "loggers/replay.py": ("plattli",),
    "loggers/_json_source.py": ("plattli.errors",),
    "loggers/_plattli_source.py": ("plattli",),
    "loggers/_revisions.py": ("plattli",),
    "loggers/_segments.py": ("plattli",),
    "adapters": (),
    "adapters/backends": _BACKENDS,
    "adapters/drivers": (*_BACKENDS, "loggers.session"),
    "adapters/importers/metrics_group.py": (*_BACKENDS, "loggers.verbs"),
    "adapters/fanout.py": _FANOUT,
    "adapters/follower.py": _FANOUT,
    "adapters/_jobs.py": _FANOUT,
    "adapters/_processes.py": _FANOUT,
    "adapters/_replicas.py": _FANOUT,
    # the subcommands of one command say the same things in the same words
    "adapters/commands.py": (
        *_FANOUT,
        "plattli._console",
        "plattli._format",
        "plattli.commands._runs",
        "plattli.errors",
        "plattli.runs",
    ),
    "adapters/targets.py": ("loggers.contract", "loggers.errors", "loggers.json_logger"),
    "adapters/importers": (
        *_BACKENDS,
        "loggers._cells",
        "loggers.csv_logger",
        "loggers.plattli_logger",
        "loggers.replay",
        "plattli._console",
        "plattli.errors",
        "plattli.rows",
        "plattli.runs",
    ),
}
#: Other people's packages that only those who use them should have to load.
HEAVY = (
    "fsspec", "jax", "matplotlib", "mlflow", "moto", "pytest", "rich", "sklearn", "tensorboard", "tensorboardX",
    "torch", "trackio", "wandb", "zarr",
)  # fmt: skip


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of each import in a file, those inside functions included."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            yield node.lineno, ".".join([*above, *([node.module] if node.module else [])])
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, node.args[0].value


def allowed(path: str) -> tuple[str, ...]:
    """Return the allow-list of the file at ``path``, relative to the root."""
    return ALLOWED[max((key for key in ALLOWED if f"{path}/".startswith(f"{key}/")), key=len)]


def violations(root: Path) -> list[str]:
    """Return every import between our packages that goes the wrong way."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            where = path.relative_to(root).as_posix()
            for line, name in imported(path, root):
                theirs = name.split(".")[0]
                if (
                    theirs in PACKAGES
                    and theirs != package
                    and not any(f"{name}.".startswith(f"{module}.") for module in allowed(where))
                ):
                    found.append(f"{where}:{line} imports {name}")
    return found


def loaded_by(code: str, *more_path: Path) -> list[str]:
    """Run ``code`` in a new process and return which packages of interest it has loaded."""
    watched = (*HEAVY, *PACKAGES)
    code += f"\nimport sys; print(*(name for name in {watched!r} if name in sys.modules))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *more_path)))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    return done.stdout.split()


def test_imports_go_one_way():
    """adapters know loggers, loggers know plattli, and only where they have to."""
    assert violations(ROOT) == []


def test_a_wrong_import_is_found(tmp_path):
    """However it is spelled and wherever it hides; right ones are not reported."""
    files = {
        "plattli/reader.py": "import numpy\ndef f():\n    import loggers.values\n",
        "plattli/deep/inner.py": "from ...loggers import values\nfrom .. import _fs\n",
        "loggers/session.py": "from plattli import Reader\nfrom loggers import verbs\nfrom . import records\n",
        "loggers/replay.py": "from plattli.reader import Reader\nimport adapters\n",
        "loggers/late.py": "import importlib\nimportlib.import_module('plattli.reader')\nmy.import_module(name)\n",
        "adapters/backends/wandb.py": "from loggers import values\nfrom loggers.values import plain\nimport wandb\n",
        "adapters/backends/csv.py": "import loggers.verbs\nfrom loggers.contract import JSON\nfrom adapters import a\n",
        "adapters/fanout.py": "from loggers.verbs import finish\nfrom loggers.values_of_mine import x\n",
        "adapters/drivers/keras.py": "import loggers.session, plattli\nif x:\n    import loggers.replay\n",
        "adapters/fanout.py.bak": "import plattli\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert violations(tmp_path) == [
        "plattli/deep/inner.py:1 imports loggers",
        "plattli/reader.py:3 imports loggers.values",
        "loggers/late.py:2 imports plattli.reader",
        "loggers/replay.py:2 imports adapters",
        "loggers/session.py:1 imports plattli",
        "adapters/backends/csv.py:1 imports loggers.verbs",
        "adapters/backends/wandb.py:1 imports loggers",
        "adapters/drivers/keras.py:1 imports plattli",
        "adapters/drivers/keras.py:3 imports loggers.replay",
        "adapters/fanout.py:2 imports loggers.values_of_mine",
    ]


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("import plattli", ["plattli"]),
        ("import loggers", ["loggers"]),
        ("from loggers import JSONLogger, TrainingSession, log_metrics", ["loggers"]),
        ("from loggers import PlattliLogger", ["plattli", "loggers"]),
        ("from loggers.testing import LoggerContract, RecordingLogger", ["pytest", "loggers"]),
    ],
)
def test_imports_are_light(code, ours):
    """Nobody pays for a tracker, a framework, or a package of ours that was not asked for."""
    assert loaded_by(code) == ours


def test_a_session_is_light():
    """Training with numbers loads nothing either."""
    code = (
        "import loggers\n"
        "with loggers.TrainingSession(loggers.JSONLogger('/dev/null'), params={'lr': 0.1}) as session:\n"
        "    session.train({'loss': 1.0})"
    )

    assert loaded_by(code) == ["loggers"]


def test_a_heavy_import_is_seen(tmp_path):
    """The check can fail: a package of that name, loaded beside ours, is reported."""
    (tmp_path / "torch.py").write_text("")

    assert loaded_by("import loggers, torch", tmp_path) == ["torch", "loggers"]


def test_collecting_the_tests_is_light(collected):
    """What a test module loads at its top is in every process that a test forks: see ``tests/lazy.py``."""
    assert [name for name in HEAVY if name in collected] == ["pytest"]


def test_every_exported_name_is_there():
    """Also the lazy ones, and ``dir`` shows them; no other name is."""
    assert all(hasattr(loggers, name) for name in loggers.__all__)
    assert len(set(loggers.__all__)) == len(loggers.__all__)
    assert set(loggers.__all__) <= set(dir(loggers))
    with pytest.raises(AttributeError, match="module 'loggers' has no attribute 'nonsense'"):
        loggers.nonsense  # noqa: B018


@pytest.mark.parametrize("first", ["", "import loggers.replay", "from loggers.replay import replay as _"])
def test_replay_is_the_function(first):
    """Also once its module, which has the same name, was imported."""
    code = f"{first}\nfrom loggers import replay\nimport loggers\nassert callable(replay) and loggers.replay is replay"

    assert loaded_by(code) == ["plattli", "loggers"]
