"""python -m tests.clusters: training under a real SLURM on this machine, through every kind of fault of a cluster.

Every final state must be that of an undisturbed job, bit for bit, and so must every number that was logged. Writes clusters.json
after every kind: how often it was tried and survived, the steps of work lost, and what failed.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

from tests.chaos.__main__ import compare, made_rows
from tests.clusters.scenarios import KINDS, Run, steps_for, through_faults, undisturbed
from tests.clusters.slurm import Cluster, missing
from tests.running import ROOT


def facts(cluster: Cluster) -> dict[str, str]:
    """Commit, day and version of SLURM of these runs."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "slurm": cluster.run("scontrol", "--version").strip(),
    }


def tried(
    cluster: Cluster, folder: pathlib.Path, rows: pathlib.Path, kind: str, count: int, steps: int
) -> dict[str, Any]:
    """A row of the table: a run through so many faults of a kind, compared with the undisturbed one."""
    began, failed, faults = time.monotonic(), "", []
    run = Run(cluster, folder / kind.replace(" ", "-").replace(",", ""), rows, steps, seed=len(kind))
    try:
        faults = through_faults(run, kind, count)
        compare(folder / "undisturbed" / "run", run.workdir)
    except (AssertionError, TimeoutError) as error:
        failed = str(error)
        print(f"NOT SURVIVED: {kind}: {failed}", flush=True)
        with contextlib.suppress(AssertionError):  # the job may have ended
            cluster.run("scancel", "--full", "--signal=KILL", str(run.job.number))
            cluster.run("scancel", str(run.job.number))
        run.job.ended(120)
    return {
        "tried": count,
        "survived": 0 if failed else count,
        "each": [dataclasses.asdict(fault) for fault in faults],
        "seconds": round(time.monotonic() - began),
        "failed": failed[-4000:],
    }


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| fault | tried | survived | steps lost, mean (most) | seconds until it trained again |",
        "|---|---|---|---|---|",
    ]
    for kind, row in result["kinds"].items():
        lost = [fault["lost"] for fault in row["each"]] or [0]
        waits = [fault["seconds"] for fault in row["each"] if fault["seconds"]]
        wait = f"{min(waits):.0f} to {max(waits):.0f}" if waits else ""
        lines.append(
            f"| {kind} | {row['tried']} | {row['survived']} | {sum(lost) / len(lost):.1f} ({max(lost)}) | {wait} |"
        )
    tried, survived = (sum(row[name] for row in result["kinds"].values()) for name in ("tried", "survived"))
    lines.append(f"| all | {tried} | {survived} | | |")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.clusters", description=__doc__)
    parser.add_argument("--faults", type=int, default=0, help="how many of each kind; 0: 2 to 5, by what they take")
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS], metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--output", default="runs/clusters", help="a folder, made anew")
    parser.add_argument("--table", default="", metavar="FILE", help="print the table of this clusters.json and exit")
    found = parser.parse_args()
    if found.table:
        print(table(json.loads(pathlib.Path(found.table).read_text())))
        return 0
    if reason := missing():
        print(f"skipped: {reason}")
        return 0
    folder, began = pathlib.Path(found.output).absolute(), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    rows = made_rows(folder / "made")
    steps = steps_for(found.faults or max(KINDS[kind].count for kind in found.kinds))
    with Cluster(folder / "slurm") as cluster:
        result: dict[str, Any] = {**facts(cluster), "faults": 0, "seconds": 0, "kinds": {}}
        undisturbed(Run(cluster, folder / "undisturbed", rows, steps))
        print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
        for kind in found.kinds:
            row = tried(cluster, folder, rows, kind, found.faults or KINDS[kind].count, steps)
            result["kinds"][kind] = row
            result |= {"faults": result["faults"] + row["tried"], "seconds": round(time.monotonic() - began)}
            (folder / "clusters.json").write_text(json.dumps(result, indent=1) + "\n")
            print(f"{kind}: {row['survived']} of {row['tried']}, {row['seconds']} s", flush=True)
    print(table(result))
    print(
        f"{result['faults']} faults in {result['seconds']} s, {result['slurm']}, commit {result['commit']}, {result['date']}"
    )
    return int(any(row["failed"] for row in result["kinds"].values()))


if __name__ == "__main__":
    sys.exit(main())
