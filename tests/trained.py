"""A tiny SpanBERT that was trained for two steps, and what is made of it."""

import pathlib

from spanjax import train
from tests.running import ROOT, shrunk

RUN_CONFIG = "configs/pretrain/tiny.py"


def trained(rows: pathlib.Path, workdir: pathlib.Path, *more: str, config: str = RUN_CONFIG) -> pathlib.Path:
    """Trains `config`, shrunk, and returns the run directory."""
    arguments = shrunk(str(ROOT / config), rows, workdir, 2, "--data.feed=numpy", *more)
    assert train.main(arguments) == 0
    return workdir


def weights_of(run: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The model of a run as a folder for transformers."""
    from spanjax.convert import main

    assert main(["to-torch", str(run), str(folder)]) == 0
    return folder


def fine_tuned(run: pathlib.Path, workdir: pathlib.Path) -> pathlib.Path:
    """Two steps of fine-tuning on sentences with the labels no and yes, which stand in train.jsonl beside the run directory."""
    data = workdir.parent / "train.jsonl"
    lines = [
        f'{{"sentence": "the {word} clock", "label": "{label}"}}\n' for word, label in (("old", "no"), ("blue", "yes"))
    ]
    data.write_text("".join(lines * 4))
    arguments = [f"--config={ROOT / 'configs/finetune/glue.py'}", f"--init-from={run}", "--batch-size=8"]
    arguments += [f"--train={data}", f"--workdir={workdir}", "--objective.epochs=2"]
    assert train.main([*arguments, "--objective.length=32"]) == 0
    return workdir
