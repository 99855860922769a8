"""What has to be known of the wandb client to start a run and to end one. Nothing here keeps state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from adapters._require import require

MODES: Final = ("online", "offline", "disabled", "shared")
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
    wandb = require("wandb", extra="wandb", who="WandbLogger")
    if not mode:
        mode = _default_mode(wandb, base_url, api_key)
        if mode == "offline":
            _switch_telemetry_off()
    return wandb, mode


def _switch_telemetry_off() -> None:
    """Keep an offline run from calling home: without a network that costs 10 s at exit."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _default_mode(wandb: ModuleType, base_url: str | None, api_key: str | None) -> str:
    settings = wandb.Settings(quiet=True)
    config_dir = os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    settings.settings_system = os.path.join(config_dir, "settings")
    settings.update_from_system_settings()  # where `wandb offline` leaves its mark
    settings.update_from_env_vars(dict(os.environ))
    mode: str = _OLD_MODES.get(settings.mode, settings.mode)
    if mode != "online":
        return mode
    if api_key or settings.api_key or settings.identity_token_file:
        return "online"
    auth = require("wandb.sdk.lib.wbauth", extra="wandb", who="WandbLogger")
    host = base_url or settings.base_url
    return "online" if auth.session_credentials(host=host) or auth.read_netrc_auth(host=host) else "offline"


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
