"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): exact match and F1, as evaluate-v1.1.py and evaluate-v2.0.py print them.

Answers are texts by question id. The two scripts differ where an answer is empty once normalised: 1.1 gives it F1 0 even
against itself, 2.0 gives it 1 against another empty one and drops empty gold answers where there are others.
"""

import collections
import math
import re
import string
from collections.abc import Mapping, Sequence

from spanjax.scoring.checks import counted, missing_ids, raise_problems

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks, in that order, which decides what counts as an article."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(gold: str, predicted: str) -> int:
    """1 where both texts are the same once normalised, else 0."""
    return int(normalize_answer(gold) == normalize_answer(predicted))


def token_f1(gold: str, predicted: str, both_empty: float) -> float:
    """F1 of the bags of normalised words, 0 to 1; `both_empty` (0 in SQuAD 1.1, 1 in 2.0) where neither has a word."""
    gold_words, words = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if not gold_words and not words:
        return both_empty
    same = (collections.Counter(gold_words) & collections.Counter(words)).total()
    if not same:
        return 0.0
    precision, recall = same / len(words), same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def percent(scores: Sequence[float], out_of: int) -> float:
    """100 * total / out_of, the total taken one by one."""
    total = 0.0
    for one in scores:
        total += one
    return 100.0 * total / out_of


def _text_problems(predictions: Mapping[str, object], gold: Mapping[str, object]) -> list[str]:
    wrong = [name for name in gold if name in predictions and not isinstance(predictions[name], str)]
    return counted(wrong, "predictions are no text", "expected a str for each id")


def score_v1(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    missing_is_wrong: bool = False,
    metric: str = "SQuAD 1.1",
) -> dict[str, float]:
    """{'exact_match', 'f1'} in percent, the best over the gold answers of each question.

    gold: id -> one or more answers. predictions: id -> answer; other ids are ignored, as in the official script. That
    script gives a question without a prediction 0, which is `missing_is_wrong`; else it is an error.
    """
    unanswerable = [name for name, answers in gold.items() if not answers]
    problems = [] if gold else ["there is no gold question"]
    problems += counted(unanswerable, "ids have no gold answer", "only SQuAD 2.0 has unanswerable questions")
    problems += [] if missing_is_wrong else missing_ids(gold, predictions, "prediction")
    raise_problems(metric, problems + _text_problems(predictions, gold))
    answered = [(answers, predictions[name]) for name, answers in gold.items() if name in predictions]
    exact = [max(exact_match(answer, predicted) for answer in answers) for answers, predicted in answered]
    f1 = [max(token_f1(answer, predicted, both_empty=0.0) for answer in answers) for answers, predicted in answered]
    return {"exact_match": percent(exact, len(gold)), "f1": percent(f1, len(gold))}


def answer_scores_v2(answers: Sequence[str], predicted: str) -> tuple[float, float]:
    """Exact match and F1, 0 to 1, of one question of SQuAD 2.0, the best over its answers; none means no answer."""
    kept = [answer for answer in answers if normalize_answer(answer)] or [""]
    exact = max(exact_match(answer, predicted) for answer in kept)
    return float(exact), max(token_f1(answer, predicted, both_empty=1.0) for answer in kept)


def best_threshold(
    scores: Mapping[str, float],
    answerable: Mapping[str, bool],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """(best score in percent, threshold): questions with null odds above the threshold count as answered with "".

    scores: 0 to 1 by id, without a threshold; answerable: whether the question has a gold answer. As in the official
    script: the sweep goes through `null_odds` in ascending order (equal ones in the order of the mapping) and may stop
    between equal ones; where answering nothing at all is best, the threshold is 0.0, whatever the odds.
    """
    current = best = float(sum(not has for has in answerable.values()))
    threshold = 0.0
    for name in sorted(null_odds, key=lambda name: null_odds[name]):
        if name not in scores:
            continue
        if answerable[name]:
            current += scores[name]
        elif predictions[name]:
            current -= 1
        if current > best:
            best, threshold = current, null_odds[name]
    return 100.0 * best / len(scores), threshold


def _v2_problems(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None,
) -> list[str]:
    problems = [] if gold else ["there is no gold question"]
    problems += missing_ids(gold, predictions, "prediction") + _text_problems(predictions, gold)
    if null_odds is not None:
        problems += missing_ids(gold, null_odds, "null odds")
        odd = [name for name in gold if name in null_odds and math.isnan(null_odds[name])]
        problems += counted(odd, "ids have null odds of NaN", "NaN has no place in the order of thresholds")
    return problems


def score_v2(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The official script's keys: exact, f1, total; HasAns_* and NoAns_* of these where there are such questions.

    gold: id -> answers, none for an unanswerable question. predictions: id -> answer, "" for none; other ids are
    ignored. With null odds (id -> number, higher is less answerable) an answer counts as "" above `threshold`, and
    best_exact, best_f1 and their thresholds are searched. Scores in percent.
    """
    raise_problems("SQuAD 2.0", _v2_problems(gold, predictions, null_odds))
    answerable = {name: bool(answers) for name, answers in gold.items()}
    raw = {name: answer_scores_v2(answers, predictions[name]) for name, answers in gold.items()}
    raw_exact, raw_f1 = ({name: pair[place] for name, pair in raw.items()} for place in (0, 1))
    nothing = {name for name in gold if null_odds is not None and null_odds[name] > threshold}
    result: dict[str, float] = {}
    groups = {
        "": list(gold),
        "HasAns_": [name for name in gold if answerable[name]],
        "NoAns_": [name for name in gold if not answerable[name]],
    }
    for prefix, names in groups.items():
        if names:
            for key, scores in (("exact", raw_exact), ("f1", raw_f1)):
                kept = [float(not answerable[name]) if name in nothing else scores[name] for name in names]
                result[prefix + key] = percent(kept, len(names))
            result[f"{prefix}total"] = len(names)
    if null_odds is not None:
        # as in the official script, the search sees the scores before `threshold` is applied
        for key, scores in (("best_exact", raw_exact), ("best_f1", raw_f1)):
            result[key], result[f"{key}_thresh"] = best_threshold(scores, answerable, predictions, null_odds)
    return result


def score_mrqa(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str], *, missing_is_wrong: bool = False
) -> dict[str, float]:
    """{'exact_match', 'f1'} in percent: SQuAD 1.1's over `answers` of each question, the texts and not the detected spans.

    gold: qid -> answers; predictions: qid -> answer. Without a prediction a question is an error, or 0 with
    `missing_is_wrong`, as in the official script.
    """
    return score_v1(gold, predictions, missing_is_wrong=missing_is_wrong, metric="MRQA")
