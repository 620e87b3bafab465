"""GLUE (Wang et al. 2018) and SNLI: the metrics of each task, the average of the leaderboard, the files it takes.

Labels are the words of the leaderboard's files; STS-B has numbers from 0 to 5 instead. `score` checks its input; the
metrics themselves expect two sequences of one length, not empty.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from spanjax.scoring import counts
from spanjax.scoring.checks import counted, listed, raise_problems, unequal_lengths, unknown_labels


@dataclasses.dataclass(frozen=True)
class TaskScoring:
    """Scoring of one task: names of METRICS, its labels (none: a number), its file on the leaderboard if any."""

    metrics: tuple[str, ...]
    labels: tuple[str, ...]
    file: str | None


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
TASKS: Mapping[str, TaskScoring] = {
    "CoLA": TaskScoring(("matthews",), _BINARY, "CoLA.tsv"),
    "SST-2": TaskScoring(("accuracy",), _BINARY, "SST-2.tsv"),
    "MRPC": TaskScoring(("accuracy", "f1"), _BINARY, "MRPC.tsv"),
    "STS-B": TaskScoring(("pearson", "spearman"), (), "STS-B.tsv"),
    "QQP": TaskScoring(("accuracy", "f1"), _BINARY, "QQP.tsv"),
    "MNLI-m": TaskScoring(("accuracy",), _INFERENCE, "MNLI-m.tsv"),
    "MNLI-mm": TaskScoring(("accuracy",), _INFERENCE, "MNLI-mm.tsv"),
    "QNLI": TaskScoring(("accuracy",), _ENTAILMENT, "QNLI.tsv"),
    "RTE": TaskScoring(("accuracy",), _ENTAILMENT, "RTE.tsv"),
    "WNLI": TaskScoring(("accuracy",), _BINARY, "WNLI.tsv"),
    "AX": TaskScoring(("matthews",), _INFERENCE, "AX.tsv"),
    "SNLI": TaskScoring(("accuracy",), _INFERENCE, None),
}
STS_B_RANGE = (0.0, 5.0)


def accuracy(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Percent of labels that are equal."""
    return 100.0 * sum(a == b for a, b in zip(gold, predicted, strict=True)) / len(gold)


def f1(gold: Sequence[str], predicted: Sequence[str], positive: str = "1") -> float:
    """F1 of the label `positive`, in percent; 0 where it is never right."""
    correct = sum(a == b == positive for a, b in zip(gold, predicted, strict=True))
    return counts.score(correct, list(predicted).count(positive), list(gold).count(positive)).f1


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Matthews correlation, -100 to 100, of two or more labels (Gorodkin 2004); 0 where a side has only one label."""
    total = len(gold)
    correct = sum(a == b for a, b in zip(gold, predicted, strict=True))
    golds, predictions = collections.Counter(gold), collections.Counter(predicted)
    covariance = correct * total - sum(count * predictions[label] for label, count in golds.items())
    spread = [total**2 - sum(count**2 for count in counted_labels.values()) for counted_labels in (golds, predictions)]
    return 100.0 * covariance / math.sqrt(spread[0] * spread[1]) if all(spread) else 0.0


def _centred(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    widest = max(abs(x - mean) for x in values)
    return [(x - mean) / widest for x in values]


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Pearson correlation, -100 to 100; NaN where a side has only one value."""
    if len(set(gold)) < 2 or len(set(predicted)) < 2:
        return math.nan
    first, second = _centred(gold), _centred(predicted)
    pairs = ((first, second), (first, first), (second, second))
    both, one, other = (math.fsum(x * y for x, y in zip(a, b, strict=True)) for a, b in pairs)
    return 100.0 * max(-1.0, min(1.0, both / math.sqrt(one * other)))


def ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value from 1; equal values share the mean of their ranks."""
    repeats = collections.Counter(values)
    below, rank_of = 0, {}
    for value in sorted(repeats):
        rank_of[value] = below + (repeats[value] + 1) / 2
        below += repeats[value]
    return [rank_of[value] for value in values]


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman correlation, -100 to 100: Pearson's of the ranks; NaN where a side has only one value."""
    return pearson(ranks(gold), ranks(predicted))


METRICS: Mapping[str, Callable[..., float]] = {
    metric.__name__: metric for metric in (accuracy, f1, matthews, pearson, spearman)
}


def _task(name: str) -> TaskScoring:
    if name not in TASKS:
        raise ValueError(f"unknown GLUE task {name!r}: expected one of {', '.join(TASKS)}")
    return TASKS[name]


def _value_problems(task: TaskScoring, values: Sequence[str] | Sequence[float], which: str) -> list[str]:
    if task.labels:
        return unknown_labels(values, task.labels, which)
    wrong = [x for x in values if isinstance(x, str | bool) or not math.isfinite(x)]
    return counted(wrong, f"{which} values are no finite numbers", "expected numbers from 0 to 5")


def score(
    name: str, gold: Sequence[str] | Sequence[float], predicted: Sequence[str] | Sequence[float]
) -> dict[str, float]:
    """{metric: percent} of a task of TASKS, one gold and one predicted label (STS-B: number) an example, in order.

    The label '-' of SNLI's unsettled examples is unknown here: skip them before.
    """
    task = _task(name)
    problems = [] if len(gold) else ["there is no gold label"]
    problems += unequal_lengths(gold, predicted, "labels")
    problems += _value_problems(task, gold, "gold") + _value_problems(task, predicted, "predicted")
    raise_problems(name, problems)
    return {metric: METRICS[metric](gold, predicted) for metric in task.metrics}


def average(scores: Mapping[str, Mapping[str, float]]) -> float:
    """The leaderboard's average, in percent: the mean over tasks of the mean of a task's metrics.

    scores: task -> result of `score`. MNLI-m and MNLI-mm are halves of one task; AX and SNLI take no part and are an error.
    """
    unknown = [name for name in scores if name not in TASKS or name in ("AX", "SNLI")]
    problems = counted(unknown, "tasks have no part in the average", f"expected some of {listed(TASKS)}")
    problems += [] if scores else ["there is no score"]
    for name, found in scores.items():
        if name not in unknown and set(found) != set(TASKS[name].metrics):
            problems.append(f"{name} has the scores {listed(found) or 'none'}: expected {listed(TASKS[name].metrics)}")
    if ("MNLI-m" in scores) != ("MNLI-mm" in scores):
        problems.append("only one of MNLI-m and MNLI-mm is there: expected both or none")
    raise_problems("the GLUE average", problems)
    means: dict[str, list[float]] = collections.defaultdict(list)
    for name, found in scores.items():
        means["MNLI" if name.startswith("MNLI") else name].append(math.fsum(found.values()) / len(found))
    return math.fsum(math.fsum(halves) / len(halves) for halves in means.values()) / len(means)


def submission(
    name: str, predicted: Sequence[str] | Sequence[float], indices: Sequence[int] | None = None
) -> tuple[str, str]:
    """(file name, contents) for the leaderboard: the header index<TAB>prediction, then a line an example, in order.

    indices: the `index` column of the test file, by default 0, 1, ... Numbers of STS-B are cut at 0 and 5 and written with
    three decimals.
    """
    task = _task(name)
    rows = range(len(predicted)) if indices is None else indices
    problems = [] if task.file else ["the leaderboard has no such task"]
    problems += _value_problems(task, predicted, "predicted")
    if len(rows) != len(predicted):
        problems.append(f"{len(predicted)} predictions and {len(rows)} indices: expected one index for each, in order")
    repeated = [index for index, count in collections.Counter(rows).items() if count > 1]
    raise_problems(f"the file of {name}", problems + counted(repeated, "indices are repeated", "each is one example"))
    low, high = STS_B_RANGE
    words = predicted if task.labels else [f"{min(max(float(x), low), high):.3f}" for x in predicted]
    lines = [f"{index}\t{word}\n" for index, word in zip(rows, words, strict=True)]
    return str(task.file), "index\tprediction\n" + "".join(lines)
