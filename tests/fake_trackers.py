"""Stand-ins for the packages wandb and mlflow that keep in memory what they were given, and fail or hang on request."""

import sys
import threading
import types
from typing import Any, NamedTuple

import pytest

from spanjax.training.trackers import mlflow as mlflow_tracker
from spanjax.training.trackers import wandb as wandb_tracker


class Faults:
    """What goes wrong: `calls` names methods that raise, `hanging` those that never return."""

    def __init__(self) -> None:
        self.calls: dict[str, BaseException] = {}
        self.hanging: set[str] = set()
        self.asked: list[str] = []
        self.released = threading.Event()

    def at(self, call: str) -> None:
        self.asked.append(call)
        if call in self.hanging:
            self.released.wait(60)
        if call in self.calls:
            raise self.calls[call]


class FakeWandb(types.ModuleType):
    """`runs` holds the rows logged under every id, over all processes."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.faults, self.runs, self.started = Faults(), dict[str, list[dict[str, float]]](), list[dict[str, Any]]()
        self.endings, self.logged_in, self.torn_down = list[int](), True, 0
        self.run: FakeWandbRun | None = None

    def Settings(self, **values: Any) -> dict[str, Any]:
        return values

    def login(self, prompt: bool) -> bool:
        assert not prompt, "nobody sits at the terminal of a training run"
        return self.logged_in

    def teardown(self) -> None:
        self.torn_down, self.run = self.torn_down + 1, None

    def init(self, **arguments: Any) -> "FakeWandbRun":
        self.faults.at("init")
        self.started.append(arguments)
        self.run = FakeWandbRun(self, arguments["id"])
        return self.run


class FakeWandbRun:
    """A run that logs into the rows of its id."""

    url = "https://wandb.example/run"

    def __init__(self, module: FakeWandb, id: str):
        self.module, self.id, self.axes = module, id, dict[str, str | None]()
        self.rows = module.runs.setdefault(id, [])

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def log(self, row: dict[str, float]) -> None:
        self.module.faults.at("log")
        assert self.axes["*"] == "step"
        self.rows.append(row)

    def mark_preempting(self) -> None:
        self.module.faults.at("preempting")

    def finish(self, exit_code: int) -> None:
        self.module.faults.at("finish")
        self.module.endings.append(exit_code)
        self.module.run = None


class Metric(NamedTuple):
    """mlflow.entities.Metric."""

    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    """mlflow.entities.Param."""

    key: str
    value: str


class MlflowException(Exception):
    """mlflow.exceptions.MlflowException."""

    error_code = "RESOURCE_DOES_NOT_EXIST"


class StoredRun:
    """One run of a FakeMlflow; `history` is every metric that it was given."""

    def __init__(self, id: str, tags: dict[str, str]):
        self.info = types.SimpleNamespace(run_id=id, status="RUNNING")
        self.history, self.params, self.tags = list[Metric](), dict[str, str](), tags

    @property
    def data(self) -> types.SimpleNamespace:
        newest = {m.key: m.value for m in sorted(self.history, key=lambda m: (m.step, m.timestamp))}
        return types.SimpleNamespace(metrics=newest, params=dict(self.params), tags=self.tags)


class FakeMlflow(types.ModuleType):
    """`stores` holds the runs of every server by its URI."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.faults, self.stores = Faults(), dict[str, dict[str, StoredRun]]()
        self.entities = types.SimpleNamespace(Metric=Metric, Param=Param)
        self.exceptions = types.SimpleNamespace(MlflowException=MlflowException)
        self.tracking = types.SimpleNamespace(MlflowClient=lambda tracking_uri: FakeClient(self, tracking_uri))

    def only_run(self) -> StoredRun:
        (run,) = (run for store in self.stores.values() for run in store.values())
        return run


class FakeClient:
    """mlflow.tracking.MlflowClient; every server has one experiment."""

    def __init__(self, module: FakeMlflow, uri: str):
        module.faults.at("connect")
        self.module, self.store = module, module.stores.setdefault(uri, {})

    def get_experiment_by_name(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id="1")

    def search_runs(self, experiments: list[str], query: str, max_results: int) -> list[StoredRun]:
        return [run for run in self.store.values() if f"'{run.tags['spanjax.run']}'" in query][:max_results]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> StoredRun:
        assert run_name
        run = StoredRun(f"run{sum(map(len, self.module.stores.values()))}", tags)
        run.info.run_name = run_name
        self.store[run.info.run_id] = run
        self.module.faults.at("created")
        return run

    def get_run(self, id: str) -> StoredRun:
        self.module.faults.at("get_run")
        if id not in self.store:
            raise MlflowException(f"Run {id} not found")
        return self.store[id]

    def get_metric_history(self, id: str, name: str) -> list[Metric]:
        return [metric for metric in self.store[id].history if metric.key == name]

    def update_run(self, id: str, status: str) -> None:
        self.store[id].info.status = status

    def log_batch(self, id: str, metrics: list[Metric] = [], params: list[Param] = []) -> None:  # noqa: B006
        self.module.faults.at("log")
        if "cut" in self.module.faults.calls and metrics:
            self.store[id].history += metrics[:1]
            self.module.faults.at("cut")
        assert len(metrics) <= 1000 and len(params) <= 100
        self.store[id].history += metrics
        assert not set(self.store[id].params) & {p.key for p in params}, "a parameter cannot be set again"
        self.store[id].params |= {p.key: p.value for p in params}

    def set_terminated(self, id: str, status: str) -> None:
        self.module.faults.at("finish")
        self.store[id].info.status = status


def install_fakes(patch: pytest.MonkeyPatch) -> tuple[FakeWandb, FakeMlflow]:
    """Both packages replaced for the duration of a test."""
    wandb, mlflow = FakeWandb(), FakeMlflow()
    patch.setitem(sys.modules, "wandb", wandb)
    for name, module in {
        "mlflow": mlflow,
        "mlflow.entities": mlflow.entities,
        "mlflow.tracking": mlflow.tracking,
    }.items():
        patch.setitem(sys.modules, name, module)
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        patch.delenv(variable, raising=False)
    for variable, value in (wandb_tracker.ENVIRONMENT | mlflow_tracker.ENVIRONMENT).items():
        patch.setenv(variable, value)  # set here, so that what the code under test sets is undone
    return wandb, mlflow
