"""Run folders that version 0.1 wrote load, predict and resume; tests/fixtures/v0_1/README.md says how they were made."""

import json
import pathlib
import re
import tarfile
from typing import Any

import jax
import numpy as np
import pytest

from spanjax import predict, train
from spanjax.experiment.session import open_session
from spanjax.training.checkpoint import Checkpoints
from tests.fixtures.make_v0_1 import ARCHIVES, ARGUMENTS, batch_digest, command_line, digest, predicted, records
from tests.masks_of_0_1 import use_masks_of_0_1
from tests.running import ROOT, final_leaves

TOLERANCE = 1e-5
LONG = ("coref", "electra", "xlnet")  # they compile for longest
SHORT = tuple(kind for kind in ARGUMENTS if kind not in LONG)
ROUNDED = {"linked": 1.1e-4}
"""Scores that predictions round to four decimals; the others have six or more."""


def unpacked(kind: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Unpacks the stopped run of this kind into the folder, which becomes the current one; what 0.1 made of the run."""
    with tarfile.open(ARCHIVES / f"{kind}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    monkeypatch.chdir(folder)
    return json.loads((folder / "expected.json").read_text())


def assert_same(found: Any, expected: Any, tolerance: float, name: str = "") -> None:
    """Equal JSON values of 0.1, floats within the tolerance; entries that 0.1 did not have may come in addition."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys(), name
        for key, value in expected.items():
            assert_same(found[key], value, max(tolerance, ROUNDED.get(key, 0.0)), f"{name}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), name
        for index, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, tolerance, f"{name}/{index}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance, nan_ok=True), name
    else:
        assert found == expected, name


def plain(name: str) -> str:
    """The path of a leaf as in checkpoints, without the brackets that tell keys from attributes."""
    return "/".join(re.findall(r"\w+", name)).replace("recurrent_state/", "carried/")


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_state_batches_and_predictions_are_those_of_0_1(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, moments and memory of the stopped step, and all batches that follow, bit for bit; predictions within 1e-5."""
    expected = unpacked(kind, tmp_path, monkeypatch)
    assert expected["arguments"] == ARGUMENTS[kind]
    session = open_session(train.parse(command_line(kind, ROOT / "configs")).run)
    with Checkpoints(tmp_path / "run", session.run.cadence.keep) as checkpoints:
        state = checkpoints.restore_newest(session.abstract)
    assert state is not None and int(state.step) == expected["stop"]
    leaves = {plain(jax.tree_util.keystr(path)): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    assert {name: digest({"": leaf}) for name, leaf in leaves.items()} == {
        plain(name): sha for name, sha in expected["state"].items()
    }
    feed = session.feed(expected["stop"])
    assert [batch_digest(next(feed)) for _ in expected["batches"]] == expected["batches"]
    found = predicted(kind, predict.main, f"run/checkpoints/{expected['stop']}")
    assert_same(found, expected["stopped"], TOLERANCE)


@pytest.mark.parametrize("kind", [*SHORT, *(pytest.param(each, marks=pytest.mark.slow) for each in LONG)])
def test_the_same_command_resumes_to_the_end_of_0_1(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the dropout masks of 0.1; without them a run continues with others, and says so.

    Not bit for bit: gradients of dense layers are summed in another order, and a task's batches are padded to fewer lengths
    (CHANGELOG.md, "Changed results").

    Measured after the last step on the CPU that made the fixtures, the largest difference of any parameter or moment: pretraining
    1.5e-8, ELECTRA 7.5e-9, XLNet 1.2e-7 (its memory 4.8e-7), SQuAD 9.3e-10, coreference 6.0e-8; of biases of keys, whose gradient
    is nothing but rounding, 2.4e-6. Between a sixth and a half of the arrays have the same bits.
    """
    expected = unpacked(kind, tmp_path, monkeypatch)
    use_masks_of_0_1(monkeypatch)
    assert train.main(command_line(kind, ROOT / "configs")) == 0
    assert_same(records(tmp_path / "run"), expected["records"], TOLERANCE)
    leaves, finals = final_leaves(tmp_path / "run"), np.load(tmp_path / "expected.npz")
    assert leaves.keys() == set(finals.files)
    for name, leaf in leaves.items():
        np.testing.assert_allclose(leaf, finals[name], rtol=0, atol=TOLERANCE, err_msg=name)
    last = max(map(int, expected["records"]))
    assert_same(predicted(kind, predict.main, f"run/checkpoints/{last}"), expected["final"], TOLERANCE)
