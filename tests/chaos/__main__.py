"""python -m tests.chaos: training runs of one and of two processes through one fault after another.

At the end their states are those of runs that nobody disturbed, bit for bit, and so is every number that was logged. Writes
chaos.json per run after every fault: for each kind how often it was tried and survived, the steps of work lost, how it ended.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import pathlib
import random
import re
import shutil
import signal
import sys
import time
from typing import Any

from tests.chaos.kinds import BAD_BYTE, KINDS, TASK_KINDS, Kind, small_disk
from tests.chaos.supervisor import ADVANCE, DISK, EVERY, LOG, Supervisor
from tests.running import final_leaves, logged_lines, records

RUN_SECONDS = 1800.0
TIMED = ("speed/", "memory/")  # metrics that are another in every run
RUNS = (
    ("one process", 1, False, 82),
    ("two processes", 2, False, 42),
    ("a task", 1, True, 16),
    ("a task of two processes", 2, True, 16),
)
"""Name, processes, whether a task is trained, faults."""


@dataclasses.dataclass
class Fault:
    """One disturbance and what came of it."""

    kind: str
    step: int = 0
    lost: int = 0
    """Steps that had been logged and were done again."""
    codes: tuple[int, ...] = ()
    """How the processes ended; empty where the run went on."""
    said: str = ""
    failed: str = ""
    """What was not as it should be."""


def check_saved(run: Supervisor, codes: tuple[int, ...]) -> None:
    """All have ended with 75, and nothing that was logged is behind the newest checkpoint."""
    assert set(codes) == {75}, (codes, run.printed())
    assert 0 <= run.saved()[-1] - run.logged() < LOG, (run.saved(), run.logged(), run.printed())


def spend_a_while(run: Supervisor, kind: Kind) -> None:
    """The run in other surroundings: it has been saved, goes on there, and saves once more."""
    run.victim().terminate()
    check_saved(run, run.ended())
    goal = run.logged() + 2 * LOG
    run.launch(surroundings=kind.surroundings)
    assert run.wait(lambda: run.logged() >= goal), (run.ended(), run.printed())
    run.victim().terminate()


def check_end(run: Supervisor, kind: Kind, codes: tuple[int, ...]) -> str:
    """How the processes may end after such a fault; what they said of it. AssertionError where they ended in another way."""
    if kind.way in ("saves", "surroundings"):
        check_saved(run, codes)
    elif kind.way == "starts":  # -15: the signal came before Python had begun
        assert set(codes) <= {75, 3, -signal.SIGTERM}, (codes, run.printed())
    elif kind.way == "refuses":
        assert 2 in codes and set(codes) <= {2, 3, -signal.SIGABRT}, (codes, run.printed())
    else:
        assert not {0, 2} & set(codes), (codes, run.printed())
    if kind.way == "refuses" or 3 in codes:
        return next(line for line in run.printed().splitlines() if line.startswith(("spanjax.train: ", "ERROR")))
    return ""


def disturb(run: Supervisor, name: str) -> Fault:
    """One fault, from the state "all run" to the state "all run"; AssertionError where the run did not take it as it should."""
    kind, fault = KINDS[name], Fault(name, step=run.logged())
    if kind.way == "damaged":
        run.wait(lambda: len(run.saved()) > 1)
    if kind.way == "surroundings":
        spend_a_while(run, kind)
    kind.act(run)
    if kind.way == "goes on":
        fault.said = "; ".join(line[8:] for line in run.printed().splitlines() if line.startswith("WARNING"))[-400:]
        now = run.logged()
        assert run.wait(lambda: run.logged() > now + 2), run.printed()
        return fault
    fault.codes = run.ended()
    before, saved = run.logged(), run.saved()
    fault.said = check_end(run, kind, fault.codes)
    run.launch()
    # "step 21/120 ...": the evaluation that a resumed run makes first is a line "step 20  held-out ..."
    trained = re.compile(r"^step ([\d,]+)/", re.MULTILINE)
    assert run.wait(lambda: trained.search(run.printed())), run.printed()
    assert "Traceback" not in run.printed(), run.printed()
    resumed = re.search(r"^continuing \S+ from step ([\d,]+)", run.printed(), re.MULTILINE)
    fault.lost = max(0, before - (int(resumed[1].replace(",", "")) if resumed else 0))
    if kind.way == "damaged":
        assert f"checkpoint {saved[-1]} is damaged" in run.printed(), run.printed()
        assert (run.workdir / "checkpoints" / f"{saved[-1]}.damaged").is_dir()
        shutil.rmtree(run.workdir / "checkpoints" / f"{saved[-1]}.damaged")
    return fault


def attempt(run: Supervisor, kind: str) -> Fault:
    """One fault; where the run does not take it as it should, that is noted and the run started again."""
    step = run.logged()
    try:
        return disturb(run, kind)
    except (AssertionError, TimeoutError) as error:
        print(f"NOT SURVIVED: {kind} after step {step}: {error}", flush=True)
        run.kill()
        run.launch()
        return Fault(kind, step, failed=str(error)[-2000:])


def plan(kinds: list[str], count: int, seed: int) -> list[str]:
    """So many faults, each kind as often as any other, shuffled."""
    chosen = (kinds * (count // len(kinds) + 1))[:count]
    random.Random(seed).shuffle(chosen)
    return chosen


def summary(run: Supervisor, faults: list[Fault], seed: int, small: bool, seconds: float) -> dict[str, Any]:
    """What came of the faults so far."""
    table: dict[str, dict[str, Any]] = collections.defaultdict(
        lambda: {"tried": 0, "survived": 0, "lost": [], "ends": []}
    )
    for fault in faults:
        row = table[fault.kind]
        row["tried"] += 1
        row["survived"] += not fault.failed
        row["lost"].append(fault.lost)
        row["ends"] = sorted({*row["ends"], *fault.codes})
    return {
        "faults": len(faults),
        "processes": run.processes,
        "task": run.task,
        "steps": run.steps,
        "checkpoint_every": EVERY,
        "seed": seed,
        "mounts": small,
        "seconds": round(seconds),
        "equal": False,
        "kinds": dict(table),
        "each": [dataclasses.asdict(fault) for fault in faults],
    }


def chaos(
    folder: pathlib.Path, rows: pathlib.Path, kinds: list[str], processes: int, seed: int, task: bool = False
) -> dict[str, Any]:
    """The run through these faults next to one without; what came of each. AssertionError where they differ."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    # a fault in an evaluation waits for the next one, up to 2 * EVERY steps
    run = Supervisor(folder, rows, processes, len(kinds) * (ADVANCE + 12) + 40 + 2 * EVERY, seed, task)
    faults: list[Fault] = []
    result = {}
    run.launch(folder / "undisturbed")
    assert set(run.ended(RUN_SECONDS)) == {0}, run.printed()
    with small_disk(run.workdir.parent, DISK) as small:
        kinds = [kind for kind in kinds if small or not KINDS[kind].mounts]
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: run.signal_all(signal.SIGKILL))
            run.launch()
            for kind in kinds:
                goal = run.logged() + run.random.randrange(2, ADVANCE)
                assert run.wait(lambda goal=goal: run.logged() >= goal), run.printed()
                faults.append(attempt(run, kind))
                fault = faults[-1]
                print(
                    f"{len(faults)}/{len(kinds)} after step {fault.step}, {time.monotonic() - began:.0f} s: {kind};"
                    f" lost {fault.lost}, {fault.codes}",
                    flush=True,
                )
                result = summary(run, faults, seed, small, time.monotonic() - began)
                (folder / "chaos.json").write_text(json.dumps(result, indent=1) + "\n")
            assert set(run.ended(RUN_SECONDS)) == {0}, run.printed()
        compare(folder / "undisturbed", run.workdir, kinds.count(BAD_BYTE))
    result = {**result, "equal": True, "seconds": round(time.monotonic() - began)}
    (folder / "chaos.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def compare(expected: pathlib.Path, got: pathlib.Path, most_damaged: int = 0) -> None:
    """The final state bit for bit, and every number that both logged, but for so many damaged lines."""
    one, other = final_leaves(expected), final_leaves(got)
    assert one.keys() == other.keys() and len(one) > 40
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different, different
    metrics = {key for line in logged_lines(expected) for key in line if not key.startswith(TIMED)} - {"step"}
    assert {"train/gradient_norm", "eval/loss"} <= metrics or "train/task/loss" in metrics, metrics
    for key in sorted(metrics):
        first, second = records(expected, key), records(got, key, most_damaged)
        both = first.keys() & second.keys()
        assert len(both) > 0.5 * len(first), (key, len(both), len(first))
        assert all(first[step] == second[step] for step in both), key


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--faults", type=int, default=0, help="how many in each run, of all its kinds in turn; 0: 82, 42, 16, 16"
    )
    parser.add_argument("--runs", nargs="*", choices=[name for name, *_ in RUNS], default=[name for name, *_ in RUNS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/chaos", help="a folder, made anew")
    found = parser.parse_args()
    folder, failed = pathlib.Path(found.output).absolute(), False
    for name, processes, task, count in (each for each in RUNS if each[0] in found.runs):
        part = folder / name.replace(" ", "-")
        shutil.rmtree(part, ignore_errors=True)
        made = made_task(part / "made") if task else made_rows(part / "made")
        possible = [kind for kind in KINDS if processes > 1 or not KINDS[kind].several]
        kinds = plan([*TASK_KINDS] if task else possible, found.faults or count, found.seed)
        result = chaos(part, made, kinds, processes, found.seed, task)
        print("| fault | tried | survived | steps lost, mean (most) | exit codes |\n|---|---|---|---|---|")
        for kind, row in result["kinds"].items():
            lost = f"{sum(row['lost']) / len(row['lost']):.1f} ({max(row['lost'])})"
            ends = ", ".join(map(str, row["ends"])) or "goes on"
            print(f"| {kind} | {row['tried']} | {row['survived']} | {lost} | {ends} |")
        print(
            f"{name}: {result['faults']} faults in {result['seconds']} s: the undisturbed state, bit for bit",
            flush=True,
        )
        failed |= any(each["failed"] for each in result["each"])
    return int(failed)


def made_rows(folder: pathlib.Path) -> pathlib.Path:
    """Rows of made text."""
    from spanjax import prepare
    from tests.made import made_documents

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.txt").write_text("\n\n".join(made_documents(400)) + "\n")
    arguments = ["--input", str(folder / "corpus.txt"), "--train-vocab", "120", "--length", "64", "--holdout", "0.1"]
    assert prepare.main([*arguments, "--workers", "1", "--output", str(folder / "rows")]) == 0
    return folder / "rows"


def made_task(folder: pathlib.Path) -> pathlib.Path:
    """Labelled sentences of made text, and its vocabulary."""
    from tests.made import made_sentences

    rows = made_rows(folder)
    for name, count, seed in (("train", 120, 0), ("dev", 30, 1)):
        lines = (
            {"sentence": text, "label": "near" if "near" in text else "far"} for text in made_sentences(count, seed)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(rows / "train" / "vocabulary", folder / "vocabulary")
    return folder


if __name__ == "__main__":
    sys.exit(main())
