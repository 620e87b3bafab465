"""Plain labels of the metrics in metrics.jsonl. A label is read, the raw name next to it is searched for."""

from collections.abc import Mapping

from spanjax.pages.document import Cell, Words
from spanjax.tasks.base import SCORE

METRICS: Mapping[str, str] = {
    "loss": "total loss",
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm",
    "speed/tokens_per_s": "tokens per second",
    "speed/mfu": "model FLOPs utilisation (MFU), %",
    "speed/data_wait": "waiting for data, % of the time",
    "speed/goodput": "goodput, % of the time",
}
"""Metric -> its label inside a sentence, as in all tables here."""
TERMS: Mapping[str, str] = {
    "mlm": "MLM",
    "sbo": "SBO",
    "nsp": "NSP",
    "sop": "SOP",
    "plm": "PLM",
    "rtd": "replaced-token detection",
    "task": "task",
}
"""Name of a loss term -> its label; a term that is missing here keeps its name."""
SCORES: Mapping[str, str] = {
    "f1": "F1",
    "exact": "exact match",
    "exact_match": "exact match",
    "best_exact": "exact match, best threshold",
    "best_f1": "F1, best threshold",
    "best_exact_thresh": "best threshold for exact match",
    "best_f1_thresh": "best threshold for F1",
    "mean": "mean score",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "total": "number of questions",
}
COREFERENCE: Mapping[str, str] = {
    "muc": "MUC",
    "bcub": "B³",
    "ceafe": "CEAFe",
    "ceafm": "CEAFm",
    "blanc": "BLANC",
    "lea": "LEA",
    "mention": "mention detection",
}
_SUBSETS = {"HasAns_": "answerable", "NoAns_": "unanswerable"}
_PARTS = ("loss", "f1", "precision", "recall", "accuracy")
_FRACTIONS = ("/accuracy", "/precision", "/recall")
_SHARES = ("speed/mfu", "speed/data_wait", "speed/goodput")
_CORRELATIONS = ("matthews", "pearson", "spearman")
_PERCENT = ("accuracy", "precision", "recall", "f1", "exact", "exact_match", "best_exact", "best_f1")


def inline(name: str) -> str:
    """Plain label of a metric, without "train/" and "eval/", inside a sentence; an unknown name is spelled out."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith(SCORE):
        return _score(name.removeprefix(SCORE))
    term, _, quantity = name.partition("/")
    return f"{TERMS.get(term, _spelled(term))} {_spelled(quantity)}".strip()


def titled(name: str) -> str:
    """The label above numbers: with a capital, and with a percent sign for a fraction."""
    text = inline(name) + (", %" if name not in _SHARES and percentage(name) else "")
    return text[:1].upper() + text[1:]


def labelled(name: str) -> Cell:
    """The title, with the raw name as its tooltip."""
    return [Words(titled(name), title=name)]


def rank(name: str) -> tuple[int, str, int, str]:
    """Order of metrics for a reader: the total, terms with their loss first, coreference as in the paper, other names."""
    metric, _, part = name.removeprefix(SCORE).rpartition("_" if name.startswith(SCORE) else "/")
    orders = [*METRICS, *TERMS, *COREFERENCE]
    index = next((orders.index(each) for each in (name, metric) if each in orders), len(orders))
    return index, metric, _PARTS.index(part) if part in _PARTS else len(_PARTS), name


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
    return f"{COREFERENCE[metric]} {_score(part)}" if metric in COREFERENCE else _spelled(name)


def _spelled(name: str) -> str:
    return name.replace("_", " ").replace("/", " ").strip()
