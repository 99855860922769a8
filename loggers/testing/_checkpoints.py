"""Files that checkpoints are kept in, as far as a logger's state is concerned."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import pickle
from typing import Any, Final

#: The kinds of files that can be written here.
FILES: Final = ("json", "plain pickle", *(("torch",) if importlib.util.find_spec("torch") else ()))


class _PlainUnpickler(pickle.Unpickler):
    """Loads numbers, strings, lists and dicts, and nothing that has to be looked up."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the state holds a {module}.{name}: a checkpoint can only hold plain data")


def through(kind: str, record: Any) -> Any:
    """Return what comes out of a file of one of :data:`FILES` into which a record was put."""
    file = io.BytesIO()
    if kind == "json":
        return json.loads(json.dumps(record, allow_nan=False))
    if kind == "torch":
        torch = importlib.import_module("torch")
        torch.save({"logger": record}, file)
        file.seek(0)
        return torch.load(file, weights_only=True)["logger"]
    pickle.dump(record, file)
    file.seek(0)
    return _PlainUnpickler(file).load()
