"""Decodes answers from scores of tokens: the best spans of all windows of a question, compared with no answer.

The rule is BERT's (Devlin et al., 2018), as released with SpanBERT. Two things differ. The text of an answer is the passage's own
between the first and the last piece: pieces know their characters, so no alignment with text split at blanks is needed.
Where none of the best starts and ends make a span, all starts and ends are tried, so that there is an answer.

Several passages of one question are ranked together. Logits of different passages have no common zero, as every passage is
trained on its own; what training does compare in each is an answer with no answer. So an answer competes with the score of
its logits minus that of no answer in its own passage.

Shapes: T tokens of a row, K candidates of a row, N candidates of a question.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.tasks.squad.passage_windows import PassageWindow

NULL = 0  # position of [CLS], which means no answer


class Candidates(NamedTuple):
    """Spans of some windows."""

    score_N: np.ndarray
    """float64, sum of the two logits."""
    start_N: np.ndarray
    """int64, first character."""
    end_N: np.ndarray
    """int64, behind the last."""
    logits_N2: np.ndarray
    """float64, of start and end."""
    passage_N: np.ndarray
    """int64, number of the passage."""


class Answer(NamedTuple):
    """One of the best answers."""

    text: str
    """'' for no answer."""
    probability: float
    """Softmax over the best answers of the question."""
    start_logit: float
    end_logit: float
    start: int | None
    """First character of the text in the context; None for no answer."""
    end: int | None
    """The character behind its last: context[start:end] is the text."""
    passage: int | None = 0
    """Number of the passage that has it; None for no answer."""
    score: float = 0.0
    """Score by which answers are ranked: the sum of the logits; with several passages minus that of no answer."""


class Prediction(NamedTuple):
    """Prediction for a question."""

    text: str
    """The best answer that is a text."""
    null_odds: float
    """The score of no answer, the least that a window gives it, minus that of `text`; 0 where answers are always expected."""
    best: tuple[Answer, ...]
    """The best answers, best first, each text once; no answer is among them where it may be."""

    @property
    def answer(self) -> Answer | None:
        """The best answer that is a text; None where no text is one."""
        return next((each for each in self.best if each.text), None)

    def probability_of(self, answer: Answer | None) -> float:
        """Probability of an answer (None: no answer) among the best ones; 0 for one that is not among them."""
        text = answer.text if answer else ""
        return sum(each.probability for each in self.best if each.text == text)


def top(scores_T: np.ndarray, count: int) -> np.ndarray:
    """int64: the places of the `count` highest scores, highest first, of equal ones the first."""
    return np.argsort(-scores_T, kind="stable")[:count]


def candidates(
    window: PassageWindow, start_T: np.ndarray, end_T: np.ndarray, n_best: int | None, max_answer: int
) -> Candidates:
    """Spans between the `n_best` highest starts and ends of a row (None: all of them) that can be an answer.

    Both ends are pieces of the passage, the first one in the window that shows most around it; at most `max_answer` pieces.
    """
    pieces = len(window.starts_T)
    start_K, end_K = (top(logits, len(logits) if n_best is None else n_best) for logits in (start_T, end_T))
    first_K, last_K = start_K - window.offset, end_K - window.offset
    first_K = first_K[(first_K >= 0) & (first_K < pieces)]
    first_K = first_K[window.widest_T[first_K]]
    last_K = last_K[(last_K >= 0) & (last_K < pieces)]
    size_KK = last_K - first_K[:, None] + 1
    one_N, other_N = np.nonzero((size_KK >= 1) & (size_KK <= max_answer))
    first_N, last_N = first_K[one_N], last_K[other_N]
    logits_N2 = np.stack([start_T[first_N + window.offset], end_T[last_N + window.offset]], axis=1).astype(np.float64)
    passage_N = np.full(len(one_N), window.passage)
    return Candidates(logits_N2.sum(axis=1), window.starts_T[first_N], window.ends_T[last_N], logits_N2, passage_N)


def _joined(found: Sequence[Candidates]) -> Candidates:
    return Candidates(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _nulls(
    windows: Sequence[PassageWindow], logits: Sequence[tuple[np.ndarray, np.ndarray]]
) -> dict[int, tuple[float, float]]:
    """The logits of no answer in every passage: those of the window that gives them the least sum. Training makes a window
    without the answer score null high, whatever the others hold."""
    found: dict[int, tuple[float, float]] = {}
    for window, (start_T, end_T) in zip(windows, logits, strict=True):
        null = (float(start_T[NULL]), float(end_T[NULL]))
        found[window.passage] = min(found.get(window.passage, null), null, key=sum)
    return found


def decode(
    contexts: Sequence[str],
    windows: Sequence[PassageWindow],
    logits: Sequence[tuple[np.ndarray, np.ndarray]],
    n_best: int,
    max_answer: int,
    null: bool,
) -> Prediction:
    """The prediction for one question on its passages: logits[i] are those of start and end, float [T] each, of the row of
    windows[i]. With `null`, the prediction may be that there is no answer."""
    each = list(zip(windows, logits, strict=True))
    found = _joined([candidates(window, start, end, n_best, max_answer) for window, (start, end) in each])
    if not len(found.score_N):
        found = _joined([candidates(window, start, end, None, max_answer) for window, (start, end) in each])
    nulls = _nulls(windows, logits)
    # one passage keeps the logits' own zero: a constant would change nothing but rounding
    base = {number: sum(null) if len(contexts) > 1 else 0.0 for number, null in nulls.items()}
    if len(contexts) > 1:
        found = found._replace(score_N=found.score_N - np.array([base[number] for number in found.passage_N.tolist()]))
    kept: dict[str, Answer] = {}
    for place in np.argsort(-found.score_N, kind="stable").tolist():
        start, end, passage = int(found.start_N[place]), int(found.end_N[place]), int(found.passage_N[place])
        text = contexts[passage][start:end]
        if text and text not in kept:
            start_logit, end_logit = found.logits_N2[place].tolist()
            score = float(found.score_N[place])
            kept[text] = Answer(text, 0.0, start_logit, end_logit, start, end, passage, score)
            if len(kept) == n_best:
                break
    text, odds = next(iter(kept), ""), 0.0
    if null or not kept:
        passage = min(nulls, key=lambda number: sum(nulls[number]))
        start_logit, end_logit = nulls[passage]
        score = start_logit + end_logit - base[passage]
        odds = score - kept[text].score if kept and null else 0.0
        kept[""] = Answer("", 0.0, start_logit, end_logit, None, None, None, score)
    ordered = sorted(kept.values(), key=lambda each: -each.score)
    share_N = np.exp(np.array([each.score for each in ordered]) - ordered[0].score)
    share_N /= share_N.sum()
    best = [one._replace(probability=share) for one, share in zip(ordered, share_N.tolist(), strict=True)]
    return Prediction(text, odds, tuple(best))
