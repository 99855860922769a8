"""What a W&B server is asked directly: is it there, does it know this key, how many rows has it got.

One request each, with a time limit that holds whatever hangs: a name look-up, a connection, an answer.
The client itself takes 100 s to find out that nobody is there.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final, NamedTuple

from loggers.errors import RefusedError, UnreachableError

#: Seconds that the question at the start may take when its answer decides whether there is a start.
PATIENCE_S: Final = 4.0
#: The same when an absent server is waited for anyway.
SHORT_PATIENCE_S: Final = 2.0
_REFUSED: Final = (401, 403)
_WHO: Final = "query Viewer { viewer { id } }"
#: What the client asks when it resumes a run.
_ROWS: Final = (
    "query RunResumeStatus($entity: String, $project: String, $name: String!) {"
    " model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { historyLineCount } } }"
)


class Account(NamedTuple):
    """Where to ask, and as whom."""

    url: str
    key: str
    headers: Mapping[str, str]


def check(account: Account, patience: float) -> None:
    """Ask who we are.

    Raises:
        RefusedError: the server does not know the key.
        UnreachableError: no proper answer within ``patience`` seconds.
    """
    data = _ask(account, _WHO, {}, patience)
    if data.get("viewer", data) is None:
        raise _refused(account, "knows nobody by this API key")


def rows_received(account: Account, entity: str, project: str, run_id: str, patience: float) -> int | None:
    """Return how many rows of a run the server has, ``None`` if it does not say."""
    try:
        data = _ask(account, _ROWS, {"entity": entity, "project": project, "name": run_id}, patience)
    except (RefusedError, UnreachableError):
        return None
    count = ((data.get("model") or {}).get("bucket") or {}).get("historyLineCount")
    return count if isinstance(count, int) else None


def _refused(account: Account, why: str) -> RefusedError:
    return RefusedError(
        f"the W&B server {account.url} {why}: check WANDB_API_KEY, or log in with "
        f"`wandb login --relogin --host {account.url}`; mode='offline' needs no account"
    )


def _ask(account: Account, query: str, variables: Mapping[str, Any], patience: float) -> dict[str, Any]:
    credentials = base64.b64encode(f"api:{account.key}".encode()).decode()
    request = urllib.request.Request(
        f"{account.url}/graphql",
        json.dumps({"query": query, "variables": variables}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Basic {credentials}", **account.headers},
    )
    answers: list[dict[str, Any] | Exception] = []

    def talk() -> None:
        try:
            with urllib.request.urlopen(request, timeout=patience) as reply:
                content = json.load(reply)
            answers.append(dict(content.get("data") or {}))
        except (OSError, ValueError, HTTPException, AttributeError, TypeError) as error:
            answers.append(error)

    # a thread, for there is no other limit on a name look-up; it ends with its last time-out
    thread = threading.Thread(target=talk, name="wandb-question", daemon=True)
    thread.start()
    thread.join(patience)
    answer = answers[0] if answers else TimeoutError(f"no answer within {patience:g} s")
    if isinstance(answer, urllib.error.HTTPError):
        answer.close()
        if answer.code in _REFUSED:
            raise _refused(account, f"refuses the API key (HTTP {answer.code})")
    if isinstance(answer, Exception):
        raise UnreachableError(
            f"the W&B server {account.url} cannot be reached ({answer}): is the address right, and the network up? "
            "mode='offline' needs no server, and unreachable='wait' waits for it"
        ) from answer
    return answer
