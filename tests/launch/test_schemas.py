"""Manifests against schemas: the Job of a JobSet against those of Kubernetes, the rest against what its project documents."""

import re
from typing import Any

import pytest
import yaml

from tests.launching import EVIL, printed

pytestmark = pytest.mark.unit

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not here: pip install kubernetes-validate")

NAME = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
RULE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "action"],
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "action": {"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
        "onJobFailureReasons": {"type": "array", "items": {"enum": ["PodFailurePolicy", "BackoffLimitExceeded"]}},
        "onJobFailureMessagePatterns": {"type": "array", "items": {"type": "string", "format": "regex"}},
        "targetReplicatedJobs": {"type": "array", "items": NAME},
    },
}
JOBSET = {  # jobset.x-k8s.io/v1alpha2 of JobSet 0.10, as far as it is used
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {
                "name": NAME,
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["replicatedJobs"],
            "properties": {
                "network": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "enableDNSHostnames": {"type": "boolean"},
                        "publishNotReadyAddresses": {"type": "boolean"},
                        "subdomain": NAME,
                    },
                },
                "failurePolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "maxRestarts": {"type": "integer", "minimum": 0},
                        "restartStrategy": {"enum": ["Recreate", "BlockingRecreate"]},
                        "rules": {"type": "array", "items": RULE},
                    },
                },
                "replicatedJobs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name", "template"],
                        "properties": {
                            "name": NAME,
                            "replicas": {"type": "integer", "minimum": 1},
                            "template": {"type": "object"},
                        },
                    },
                },
            },
        },
    },
}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
TASK = {  # a task of SkyPilot 0.14, as far as it is used
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "num_nodes": {"type": "integer", "minimum": 1},
        "workdir": {"type": "string"},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "infra": {"type": "string", "pattern": "^[a-z0-9]+(/[^/]+){0,2}$"},
                "accelerators": {"type": "string", "pattern": "^[A-Za-z0-9._-]+:[0-9]+$"},
                "use_spot": {"type": "boolean"},
                "job_recovery": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "max_restarts_on_errors": {"type": "integer", "minimum": 0},
                        "recover_on_exit_codes": {
                            "type": "array",
                            "items": {"type": "integer", "minimum": 0, "maximum": 255},
                        },
                    },
                },
            },
        },
        "file_mounts": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "source": {"type": "string", "pattern": "^[a-z0-9]+://"},
                    "mode": {"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]},
                },
            },
        },
        "envs": TEXTS,
        "setup": {"type": "string"},
        "run": {"type": "string"},
    },
}
JOBSETS: tuple[tuple[str, ...], ...] = (
    (),
    ("--no-spot", "--topology", "v5p:4x4x8", "--slices", "2"),
    ("--gpus-per-node", "8", "--gpu", "nvidia-h200-141gb"),
    ("--gpus-per-node", "4", "--bucket", "mine", "--env", "A=$(B) \"x\" 'y': #"),
)


def check(found: Any, schema: dict[str, Any]) -> None:
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schema)
    errors = [f"{error.json_path}: {error.message}" for error in kind(schema).iter_errors(found)]
    assert not errors, "\n".join(errors)


def jobset(*settings: str, train: tuple[str, ...] = ()) -> dict[str, Any]:
    return yaml.safe_load(printed("jobset", *settings, train=train))


def job_spec(manifest: dict[str, Any]) -> dict[str, Any]:
    (group,) = manifest["spec"]["replicatedJobs"]
    return group["template"]["spec"]


@pytest.mark.parametrize("settings", JOBSETS)
def test_jobsets(settings: tuple[str, ...]) -> None:
    check(jobset(*settings), JOBSET)
    check(jobset(*settings, train=EVIL), JOBSET)


@pytest.mark.parametrize("settings", JOBSETS)
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_its_job_by_the_schemas_of_kubernetes(settings: tuple[str, ...], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "spanjax-workers-0"}}
    for train in ((), EVIL):
        validate.validate(job | {"spec": job_spec(jobset(*settings, train=train))}, version, strict=True)


def test_a_wrong_job_is_seen() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    spec = job_spec(jobset())
    spec["template"]["spec"]["containers"][0]["comand"] = ["python"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(validate.ValidationError, match="comand"):
        validate.validate(job, "1.31", strict=True)


@pytest.mark.parametrize(
    ("ended", "action"),
    [
        ({"code": 2}, "FailJobSet"),
        ({"code": 75}, "RestartJobSetAndIgnoreMaxRestarts"),
        ({"code": 75, "disrupted": True}, "RestartJobSetAndIgnoreMaxRestarts"),
        ({"code": 137, "disrupted": True}, "RestartJobSetAndIgnoreMaxRestarts"),
        ({"code": 1}, "RestartJobSet"),
        ({"code": 3}, "RestartJobSet"),
    ],
)
def test_what_an_end_of_a_pod_leads_to(ended: dict[str, Any], action: str) -> None:
    """The first rule that matches counts, and the message of the Job ends with its number, in the words of its controller."""
    manifest = jobset()
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for number, rule in enumerate(job_spec(manifest)["podFailurePolicy"]["rules"]):
        assert rule["action"] == "FailJob"
        codes = rule.get("onExitCodes", {"values": []})["values"]
        if ended["code"] in codes or ("onPodConditions" in rule and ended.get("disrupted")):
            reason, message = "PodFailurePolicy", f"... matching FailJob rule at index {number}"
            break
    policy = manifest["spec"]["failurePolicy"]
    matching = (
        rule["action"]
        for rule in policy["rules"]
        if reason in rule["onJobFailureReasons"]
        and any(re.search(p, message) for p in rule["onJobFailureMessagePatterns"])
    )
    assert next(matching, "RestartJobSet") == action


def test_nodes_chips_and_times_of_a_jobset() -> None:
    spec = job_spec(jobset("--topology", "v6e:4x4", "--grace-seconds", "90"))
    assert spec["completionMode"] == "Indexed" and spec["backoffLimit"] == 0
    assert spec["completions"] == spec["parallelism"] == 4
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 90
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": 4}}
    labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4"}
    assert pod["nodeSelector"] == labels | {"cloud.google.com/gke-spot": "true"}
    gpus = job_spec(jobset("--gpus-per-node", "8", "--no-spot"))["template"]["spec"]
    assert gpus["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}} and "nodeSelector" not in gpus


@pytest.mark.parametrize("settings", [(), ("--infra", "gcp/us-central1", "--no-spot", "--env", "A=b: # 'c' \"d\"")])
def test_tasks_of_skypilot(settings: tuple[str, ...]) -> None:
    for train in ((), EVIL):
        task = yaml.safe_load(printed("skypilot", *settings, train=train))
        check(task, TASK)
        assert not settings or task["envs"]["A"] == "b: # 'c' \"d\""


@pytest.mark.parametrize("settings", [(), ("--infra", "gcp/us-central1", "--no-spot")])
def test_tasks_by_the_schemas_of_skypilot(settings: tuple[str, ...]) -> None:
    schemas = pytest.importorskip("sky.utils.schemas", reason="SkyPilot is not here: pip install skypilot")
    task = yaml.safe_load(printed("skypilot", *settings))
    for found, schema in (
        (task, schemas.get_task_schema()),
        (task["resources"], schemas.get_resources_schema()),
        (task["file_mounts"]["/data"], schemas.get_storage_schema()),
    ):
        errors = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(found)]
        assert not errors, "\n".join(errors)
