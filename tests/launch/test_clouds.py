"""Scripts for Google Cloud: the loop of the TPU VM with a gcloud that has no cloud, and real tools where they are."""

import os
import pathlib
import re
import subprocess

import pytest
import yaml

from tests.launching import EVIL, printed, programs, run_script, tool

# Its folder holds states, one a line (an empty line: there is no such resource; the last one stays), and exit codes of ssh.
GCLOUD = """#!/usr/bin/env bash
next() { # the first line of a file; it is taken away while there are others
  head -n 1 "$1"
  if [ "$(wc -l <"$1")" -gt 1 ]; then sed -i 1d "$1"; fi
}
here=$(dirname "$0")
case "$*" in
  *describe*) next "$here/states" ;;
  *ssh*) echo ssh >>"$here/calls"; exit "$(next "$here/codes")" ;;
  *create*)
    echo create >>"$here/calls"
    printf '%s\\n' "$@" >"$here/created"
    exit "$(cat "$here/refused" 2>/dev/null || echo 0)"
    ;;
  *delete*) echo delete >>"$here/calls" ;;
esac
"""


def loop(folder: pathlib.Path, states: list[str], codes: list[int], code: int, *settings: str) -> tuple[str, list[str]]:
    """Runs the script with these states and exit codes of the run; its output and what it asked gcloud for."""
    variables = programs(folder, gcloud=GCLOUD, sleep="#!/usr/bin/env bash\n")
    (folder / "states").write_text("".join(f"{state}\n" for state in states))
    (folder / "codes").write_text("".join(f"{each}\n" for each in codes))
    output = run_script(printed("tpu-vm", *settings), folder, variables, code)
    return output, (folder / "calls").read_text().split()


def test_a_slice_is_asked_for_trained_on_and_deleted(tmp_path: pathlib.Path) -> None:
    states = ["", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    _, calls = loop(tmp_path, states, [0], 0)
    assert calls == ["create", "ssh", "delete"]
    created = (tmp_path / "created").read_text().splitlines()
    assert created[:5] == ["compute", "tpus", "queued-resources", "create", "spanjax"]
    assert {"--accelerator-type=v5litepod-32", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"} <= set(created)


def test_a_slice_that_is_taken_is_asked_for_again(tmp_path: pathlib.Path) -> None:
    states = ["ACTIVE", "SUSPENDING", "SUSPENDED", "", "PROVISIONING", "ACTIVE"]
    output, calls = loop(tmp_path, states, [75, 0], 0, "--max-restarts", "0")
    assert calls == ["ssh", "delete", "create", "ssh", "delete"]
    assert "the run ended with 75" in output


def test_failures_on_a_slice_that_is_there_are_counted(tmp_path: pathlib.Path) -> None:
    output, calls = loop(tmp_path, ["ACTIVE"], [3], 3, "--max-restarts", "2")
    assert calls == ["ssh"] * 3
    assert "queued-resources delete spanjax --project=PROJECT --zone=us-west4-a --force" in output


def test_wrong_input_ends_it_at_once(tmp_path: pathlib.Path) -> None:
    _, calls = loop(tmp_path, ["ACTIVE"], [2], 2)
    assert calls == ["ssh"]


def test_a_slice_that_cannot_be_asked_for_ends_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "refused").write_text("1")
    _, calls = loop(tmp_path, [""], [0], 1)
    assert calls == ["create"]


@pytest.mark.slow
def test_gcloud_has_every_option_of_the_script() -> None:
    gcloud = tool("gcloud")
    if not gcloud:
        pytest.skip("gcloud is not here")
    text = printed("tpu-vm").replace("\\\n", " ").replace('"${place[@]}"', "--project --zone")
    calls = re.findall(r"^  gcloud (compute tpus [a-z-]+ (?:create|describe|delete|ssh)) (.*)$", text, re.M)
    assert len(calls) == 4
    for command, rest in calls:
        shown = subprocess.run([gcloud, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"--[a-z-]+", re.sub(r"\x1b\[[0-9;]*m|.\x08", "", shown)))
        used = set(re.findall(r"(--[a-z-]+)", re.sub(r"='[^']*'", "", rest)))
        assert len(used) >= 2 and used <= known, (command, used - known)


@pytest.mark.slow
@pytest.mark.parametrize("train", [(), EVIL], ids=["defaults", "evil"])
def test_xpk_makes_a_manifest_of_the_script(train: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    xpk = tool("xpk")
    if not xpk:
        pytest.skip("xpk is not here: pip install xpk")
    names = ("--cluster", "mine", "--project", "myproject", "--image", "us/image:tag", "--storage", "")
    text = printed("xpk", *names, train=train)
    dry = f"exec {xpk} workload create --dry-run --output-manifest-file={tmp_path}/manifest.yaml"
    variables = {**os.environ, "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}
    run_script(text.replace("exec xpk workload create", dry), tmp_path, variables)
    (group,) = yaml.safe_load((tmp_path / "manifest.yaml").read_text())["spec"]["replicatedJobs"]
    spec = group["template"]["spec"]
    assert spec["completions"] == 8 and spec["template"]["spec"]["terminationGracePeriodSeconds"] == 600
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert {3, 75} < set(rule["onExitCodes"]["values"]) and 2 not in rule["onExitCodes"]["values"]
    (container,) = spec["template"]["spec"]["containers"]
    assert {"name": "SPANJAX_EXPECTED_DEVICES", "value": "32"} in container["env"]
    command = text.partition("<<'END'\n")[2].partition("\nEND\n")[0]
    assert f"({command}) & PID=$!" in container["command"][2]
