"""Which run a logger means, where it is, and how to send what is only on disk."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.backends._wandb_client import HOSTED, MODES
from adapters.backends._wandb_data import IDENTITY, check_id, check_project, merged
from loggers.contract import JSON
from loggers.errors import RecordError


class Identity:
    """What was given of a run, and what became known of it, here or in another process.

    Args:
        given: ``id``, ``project``, ``entity``, ``mode``, ``dir`` and ``base_url`` as the user has them, or ``None``.
        settings: more of ``wandb.Settings``.

    Attributes:
        id: the run's. It is known before the run starts.
        known: what it turned out to be, ``None`` where nothing is known.
        sync_dirs: the directories of its attempts.

    Raises:
        ValueError: what W&B would refuse when the run starts.
    """

    def __init__(self, given: dict[str, str | None], settings: Mapping[str, Any]) -> None:
        if given["mode"] is not None and given["mode"] not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))} or None, got {given['mode']!r}")
        if given["id"] is not None:
            check_id(given["id"])
        if given["project"] is not None:
            check_project(given["project"])
        self.given = given
        # secrets, not random: two runs with the same seed must not share an id
        self.id: str = given["id"] or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(8)
        self.known: dict[str, str | None] = dict.fromkeys(IDENTITY)
        self.sync_dirs: list[str] = []
        self._settings = settings

    def state(self) -> dict[str, JSON]:
        """Return the part of a logger's state."""
        known: dict[str, JSON] = {key: self.known[key] or self.given.get(key) for key in IDENTITY}
        return {**known, "id": self.id, "sync_dirs": [*self.sync_dirs]}

    def adopt(self, known: Mapping[str, str | None], sync_dirs: Sequence[str]) -> None:
        """Be the run of a state.

        Raises:
            RecordError: that contradicts what was given.
        """
        for key in ("id", "project", "entity", "base_url"):
            given, theirs = self.given[key], known[key]
            if given and theirs and given.rstrip("/") != theirs.rstrip("/"):
                raise RecordError(
                    f"the checkpoint belongs to W&B {key} {theirs!r}, this logger was built with "
                    f"{given!r}: build it with {theirs!r}, or start without the checkpoint's record"
                )
        self.id = str(known["id"])
        self.known = {key: known[key] for key in IDENTITY}
        self.known |= {key: self.given[key] for key in ("mode", "dir") if self.given[key]}
        self.sync_dirs = merged(sync_dirs, self.sync_dirs)

    def learn(self, run: Any, mode: str) -> None:
        """Take note of what an open run turned out to be."""
        self.id = run.id  # a sweep has its own idea
        self.known = {
            "entity": run.entity or self.known["entity"],
            "project": run.project,
            "mode": mode,
            "dir": run.settings.root_dir,
            # an offline run has no server yet, and the client would complain at being asked for a page
            "base_url": run.settings.base_url if mode in HOSTED else self.base_url,
            "url": run.url if mode in HOSTED else self.known["url"],
        }
        if mode != "disabled":
            self.sync_dirs = merged(self.sync_dirs, [run.settings.sync_dir])

    @property
    def base_url(self) -> str | None:
        """The server, if anybody said which."""
        return self.given["base_url"] or self.known["base_url"] or self._settings.get("base_url")

    @property
    def asked_mode(self) -> str | None:
        """The mode, if anybody said which."""
        return self.given["mode"] or os.environ.get("WANDB_MODE") or self.known["mode"]

    @property
    def url(self) -> str | None:
        """The run's page, ``None`` if there is none yet."""
        return None if self.known["mode"] == "offline" else self.known["url"]

    def arguments(self, mode: str) -> dict[str, Any]:
        """Return what ``wandb.init`` has to know, to start the run or to go on with it."""
        places = {key: self.given[key] or self.known[key] for key in ("project", "entity", "dir")}
        exists = mode in HOSTED and self.known["url"] is not None
        return {**places, "id": self.id, "resume": "must" if exists else "allow"}

    def sync_command(self, directories: Sequence[str]) -> str:
        """Return the command that sends what is in some of the run's directories."""
        url = self.given["base_url"] or self.known["base_url"]
        implied = url is None or url.rstrip("/") == os.environ.get("WANDB_BASE_URL", "").rstrip("/")
        server = "" if implied else f"WANDB_BASE_URL={shlex.quote(str(url))} "
        # without the option, W&B skips what was to be online
        option = "" if self.known["mode"] == "offline" else "--no-skip-online "
        return f"{server}wandb sync {option}{' '.join(map(shlex.quote, directories))}"
