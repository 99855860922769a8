"""A stand-in for the W&B server: enough of its two protocols for the real client and wandb-core.

::

    with WandbServer() as server:
        subprocess.run(…, env={**os.environ, **server.env()})
        server.run("entity", "project", "id").history     # what arrived, one dict per row

GraphQL over ``POST /graphql`` creates, changes and looks up runs; ``POST …/file_stream`` brings the
history, the summary and the exit code; ``PUT`` brings the contents of files. Everything is kept in
memory. Each of the two protocols can be told to fail or to hang, before or in the middle of a run, and
the whole server can die and come back at the same address.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self
from urllib.parse import unquote

#: The user that every key logs in as.
ENTITY = "someone"
#: The client wants at least 40 characters and checks nothing else.
API_KEY = "0123456789abcdef" * 2 + "01234567"
#: How a protocol can be told to behave.
BEHAVIOURS = ("ok", "error", "busy", "unauthorized", "hang")


@dataclass
class StoredRun:
    """What the server knows of one run."""

    entity: str
    project: str
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # displayName, groupName, jobType, notes …
    streams: dict[str, list[str]] = field(default_factory=dict)  # file name -> its lines
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    complete: bool = False
    attempts: int = 0  # how often a client created or resumed it

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every row that arrived, in order."""
        return [*map(json.loads, self.streams.get("wandb-history.jsonl", []))]

    @property
    def summary(self) -> dict[str, Any]:
        """The summary as last sent."""
        lines = self.streams.get("wandb-summary.json", [])
        return dict(json.loads(lines[-1])) if lines else {}

    @property
    def params(self) -> dict[str, Any]:
        """The config without the client's own entry."""
        return {key: entry["value"] for key, entry in self.config.items() if key != "_wandb"}

    @property
    def metric_definitions(self) -> list[dict[str, Any]]:
        """What ``define_metric`` sent; the client numbers the fields."""
        return [*self.config.get("_wandb", {}).get("value", {}).get("m", [])]


class WandbServer:
    """Listens on a free port of 127.0.0.1 while its ``with`` block lasts."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.requests: list[str] = []  # GraphQL operations and paths, in order
        self.misbehaved: list[str] = []  # behaviours that requests met, in order
        self.unknown: list[str] = []  # what it had no answer to; a test that finds entries should fail
        self.graphql = "ok"
        self.file_stream = "ok"
        self._taken: dict[tuple[str, str, str], int] = {}  # run, writer and file -> lines it has sent
        self._lock = threading.Lock()
        self._listen(0)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def _listen(self, port: int) -> None:
        self._released = threading.Event()
        self._http = _Listener(("127.0.0.1", port), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.die()

    def die(self) -> None:
        """Answer nothing any more: connections break, and new ones are refused. What is stored stays."""
        self._released.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._http.break_connections()

    def come_back(self) -> None:
        """Listen again, at the same address."""
        self._listen(self._http.server_port)
        self._thread.start()

    def env(self) -> dict[str, str]:
        """The environment that sends a client here, logged in."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": API_KEY}

    def run(self, project: str, name: str, entity: str = ENTITY) -> StoredRun:
        """Return one run, by project and id."""
        return self.runs[f"{entity}/{project}/{name}"]

    def behave(self, *, graphql: str | None = None, file_stream: str | None = None) -> None:
        """Change what the protocols do from now on; requests that hang stay hung."""
        for value in (graphql, file_stream):
            if value is not None and value not in BEHAVIOURS:
                raise ValueError(f"a protocol can be {BEHAVIOURS}, got {value!r}")
        self.graphql = graphql or self.graphql
        self.file_stream = file_stream or self.file_stream

    # The two protocols. Both are called on the thread of one connection.

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answer one GraphQL operation with its ``data``."""
        named = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
        operation = named.group(1) if named else "unnamed"
        with self._lock:
            self.requests.append(operation)
            reply = self._OPERATIONS.get(operation)  # subclasses serve more
            if reply is None:
                self.unknown.append(f"{operation}: {query}")
                return {}
            return reply(self, variables)

    def _viewer(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {
            "viewer": {
                "id": "viewer",
                "entity": ENTITY,
                "username": ENTITY,
                "flags": "{}",
                "teams": {"edges": []},
            }
        }

    def _find(self, variables: dict[str, Any]) -> tuple[str, StoredRun | None, dict[str, Any]]:
        entity = variables.get("entity") or ENTITY
        project = variables.get("project") or variables.get("model")
        key = f"{entity}/{project}/{variables.get('name')}"
        described = {"id": f"project-{project}", "name": project, "entity": {"id": entity, "name": entity}}
        return key, self.runs.get(key), described

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        key, run, project = self._find(variables)
        created = run is None
        if run is None:
            run = self.runs[key] = StoredRun(project["entity"]["name"], project["name"], variables["name"])
        run.attempts += variables.get("state") == "running" or created
        if variables.get("config") is not None:
            run.config = strict_json(variables["config"])
        if variables.get("tags") is not None:
            run.tags = variables["tags"]
        run.details |= {k: v for k, v in variables.items() if v is not None and k not in ("config", "tags")}
        bucket = {
            "id": f"run-{run.name}",
            "name": run.name,
            "displayName": run.details.get("displayName") or run.name,
            "description": "",
            "config": json.dumps(run.config),
            "sweepName": None,
            "historyLineCount": len(run.history),
            "project": project,
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": created}}

    def _resume_status(self, variables: dict[str, Any]) -> dict[str, Any]:
        _, run, project = self._find(variables)
        if run is None:
            return {"model": {**project, "bucket": None}}
        history = run.streams.get("wandb-history.jsonl", [])
        events = run.streams.get("wandb-events.jsonl", [])
        bucket = {
            "id": f"run-{run.name}",
            "name": run.name,
            "displayName": run.details.get("displayName") or run.name,
            "config": json.dumps(run.config),
            "tags": run.tags,
            "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(history),
            "eventsLineCount": len(events),
            "logLineCount": len(run.streams.get("output.log", [])),
            "historyTail": json.dumps(history[-1:]),
            "eventsTail": json.dumps(events[-1:]),
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {"model": {**project, "bucket": bucket}}

    def _create_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        entity, project, run = variables.get("entity") or ENTITY, variables["project"], variables["run"]
        files = [
            {"name": name, "uploadUrl": f"{self.url}/upload/{entity}/{project}/{run}/{name}"}
            for name in variables.get("files", [])
        ]
        return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}

    _OPERATIONS: ClassVar[dict[str, Callable[[WandbServer, dict[str, Any]], dict[str, Any]]]] = {
        "Viewer": _viewer,
        "UpsertBucket": _upsert,
        "RunResumeStatus": _resume_status,
        "CreateRunFiles": _create_files,
        "ServerFeaturesQuery": lambda self, _: {"serverInfo": {"features": []}},
        "RunStoppedStatus": lambda self, _: {"project": {"run": {"stopped": False}}},
        "OrganizationCoreWeaveOrganizationID": lambda self, _: {
            "entity": {"organization": {"coreWeaveOrganizationId": None}}
        },
    }

    def append(self, key: str, body: dict[str, Any], writer: str | None = None) -> None:
        """Take one file-stream request: lines at offsets, and perhaps the end of the run.

        The offsets of one ``writer`` of several count its own lines.
        """
        with self._lock:
            run = self.runs[key]
            for name, part in (body.get("files") or {}).items():
                lines, content = run.streams.setdefault(name, []), part.get("content", [])
                start = 0 if name == "wandb-summary.json" else part.get("offset", len(lines))
                if writer is not None and name != "wandb-summary.json":
                    # those it has sent before, in a request whose answer it did not get, are there
                    taken = self._taken.get((key, writer, name), start)
                    self._taken[key, writer, name] = max(taken, start + len(content))
                    lines += content[taken - start :]
                    continue
                lines[start:] = content
            run.complete = bool(body.get("complete", run.complete))
            if body.get("exitcode") is not None:
                run.exit_code = body["exitcode"]

    def upload(self, key: str, name: str, content: bytes) -> None:
        """Take the content of one file."""
        with self._lock:
            self.runs[key].files[name] = content

    def hold(self) -> None:
        """Keep a request waiting until the server ends."""
        self._released.wait()


def strict_json(text: str) -> Any:
    """Parse JSON as the standard has it: no bare NaN, though the client sends it in rows."""

    def refuse(token: str) -> None:
        raise ValueError(f"not JSON: {token} in {text[:200]}")

    return json.loads(text, parse_constant=refuse)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client may keep its connection open for longer than a test
    allow_reuse_address = True
    owner: WandbServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        """End what is open, whoever is waiting for an answer."""
        for connection in [*self._open]:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep the reason where tests look for it, except for a client that went away."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            self.owner.unknown.append(f"{type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def _reply(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _misbehave(self, behaviour: str) -> bool:
        if behaviour == "ok":
            return False
        self.server.owner.misbehaved.append(behaviour)
        if behaviour == "hang":
            self.server.owner.hold()
            self.close_connection = True
        elif behaviour == "unauthorized":
            self._reply({"errors": [{"message": "user is not logged in"}]}, 401)
        elif behaviour == "busy":
            self._reply({"error": "too many requests"}, 429)
        else:
            self._reply({"error": "out of order"}, 500)
        return True

    def do_POST(self) -> None:
        """Serve GraphQL and the file stream."""
        owner, body = self.server.owner, self._body()
        if self.path == "/graphql":
            if not self._misbehave(owner.graphql):
                asked = json.loads(body)
                self._reply({"data": owner.answer(asked["query"], asked.get("variables") or {})})
            return
        stream = re.fullmatch(r"/files/(.+)/file_stream", self.path)
        owner.requests.append(self.path)
        if stream is None:
            owner.unknown.append(f"POST {self.path}")
            self._reply({}, 404)
        elif not self._misbehave(owner.file_stream):
            writer = self.headers.get("x-wandb-async-client-id")  # in shared mode
            owner.append(unquote(stream.group(1)), json.loads(body), writer)
            self._reply({"exitcode": None, "limits": {}})

    def do_PUT(self) -> None:
        """Serve file uploads."""
        owner, body = self.server.owner, self._body()
        owner.requests.append(self.path)
        if not self._misbehave(owner.file_stream):
            entity, project, run, name = unquote(self.path).removeprefix("/upload/").split("/", 3)
            owner.upload(f"{entity}/{project}/{run}", name, body)
            self._reply({})

    def do_GET(self) -> None:
        """Nothing is served; remember that it was asked for."""
        self.server.owner.unknown.append(f"GET {self.path}")
        self._reply({}, 404)
