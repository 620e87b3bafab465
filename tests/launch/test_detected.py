"""The variables that launch files set, with those of their platforms, are what spanjax.distributed reads."""

import pathlib
import re
from typing import Any

import pytest
import yaml

from spanjax.distributed import Launch, detect
from spanjax.distributed.launchers import TOKEN
from tests.launching import ARGV, printed, programs, run_script, seen

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "8"}
PORT = 4711 % 4096 + 65535 - 4096 + 1


def exported(text: str) -> dict[str, str]:
    """Variables that a script exports."""
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.M))


GROUP = {f"jobset.sigs.k8s.io/{key}": "a" for key in ("jobset-name", "replicatedjob-name")}


def pods(*settings: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The replicated job of a JobSet and its `env`."""
    manifest = yaml.safe_load(printed("jobset", *settings))
    assert manifest["metadata"]["name"] == "spanjax"
    (group,) = manifest["spec"]["replicatedJobs"]
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    return group, container["env"]


def pod_variables(env: list[dict[str, Any]], annotations: dict[str, str]) -> dict[str, str]:
    """What a pod with these annotations, and the JobSet's uid, gets of an `env`."""
    found, annotations = {}, {**annotations, "jobset.sigs.k8s.io/jobset-uid": "uid"}
    for entry in env:
        if "value" in entry:
            found[entry["name"]] = entry["value"]
        else:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            found[entry["name"]] = annotations[re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)[1]]  # pyright: ignore
    return found


def is_process(found: Launch, index: int, count: int, coordinator: str, devices: int) -> None:
    assert (found.process_id, found.processes, found.devices) == (index, count, devices)
    assert found.coordinator == coordinator and not found.notes


@pytest.mark.parametrize("index", [0, 1])
def test_slurm_one_task_a_node(index: int) -> None:
    own = {"SLURM_PROCID": str(index), "SLURM_NODEID": str(index), "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    more = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    found = detect(SLURM | own | more | exported(printed("slurm")))
    is_process(found, index, 2, f"n1:{PORT}", 16)
    assert (found.kind, found.local_devices, found.local_device_ids) == ("slurm", 8, None)


def test_slurm_one_task_a_gpu() -> None:
    own = {"SLURM_PROCID": "13", "SLURM_NODEID": "1", "SLURM_LOCALID": "5", "SLURM_NTASKS": "16"}
    text = printed("slurm", "--tasks-per-node", "8")
    found = detect(SLURM | own | {"SLURM_STEP_TASKS_PER_NODE": "8(x2)"} | exported(text))
    is_process(found, 13, 16, f"n1:{PORT}", 16)
    assert found.local_device_ids == (5,)


@pytest.mark.parametrize("index", [0, 2])
def test_jobset_with_gpus(index: int) -> None:
    group, env = pods("--gpus-per-node", "8", "--nodes", "3")
    keys = {"jobset-name": "spanjax", "replicatedjob-name": group["name"], "job-index": "0"}
    annotations = {f"jobset.sigs.k8s.io/{key}": value for key, value in keys.items()}
    found = detect(pod_variables(env, annotations) | {"JOB_COMPLETION_INDEX": str(index)})
    is_process(found, index, 3, "spanjax-workers-0-0.spanjax:3389", 24)
    assert found.kind == "jobset" and group["template"]["spec"]["completions"] == 3


@pytest.mark.parametrize(("slices", "part", "index"), [(1, 0, 5), (2, 1, 7)])
def test_jobset_with_tpu_slices(slices: int, part: int, index: int) -> None:
    group, env = pods("--slices", str(slices))
    hosts = group["template"]["spec"]["completions"]
    assert (hosts, group["replicas"]) == (8, slices)
    names = [f"spanjax-workers-{part}-{each}.spanjax" for each in range(hosts)]
    gke = {"TPU_WORKER_HOSTNAMES": ",".join(names), "TPU_WORKER_ID": str(index), "JOB_COMPLETION_INDEX": str(index)}
    if slices > 1:
        gke |= {"MEGASCALE_NUM_SLICES": str(slices), "MEGASCALE_SLICE_ID": str(part)}
        gke |= {"MEGASCALE_COORDINATOR_ADDRESS": "spanjax-workers-0-0.spanjax"}
    found = detect(pod_variables(env, {}) | gke)
    is_process(found, part * 8 + index, 8 * slices, "spanjax-workers-0-0.spanjax:8482", 32 * slices)
    assert found.kind == "tpu"


@pytest.mark.parametrize("index", [0, 1])
def test_skypilot(index: int) -> None:
    task = yaml.safe_load(printed("skypilot"))
    sky = {
        "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
        "SKYPILOT_NODE_RANK": str(index),
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    }
    assert task["num_nodes"] == 2 and task["resources"]["accelerators"] == "H100:8"
    found = detect(task["envs"] | sky)
    is_process(found, index, 2, "10.0.0.5:8476", 16)
    assert found.local_devices == 8


def test_every_file_gives_the_processes_a_token(tmp_path: pathlib.Path) -> None:
    """Another one for each submission; the one of --env wins."""
    for settings in ((), ("--gpus-per-node", "8")):
        assert pod_variables(pods(*settings)[1], GROUP)[TOKEN] == "uid"
        assert pod_variables(pods(*settings, "--env", f"{TOKEN}=mine")[1], GROUP)[TOKEN] == "mine"
    run = yaml.safe_load(printed("skypilot"))["run"]
    assert run.splitlines()[0].startswith(f'export {TOKEN}="${{SKYPILOT_TASK_ID:-}}"')
    drawn = []
    for _ in range(2):
        run_script(printed("xpk"), tmp_path, programs(tmp_path / "bin", xpk=ARGV))
        drawn += [word for word in seen(tmp_path / "bin") if word.startswith(TOKEN)]
    gcloud = '#!/usr/bin/env bash\ncase "$*" in *describe*) echo ACTIVE ;; *ssh*) printf "%s\\0" "$@" >"$ARGV_FILE" ;; esac\n'
    for _ in range(2):
        run_script(printed("tpu-vm"), tmp_path, programs(tmp_path / "bin", gcloud=gcloud))
        command = seen(tmp_path / "bin")[-1].removeprefix("--command=")
        assert f'--env="{TOKEN}=${TOKEN}"' in command
        drawn.append(command.splitlines()[0])
    assert len(set(drawn)) == 4 and all(re.fullmatch(f"{TOKEN}=[0-9a-f]{{32}}", word) for word in drawn)


def test_tpu_vm_and_xpk_count_all_chips() -> None:
    assert "--env=SPANJAX_EXPECTED_DEVICES=32" in printed("tpu-vm")
    assert "--env SPANJAX_EXPECTED_DEVICES=64" in printed("xpk", "--slices", "2")
    assert (
        detect({"SPANJAX_EXPECTED_DEVICES": "32"}, tpu_chips=4).processes is None
    )  # the metadata of the VM know the rest
