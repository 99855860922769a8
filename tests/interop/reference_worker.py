"""Does what the tests ask, with whichever implementation of the format its interpreter finds.

Started as ``python -I reference_worker.py [PACKAGE_ROOT]``. The interpreter of the reference's environment,
with nothing in front of its ``sys.path``, imports the reference; with our root folder it imports ours.
So both sides are driven by the same words, and neither can see the other.

Each request is one line of JSON on stdin, a list of commands; the answer is one line on stdout.
Needs only the standard library and NumPy. Tests import :func:`describe` for reading in their own process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any

import numpy as np

#: What the text of a value may use.
_VALUES = {"np": np, "nan": float("nan"), "inf": float("inf")}

Answer = Any


def kinds(error: BaseException) -> list[str]:
    """Return the builtin exceptions that an error is, the nearest first: what any caller can catch."""
    common = {"object", "BaseException", "Exception"}
    return [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins" and c.__name__ not in common]


def failed(error: BaseException) -> dict[str, Any]:
    return {"error": kinds(error), "text": f"{type(error).__name__}: {error}"}


# ---- writing --------------------------------------------------------------------------------------


class Player:
    """Plays lifetimes of writers: opened, used, and left, finished, or killed."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package
        self._writers: dict[str, Any] = {}

    def play(self, root: str, ops: list[list[Any]], end: list[Any], opening: dict[str, Any] | None = None) -> Answer:
        """Play (part of) a lifetime; return what each call raised, ``None`` for nothing.

        Args:
            root: the run root.
            ops: see :meth:`_do`.
            end: ``["stay"]`` to go on with the same writer later, ``["leave"]``, ``["finish", {...}]`` (which
                spares the reference what it cannot do), ``["finish just so"]``, or ``["die"]``: all of it happens
                in a child process that is killed without a chance to tidy up.
            opening: the writer's arguments, with values as text, and ``"writer"``, its class if it is another
                than ``CompactingWriter``; ``None`` goes on with the writer that stayed.
        """
        if end[0] == "die":
            return self._in_a_child_that_dies(lambda: self._play(root, ops, ["stay"], opening))
        return self._play(root, ops, end, opening)

    def _play(self, root: str, ops: list[list[Any]], end: list[Any], opening: dict[str, Any] | None) -> Answer:
        outcomes: list[Any] = []
        if opening is not None:
            keywords = {key: _value(text) for key, text in opening.items() if key != "writer"}
            writer = getattr(self._package, opening.get("writer", "CompactingWriter"))
            try:
                self._writers[root] = writer(root, **keywords)
            except Exception as error:
                return [failed(error)]
            outcomes.append(None)
        elif root not in self._writers:
            return outcomes
        outcomes.extend(self._try(root, op) for op in ops)
        if end[0] != "stay":
            outcomes.append(self._try(root, end))
            self._writers.pop(root)
        return outcomes

    def _try(self, root: str, op: list[Any]) -> Answer:
        try:
            self._do(root, self._writers[root], op)
        except Exception as error:
            return failed(error)
        return None

    def _do(self, root: str, writer: Any, op: list[Any]) -> None:
        match op:
            case ["write", values, flush]:
                # to the other writers, flush is a metric
                options = {"flush": True} if flush else {}
                writer.write({name: _value(text) for name, text in values.items()}, **options)
            case ["end_step"]:
                writer.end_step()
            case ["step", text]:
                writer.step = _value(text)
            case ["config", text]:
                writer.set_config(_value(text))
            case ["leave"]:
                with contextlib.ExitStack() as stack:
                    if hasattr(writer, "__exit__"):  # a BulkWriter just goes
                        stack.enter_context(writer)
                with contextlib.suppress(AttributeError):  # the reference has no close()
                    writer.close()
            case ["finish just so"]:
                writer.finish()
            case ["finish", arguments]:
                self._finish(root, writer, arguments)
            case _:
                raise NotImplementedError(op)

    def _finish(self, root: str, writer: Any, arguments: dict[str, Any]) -> None:
        overrides = _value(arguments["config_overrides"])
        optimize = arguments["optimize"]
        if optimize and hasattr(writer, "hotsize"):
            writer.write(flush=True)
            # the reference cannot tighten an integer column that has no file
            optimize = not _has_empty_metric(self._package, root)
        try:
            writer.finish(optimize=optimize, zip=arguments["zip"], config_overrides=overrides)
        except TypeError:  # bad overrides change nothing: it can be called again
            writer.finish(optimize=optimize, zip=arguments["zip"])
            raise

    @staticmethod
    def _in_a_child_that_dies(task: Any) -> Answer:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer = task()
            except BaseException:
                answer = {"crash": traceback.format_exc()}
            with os.fdopen(write, "w") as pipe:
                json.dump(answer, pipe)
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(write)
        with os.fdopen(read) as pipe:
            answer = json.load(pipe)
        os.waitpid(pid, 0)
        if isinstance(answer, dict):
            raise RuntimeError(answer["crash"])
        return answer


def _value(text: str | None) -> Any:
    return None if text is None else eval(text, dict(_VALUES))


def _has_empty_metric(package: ModuleType, root: str) -> bool:
    with contextlib.suppress(FileNotFoundError), package.Reader(root) as reader:
        return any(reader.rows(name) == 0 for name in reader.metrics())
    return False


# ---- reading --------------------------------------------------------------------------------------


def describe(package: ModuleType, root: str, *, exclude_hot: bool = False) -> Answer:
    """Return all that the package's ``Reader`` says of a run, as JSON data: values as bytes in hex.

    JSON values become text, so that NaN, ``1``, ``1.0`` and ``true`` stay apart.
    """
    try:
        reader = package.Reader(root, exclude_hot=exclude_hot)
    except Exception as error:
        return failed(error)
    with reader:
        try:
            names = reader.metrics()
            manifest = reader.manifest()
        except Exception as error:
            return failed(error)
        return {
            "kind": reader.kind,
            "config": _attempt(lambda: json.dumps(reader.config())),
            "when_exported": reader.when_exported(),
            "manifest": json.dumps(manifest),
            "max_rows": _attempt(reader.approx_max_rows),
            "metrics": {name: _attempt(lambda name=name: _metric(reader, name)) for name in names},
        }


def _metric(reader: Any, name: str) -> dict[str, Any]:
    steps, values = reader.metric(name, dtype="storage")
    return {
        "rows": reader.rows(name),
        "steps": _array(steps),
        "storage": _array(values),
        "standard": _attempt(lambda: _array(reader.metric_values(name))),
        "last": _attempt(lambda: [_array(part) for part in reader.metric(name, -1, dtype="storage")]),
    }


def _array(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray | np.generic) and values.dtype != object:
        little = values.astype(values.dtype.newbyteorder("<"))
        return [str(values.dtype), little.tobytes().hex()]
    values = values.tolist() if isinstance(values, np.ndarray) else values
    return ["object", json.dumps(values)]


def _attempt(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return failed(error)


# ---- the loop -------------------------------------------------------------------------------------


def main() -> None:
    sys.path[:0] = sys.argv[1:]
    # a kill takes away the process, not the machine: whether the disk has it does not matter, and costs time
    os.fsync = lambda fd: None
    warnings.simplefilter("ignore")  # forking beside idle threads; casts that overflow on purpose
    import plattli

    player = Player(plattli)
    sys.stdout.write(json.dumps([plattli.__version__, plattli.__file__]) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        try:
            answers: Any = []
            for command, arguments in json.loads(line):
                if command == "play":
                    answers.append(player.play(**arguments))
                else:
                    answers.append(describe(plattli, **arguments))
        except Exception:
            answers = {"crash": traceback.format_exc()}
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
