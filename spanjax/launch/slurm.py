"""A SLURM batch script: saves before the time limit, requeues itself, and resumes."""

import dataclasses
import re

from spanjax.cli import PROCESSES_MISSING, STOPPED
from spanjax.distributed.variables import EXPECTED, STARTUP, TOKEN
from spanjax.launch.quoting import continued, exports, fill, options, word
from spanjax.launch.settings import DRAWN_TOKEN, Settings, at_least, merged, plain

SPARE_SECONDS = 20  # for SLURM to take a running job back into the queue before its time is over. Chosen, not measured.
TIME = re.compile(r"(\d+-)?\d{1,2}:\d{2}:\d{2}")
TEMPLATE = """\
#!/usr/bin/env bash
#SBATCH --job-name=@@name
#SBATCH --nodes=@@nodes
#SBATCH --ntasks-per-node=@@tasks
#SBATCH --cpus-per-task=@@cpus
@@gpus
#SBATCH --time=@@time
@@partition
@@account
#SBATCH --signal=B:@@signal
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#
# Trains on @@what. From the folder of the repository: sbatch @@file
# The work directory and the rows must be in a folder that all nodes share.
# Printed by `python -m spanjax.launch slurm --print`, which has these settings as options.

set -u
@@token
export @@token_name
@@exports

step=
timer=
caught=
ended_by_slurm=

queue_again() {
  echo "$1: job $SLURM_JOB_ID goes back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
}

# SLURM sends USR1 to this script alone, @@save_seconds s before the time is over; srun passes it to every task, and they save and
# end with @@stopped. Tasks that have not ended @@spare s before that time are given up, as a job that reaches it is never queued
# again: the next go resumes from the last checkpoint.
# shellcheck disable=SC2329 # the trap calls it
on_usr1() {
  caught=1
  if [ -n "$step" ]; then
    kill -USR1 "$step"
  fi
  if [ -z "$timer" ]; then
    (
      trap 'kill "$!"; exit' TERM
      sleep @@patience &
      wait "$!" && queue_again "the time is nearly over"
    ) &
    timer=$!
  fi
}
trap on_usr1 USR1
# In a preemption SLURM sends TERM to the tasks (22.05 to them alone): they save, end with @@stopped, and the job is queued again
# below. Where this script gets TERM, too, SLURM decides: it queues a preempted job again and a cancelled one not. srun,
# which would kill the tasks on TERM, is not told.
trap 'caught=1; ended_by_slurm=1' TERM

srun --label --kill-on-bad-exit=0 --wait=@@wait --cpus-per-task=@@cpus \\
  @@command &
step=$!

while true; do # a signal ends `wait` before srun has ended: wait again
  caught=
  wait "$step"
  code=$?
  if [ -z "$caught" ]; then
    break
  fi
done
if [ -n "$timer" ]; then
  kill "$timer" 2>/dev/null
fi

if [ -n "$ended_by_slurm" ]; then
  exit "$code"
elif [ "$code" -eq @@stopped ]; then
  queue_again "stopped after saving"
elif [ "$code" -eq @@missing ] || [ "$code" -gt 128 ]; then # processes are missing, or were killed by a signal
  if [ "${SLURM_RESTART_COUNT:-0}" -lt @@max_restarts ]; then
    queue_again "processes were lost (exit code $code)"
  else
    echo "processes were lost (exit code $code); after ${SLURM_RESTART_COUNT:-0} restarts the job ends" >&2
  fi
fi
exit "$code"
"""


@dataclasses.dataclass(frozen=True)
class Slurm(Settings):
    """A SLURM batch script. It runs one task a node, which takes all of its GPUs, and requeues itself until the run is done."""

    FILE = "slurm.sbatch"

    nodes: int = 2
    """Nodes of the job."""
    gpus_per_node: int = 8
    """GPUs of each node; 0 for CPUs alone."""
    tasks_per_node: int = 1
    """Processes a node: 1 takes all GPUs, as many as there are GPUs take one each."""
    cpus_per_task: int = 16
    """Cores of each process."""
    time: str = "24:00:00"
    """Time limit of one go, HH:MM:SS or D-HH:MM:SS; a longer run continues in the next."""
    save_seconds: int = 300
    """Seconds before that limit at which the run gets the signal to save: an evaluation, a step and a save must fit in."""
    max_restarts: int = 20
    """Restarts in all (SLURM counts those after saving too) up to which a job that lost processes is queued again."""
    partition: str = ""
    """Partition; empty takes the cluster's default."""
    account: str = ""
    """Account; empty takes yours."""
    python: str = "python"
    """The interpreter on the nodes, as .venv/bin/python."""
    startup_seconds: int = 600
    """Seconds that processes wait for each other at the start."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems()
        found += at_least(self, nodes=1, gpus_per_node=0, tasks_per_node=1, cpus_per_task=1, save_seconds=2)
        found += at_least(self, startup_seconds=1, max_restarts=0) + plain(self, "partition", "account", needed=False)
        if not TIME.fullmatch(self.time):
            found.append(f"--time is {self.time!r}: expected HH:MM:SS or D-HH:MM:SS")
        if not self.python:
            found.append("--python is empty: expected the interpreter on the nodes")
        if self.gpus_per_node and self.tasks_per_node > 0 and self.gpus_per_node % self.tasks_per_node:
            found.append(
                f"--gpus-per-node {self.gpus_per_node} cannot be shared by --tasks-per-node {self.tasks_per_node}:"
                f" expected 1 or {self.gpus_per_node} tasks"
            )
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The batch script."""
        variables = {STARTUP: str(self.startup_seconds)}
        if self.gpus_per_node:
            variables[EXPECTED] = str(self.nodes * self.gpus_per_node)
        each = f" with {self.gpus_per_node} GPUs each" if self.gpus_per_node else ""
        what = f"{self.nodes} node(s){each}, {self.tasks_per_node} task(s) a node"
        spare = min(SPARE_SECONDS, self.save_seconds // 2)  # at most half, or a short time would leave none to save
        values = {
            "name": self.name,
            "nodes": self.nodes,
            "tasks": self.tasks_per_node,
            "cpus": self.cpus_per_task,
            "gpus": f"#SBATCH --gpus-per-node={self.gpus_per_node}" if self.gpus_per_node else "",
            "time": self.time,
            "partition": f"#SBATCH --partition={self.partition}" if self.partition else "",
            "account": f"#SBATCH --account={self.account}" if self.account else "",
            "signal": f"USR1@{self.save_seconds}",
            "save_seconds": self.save_seconds,
            "what": what,
            "file": word(self.output or f"launch/{self.FILE}"),
            "exports": exports(merged(variables, self)),
            "wait": self.save_seconds,
            "command": continued([f"{word(self.python)} -m spanjax.train", *options(train)], 4),
            "stopped": STOPPED,
            "missing": PROCESSES_MISSING,
            "max_restarts": self.max_restarts,
            "spare": spare,
            "patience": self.save_seconds - spare,
            "token": DRAWN_TOKEN,
            "token_name": TOKEN,
        }
        return fill(TEMPLATE, values)
