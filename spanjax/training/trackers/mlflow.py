"""MLflow tracker. The only file that imports mlflow, and only when it is requested."""

import dataclasses
import os
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanjax.sharding import named_leaves
from spanjax.training.redaction import redacted
from spanjax.training.trackers.base import Connection, Ending, Record, TrackedRun, Tracker

# Set unless the user has: no report of use to the makers, no URL on stdout (it can hold a password), no retries and warnings of
# MLflow's own in addition to those of `Delivery`, and the store in files, which is the default here.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
PARAMETERS, METRICS = 100, 1000  # the most that one request may hold
TAG = "spanjax.run"
NEWEST = "/step"  # the metric train/step: the newest step whose numbers have arrived


def _mlflow() -> Any:
    import mlflow  # pyright: ignore[reportMissingImports]
    import mlflow.entities  # pyright: ignore[reportMissingImports]
    import mlflow.tracking  # pyright: ignore[reportMissingImports]

    return mlflow


@dataclasses.dataclass(frozen=True)
class MLflow(Tracker):
    """One run of MLflow. The server assigns the id; until it is known, a tag of ours finds the run.

    MLflow keeps two values of one step side by side, so nothing is sent twice: every record ends with the metric `train/step`
    (or `eval/step`), and a later process sends only records newer than the server's value.
    """

    package: ClassVar[str] = "mlflow-skinny"
    login: ClassVar[str] = (
        "give the URI without it and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN, or the"
        " whole MLFLOW_TRACKING_URI) in the environment"
    )
    project: str = "spanjax"
    """Experiment."""
    name: str = ""
    """Name of the run; by default that of the work directory."""
    group: str = ""
    """The tag `group`."""
    tags: tuple[str, ...] = ()
    """Tags: NAME=VALUE, or NAME for NAME=true."""
    uri: str = ""
    """Server or store; by default MLFLOW_TRACKING_URI, else the folder `mlruns` of the work directory."""

    def problems(self) -> list[str]:
        """Implements `Tracker.problems`."""
        return ([] if self.project.strip() else ["project is empty: give a name"]) + super().problems()

    def require(self) -> None:
        """Imports mlflow."""
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        _without_password(self._uri())  # now, as no thread may change the environment while others read it
        _mlflow()

    def new_ids(self) -> dict[str, str]:
        """Returns an empty id, which the server assigns, and the tag by which the run is found until then."""
        return {"id": "", "tag": uuid.uuid4().hex}

    def open(self, run: TrackedRun) -> Connection:
        """Finds or makes the run, marks it as running and adds parameters that it does not have."""
        mlflow, uri = _mlflow(), _without_password(self._uri() or (run.workdir / "mlruns").absolute().as_uri())
        client = mlflow.tracking.MlflowClient(tracking_uri=uri)
        opened = self._known(client, run, mlflow) or self._tagged(client, run) or self._new(client, run)
        id = opened.info.run_id
        run.set_id(id)
        if opened.info.status != "RUNNING":
            client.update_run(id, status="RUNNING")
        parameters = _parameters(run.config).items()
        missing = [mlflow.entities.Param(k, v) for k, v in parameters if k not in opened.data.params]
        for begin in range(0, len(missing), PARAMETERS):
            client.log_batch(id, params=missing[begin : begin + PARAMETERS])
        newest_of = dict[str, int]()
        if urllib.parse.urlsplit(uri).scheme in ("", "file"):
            # a kill in the middle of a request leaves a part of its numbers in the files
            history = {name: client.get_metric_history(id, name) for name in opened.data.metrics}
            newest_of = {name: max(metric.step for metric in metrics) for name, metrics in history.items()}
        newest = {name: int(value) for name, value in opened.data.metrics.items() if name.endswith(NEWEST)}
        held = {name.removesuffix(NEWEST): step for name, step in newest.items()}
        return MLflowRun(client, id, held, newest_of, f"run {id} of experiment {self.project} in {uri}")

    def _uri(self) -> str:
        return self.uri or os.environ.get("MLFLOW_TRACKING_URI", "")

    def _known(self, client: Any, run: TrackedRun, mlflow: Any) -> Any:
        if not run.ids["id"]:
            return None
        try:
            return client.get_run(run.ids["id"])
        except mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None  # another server than before: `_new` creates the run there, with all its records

    def _experiment(self, client: Any) -> Any:
        found = client.get_experiment_by_name(redacted(self.project))
        return found and found.experiment_id

    def _tagged(self, client: Any, run: TrackedRun) -> Any:
        experiment = self._experiment(client)
        which = f"tags.`{TAG}` = '{run.ids['tag']}'"
        return experiment and next(iter(client.search_runs([experiment], which, max_results=1)), None)

    def _new(self, client: Any, run: TrackedRun) -> Any:
        experiment = self._experiment(client) or client.create_experiment(redacted(self.project))
        named = (tag.partition("=") for tag in redacted(self.tags))
        tags = {name: value or "true" for name, _, value in named}
        tags |= {"group": redacted(self.group)} if self.group else {}
        name = redacted(self.name) or run.name
        made = client.create_run(experiment, run_name=name, tags={**tags, TAG: run.ids["tag"]})
        return client.get_run(made.info.run_id)


class MLflowRun(Connection):
    """A run of a server or of a store in files."""

    def __init__(self, client: Any, id: str, held: Mapping[str, int], newest_of: Mapping[str, int], location: str):
        self.client, self.id, self.held, self.newest_of, self.location = client, id, held, newest_of, location

    def log_all(self, records: Sequence[Record]) -> None:
        """Logs records, as many in a request as it may hold."""
        group: list[Any] = []
        for record in records:
            values = {**record.values, f"{record.kind}{NEWEST}": record.step}
            group += [
                _mlflow().entities.Metric(name, float(value), record.milliseconds, record.step)
                for name, value in values.items()
                if record.step > self.newest_of.get(name, -1)
            ]
            if len(group) + len(values) > METRICS or record is records[-1]:
                self.client.log_batch(self.id, metrics=group)
                group = []

    def close(self, ending: Ending) -> None:
        """Marks the run as finished, killed or failed."""
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[ending]
        self.client.set_terminated(self.id, status)


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
