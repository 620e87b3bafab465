"""The quick suite inside a pretraining run: a smaller share of its texts, one seed, figures for the curves."""

import contextlib
import functools
import math
import pathlib

import jax

from spanjax.inference.encode import TextEncoder
from spanjax.pretrained.model import Model
from spanjax.suite import quick
from spanjax.suite.quick import QuickSuite
from spanjax.training.loop import Cadence

SHARE = 0.25
"""Share of the texts of every part: the figures are for curves of one run, not for a table."""
NAME = "probe/"


@functools.cache
def _opened(folder: str) -> QuickSuite:
    return QuickSuite(quick.files_of(pathlib.Path(folder), {}), (0,), SHARE)


def probe_problems(cadence: Cadence) -> list[str]:
    """Returns what prevents the probes of a run, one message each; empty for a run without them."""
    if not cadence.probe_every:
        return []
    if jax.process_count() > 1:
        return [
            f"cadence.probe_every is {cadence.probe_every}: probes run in one process; evaluate the checkpoints instead"
        ]
    try:
        import sklearn  # noqa: F401  (the first probe would fail in the midst of training)
    except ModuleNotFoundError:
        return ["cadence.probe_every needs scikit-learn: pip install 'spanjax[suite]'"]
    if not cadence.probe_data or not pathlib.Path(cadence.probe_data).is_dir():
        return [f"cadence.probe_data is {cadence.probe_data!r}: expected the data folder of the quick suite"]
    if not _opened(cadence.probe_data).parts:
        return [f"cadence.probe_data {cadence.probe_data}: no file of any part; docs/howto/suite.md has the layout"]
    return []


def probe_scores(model: Model, folder: str) -> dict[str, float]:
    """Returns the score of every part that the model has, in percent, as `probe/PART`."""
    suite, found = _opened(folder), dict[str, float]()
    encoder = TextEncoder(model)
    for part in suite.parts:
        # a part whose files are too small has no figure: it must not end the training
        with contextlib.suppress(ValueError):
            for _, result in suite.results(quick.Opened(model, encoder, None), part, suite.seeds):
                if result["score"] is not None and math.isfinite(result["score"]):
                    found[f"{NAME}{part}"] = result["score"]
    return found
