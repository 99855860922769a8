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
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from adapters._require import check, require
from adapters.backends._wandb_artifacts import checkpoint, is_checkpoint
from adapters.backends._wandb_best import DEFAULT, Best
from adapters.backends._wandb_client import ask, end_abandoned, load, release, start
from adapters.backends._wandb_data import (
    check_name,
    checked_state,
    is_run,
    is_text,
    json_data,
    merged,
    tag_texts,
)
from adapters.backends._wandb_html import confusion_page, text_page
from adapters.backends._wandb_identity import Identity
from adapters.backends._wandb_preflight import ask_elsewhere
from adapters.backends._wandb_run import OpenRun
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


class WandbLogger:
    """Logs one run to Weights & Biases.

    Building one does no work and imports nothing: the object is the recipe of a run. The run starts
    at the first verb that has something to log. It can be pickled at any time; the copy knows which
    run it belongs to and starts it, or goes on with it, in the process that uses it first.

    What it is given is kept in a file beside W&B's own until it has arrived. An attempt that goes on with
    the run sends what is missing there: the client's service loses seconds of rows when it is killed.

    Args:
        project: the W&B project; by default ``WANDB_PROJECT`` or what W&B makes of the program's place.
            Or a ``wandb.Run``, see ``run``.
        run: a ``wandb.Run`` that is open already. It is logged to in this process, and stays its owner's to
            finish: :meth:`finish` leaves the status in its summary. A fan-out follows in a thread. It says by
            itself where it belongs, so that only ``best`` and ``checkpoints`` go with it.
        entity: user or team; by default ``WANDB_ENTITY`` or the user who is logged in.
        run_id: the run's id. By default ``WANDB_RUN_ID`` or a new random one, made here, so that it is
            known before the run starts and stays the same in every process.
        name: what the run is called on the page; W&B invents one by default.
        group, job_type, notes: as in ``wandb.init``.
        tags: as for :meth:`log_tags`.
        mode: ``"online"``, ``"offline"``, ``"disabled"`` or ``"shared"`` (several processes, one run). By
            default ``WANDB_MODE``; else the mode of the attempt before, after :meth:`reattach`; else what the
            settings file of ``wandb offline`` says; else online if there is an API key (``WANDB_API_KEY``,
            netrc, W&B's settings) and offline if there is none, where ``wandb.init`` would ask or raise.
        dir: where W&B puts its ``wandb/`` directory; by default ``WANDB_DIR`` or the current one.
        base_url: the W&B server; by default ``WANDB_BASE_URL``, W&B's settings or the hosted one.
        best: metric, or pattern with ``*``, -> ``"min"`` or ``"max"``: whose best value, and its step, the
            summary gets as ``best/<metric>`` and ``best_step/<metric>``. The first one's best checkpoint is
            ``best``. By default ``{"validate/loss": "min"}``; ``{}`` for none.
        checkpoints: what the names of checkpoints begin with, see :meth:`log_other`; ``None`` uploads none.
        unreachable: what to do when the server is not there at the start: ``"wait"`` for as long as the client
            does (``init_timeout``), or ``"raise"`` within 5 s.
        finish_timeout: seconds that :meth:`finish` may wait for uploads; ``None`` waits for ever.
        settings: more ``wandb.Settings`` by name, stronger than ours. ``init_timeout`` bounds the start
            (W&B's default is 90 s), ``x_disable_stats: False`` brings back machine charts.

    In offline mode W&B's own telemetry is off, unless ``WANDB_ERROR_REPORTING`` is set.
    """

    #: A fan-out runs this logger in a process of its own: the client blocks when its server does.
    #: An open run cannot leave its process, so there it is a thread.
    placement: str = "process"
    #: What a follower process must not inherit: the address of the training process's own W&B service,
    #: which dies with it.
    private_environment: ClassVar[tuple[str, ...]] = ("WANDB_SERVICE",)

    def __init__(
        self,
        project: Any = None,
        *,
        run: Any = None,
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
        best: Mapping[str, str] = DEFAULT,
        checkpoints: str | None = "checkpoint",
        unreachable: Literal["wait", "raise"] = "wait",
        finish_timeout: float | None = 10.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if run is None and is_run(project):
            project, run = None, project
        if unreachable not in ("wait", "raise"):
            raise ValueError(f"unreachable must be 'wait' or 'raise', got {unreachable!r}")
        if finish_timeout is not None and not finish_timeout > 0:
            raise ValueError(f"finish_timeout must be seconds above 0, or None, got {finish_timeout!r}")
        self._settings = {"finish_timeout": finish_timeout or 0.0, **(settings or {})}
        directory = None if dir is None else os.path.abspath(dir)
        given = {"id": run_id, "project": project, "entity": entity, "mode": mode, "dir": directory}
        self._who = Identity({**given, "base_url": base_url}, self._settings)
        self._init = {"name": name, "group": group, "job_type": job_type, "notes": notes}
        self._tags, problems = ([], {}) if tags is None else tag_texts(tags)
        raise_for(problems, where="the tags")
        self._best = Best(best)
        self._checkpoints = checkpoints
        self._not_uploaded: list[str] = []
        self._unreachable = unreachable
        self._latest: dict[str | None, tuple[int, int | None]] = {}  # context -> step, epoch; None: any
        self._place: list[int] | None = None  # in the journal, of the record that was reattached
        self._unended = False  # an earlier attempt began the run, and did not come to its end
        self._set_idle(os.getpid())
        if run is not None:
            self._attach(run)

    def _set_idle(self, owner: int) -> None:
        self._run: OpenRun | None = None
        self._wandb: Any = None
        self._owner = owner  # the process whose run it is, where that is settled before it starts
        self._attached: Any = None
        self._is_copy = False  # of a logger of an open run: that cannot leave its process
        self._at_exit: Any = None
        self._status: str | None = None
        self._fork_noticed = False

    def _attach(self, run: Any) -> None:
        if not is_run(run):
            raise TypeError(f"run must be an open wandb.Run, as wandb.init() returns it, got {run!r}")
        if given := sorted(key for key, value in {**self._who.given, **self._init}.items() if value is not None):
            raise ValueError(f"the run is open already, so its {', '.join(given)} cannot be chosen any more")
        self._attached, self.placement = run, "thread"
        self._who.learn(run, run.settings.mode)

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
            run.define(f"{context}/step", f"{context}/*")
            run.log(row | {f"{context}/{axis}": value for axis, value in given.items()}, when=given.get("walltime"))
            self._latest[context] = self._latest[None] = (step, epoch)
            if changed := self._best.add(step, row):
                run.summarize(self._best.summary(changed))
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
            run.configure(config)

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
        if texts and (run := self._start()):
            self._tags = run.tag(self._tags)
        raise_for(problems, where="the tags")

    def log_other(self, key: str, value: Any) -> None:
        """Log a free-form value to the run's summary; a long text or structure as an HTML panel.

        ``log_other("checkpoint", {"path": …, "step": …})`` is also uploaded, a file or a directory, as a version of
        the artifact ``checkpoint-<run id>`` with the aliases ``latest`` and ``step-<n>``, and if it has the best value
        so far, ``best`` and ``best-<metric>``. With ``size`` (bytes) or ``sha256`` beside them, a file that is another
        by then is noticed. One that is gone, or was replaced, is a warning and stands in :meth:`logger_info`.

        Raises:
            MetricNameError: ``key`` is not a non-empty string.
            MetricValueError: ``value`` is no JSON data and no scalar.
            StepError: a checkpoint's step is none.
            LoggerFinishedError: the run has ended.
        """
        self._check_open("log_other")
        check_name(key, "key of log_other")
        data, problem = plain_value(value)
        raise_for({} if problem is None else {key: problem}, where="log_other")
        upload = self._checkpoints is not None and is_checkpoint(key, data)
        if upload and data.get("step") is not None:
            check_step(data["step"])
        text = data if isinstance(data, str) else json.dumps(data, indent=1, ensure_ascii=False)
        run = self._start()
        if run is None:
            return
        if len(text) <= LONGEST_SUMMARY_TEXT:
            run.summarize({key: data})
        else:
            run.log({}, {key: text_page(text)})
        if upload:
            self._upload(run, data)

    def _upload(self, run: OpenRun, data: Mapping[str, Any]) -> None:
        step = data.get("step")
        if step is None:
            step = self._latest.get(None, (0, None))[0]
        best = self._best.aliases(step)
        problem = run.send_checkpoint(checkpoint(f"{self._checkpoints}-{self._who.id}", data, step, best))
        self._best.note_checkpoint(step)
        if problem is not None:
            self._not_uploaded.append(problem)
            warnings.warn(f"W&B run {self._who.id}: {problem}", RuntimeWarning, stacklevel=4)

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
            run.define(f"{prefix}step", f"{prefix}*")
        else:
            run.define("step", key, f"{key}/*")
        page = confusion_page(rows, names, key if step is None else f"{key}, step {step}")
        row = {
            f"{key}/counts": rows,
            f"{key}/labels": names,
            f"{prefix}step": step,
            f"{prefix}epoch": epoch,
        }
        run.log({key: value for key, value in row.items() if value is not None}, {key: page})

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
        # also to end what an attempt before began, and send what it could not
        run = self._start() if self._run is not None or self._unended else None
        if run is None:
            self._status = status
            return
        self._status = status
        if self._attached is not None:
            run.summarize({"status": status})
            return  # its owner's to finish
        atexit.unregister(self._at_exit)
        try:
            run.summarize({"status": status})
            run.finish(EXIT_CODES[status])
        except TimeoutError:
            raise UndeliveredError(
                f"W&B run {self._who.id} was not uploaded within finish_timeout = "
                f"{self._settings['finish_timeout']} s, pending: {run.pending()}; nothing is lost, "
                f"send the run again with: {self._who.sync_command(self._who.sync_dirs[-1:])}"
            ) from None
        except ConnectionError as error:
            release(self._wandb, error)
            raise
        self._unended = False

    def run_id(self) -> str:
        """Return the run's id. It is known before the run starts."""
        return self._who.id

    def run_url(self) -> str | None:
        """Return the run's page, or ``None`` offline and before the run has started."""
        return self._who.url

    def logger_state(self) -> dict[str, JSON]:
        """Return what another process needs to go on with this run.

        Works before the run has started: the id is known, the rest may be ``None``.
        """
        place = self._place if self._run is None else self._run.record()
        return {
            **self._who.state(),
            "tags": [*self._tags],
            "latest": [[context, *place] for context, place in self._latest.items()],
            "best": self._best.state(),
            "journal": None if place is None else [*place],
            "unended": self._unended,
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
                f"reattach on W&B run {self._who.id}, which has started already: "
                "call it on a new WandbLogger, before anything is logged"
            )
        found = checked_state(state)
        if self._attached is None:
            self._who.adopt(found.known, found.sync_dirs)
            self._place, self._unended = found.place, found.unended
        elif found.known["id"] != self._who.id:
            raise RecordError(
                f"the checkpoint belongs to W&B run {found.known['id']!r}, the open run is {self._who.id!r}: open it "
                f"with wandb.init(id={found.known['id']!r}, resume='must'), or start without the checkpoint's record"
            )
        if found.best is not None:
            self._best.restore(found.best)
        self._tags = merged(found.tags, self._tags)
        self._latest = {context: (step, epoch) for context, step, epoch in found.latest}

    def backend(self) -> Any:
        """Return the ``wandb.Run``, started if need be.

        Inside a fan-out the run lives in another process; there this would be a second one.
        """
        if self._run is None:
            self._check_open("backend")
            self._start()
        return self._attached if self._run is None else self._run.native

    def logger_info(self) -> dict[str, JSON]:
        """Return what people want to know of this run.

        That is :meth:`logger_state`, ``started``, ``status``, what became of checkpoints that were
        ``not_uploaded`` and, for a run that is only on disk, the ``sync_command`` that sends it.
        """
        local = self._who.known["mode"] == "offline" and self._who.sync_dirs
        return {
            **self.logger_state(),
            "started": self._run is not None,
            "status": self._status,
            "sync_command": self._who.sync_command(self._who.sync_dirs) if local else None,
            "not_uploaded": [*self._not_uploaded],
        }

    # --- pickling ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Keep the recipe and the identity; the run itself stays with its process."""
        idle = vars(self).keys() & {"_run", "_wandb", "_attached", "_at_exit", "_status", "_fork_noticed"}
        state = {key: value for key, value in vars(self).items() if key not in idle}
        state["_place"] = self._place if self._run is None else self._run.place
        state["_is_copy"] = self._is_copy or self._attached is not None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a recipe, ready to start."""
        self._set_idle(state["_owner"])
        vars(self).update(state)

    def __repr__(self) -> str:
        """Name the run, not its secrets."""
        shown = {"project": self._who.state()["project"], "run_id": self._who.id}
        return f"WandbLogger({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    # --- the run -------------------------------------------------------------------------------------

    def _check_open(self, verb: str) -> None:
        if self._status is not None:
            raise LoggerFinishedError(
                f"{verb} after finish({self._status!r}): W&B run {self._who.id} has ended; "
                "build a new WandbLogger, and reattach it to go on with this run"
            )

    def _start(self) -> OpenRun | None:
        """Return the run, started if need be; ``None`` where it is another process's."""
        if self._is_copy or ((self._run is not None or self._attached is not None) and self._owner != os.getpid()):
            if not self._fork_noticed:
                self._fork_noticed = True
                copy = "copy" if self._is_copy else "fork"
                warnings.warn(
                    f"W&B run {self._who.id} belongs to process {self._owner}; this {copy} of it logs nothing",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return None
        if self._run is None:
            self._run = self._open_attached() if self._attached is not None else self._open()
            self._tags = self._run.tag(self._tags)
            if best := self._best.summary():
                self._run.summarize(best)
        return self._run

    def _open_attached(self) -> OpenRun:
        self._wandb = require("wandb", extra="wandb", who="WandbLogger")
        return OpenRun(self._wandb, self._attached, journal=False)

    def _open(self) -> OpenRun:
        who, key = self._who, self._settings.get("api_key")
        self._wandb, mode = load(who.asked_mode, who.base_url, key)
        account = ask(self._wandb, mode, who.base_url, key, patient=self._unreachable == "wait")
        self._unreachable = "wait"  # asked once, at the start
        native = None
        try:
            # no tags here: W&B would replace those of a run that exists
            arguments = {**who.arguments(mode), **self._init}
            native = start(self._wandb, mode, who.base_url, self._settings, **arguments)
            journal, online = mode in ("online", "offline"), mode != "offline"
            run = OpenRun(self._wandb, native, journal=journal, online=online, account=account)
            run.recover(self._place)
        except BaseException as error:
            if native is not None:
                end_abandoned(os.getpid(), native)
            release(self._wandb, error)
            raise
        self._owner = os.getpid()
        who.learn(native, mode)
        self._unended = mode != "disabled"
        self._at_exit = functools.partial(end_abandoned, self._owner, run)
        atexit.register(self._at_exit)
        return run

    # --- before the start ----------------------------------------------------------------------------

    def preflight(self) -> None:
        """Find out whether W&B would take this run, for whoever starts it in another process.

        A fan-out calls it before training begins. The server is asked once, from a process of its own, so that the
        client is not loaded in this one.

        Raises:
            ImportError: W&B is not installed.
            RefusedError: no API key, or one that the server does not know.
            UnreachableError: with ``unreachable="raise"``, the server did not answer in time.
        """
        check("wandb", extra="wandb", who="WandbLogger")
        elsewhere = self._attached is None and not self._is_copy
        if elsewhere and self._who.asked_mode not in ("offline", "disabled", "dryrun"):
            ask_elsewhere(self)

    def check_account(self) -> None:
        """Do what :meth:`preflight` does, in this process."""
        base_url, key = self._who.base_url, self._settings.get("api_key")
        wandb, mode = load(self._who.asked_mode, base_url, key)
        ask(wandb, mode, base_url, key, patient=self._unreachable == "wait")
