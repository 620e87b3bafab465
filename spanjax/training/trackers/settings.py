"""Settings of the trackers."""

import dataclasses
from typing import Literal

from spanjax.training.redaction import holds_credentials


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Trackers in addition to metrics.jsonl and TensorBoard. Pass keys and passwords by environment or the tool's own login."""

    to: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Trackers: wandb (pip install wandb), mlflow (pip install mlflow-skinny)."""
    project: str = "spanjax"
    """Project in wandb, experiment in MLflow. The team in wandb is WANDB_ENTITY."""
    name: str = ""
    """Name of the run; by default that of the work directory."""
    group: str = ""
    """Group in wandb, the tag `group` in MLflow."""
    tags: tuple[str, ...] = ()
    """Tags; in MLflow NAME=VALUE, or NAME for NAME=true."""
    mode: Literal["online", "offline"] = "online"
    """wandb: online as WANDB_MODE says, or offline: into the folder `wandb` of the work directory, for `wandb sync`."""
    uri: str = ""
    """MLflow's server or store; by default MLFLOW_TRACKING_URI, else the folder `mlruns` of the work directory."""

    def problems(self) -> list[str]:
        """Returns a message for every problem of these values; empty if there is none. Repeats no credential."""
        found = []
        if len(set(self.to)) < len(self.to):
            found.append(f"tracking.to is {' '.join(self.to)}: name every tracker once")
        if not self.project.strip():
            found.append("tracking.project is empty: give a name")
        if holds_credentials(self.uri):
            found.append(
                "tracking.uri holds a user, password or token: a setting is written to files, so give the URI without it and set"
                " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN, or the whole"
                " MLFLOW_TRACKING_URI) in the environment"
            )
        return found
