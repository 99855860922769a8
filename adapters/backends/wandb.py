"""Log to Weights & Biases: hosted, self-hosted, or offline into files that can be sent later.

Every context has its own step axis: a row of ``train`` carries ``train/step``, and that is what its
charts are drawn over. W&B's own step, which refuses to go back, is never used: so a validate line
may come late, a line may be logged again after a resume, and no row is ever refused.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import secrets
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from adapters.backends._wandb_client import MODES, SETTINGS, end_abandoned, load, release
from adapters.backends._wandb_data import (
    IDENTITY,
    check_id,
    check_name,
    check_project,
    checked_state,
    is_text,
    json_data,
    merged,
    tag_texts,
)
from adapters.backends._wandb_html import confusion_page, text_page
from loggers.contract import JSON
from loggers.errors import LoggerFinishedError, RecordError, UndeliveredError
from loggers.values import (
    check_confusion,
    check_context,
    check_epoch,
    check_status,
    check_step,
    plain,
    plain_params,
    plain_value,
    raise_for,
)

#: W&B shows a run as finished if this is 0, else as failed. 130 is what a shell reports for Ctrl-C.
EXIT_CODES: Final = {"completed": 0, "early_stop": 0, "error": 1, "interrupted": 130}
#: Longer texts of ``log_other`` become a page: the summary is sent whole each time it changes.
LONGEST_SUMMARY_TEXT: Final = 1000
_HOSTED: Final = ("online", "shared")


class WandbLogger:
    """Logs one run to Weights & Biases.

    Building one does no work and imports nothing: the object is the recipe of a run. The run starts
    at the first verb that has something to log. It can be pickled at any time; the copy knows which
    run it belongs to and starts it, or goes on with it, in the process that uses it first.

    Args:
        project: the W&B project; by default ``WANDB_PROJECT`` or what W&B makes of the program's place.
        entity: user or team; by default ``WANDB_ENTITY`` or the user who is logged in.
        run_id: the run's id. By default ``WANDB_RUN_ID`` or a new random one, made here, so that it is
            known before the run starts and stays the same in every process.
        name: what the run is called on the page; W&B invents one by default.
        group, job_type, notes: as in ``wandb.init``.
        tags: as for :meth:`log_tags`.
        mode: ``"online"``, ``"offline"``, ``"disabled"`` or ``"shared"``. By default ``WANDB_MODE``; else
            the mode of the attempt before, after :meth:`reattach`; else what the settings file of
            ``wandb offline`` says; else online if there is an API key (``WANDB_API_KEY``, netrc, W&B's
            settings) and offline if there is none, where ``wandb.init`` would ask or raise.
        dir: where W&B puts its ``wandb/`` directory; by default ``WANDB_DIR`` or the current one.
        base_url: the W&B server; by default ``WANDB_BASE_URL``, W&B's settings or the hosted one.
        finish_timeout: seconds that :meth:`finish` may wait for uploads; ``None`` waits for ever.
        settings: more ``wandb.Settings`` by name, stronger than ours. ``init_timeout`` bounds the start
            (W&B's default is 90 s), ``x_disable_stats: False`` brings back machine charts.

    In offline mode W&B's own telemetry is off, unless ``WANDB_ERROR_REPORTING`` is set.
    """

    #: A fan-out runs this logger in a process of its own: the client blocks when its server does.
    placement: ClassVar[str] = "process"
    #: What a follower process must not inherit: the address of the training process's own W&B service,
    #: which dies with it.
    private_environment: ClassVar[tuple[str, ...]] = ("WANDB_SERVICE",)

    def __init__(
        self,
        project: str | None = None,
        *,
        entity: str | None = None,
        run_id: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        notes: str | None = None,
        tags: Mapping[str, Any] | Iterable[str] | str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        base_url: str | None = None,
        finish_timeout: float | None = 10.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))} or None, got {mode!r}")
        if finish_timeout is not None and not finish_timeout > 0:
            raise ValueError(f"finish_timeout must be seconds above 0, or None, got {finish_timeout!r}")
        if run_id is not None:
            check_id(run_id)
        if project is not None:
            check_project(project)
        self._given: dict[str, str | None] = {
            "project": project,
            "entity": entity,
            "id": run_id,
            "mode": mode,
            "dir": None if dir is None else os.path.abspath(dir),
            "base_url": base_url,
        }
        # secrets, not random: two runs with the same seed must not share an id
        self._id: str = run_id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(8)
        self._init = {"name": name, "group": group, "job_type": job_type, "notes": notes}
        self._tags, problems = ([], {}) if tags is None else tag_texts(tags)
        raise_for(problems, where="the tags")
        self._settings = {"finish_timeout": finish_timeout or 0.0, **(settings or {})}
        # what a run that started, here or in another process, turned out to be
        self._known: dict[str, str | None] = dict.fromkeys(IDENTITY)
        self._sync_dirs: list[str] = []
        self._latest: dict[str | None, tuple[int, int | None]] = {}  # context -> step, epoch; None: any
        self._set_idle()

    def _set_idle(self) -> None:
        self._run: Any = None
        self._wandb: Any = None
        self._pid = 0
        self._at_exit: Any = None
        self._status: str | None = None
        self._fork_noticed = False
        self._defined: set[str] = set()

    # --- the verbs -----------------------------------------------------------------------------------

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        step: int,
        epoch: int | None = None,
        context: str = "train",
        **axes: Any,
    ) -> None:
        """Log one row: ``<context>/<name>`` and ``<context>/step``, with the epoch where there is one.

        Text, lists and dicts are logged too. The axis ``walltime`` (Unix seconds) becomes
        ``<context>/walltime``. A metric called like an axis that has another value is a problem.

        Raises:
            StepError, MetricNameError: before anything is logged.
            MetricValueError: after the good values of the row are logged.
            LoggerFinishedError: the run has ended.
            wandb.errors.Error, ConnectionError: W&B could not start the run, or its service died.
        """
        self._check_open("log_metrics")
        step, epoch, context = check_step(step), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        row = {f"{context}/{name}": value for name, value in values.items()}
        walltime = axes.get("walltime")
        given: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "walltime": None if walltime is None else float(walltime),
        }
        given = {axis: value for axis, value in given.items() if value is not None}
        for axis in given.keys() & values.keys():
            if values[axis] != given[axis]:
                problems[axis] = f"got {values[axis]!r}, but the row's {axis} is {given[axis]!r}: rename it"
        for key in [key for key in row if not is_text(key)]:
            del row[key]
            problems[repr(key)] = "the name has a lone surrogate: clean it with .encode(errors='replace')"
        if row and (run := self._start()):
            self._define(f"{context}/step", f"{context}/*")
            row |= {f"{context}/{axis}": value for axis, value in given.items()}
            if "walltime" in given:
                row["_timestamp"] = given["walltime"]  # W&B's own time axis; a replay is not now
            run.log(row)
            self._latest[context] = self._latest[None] = (step, epoch)
        raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log hyperparameters to the run's config, nested ones nested. Later values win.

        NaN and the infinities become text there: W&B's config is JSON.

        Raises:
            MetricValueError: ``params`` is not a mapping.
            LoggerFinishedError: the run has ended.
        """
        self._check_open("log_params")
        config = json_data(plain_params(params))
        if config and (run := self._start()):
            run.config.update(config, allow_val_change=True)

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Add tags to the run: strings as they are, an entry of a mapping as ``key:value``.

        An entry whose value is ``True`` is only its key.

        Raises:
            MetricValueError: not tags, or some longer than W&B's 64 characters; the others are added.
            LoggerFinishedError: the run has ended.
        """
        self._check_open("log_tags")
        texts, problems = tag_texts(tags)
        self._tags = merged(self._tags, texts)
        if texts and self._start():
            self._send_tags()
        raise_for(problems, where="the tags")

    def log_other(self, key: str, value: Any) -> None:
        """Log a free-form value to the run's summary; a long text or structure as an HTML panel.

        Raises:
            MetricNameError: ``key`` is not a non-empty string.
            MetricValueError: ``value`` is no JSON data and no scalar.
            LoggerFinishedError: the run has ended.
        """
        self._check_open("log_other")
        check_name(key, "key of log_other")
        data, problem = plain_value(value)
        raise_for({} if problem is None else {key: problem}, where="log_other")
        text = data if isinstance(data, str) else json.dumps(data, indent=1, ensure_ascii=False)
        run = self._start()
        if run is None:
            return
        if len(text) <= LONGEST_SUMMARY_TEXT:
            run.summary[key] = data
        else:
            run.log({key: self._page(text_page(text))})

    def log_confusion(
        self,
        matrix: Sequence[Sequence[float]],
        labels: Sequence[str],
        *,
        epoch: int | None = None,
        step: int | None = None,
        context: str | None = None,
        name: str = "confusion",
    ) -> None:
        """Log a confusion matrix as a coloured table, with its numbers beside it.

        The table is an HTML panel ``<context>/<name>``, or ``<name>`` without a context. The numbers
        are ``…/counts``, a list of lists, and ``…/labels``. Unlike W&B's own tables, none of this asks
        the server anything, so it does not block while the server is away.

        Args:
            matrix: [K, K] counts or rates, rows true, columns predicted.
            labels: [K] class names.
            epoch, step: where it belongs; those of the latest line of ``context`` by default.
            context: whose step axis to use.
            name: what to call it.

        Raises:
            ConfusionError: not square, or not one label per class.
            StepError, MetricNameError: a bad step, epoch, context or name.
            LoggerFinishedError: the run has ended.
        """
        self._check_open("log_confusion")
        rows, names = check_confusion(matrix, labels)
        check_name(name, "name of the confusion matrix")
        last_step, last_epoch = self._latest.get(context) or self._latest.get(None) or (None, None)
        if step is None:
            step, epoch = last_step, last_epoch if epoch is None else epoch
        step, epoch = None if step is None else check_step(step), check_epoch(epoch)
        prefix = "" if context is None else f"{check_context(context)}/"
        run = self._start()
        if run is None:
            return
        key = prefix + name
        if prefix:
            self._define(f"{prefix}step", f"{prefix}*")
        else:
            self._define("step", key, f"{key}/*")
        row = {
            key: self._page(confusion_page(rows, names, key if step is None else f"{key}, step {step}")),
            f"{key}/counts": rows,
            f"{key}/labels": names,
            f"{prefix}step": step,
            f"{prefix}epoch": epoch,
        }
        run.log({key: value for key, value in row.items() if value is not None})

    def finish(self, status: str) -> None:
        """End the run and wait up to ``finish_timeout`` for what is not uploaded yet.

        W&B shows ``"completed"`` and ``"early_stop"`` as finished, the others as failed; the status
        itself is the summary's ``status``. A run that was never started stays unborn.

        Raises:
            StatusError: not one of the four; the run goes on.
            UndeliveredError: the time is up. Everything is on disk, and the message says how to send it;
                rows that had arrived before will then be there twice, at the same ``<context>/step``.
            LoggerFinishedError: the run has ended before.
            ConnectionError: W&B's service died; what it had written is on disk.
        """
        status = check_status(status)
        self._check_open("finish")
        run = self._start() if self._run is not None else None
        self._status = status
        if run is None:
            return
        atexit.unregister(self._at_exit)
        try:
            run.summary["status"] = status
            run.finish(exit_code=EXIT_CODES[status])
        except TimeoutError:
            raise UndeliveredError(
                f"W&B run {self._id} was not uploaded within finish_timeout = "
                f"{self._settings['finish_timeout']} s; nothing is lost, send the run again with: "
                f"{self._sync_command(self._sync_dirs[-1:])}"
            ) from None
        except ConnectionError as error:
            release(self._wandb, error)
            raise

    def run_id(self) -> str:
        """Return the run's id. It is known before the run starts."""
        return self._id

    def run_url(self) -> str | None:
        """Return the run's page, or ``None`` offline and before the run has started."""
        return None if self._known["mode"] == "offline" else self._known["url"]

    def logger_state(self) -> dict[str, JSON]:
        """Return what another process needs to go on with this run.

        Works before the run has started: the id is known, the rest may be ``None``.
        """
        return {
            **{key: self._known[key] or self._given.get(key) for key in IDENTITY},
            "id": self._id,
            "tags": [*self._tags],
            "sync_dirs": [*self._sync_dirs],
            "latest": [[context, *place] for context, place in self._latest.items()],
        }

    def reattach(self, state: Any) -> None:
        """Go on with the run that ``state`` describes. Call it before the first verb.

        Online, a run that is known to exist must still be there. Offline, the same id goes on in a new
        directory; :meth:`logger_state` lists all of them, and ``wandb sync`` joins them. Rows that the
        attempt before logged after its checkpoint stay: W&B cannot take rows back. The rows that are
        logged again have the same ``<context>/step``, so charts show them in the same place.

        A ``mode`` or ``dir`` given to the constructor is kept.

        Raises:
            RecordError: not a state of this logger, of a run that contradicts the constructor, or the
                run has started already.
        """
        if self._run is not None or self._status is not None:
            raise RecordError(
                f"reattach on W&B run {self._id}, which has started already: "
                "call it on a new WandbLogger, before anything is logged"
            )
        known, tags, sync_dirs, latest = checked_state(state)
        for key in ("id", "project", "entity", "base_url"):
            given = self._given[key]
            if given and known[key] and given.rstrip("/") != str(known[key]).rstrip("/"):
                raise RecordError(
                    f"the checkpoint belongs to W&B {key} {known[key]!r}, this logger was built with "
                    f"{given!r}: build it with {known[key]!r}, or start without the checkpoint's record"
                )
        self._id = str(known.pop("id"))
        self._known = known | {key: self._given[key] for key in ("mode", "dir") if self._given[key]}
        self._tags = merged(tags, self._tags)
        self._sync_dirs = merged(sync_dirs, self._sync_dirs)
        self._latest = {context: (step, epoch) for context, step, epoch in latest}

    def backend(self) -> Any:
        """Return the ``wandb.Run``, started if need be.

        Inside a fan-out the run lives in another process; there this would be a second one.
        """
        if self._run is None:
            self._check_open("backend")
            self._start()
        return self._run

    def logger_info(self) -> dict[str, JSON]:
        """Return what people want to know of this run.

        That is :meth:`logger_state`, ``started``, ``status`` and, for a run that is only on disk, the
        ``sync_command`` that sends it.
        """
        local = self._known["mode"] == "offline" and self._sync_dirs
        return {
            **self.logger_state(),
            "started": self._run is not None,
            "status": self._status,
            "sync_command": self._sync_command(self._sync_dirs) if local else None,
        }

    # --- pickling ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Keep the recipe and the identity; the run itself stays with its process."""
        kept = ("_given", "_id", "_init", "_tags", "_settings", "_known", "_sync_dirs", "_latest")
        return {key: self.__dict__[key] for key in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a recipe, ready to start."""
        self.__dict__.update(state)
        self._set_idle()

    def __repr__(self) -> str:
        """Name the run, not its secrets."""
        shown = {"project": self._known["project"] or self._given["project"], "run_id": self._id}
        return f"WandbLogger({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    # --- the run -------------------------------------------------------------------------------------

    def _check_open(self, verb: str) -> None:
        if self._status is not None:
            raise LoggerFinishedError(
                f"{verb} after finish({self._status!r}): W&B run {self._id} has ended; "
                "build a new WandbLogger, and reattach it to go on with this run"
            )

    def _start(self) -> Any:
        """Return the run, started if need be; ``None`` in a fork of the process that started it."""
        if self._run is not None:
            if self._pid == os.getpid():
                return self._run
            if not self._fork_noticed:
                self._fork_noticed = True
                warnings.warn(
                    f"W&B run {self._id} belongs to process {self._pid}; this fork of it logs nothing",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return None
        base_url = self._given["base_url"] or self._known["base_url"] or self._settings.get("base_url")
        asked = self._given["mode"] or os.environ.get("WANDB_MODE") or self._known["mode"]
        self._wandb, mode = load(asked, base_url, self._settings.get("api_key"))
        known_settings = self._wandb.Settings.model_fields
        exists = mode in _HOSTED and self._known["url"] is not None
        try:
            # no tags here: W&B would replace those of a run that exists
            run = self._wandb.init(
                project=self._given["project"] or self._known["project"],
                entity=self._given["entity"] or self._known["entity"],
                id=self._id,
                dir=self._given["dir"] or self._known["dir"],
                mode=mode,
                resume="must" if exists else "allow",
                settings={
                    # a later client may know some of these no more, and refuses what it does not know
                    **{key: value for key, value in SETTINGS.items() if key in known_settings},
                    **self._settings,
                    **({"base_url": base_url} if base_url else {}),
                },
                **self._init,
            )
        except BaseException as error:
            release(self._wandb, error)
            if mode != "offline" and isinstance(error, Exception):
                server = base_url or os.environ.get("WANDB_BASE_URL") or "the default server"
                error.add_note(
                    f"while starting W&B run {self._id} at {server}; "
                    "settings={'init_timeout': seconds} bounds the wait, mode='offline' needs no server"
                )
            raise
        self._pid, self._run = os.getpid(), run
        self._at_exit = functools.partial(end_abandoned, self._pid, run)
        atexit.register(self._at_exit)
        self._id = run.id  # a sweep has its own idea
        self._known = {
            "entity": run.entity or self._known["entity"],
            "project": run.project,
            "mode": mode,
            "dir": run.settings.root_dir,
            # an offline run has no server yet, and the client would complain at being asked for a page
            "base_url": run.settings.base_url if mode in _HOSTED else base_url,
            "url": run.url if mode in _HOSTED else self._known["url"],
        }
        if mode != "disabled":
            self._sync_dirs = merged(self._sync_dirs, [run.settings.sync_dir])
        self._send_tags()
        return run

    def _send_tags(self) -> None:
        self._tags = merged(list(self._run.tags or ()), self._tags)
        if self._tags != list(self._run.tags or ()):
            self._run.tags = tuple(self._tags)

    def _define(self, axis: str, *metrics: str) -> None:
        for metric in metrics:
            # W&B allows no * but the last character; such rows are charted over its own step
            if metric not in self._defined and "*" not in axis + metric[:-1]:
                self._defined.add(metric)
                self._run.define_metric(axis, hidden=True)
                self._run.define_metric(metric, step_metric=axis)

    def _page(self, content: str) -> Any:
        # not injected: W&B would add a style sheet from its own site
        return self._wandb.Html(content, inject=False, data_is_not_path=True)

    def _sync_command(self, directories: Sequence[str]) -> str:
        url = self._given["base_url"] or self._known["base_url"]
        implied = url is None or url.rstrip("/") == os.environ.get("WANDB_BASE_URL", "").rstrip("/")
        server = "" if implied else f"WANDB_BASE_URL={shlex.quote(str(url))} "
        # without the option, W&B skips what was to be online
        option = "" if self._known["mode"] == "offline" else "--no-skip-online "
        return f"{server}wandb sync {option}{' '.join(map(shlex.quote, directories))}"
