"""The two trackers: Weights & Biases and MLflow. The only file that imports them, and only when they are requested."""

import os
import pathlib
import signal
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spanjax.sharding import named_leaves
from spanjax.training.redaction import redacted
from spanjax.training.trackers.queue import Ending, Record, reason_of

if TYPE_CHECKING:
    from spanjax.training.trackers.settings import Tracking

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
# Set unless the user has: no report of errors or use to the makers, no URL on stdout (it can hold a password), no retries and
# warnings of MLflow's own in addition to those of `Delivery`.
ENVIRONMENT = {
    "wandb": {"WANDB_ERROR_REPORTING": "false"},
    "mlflow": {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    },
}
WANDB_FINISH_S = 20.0
# A killed process takes wandb's service with it, and the records that the service has not written: measured, all of the first
# seconds at its own interval of 15 s.
WANDB_FLUSH_S, WANDB_OFFLINE_DURABLE_S, WANDB_ONLINE_DURABLE_S = 1.0, 3.0, 30.0
MLFLOW_PARAMETERS, MLFLOW_METRICS = 100, 1000  # the most that one request may hold
MLFLOW_TAG = "spanjax.run"
NEWEST = "/step"  # the metric train/step: the newest step whose numbers have arrived


def import_problem(name: str) -> str | None:
    """Returns a message if the package of a tracker does not import, with the remedy; else None."""
    for variable, value in ENVIRONMENT[name].items():
        os.environ.setdefault(variable, value)
    remedy = f"pip install {PACKAGES[name]}, or leave {name} out of --tracking.to"
    try:
        _wandb() if name == "wandb" else _mlflow()
    except ModuleNotFoundError as error:
        return f"tracking.to names {name}, whose package does not import ({error}): {remedy}"
    except Exception as error:
        return f"tracking.to names {name}, whose package fails to import ({reason_of(error)}): {remedy}"


def _wandb() -> Any:
    import wandb  # pyright: ignore[reportMissingImports]

    return wandb


def _mlflow() -> Any:
    import mlflow  # pyright: ignore[reportMissingImports]
    import mlflow.entities  # pyright: ignore[reportMissingImports]
    import mlflow.tracking  # pyright: ignore[reportMissingImports]

    return mlflow


class Wandb:
    """One run of Weights & Biases, under an id of ours: a later process with the same id resumes it.

    The x-axis of every curve is the metric `step`, not the number of calls, so a run that went back a few steps stays one curve.
    Records that a kill may have lost are sent again: up to `durable_after_s` seconds of them can appear twice, at the same step
    with the same losses.
    """

    name = "wandb"

    def __init__(self, settings: "Tracking", id: str, run_name: str, config: Mapping[str, Any], workdir: pathlib.Path):
        self.settings, self.id, self.run_name = settings, id, run_name
        self.config, self.workdir = redacted(config), workdir
        self.run: Any = None
        self.mode = "offline" if settings.mode == "offline" else os.environ.get("WANDB_MODE", "online")
        self.durable_after_s = WANDB_ONLINE_DURABLE_S if self.mode == "online" else WANDB_OFFLINE_DURABLE_S

    def open(self) -> tuple[str, None]:
        """Starts or resumes the run; RuntimeError if it is online and there is no login."""
        wandb, settings = _wandb(), self.settings
        if self.run is not None:
            self.run = None
            wandb.teardown()  # its service has failed: wandb.init starts a new one
        if self.mode == "online" and not wandb.login(prompt=False):
            raise RuntimeError("no login: set WANDB_API_KEY, call `wandb login`, or take --tracking.mode offline")
        self.run = wandb.init(
            id=self.id,
            resume="allow",
            mode=self.mode,
            dir=str(self.workdir),
            project=settings.project,
            name=self.run_name,
            group=settings.group or None,
            tags=list(settings.tags) or None,
            config=self.config,
            allow_val_change=True,
            settings=wandb.Settings(
                silent=True,
                console="off",  # neither printed text, nor the command line, nor git's remote leaves the machine
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_save_requirements=False,
                x_transaction_log_flush_interval=WANDB_FLUSH_S,
                finish_timeout=WANDB_FINISH_S,  # also at the exit of the process
            ),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        if self.mode == "online":
            return f"run {self.id}: {self.run.url}", None
        folder = self.workdir / "wandb"
        return f"run {self.id} ({self.mode}) in {folder}; `wandb sync {folder}/offline-run-*-{self.id}` sends it", None

    def send(self, records: Sequence[Record]) -> None:
        """Logs every record with its step as a metric."""
        for record in records:
            self.run.log({"step": record.step, **record.values})

    def finish(self, ending: Ending) -> None:
        """Marks the run as finished, as preempted, or as failed."""
        if ending == "stopped":
            self.run.mark_preempting()
        self.run.finish(exit_code=0 if ending == "finished" else 1)

    def abandon(self) -> None:
        """Kills wandb's service: at its exit this process would wait for it, for ever if the service hangs."""
        for children in pathlib.Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                if pathlib.Path("/proc", child, "comm").read_text().strip() == "wandb-core":
                    os.kill(int(child), signal.SIGKILL)


class MLflow:
    """One run of MLflow. The server assigns the id; until it is known, a tag of ours finds the run.

    MLflow keeps two values of one step side by side, so nothing is sent twice: every record ends with the metric `train/step`
    (or `eval/step`), and a later process sends only records newer than the server's value.
    """

    name = "mlflow"
    durable_after_s = 0.0

    def __init__(
        self,
        settings: "Tracking",
        identity: Mapping[str, str],
        note_id: Callable[[str], None],
        run_name: str,
        config: Mapping[str, Any],
        workdir: pathlib.Path,
    ):
        self.settings, self.identity, self.note_id, self.run_name = settings, identity, note_id, run_name
        self.uri = _without_password(
            settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or (workdir / "mlruns").absolute().as_uri()
        )
        self.in_files = urllib.parse.urlsplit(self.uri).scheme in ("", "file")
        if self.in_files:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self.parameters = _parameters(redacted(config))
        self.client: Any = None
        self.run_id = ""
        self.newest_of: dict[str, int] = {}

    def open(self) -> tuple[str, Mapping[str, int]]:
        """Finds or makes the run, marks it as running and adds parameters that it does not have."""
        mlflow = _mlflow()
        self.client = mlflow.tracking.MlflowClient(tracking_uri=self.uri)
        run = self._known(mlflow) or self._tagged() or self._new()
        self.run_id = run.info.run_id
        self.note_id(self.run_id)
        if run.info.status != "RUNNING":
            self.client.update_run(self.run_id, status="RUNNING")
        missing = [mlflow.entities.Param(k, v) for k, v in self.parameters.items() if k not in run.data.params]
        for begin in range(0, len(missing), MLFLOW_PARAMETERS):
            self.client.log_batch(self.run_id, params=missing[begin : begin + MLFLOW_PARAMETERS])
        if self.in_files:  # a kill in the middle of a request leaves a part of its numbers
            history = {name: self.client.get_metric_history(self.run_id, name) for name in run.data.metrics}
            self.newest_of = {name: max(metric.step for metric in metrics) for name, metrics in history.items()}
        newest = {name: int(value) for name, value in run.data.metrics.items() if name.endswith(NEWEST)}
        held = {name.removesuffix(NEWEST): step for name, step in newest.items()}
        return f"run {self.run_id} of experiment {self.settings.project} in {self.uri}", held

    def send(self, records: Sequence[Record]) -> None:
        """Logs records, as many in a request as it may hold."""
        group: list[Any] = []
        for record in records:
            values = {**record.values, f"{record.kind}{NEWEST}": record.step}
            group += [
                _mlflow().entities.Metric(name, float(value), record.milliseconds, record.step)
                for name, value in values.items()
                if record.step > self.newest_of.get(name, -1)
            ]
            if len(group) + len(values) > MLFLOW_METRICS or record is records[-1]:
                self.client.log_batch(self.run_id, metrics=group)
                group = []

    def finish(self, ending: Ending) -> None:
        """Marks the run as finished, killed or failed."""
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[ending]
        self.client.set_terminated(self.run_id, status)

    def abandon(self) -> None:
        """Nothing to do: a daemon thread is not waited for."""

    def _known(self, mlflow: Any) -> Any:
        if not self.identity["id"]:
            return None
        try:
            return self.client.get_run(self.identity["id"])
        except mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None  # another server than before: `_new` creates the run there, with all its records

    def _tagged(self) -> Any:
        experiment = self.client.get_experiment_by_name(self.settings.project)
        if experiment is None:
            return None
        which = f"tags.`{MLFLOW_TAG}` = '{self.identity['tag']}'"
        return next(iter(self.client.search_runs([experiment.experiment_id], which, max_results=1)), None)

    def _new(self) -> Any:
        experiment = self.client.get_experiment_by_name(self.settings.project)
        id = experiment.experiment_id if experiment else self.client.create_experiment(self.settings.project)
        named = (tag.partition("=") for tag in self.settings.tags)
        tags = {name: value or "true" for name, _, value in named}
        tags |= {"group": self.settings.group} if self.settings.group else {}
        run = self.client.create_run(id, run_name=self.run_name, tags={**tags, MLFLOW_TAG: self.identity["tag"]})
        return self.client.get_run(run.info.run_id)


def _without_password(uri: str) -> str:
    """Returns a URI that may be logged: user and password of an http server move into MLflow's own variables."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme not in ("http", "https") or not (parts.username and parts.password):
        return uri
    os.environ.setdefault("MLFLOW_TRACKING_USERNAME", urllib.parse.unquote(parts.username))
    os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", urllib.parse.unquote(parts.password))
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns path name -> value of every setting, as text of at most 6,000 characters (MLflow's limit)."""

    def keyed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            value = {str(place): part for place, part in enumerate(value)}
        return {key: keyed(part) for key, part in value.items()} if isinstance(value, Mapping) else value

    return {name: str(value)[:6000] for name, value in named_leaves(keyed(config)).items()}
