"""Run directories as `spanjax.train` leaves them, made in milliseconds."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spanjax.report.runs import Recorded, read_run
from spanjax.run import Run
from spanjax.run_format import describe
from spanjax.tasks.glue import Glue


def made_run(
    path: pathlib.Path,
    scores: Sequence[Mapping[str, float]] = (),
    seed: int = 0,
    objective: Mapping[str, Any] | None = None,
    lines: Sequence[str] = (),
    finished: bool = True,
    **settings: Any,
) -> pathlib.Path:
    """A fine-tuning run of CoLA with other settings of the objective, or of another one where these name its class, with these
    evaluations at steps 10, 20, ..."""
    path.mkdir(parents=True)
    run = describe(Run(objective=Glue(task="CoLA", train=("train.tsv",), dev=("dev.tsv",)), seed=seed))
    run = {**run, "rows_fingerprint": "abc", "steps": 10 * len(scores), **settings}
    if "class" in (objective or {}):
        run["objective"] = {name: run["objective"][name] for name in ("train", "dev")}
    run["objective"] |= objective or {}
    (path / "run.json").write_text(json.dumps(run))
    records = []
    for number, each in enumerate(scores, start=1):
        step = 10 * number
        records.append({"step": step, "train/task/loss": 1 / step, "train/learning_rate": 1e-4})
        records.append({"step": step, **{f"eval/score/{name}": value for name, value in each.items()}})
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in [*map(json.dumps, records), *lines]))
    if finished and scores:
        last = {f"score/{name}": value for name, value in scores[-1].items()}
        (path / "summary.json").write_text(json.dumps({"step": 10 * len(scores), "eval": last}))
    return path


def cola(folder: pathlib.Path, name: str, values: Sequence[float], **settings: Any) -> list[Recorded]:
    """A run for each of these scores, with seeds 0, 1, ..."""
    return [
        read_run(made_run(folder / f"{name}_{seed}", [{"matthews": each, "mean": each}], seed, **settings))
        for seed, each in enumerate(values)
    ]
