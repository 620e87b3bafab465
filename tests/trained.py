"""A tiny SpanBERT that was trained for two steps, as a run directory."""

import pathlib

from spanjax import train
from tests.running import ROOT, shrunk


def trained(
    rows: pathlib.Path, workdir: pathlib.Path, *more: str, config: str = "configs/pretrain/tiny.py"
) -> pathlib.Path:
    """Trains `config`, shrunk, and returns the run directory."""
    arguments = shrunk(str(ROOT / config), rows, workdir, 2, "--data.feed=numpy", *more)
    assert train.main(arguments) == 0
    return workdir
