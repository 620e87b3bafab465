"""Pseudo-log-likelihoods and fills against one masked text at a time by `Filler.fill_mask`'s probabilities."""

import math
import pathlib

import numpy as np
import pytest

from spanjax.inference.fill_mask import Filler
from spanjax.pretrained.load import load_model
from spanjax.suite import language
from spanjax.suite.quick_data import Pairs, Passage


@pytest.fixture(scope="module")
def filler(run_folder: pathlib.Path) -> Filler:
    return Filler(load_model(run_folder))


def token_head(filler: Filler) -> str:
    return next(head.name for head in filler.heads if not head.neighbours)


def test_pseudo_log_likelihood_is_the_sum_over_single_masks(filler: Filler) -> None:
    text = "the time of day"
    assert language.can_fill(filler) and not language.can_fill(None)
    (found,) = language.pseudo_log_likelihoods(filler, [text])
    ids = filler.vocabulary.encode([text])[0].tolist()
    by_hand = filler.truth_scores(
        [
            language.MaskedText(
                [
                    filler.vocabulary.specials.cls,
                    *ids[:n],
                    filler.vocabulary.specials.mask,
                    *ids[n + 1 :],
                    filler.vocabulary.specials.sep,
                ],
                [n + 1],
                {n + 1: ids[n]},
            )
            for n in range(len(ids))
        ]
    )
    head = [each.name for each in filler.heads].index(token_head(filler))
    expected = sum(float(each.log_TK[head, 0]) for each in by_hand)
    assert found == pytest.approx(expected, rel=1e-5) and found < 0
    together = language.pseudo_log_likelihoods(filler, ["day", text, "the time"])
    assert together[1] == pytest.approx(found, rel=1e-4)


def test_truth_scores_are_the_probabilities_of_spans(filler: Filler) -> None:
    text, hidden = "she went to the market in the morning", "the market"
    (span,) = filler.spans(text, 3, [hidden])
    words = text.split()
    first = words.index("the")
    found = language.fills(filler, [Passage(tuple(words), first, 2, "top 100")])
    by_head = {each.head: each for each in found}
    for head, fill in span.fills.items():
        assert fill.truth is not None
        assert by_head[head].nats == pytest.approx(-sum(map(math.log, fill.truth)) / 2, rel=1e-3)
        assert (by_head[head].right == 1) == all(
            np.isclose(best[0][1], truth) for best, truth in zip(fill.candidates, fill.truth, strict=True)
        )


def test_right_pairs(filler: Filler) -> None:
    good, bad = "the time of day", "day the of time"
    scores = language.pseudo_log_likelihoods(filler, [good, bad])
    found = language.right_pairs(filler, {"order": Pairs([good, good], [bad, good], [])})
    assert found == {"order": [float(scores[0] > scores[1]), 0.5]}
