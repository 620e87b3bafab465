"""Probes: signal is found, noise scores as the constant answer; partial correlation against regression by hand."""

import numpy as np
import pytest

from spanjax.scoring.glue import spearman
from spanjax.suite import probes
from spanjax.suite.quick_data import Pairs


def parts(count: int) -> dict[str, np.ndarray]:
    order = np.random.default_rng(1).permutation(count)
    return dict(zip(("train", "choose", "report"), np.split(order, [count // 2, 3 * count // 4]), strict=True))


def test_signal_is_found_and_noise_is_the_constant_answer() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(["x", "y", "z"], p=[0.5, 0.3, 0.2], size=800)
    vectors = rng.normal(size=(800, 20))
    for place, label in enumerate("xyz"):
        vectors[labels == label, place] += 4.0
    divided = parts(800)
    predicted, penalty = probes.probe(vectors.astype(np.float32), labels.tolist(), divided)
    assert np.mean(predicted == labels[divided["report"]]) > 0.85 and np.isfinite(penalty)
    noise, penalty = probes.probe(rng.normal(size=(800, 20)).astype(np.float32), labels.tolist(), divided)
    assert penalty == np.inf and {*noise} == {"x"}
    again, _ = probes.probe(vectors.astype(np.float32), labels.tolist(), divided)
    assert np.array_equal(again, predicted)


def test_a_column_without_spread_and_a_single_label() -> None:
    vectors = np.ones((40, 3), np.float32)
    predicted, penalty = probes.probe(vectors, ["a"] * 40, parts(40))
    assert {*predicted} == {"a"} and penalty == np.inf


def test_partial_correlation() -> None:
    rng = np.random.default_rng(2)
    gold, fact, noise = (rng.normal(size=200) for _ in range(3))
    nothing = np.zeros((200, 0))
    assert probes.partial_spearman(gold, noise, nothing) == pytest.approx(spearman(gold.tolist(), noise.tolist()))
    # a prediction that is the fact has nothing left, one that adds to it keeps its part
    explained = fact + 0.5 * gold
    assert probes.partial_spearman(explained, fact, fact[:, None]) == 0.0
    left = probes.partial_spearman(explained, fact + gold, fact[:, None])
    ranks = [np.argsort(np.argsort(each)).astype(float) for each in (explained, fact + gold, fact)]
    left_by_hand = [np.polyval(np.polyfit(ranks[2], each, 1), ranks[2]) for each in ranks[:2]]
    expected = np.corrcoef(ranks[0] - left_by_hand[0], ranks[1] - left_by_hand[1])[0, 1]
    assert left == pytest.approx(100 * expected) and left > 50


def test_facts_of_pairs() -> None:
    pairs = Pairs(["a b", "c d", "the x"], ["a b", "e f", "the y z"], [5, 0, 2])
    facts = probes.overlap(pairs)
    assert facts[0].tolist() == pytest.approx([1, 1, 1, 0]) and facts[1].tolist() == [0, 0, 0, 0]
    assert 0 < facts[2, 1] < facts[2, 0] < 1 and facts[2, 3] == pytest.approx(0.2)
    letters = probes.overlap(Pairs(["walking"], ["walks."], [1]))
    assert letters[0, 0] == 0  # one pair alone has no rare letters
    several = probes.overlap(Pairs(["walking", "blue", "red"], ["walks.", "sun", "sky"], [1, 0, 0]))
    assert several[0, 0] == 0 < several[0, 2]
