"""Probes: signal is found, noise scores as the constant answer; partial correlation against regression by hand."""

import numpy as np
import pytest

from spanjax.scoring.glue import spearman
from spanjax.suite import probes
from spanjax.suite.quick_data import Pairs


def parts(count: int) -> dict[str, np.ndarray]:
    order = np.random.default_rng(1).permutation(count)
    return dict(zip(("train", "choose", "report"), np.split(order, [count // 2, 3 * count // 4]), strict=True))


def signal(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    vectors = rng.normal(size=(len(labels), 20))
    for place, label in enumerate("xyz"):
        vectors[labels == label, place] += 4.0
    return vectors


def test_signal_is_found_and_noise_is_the_constant_answer() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(["x", "y", "z"], p=[0.5, 0.3, 0.2], size=800)
    vectors = np.stack([rng.normal(size=(800, 20)), signal(labels, rng), rng.normal(size=(800, 20))]).astype(np.float16)
    divided = parts(800)
    found = probes.probe(vectors, labels.tolist(), divided)
    assert np.mean(found.predicted == labels[divided["report"]]) > 0.85 and np.isfinite(found.penalty)
    assert found.layer == 1, "the layer that knows the labels is read"
    noise = probes.probe(vectors[[0, 2]], labels.tolist(), divided)
    assert noise.penalty == np.inf and noise.layer is None and {*noise.predicted} == {"x"}
    again = probes.probe(vectors, labels.tolist(), divided)
    assert np.array_equal(again.predicted, found.predicted)


def test_the_reported_items_choose_no_layer() -> None:
    """Two layers: one knows the labels of training and choice, the other those of training and report."""
    rng = np.random.default_rng(1)
    labels = rng.choice(["x", "y", "z"], size=600)
    divided, known = parts(600), [signal(labels, rng) for _ in range(2)]
    known[0][divided["report"]] = rng.normal(size=(len(divided["report"]), 20))
    known[1][divided["choose"]] = rng.normal(size=(len(divided["choose"]), 20))
    found = probes.probe(np.stack(known), labels.tolist(), divided)
    assert found.layer == 0 and np.mean(found.predicted == labels[divided["report"]]) < 0.5


@pytest.mark.parametrize("names", ["xy", "xyz"])
def test_scores_are_those_of_scikit_learn(names: str) -> None:
    from sklearn.linear_model import RidgeClassifier

    rng = np.random.default_rng(3)
    labels, divided = rng.choice([*names], size=300), parts(300)
    vectors, train, report = signal(labels, rng) * 3 + 1, divided["train"], divided["report"]
    target = np.where(labels[train][:, None] == np.array([*names]), 1.0, -1.0)
    scaled = (vectors - vectors[train].mean(axis=0)) / vectors[train].std(axis=0)
    for penalty, (found,) in probes.ridge_scores(vectors, target, train, [report]):
        model = RidgeClassifier(alpha=penalty * len(train)).fit(scaled[train], labels[train])
        expected = model.decision_function(scaled[report])
        np.testing.assert_allclose(found[:, 1] if len(names) == 2 else found, expected, atol=1e-9)


def test_a_column_without_spread_and_a_single_label() -> None:
    found = probes.probe(np.ones((2, 40, 3), np.float16), ["a"] * 40, parts(40))
    assert {*found.predicted} == {"a"} and found.penalty == np.inf
    flat = probes.probe(np.ones((1, 40, 3), np.float16), ["a", "b"] * 20, parts(40))
    assert len(flat.predicted) == 10


@pytest.mark.parametrize(
    ("count", "expected"),
    [(2, [1, 2]), (12, [*range(1, 13)]), (24, [4, 8, 12, 16, 20, 24]), (13, [2, 4, 6, 9, 11, 13])],
)
def test_probed_layers(count: int, expected: list[int]) -> None:
    assert probes.probed_layers(count) == expected


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
