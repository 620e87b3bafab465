"""Plain labels of the metrics in metrics.jsonl. A label is read, the raw name next to it is searched for."""

from collections.abc import Mapping

from spanjax.report.document import Cell, Words
from spanjax.tasks.base import SCORE

TERMS: Mapping[str, str] = {
    "mlm": "MLM",
    "sbo": "SBO",
    "nsp": "NSP",
    "sop": "SOP",
    "plm": "PLM",
    "rtd": "Replaced-token detection",
    "task": "Task",
}
"""Name of a loss term -> its label; a term that is missing here keeps its name."""
METRICS: Mapping[str, str] = {
    "loss": "Total loss",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "speed/tokens_per_s": "Tokens per second",
    "speed/mfu": "Model FLOPs utilisation (MFU)",
    "speed/data_wait": "Waiting for data (share of the time)",
    "speed/goodput": "Goodput (share of the time in steps that counted)",
}
SCORES: Mapping[str, str] = {
    "accuracy": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1",
    "exact": "Exact match",
    "exact_match": "Exact match",
    "best_exact": "Exact match, best threshold",
    "best_f1": "F1, best threshold",
    "best_exact_thresh": "Best threshold for exact match",
    "best_f1_thresh": "Best threshold for F1",
    "mean": "Mean score",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "total": "Questions",
}
METRICS_OF_COREFERENCE: Mapping[str, str] = {
    "muc": "MUC",
    "bcub": "B³",
    "ceafe": "CEAFe",
    "ceafm": "CEAFm",
    "blanc": "BLANC",
    "lea": "LEA",
    "mention": "Mentions",
}
_SUBSETS = {"HasAns_": "answerable", "NoAns_": "unanswerable"}
_FRACTIONS = ("/accuracy", "/precision", "/recall")
_SHARES = ("speed/mfu", "speed/data_wait", "speed/goodput")
_CORRELATIONS = ("matthews", "pearson", "spearman")
_COMMON = ("Accuracy", "Best", "Exact", "Mean", "Precision", "Questions", "Recall", "Total")
"""First words of labels that are no names: lower case inside a sentence."""
_PERCENT = ("accuracy", "precision", "recall", "f1", "exact", "exact_match", "best_exact", "best_f1")


def label(name: str) -> str:
    """Plain label of a metric, without "train/" and "eval/"; a name that is unknown here, spelled out."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith(SCORE):
        return _score(name.removeprefix(SCORE))
    term, _, quantity = name.partition("/")
    return f"{TERMS.get(term, _spelled(term))} {_spelled(quantity).lower()}".strip()


def inline(name: str) -> str:
    """The label inside a sentence."""
    text = label(name)
    return text[0].lower() + text[1:] if text.split()[0].strip(",") in _COMMON else text


def labelled(name: str) -> Cell:
    """The label, with the raw name as its tooltip."""
    return [Words(label(name), title=name)]


def percentage(name: str) -> bool:
    """True for a metric between 0 and 1 that is displayed in percent."""
    return name in _SHARES or (name.endswith(_FRACTIONS) and not name.startswith(SCORE))


def unit(name: str) -> str:
    """Text after a value: of a known score in percent, of a correlation, of a loss in nats."""
    if name.startswith(SCORE):
        score = name.removeprefix(SCORE)
        return " %" if score in _PERCENT else " (× 100)" if score in _CORRELATIONS else ""
    return " nats" if name.split("/")[-1] == "loss" else ""


def _score(name: str) -> str:
    if name in SCORES:
        return SCORES[name]
    for prefix, subset in _SUBSETS.items():
        if name.startswith(prefix):
            return f"{_score(name.removeprefix(prefix))}, {subset}"
    metric, _, part = name.rpartition("_")
    if metric in METRICS_OF_COREFERENCE and part in SCORES:
        known = SCORES[part]
        return f"{METRICS_OF_COREFERENCE[metric]} {known if known.isupper() or known == 'F1' else known.lower()}"
    return _spelled(name)


def _spelled(name: str) -> str:
    words = name.replace("_", " ").replace("/", " ").strip()
    return words[:1].upper() + words[1:]
