"""The MRQA 2019 shared task (Fisch et al. 2019): exact match and F1, as mrqa_official_eval.py computes them."""

from collections.abc import Mapping, Sequence

from spanjax.scoring import squad


def score(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str], *, missing_is_wrong: bool = False
) -> dict[str, float]:
    """{'exact_match', 'f1'} in percent: SQuAD 1.1's over `answers` of each question, the texts and not the detected spans.

    gold: qid -> answers; predictions: qid -> answer. Without a prediction a question is an error, or 0 with
    `missing_is_wrong`, as in the official script.
    """
    return squad.score_v1(gold, predictions, missing_is_wrong=missing_is_wrong, metric="MRQA")
