"""What has to be known of the wandb client to start a run and to end one. Nothing here keeps state."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from adapters._require import require
from adapters.backends._wandb_server import PATIENCE_S, SHORT_PATIENCE_S, Account, check
from loggers.errors import RefusedError, UnreachableError

MODES: Final = ("online", "offline", "disabled", "shared")
#: Those that need a server.
HOSTED: Final = ("online", "shared")
_OLD_MODES: Final = {"dryrun": "offline", "run": "online"}
#: What a run's settings are unless the user says otherwise.
SETTINGS: Final[Mapping[str, Any]] = {
    "console": "off",  # the terminal belongs to the training program
    "quiet": True,  # also spares a request that blocks for 10 s where there is no network
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 1.0,  # seconds of rows that kill -9 may cost; 15 by default
    "finish_timeout_raises": True,
    "reinit": "create_new",  # never share a run that this process has open already
}


def load(mode: str | None, base_url: str | None, api_key: str | None) -> tuple[ModuleType, str]:
    """Import the client and settle the mode. Neither touches the network.

    Args:
        mode: what was asked for, or ``None`` to decide as the client would.
        base_url: the server that was asked for.
        api_key: the key that was given in the settings.

    Returns:
        The module ``wandb`` and the mode.
    """
    mode = _OLD_MODES.get(mode or "", mode)
    if mode == "offline":
        _switch_telemetry_off()
    _end_leftover()
    wandb = require("wandb", extra="wandb", who="WandbLogger")
    if not mode:
        mode = _default_mode(wandb, base_url, api_key)
        if mode == "offline":
            _switch_telemetry_off()
    return wandb, mode


def _switch_telemetry_off() -> None:
    """Keep an offline run from calling home: without a network that costs 10 s at exit."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _end_leftover() -> None:
    """End the service that the program before an ``exec`` left in this process.

    It still has that program's run open, which could not be gone on with here, and two would send rows of one run.
    """
    service = re.search(r"wandb-(\d+)-(\d+)-", os.environ.get("WANDB_SERVICE", ""))
    if service is None or int(service[1]) != os.getpid() or "wandb" in sys.modules:
        return
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(int(service[2]), signal.SIGKILL)
        os.waitpid(int(service[2]), 0)
    del os.environ["WANDB_SERVICE"]


def _settings(wandb: ModuleType) -> Any:
    settings = wandb.Settings(quiet=True)
    config_dir = os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    settings.settings_system = os.path.join(config_dir, "settings")
    settings.update_from_system_settings()  # where `wandb offline` leaves its mark
    settings.update_from_env_vars(dict(os.environ))
    return settings


def _key(settings: Any, host: str, api_key: str | None) -> str | None:
    """Return the key for a server as the client would find it."""
    if key := api_key or settings.api_key:
        return str(key)
    auth = require("wandb.sdk.lib.wbauth", extra="wandb", who="WandbLogger")
    session = auth.session_credentials(host=host)
    found: str | None = getattr(session, "api_key", None) or auth.read_netrc_auth(host=host)
    return found


def _default_mode(wandb: ModuleType, base_url: str | None, api_key: str | None) -> str:
    settings = _settings(wandb)
    mode: str = _OLD_MODES.get(settings.mode, settings.mode)
    if mode != "online":
        return mode
    if settings.identity_token_file or _key(settings, base_url or settings.base_url, api_key):
        return "online"
    return "offline"


def ask(wandb: ModuleType, mode: str, base_url: str | None, api_key: str | None, *, patient: bool) -> Account | None:
    """Ask the server of an online run whether it is there, and knows the key.

    Args:
        wandb: the client.
        mode: a run that is not online asks nobody.
        base_url, api_key: as they were given.
        patient: whether a server that is not there is no error.

    Returns:
        Where to ask more, and as whom; ``None`` offline, or if only the client can tell (identity tokens).

    Raises:
        RefusedError: there is no key, where the client would ask for one on a terminal; or it is malformed, or not
            known to the server.
        UnreachableError: no answer in time.
    """
    account = _account(wandb, base_url, api_key) if mode in HOSTED else None
    if account is not None:
        try:
            check(account, SHORT_PATIENCE_S if patient else PATIENCE_S)
        except UnreachableError:
            if not patient:
                raise
    return account


def _account(wandb: ModuleType, base_url: str | None, api_key: str | None) -> Account | None:
    settings = _settings(wandb)
    url = str(base_url or settings.base_url).rstrip("/")
    key = _key(settings, url, api_key)
    if key is None and settings.identity_token_file:
        return None
    auth = require("wandb.sdk.lib.wbauth", extra="wandb", who="WandbLogger")
    how = f"run `wandb login --host {url}`, set WANDB_API_KEY, or pass mode='offline', which needs no account"
    if key is None:
        raise RefusedError(f"there is no API key for the W&B server {url}: {how}")
    if problem := auth.check_api_key(key):
        raise RefusedError(f"the API key for the W&B server {url} is none ({problem.rstrip('.')}): {how}")
    return Account(url, key, dict(settings.x_extra_http_headers or {}))


def start(wandb: ModuleType, mode: str, base_url: str | None, settings: Mapping[str, Any], **arguments: Any) -> Any:
    """Start a run, or go on with one.

    Args:
        wandb: the client.
        mode, base_url: as in ``wandb.init``.
        settings: what the user chose, stronger than :data:`SETTINGS`.
        **arguments: more of ``wandb.init``.

    Returns:
        The ``wandb.Run``.

    Raises:
        RefusedError: the run to go on with does not exist, or something else that trying again does not change.
        wandb.errors.Error: the server did not answer as it should.
    """
    known = wandb.Settings.model_fields
    try:
        return wandb.init(
            mode=mode,
            settings={
                # a later client may know some of these no more, and refuses what it does not know
                **{key: value for key, value in SETTINGS.items() if key in known},
                **settings,
                **({"base_url": base_url} if base_url else {}),
            },
            **arguments,
        )
    except Exception as error:
        server = base_url or os.environ.get("WANDB_BASE_URL") or "the default server"
        if isinstance(error, wandb.errors.UsageError):
            where = "" if mode == "offline" else f" at {server}"
            raise RefusedError(f"W&B does not start run {arguments['id']}{where}: {error}") from error
        if mode != "offline":
            error.add_note(
                f"while starting W&B run {arguments['id']} at {server}; "
                "settings={'init_timeout': seconds} bounds the wait, mode='offline' needs no server"
            )
        raise


def release(wandb: ModuleType, error: BaseException) -> None:
    """Clean up after ``error``, so that a run can be started again: a failed start leaves its id locked.

    Does nothing if that would end another run of this process.
    """
    setup = require("wandb.sdk.wandb_setup", extra="wandb", who="WandbLogger").singleton()
    # inner names of the client: where they are missing this does less, and never more
    service = getattr(getattr(getattr(setup, "_connection", None), "_proc", None), "_process", None)
    dead = service is not None and service.poll() is not None  # and its runs with it
    if not dead and getattr(setup, "most_recent_active_run", setup) is not None:
        return
    if not dead and service is not None and not isinstance(error, Exception):
        service.kill()  # Ctrl-C should not wait until the service has waited for its server
    with suppress(OSError, SystemExit):  # it is dead, or ended badly: gone all the same
        wandb.teardown()


def end_abandoned(pid: int, run: Any) -> None:
    """End, as failed, a run that nobody finished by the time its process ends.

    The client by itself would end it as finished.
    """
    if os.getpid() == pid:
        with suppress(OSError):  # no service, or no time: all that can be kept is on disk
            run.finish(exit_code=1)
