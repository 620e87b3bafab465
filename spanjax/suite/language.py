"""Measures of the masked token head: minimal pairs by pseudo-log-likelihood, and fills of held-out words and spans.

A sentence's pseudo-log-likelihood is the sum over its tokens of their log-probability when they alone are masked (Salazar et
al., 2020); a pair is right where the good sentence has the higher one. Words and spans are hidden as a whole, and all of their
tokens predicted at once, by each head.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.sources.cleaning import clean
from spanjax.inference.fill_mask import Filler, MaskedText
from spanjax.suite.quick_data import Pairs, Passage

AT_ONCE = 4096  # masked texts that are held at once


def can_fill(filler: Filler | None) -> bool:
    """True if a head reads the masked token itself."""
    return filler is not None and any(not head.neighbours for head in filler.heads)


def _token_head(filler: Filler) -> int:
    return next(number for number, head in enumerate(filler.heads) if not head.neighbours)


def pseudo_log_likelihoods(filler: Filler, texts: Sequence[str]) -> np.ndarray:
    """Returns float64 of every text, in nats; a text that is too long for the model is cut."""
    specials, most = filler.vocabulary.specials, filler.model.encoder.positions - 2
    encoded = filler.vocabulary.encode([clean(text) for text in texts])
    owners, masked = list[int](), list[MaskedText]()
    found = np.zeros(len(texts))

    def flush() -> None:
        scores = filler.truth_scores(masked)
        for owner, score in zip(owners, scores, strict=True):
            found[owner] += float(score.log_TK[_token_head(filler)].sum(dtype=np.float64))
        owners.clear()
        masked.clear()

    for number, ids_T in enumerate(encoded):
        whole = [specials.cls, *ids_T[:most].tolist(), specials.sep]
        for position in range(1, len(whole) - 1):
            hidden = [*whole[:position], specials.mask, *whole[position + 1 :]]
            masked.append(MaskedText(hidden, [position], {position: whole[position]}))
            owners.append(number)
        if len(masked) >= AT_ONCE:
            flush()
    flush()
    return found


def right_pairs(filler: Filler, pairs: Mapping[str, Pairs]) -> dict[str, list[float]]:
    """Returns 1.0 for every pair whose good sentence is the likelier one, 0.5 for equal ones, by phenomenon."""
    found = {}
    for name, each in pairs.items():
        good, bad = np.split(pseudo_log_likelihoods(filler, [*each.first, *each.second]), 2)
        found[name] = ((good > bad) + 0.5 * (good == bad)).tolist()
    return found


class Filled(NamedTuple):
    """Fills of one passage by one head."""

    head: str
    kind: str
    """`word` or `span`."""
    band: str
    right: float
    """1.0 where all tokens are the most probable ones."""
    nats: float
    """Negative log-probability of the hidden words, divided by their number."""


def fills(filler: Filler, passages: Sequence[Passage]) -> list[Filled]:
    """Fills the hidden words of every passage by every head, and by all of them; a word that loses its tokens is no fill."""
    texts = [_masked(filler, passage) for passage in passages]
    kept = [number for number, text in enumerate(texts) if text is not None]
    scores = filler.truth_scores([text for text in texts if text is not None])
    found = list[Filled]()
    for number, score in zip(kept, scores, strict=True):
        passage = passages[number]
        kind = "word" if passage.hidden == 1 else "span"
        for head, log_K, right_K in zip(filler.score_names, score.log_TK, score.right_TK, strict=True):
            # beyond its reach a head predicts nothing, and the fill says nothing of it
            if np.isfinite(log_K).all():
                nats = -float(log_K.sum(dtype=np.float64)) / passage.hidden
                found.append(Filled(head, kind, passage.band, float(right_K.all()), nats))
    return found


def _masked(filler: Filler, passage: Passage) -> MaskedText | None:
    specials = filler.vocabulary.specials
    behind = passage.first + passage.hidden
    parts = (passage.words[: passage.first], passage.words[passage.first : behind], passage.words[behind:])
    # the blank before a part belongs to it, as vocabularies of bytes and sentencepiece expect
    texts = [clean(" ".join(part)) for part in parts]
    before, hidden, after = (
        filler.vocabulary.encode([text])[0].tolist() if text.strip() else [] for text in _spaced(texts)
    )
    ids = [specials.cls, *before, *[specials.mask] * len(hidden), *after, specials.sep]
    if not hidden or len(ids) > filler.model.encoder.positions:
        return None
    masks = [*range(1 + len(before), 1 + len(before) + len(hidden))]
    return MaskedText(ids, masks, dict(zip(masks, hidden, strict=True)))


def _spaced(texts: Sequence[str]) -> list[str]:
    return [texts[0], *(f" {text}" if text else "" for text in texts[1:])]


def mean(values: Sequence[float]) -> float:
    """Returns the mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan
