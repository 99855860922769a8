"""Log to MLflow: a database file, or a tracking server.

Metrics are ``<context>/<name>`` over the driver's step. MLflow's client waits for its database at every
call, so a thread does that: a verb queues its data, and what has come together goes in one request.
"""

from __future__ import annotations

import json
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from adapters._require import check
from adapters.backends._mlflow_client import (
    CUTS_TAG,
    STATUS_TAG,
    absolute,
    alone,
    connect,
    current_uri,
    deliver,
    end,
    existing_run,
    is_final,
    own_run,
)
from adapters.backends._mlflow_data import (
    LONGEST_PARAM,
    LONGEST_TAG,
    checked_state,
    encode,
    pieces,
    plain_operation,
    revived_operation,
    stored_tags,
    text,
    versions,
)
from adapters.backends._queued import Operation, Queued
from loggers.contract import JSON
from loggers.errors import MetricNameError, RecordError, StepError
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

#: MLflow's word for how a run ended.
STATUSES: Final = {"completed": "FINISHED", "early_stop": "FINISHED", "error": "FAILED", "interrupted": "KILLED"}
_LAST_STEP: Final = 2**63 - 1
_NUMBERS: Final = (int, float)


class MLflowLogger(Queued):
    """Logs one run to MLflow.

    Building one does no work and imports nothing: the object is the recipe of a run. The run begins at
    the first verb that has something to log. It can be pickled at any time; the copy knows which run it
    belongs to and begins it, or goes on with it, in the process that uses it first.

    A verb returns before its data is in MLflow: ``kill -9`` costs what was logged while the last request
    was under way, some 10 ms for a database file. :meth:`logger_state` and :meth:`finish` wait until
    everything is there. An outage does not end training: lines wait in memory, a warning says so once,
    and sending is tried again. In a fan-out nothing is lost at all: what is missing comes from the primary.

    MLflow keeps every point. When a step is logged again, or a run resumes from an older checkpoint, the
    old points stay; at each step the point with the newest time counts, and is what comes last for readers. What a
    resume has taken back in the run of a tee, the tag ``loggers.cuts`` says; see :meth:`rewind`.

    Args:
        tracking_uri: ``sqlite:////abs/ml.db``, ``http://host:port``, … By default what the program has
            told MLflow, ``MLFLOW_TRACKING_URI``, or MLflow's own default.
        experiment: its name; made if it is not there. By default ``MLFLOW_EXPERIMENT_NAME`` or "Default".
        name: what the run is called; MLflow invents a name by default.
        tags: as for :meth:`log_tags`.
        run: go on with this run of MLflow's, an object (such as ``mlflow.start_run()`` returns) or an id,
            instead of beginning one. :meth:`finish` ends it.
        artifact_location: where the artifacts of an experiment go that is made; by default ``mlartifacts``
            beside a database file, and what a server decides.
        finish_timeout: seconds that :meth:`finish` and :meth:`logger_state` may wait for MLflow; ``None``
            waits for ever.
        max_pending: calls that may wait during an outage. Then verbs raise.
    """

    #: A fan-out runs this logger in a process of its own: the client blocks when its server does.
    placement: ClassVar[str] = "process"
    tracker: ClassVar[str] = "MLflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str | None = None,
        name: str | None = None,
        tags: Mapping[str, Any] | Iterable[str] | str | None = None,
        run: Any = None,
        artifact_location: str | None = None,
        finish_timeout: float | None = 10.0,
        max_pending: int = 10_000,
    ) -> None:
        if finish_timeout is not None and not finish_timeout > 0:
            raise ValueError(f"finish_timeout must be seconds above 0, or None, got {finish_timeout!r}")
        if max_pending < 1:
            raise ValueError(f"max_pending must be at least 1, got {max_pending!r}")
        run = getattr(getattr(run, "info", run), "run_id", run)
        if run is not None and (not isinstance(run, str) or not run):
            raise TypeError(f"run must be a run of MLflow's, or its id, got {run!r} ({type(run).__name__})")
        if run is not None and experiment is not None:
            raise ValueError(f"the run {run!r} is in an experiment already: leave out experiment={experiment!r}")
        uri = tracking_uri or current_uri()
        self._given: dict[str, str | None] = {
            "tracking_uri": None if uri is None else absolute(uri),
            "experiment": experiment,
            "run": run,
        }
        self._recipe: dict[str, Any] = {
            "name": name,
            "artifact_location": artifact_location,
            "tags": {} if tags is None else stored_tags(tags),
            "experiment": experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default",
        }
        self._finish_timeout, self._max_pending = finish_timeout, max_pending
        # secrets, not random: two runs with the same seed must not share an id
        self._id: str = run or secrets.token_hex(16)
        self._run: str | None = run  # MLflow's id
        self._latest: dict[str | None, tuple[int, int]] = {}  # context -> step, time in ms; None: any
        self._unsent: list[Operation] = []  # what an earlier process could not deliver
        self._set_idle()

    def _set_idle(self) -> None:
        super()._set_idle()
        self._client: Any = None
        self._experiment_id: str | None = None
        self._params: dict[str, str] = {}  # name -> the newest value's text
        self._versions: dict[str, int] = {}
        self._cuts: list[dict[str, list[int]]] = []

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
        """Log one line: ``<context>/<name>`` at ``step``, and ``<context>/epoch`` where there is one.

        Numbers are float64 there. The axis ``walltime`` (Unix seconds) is the points' time, now by default.

        Raises:
            StepError, MetricNameError: before anything is logged.
            MetricValueError: some values are no numbers, or their names too long; the others are logged.
            LoggerFinishedError: the run has ended.
            UndeliveredError: MLflow takes nothing, and memory no more; nothing of the line is logged.
            ConnectionError, mlflow.exceptions.MlflowException: the run could not begin.
        """
        self._check_open("log_metrics")
        step, epoch, context = _storable(check_step(step)), check_epoch(epoch), check_context(context)
        values, problems = plain(metrics)
        walltime = axes.get("walltime")
        when = int(1000 * (time.time() if walltime is None else float(walltime)))
        line: dict[str, int | float] = {}
        for name, value in values.items():
            if not isinstance(value, _NUMBERS):
                problems[name] = f"MLflow's metrics are numbers, got {type(value).__name__}: use log_other"
            elif name == "epoch" and epoch is not None and value != epoch:
                problems[name] = f"got {value!r}, but the line's epoch is {epoch}: rename it"
            else:
                try:
                    line[encode(f"{context}/{name}")] = value
                except ValueError as error:
                    problems[name] = str(error)
        if line:
            if epoch is not None:
                line[encode(f"{context}/epoch")] = epoch
            with self._turn():
                last_step, last_time = self._latest.get(context, (-1, 0))
                if step <= last_step:
                    when = max(when, last_time + 1)  # the newest time counts
                elif walltime is None:
                    when = max(when, last_time)
                self._put(["metrics", when, step, line])
                self._latest[context] = (max(step, last_step), max(when, last_time))
                self._latest[None] = (step, when)
        raise_for(problems, where=f"the {context} line of step {step}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log hyperparameters: strings as they are, everything else as JSON.

        MLflow's params cannot change: the second value of ``lr`` is the param ``lr:v2``. One of more than
        6000 characters goes on in ``lr:p2``.

        Raises:
            MetricValueError: ``params`` is no mapping, or some names are too long; the others are logged.
            LoggerFinishedError: the run has ended.
            UndeliveredError: MLflow takes nothing, and memory no more.
        """
        self._check_open("log_params")
        texts, problems = {}, {}
        for name, value in plain_params(params).items():
            try:
                encode(name)
            except ValueError as error:
                problems[name] = str(error)
            else:
                texts[name] = text(value)
        if texts:
            with self._turn():
                self._put_params(texts)
        raise_for(problems, where="the params")

    def log_tags(self, tags: Mapping[str, Any] | Iterable[str] | str) -> None:
        """Set tags: a string is a tag with the value ``true``, an entry of a mapping one with its value.

        Raises:
            MetricValueError: no tags, or some whose names are too long; the others are set.
            LoggerFinishedError: the run has ended.
            UndeliveredError: MLflow takes nothing, and memory no more.
        """
        self._check_open("log_tags")
        problems: dict[str, str] = {}
        if entries := stored_tags(tags, problems):
            self._put(["tags", entries])
        raise_for(problems, where="the tags")

    def log_other(self, key: str, value: Any) -> None:
        """Set the tag ``other/<key>``: a string as it is, everything else as JSON.

        Raises:
            MetricNameError: ``key`` is no text that a tag could have.
            MetricValueError: ``value`` is no JSON data and no scalar.
            LoggerFinishedError: the run has ended.
            UndeliveredError: MLflow takes nothing, and memory no more.
        """
        self._check_open("log_other")
        stored = _checked_name(f"other/{key}" if isinstance(key, str) and key else key, "key of log_other")
        data, problem = plain_value(value)
        raise_for({} if problem is None else {key: problem}, where="log_other")
        self._put(["tags", pieces(stored, text(data), LONGEST_TAG)])

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
        """Log a confusion matrix as the artifact ``confusion/<context>/<name>/<step>.json``.

        It holds ``name``, ``context``, ``step``, ``epoch``, ``labels`` and ``matrix``. If there is no
        artifact store that can be reached from here, the same text is in tags of that name.

        Args:
            matrix: [K, K] counts or rates, rows true, columns predicted.
            labels: [K] class names.
            epoch: noted in it.
            step: where it belongs; that of the latest line of ``context`` by default.
            context: left out of the name if there is none.
            name: what to call it.

        Raises:
            ConfusionError: not square, or not one label per class.
            StepError, MetricNameError: a bad step, epoch, context or name.
            LoggerFinishedError: the run has ended.
            UndeliveredError: MLflow takes nothing, and memory no more.
        """
        self._check_open("log_confusion")
        rows, names = check_confusion(matrix, labels)
        place = self._latest.get(context) or self._latest.get(None)
        step = place[0] if step is None and place else None if step is None else check_step(step)
        epoch, context = check_epoch(epoch), None if context is None else check_context(context)
        if not isinstance(name, str) or not name:
            raise MetricNameError(f"the name of the confusion matrix must be a non-empty string, got {name!r}")
        key = name if context is None else f"{context}/{name}"
        path = _checked_name(f"confusion/{key}/{0 if step is None else step}", "name of the confusion matrix")
        record = {"name": name, "context": context, "step": step, "epoch": epoch, "labels": names, "matrix": rows}
        self._put(["file", f"{path}.json", json.dumps(record, ensure_ascii=False)])

    def finish(self, status: str) -> None:
        """End the run when everything is there, or raise after ``finish_timeout``.

        MLflow shows ``"completed"`` and ``"early_stop"`` as FINISHED, ``"error"`` as FAILED and
        ``"interrupted"`` as KILLED; the status itself is the tag ``loggers.status``. A run that never
        began stays unborn.

        Raises:
            StatusError: not one of the four; the run goes on.
            UndeliveredError: the time is up, and the rest is in this process's memory only. Call it again
                to go on waiting.
            LoggerFinishedError: the run has ended before.
            mlflow.exceptions.MlflowException: the run could not be ended. Call it again.
        """
        status = check_status(status)
        self._check_open("finish")
        if self._outbox is None and not (self._run or self._unsent):
            self._status = status
            return
        self._finish(status, ["tags", {STATUS_TAG: status}])

    def run_id(self) -> str:
        """Return the id by which this run is known before it begins, the tag ``loggers.run_id``.

        MLflow gives a run an id of its own when it begins: ``logger_info()["mlflow_run"]``. With
        ``MLflowLogger(run=…)`` both are the same.
        """
        return self._id

    def run_url(self) -> str | None:
        """Return the run's page; ``None`` before the run has begun, and for a database file."""
        uri = self._given["tracking_uri"]
        if uri is None or not uri.startswith("http") or self._experiment_id is None:
            return None
        return f"{uri.rstrip('/')}/#/experiments/{self._experiment_id}/runs/{self._run}"

    def logger_state(self) -> dict[str, JSON]:
        """Return what another process needs to go on with this run, once everything logged is there.

        What MLflow does not take within ``finish_timeout`` is in the state itself, under ``pending``.
        While that lasts, later states do not wait again.
        """
        with self._turn():
            pending = self._flush()
            return {
                "tracking_uri": self._given["tracking_uri"],
                "experiment": self._recipe["experiment"],
                "run": self._run,
                "id": self._id,
                "latest": [[context, *place] for context, place in self._latest.items()],
                "pending": [plain_operation(operation) for operation in pending],
            }

    def reattach(self, state: Any) -> None:
        """Go on with the run that ``state`` describes. Call it before the first verb.

        What the attempt before logged after its checkpoint stays: MLflow cannot take points back. The
        steps that are logged again get newer times, and come last.

        The tracking URI given to the constructor is kept, since a server may move.

        Raises:
            RecordError: not a state of this logger, of a run or an experiment that contradicts the
                constructor, or the run has begun already. With the first verb: the run is not there.
        """
        if self._outbox is not None or self._status is not None:
            raise RecordError(
                f"reattach on MLflow run {self._id}, which has begun already: "
                "call it on a new MLflowLogger, before anything is logged"
            )
        known = checked_state(state)
        for key in ("experiment", "run"):
            given = self._given[key]
            if given is not None and known[key] is not None and given != known[key]:
                raise RecordError(
                    f"the checkpoint belongs to MLflow {key} {known[key]!r}, this logger was built with "
                    f"{given!r}: build it with {known[key]!r}, or start without the checkpoint's record"
                )
        self._id, self._run = known["id"], known["run"]
        self._given["tracking_uri"] = self._given["tracking_uri"] or known["tracking_uri"]
        self._recipe["experiment"] = known["experiment"] or self._recipe["experiment"]
        self._latest = {context: (step, when) for context, step, when in known["latest"]}
        self._unsent = [revived_operation(operation) for operation in known["pending"]]

    def rewind(self, step: int) -> None:
        """Note that what was logged from ``step`` on no longer counts, and say that it stays: MLflow takes none back.

        A replay asks for it when its run was cut by a resume; it then makes all of these calls again, and their points
        are newer. The tag ``loggers.cuts`` is a JSON list with a mapping for each cut, from contexts to three numbers:
        the first and the last step that was taken back, and the time in ms of the newest point then. Points of these
        steps that are not newer do not count.
        """
        self._check_open("rewind")
        with self._turn():
            if self._start() is None:
                return
            places = ((context, place) for context, place in self._latest.items() if context is not None)
            if cut := {context: [step, last, when] for context, (last, when) in places if last >= step}:
                self._cuts.append(cut)
                self._put(["tags", pieces(CUTS_TAG, json.dumps(self._cuts), LONGEST_TAG)])
                warnings.warn(
                    f"a resume has taken back steps from {step} on, and MLflow keeps their points: where the run was "
                    f"logged again the newer ones count, and the tag {CUTS_TAG} says which do not",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def backend(self) -> Any:
        """Return the ``mlflow.entities.Run``, as it is now; its ``info.run_id`` is what MLflow's client takes.

        Inside a fan-out the run is written by another process; there this would begin a second one.
        """
        if self._outbox is None:
            self._check_open("backend")
        self._start()
        self._flush()
        return self._client.get_run(self._run)

    def logger_info(self) -> dict[str, JSON]:
        """Return what people want to know of this run, among it what was not delivered, and why."""
        outbox = self._own_outbox()
        return {
            "run_id": self._id,
            "mlflow_run": self._run,
            "tracking_uri": self._given["tracking_uri"],
            "experiment": self._recipe["experiment"],
            "run_url": self.run_url(),
            "started": self._outbox is not None,
            "status": self._status,
            "pending": len(self._unsent) if outbox is None else len(outbox),
            "refused": 0 if outbox is None else len(outbox.refused),
            "error": None if outbox is None or outbox.error is None else str(outbox.error),
        }

    # --- pickling ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Keep the recipe and the identity; the run itself stays with its process."""
        kept = ("_given", "_recipe", "_finish_timeout", "_max_pending", "_id", "_run", "_latest", "_unsent")
        return {key: self.__dict__[key] for key in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a recipe, ready to start."""
        self.__dict__.update(state)
        self._set_idle()

    def __repr__(self) -> str:
        return f"MLflowLogger({self._given['tracking_uri']!r}, run_id={self._id!r})"

    # --- the run -------------------------------------------------------------------------------------

    def preflight(self) -> None:
        """Raise ``ImportError`` if MLflow is not installed: a tee asks before training begins."""
        check("mlflow", extra="mlflow", who="MLflowLogger")

    _is_final = staticmethod(is_final)

    def _begin(self) -> tuple[Callable[[list[Operation]], None], Callable[[str], None]]:
        with alone(self._given["tracking_uri"]):
            self._client = client = connect(self._given["tracking_uri"])
            self._given["tracking_uri"] = absolute(client.tracking_uri)
            if self._run is not None:
                run = existing_run(client, self._run)
            else:
                run = own_run(
                    client,
                    self._recipe["experiment"],
                    self._id,
                    name=self._recipe["name"],
                    artifacts=self._recipe["artifact_location"],
                )
        self._run, self._experiment_id = run.info.run_id, run.info.experiment_id
        waiting = {key: text for kind, *rest in self._unsent if kind == "params" for key, text in rest[0].items()}
        known = versions({**run.data.params, **waiting}, LONGEST_PARAM)
        self._params = {name: values[-1] for name, values in known.items()}
        self._versions = {name: len(values) for name, values in known.items()}
        cuts = versions({k: v for k, v in run.data.tags.items() if k.startswith(CUTS_TAG)}, LONGEST_TAG)
        self._cuts = json.loads(cuts.get(CUTS_TAG, ["[]"])[-1])
        say = self._news.append
        return partial(deliver, client, self._run, say), lambda status: end(client, run.info.run_id, STATUSES[status])

    def _put_params(self, texts: Mapping[str, str]) -> None:
        if self._start() is None:
            return
        for name, words in texts.items():
            if self._params.get(name) == words:
                continue
            version = self._versions.get(name, 0) + 1
            stored = encode(name) + (f":v{version}" if version > 1 else "")
            self._put(["params", pieces(stored, words, LONGEST_PARAM)])  # alone: a refusal costs no other
            self._params[name], self._versions[name] = words, version

    def _first(self) -> Iterable[Operation]:
        if tags := self._recipe["tags"]:
            yield ["tags", tags]


def _checked_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise MetricNameError(f"the {what} must be a non-empty string, got {name!r}")
    try:
        return encode(name)
    except ValueError as error:
        raise MetricNameError(f"the {what} {name!r}: {error}") from None


def _storable(step: int) -> int:
    if step > _LAST_STEP:
        raise StepError(f"MLflow's steps go up to 2**63 - 1, got {step}")
    return step


def logger_of(run: Any) -> MLflowLogger:
    """Return the logger of a run of MLflow's own, which goes on with it at the current tracking URI."""
    return MLflowLogger(run=run)


__all__ = ["STATUSES", "MLflowLogger", "logger_of"]
