"""Numbers of Joshi et al. (2020), "SpanBERT: Improving Pre-training by Representing and Predicting Spans", tables 1 to 7.

In percent. A row has a number, or None, for each column. `Column.task` and `Column.score` select the runs that fill it: the name
of the task in `Task.report_row`, and the name of its score.
"""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    task: str
    score: str = ""
    """Name of the score in runs; empty for a mean of other columns."""
    mean_of: tuple[tuple[str, str], ...] = ()
    """(task, score) of a column of means: first over the scores of a task, then over tasks."""


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    source: str
    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Sequence[float | None]]
    note: str
    arms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """For an ablation: config in configs/ablations -> its row in the paper."""


TEST = (
    "The paper's numbers are of the test set, those of the runs here of their dev files: they are not the same measure."
)
DEV = "The paper's numbers are of development sets after 1.2M updates; those of the runs here are of their dev files."

_QA = ("NewsQA", "TriviaQA", "SearchQA", "HotpotQA", "Natural Questions")
_GLUE = (
    *(("CoLA", "mean"), ("SST-2", "mean"), ("MRPC", "mean"), ("STS-B", "mean"), ("QQP", "mean")),
    *(("MNLI-m", "accuracy"), ("MNLI-mm", "accuracy"), ("QNLI", "mean"), ("RTE", "mean")),
)
_WNLI = ("WNLI", "mean")


def _columns(task: str, scores: Mapping[str, str]) -> tuple[Column, ...]:
    """Columns of one task; `scores` are titles and names of its scores."""
    return tuple(Column(title, task, score) for title, score in scores.items())


def _same(score: str, *tasks: str) -> tuple[Column, ...]:
    """A column of this score for each task, with the task as its title."""
    return tuple(Column(task, task, score) for task in tasks)


def _prf(name: str, title: str = "") -> tuple[Column, ...]:
    scores = {"P": "precision", "R": "recall", "F1": "f1"}
    return _columns("Coreference", {f"{title or name} {k}": f"{name.casefold()}_{v}" for k, v in scores.items()})


SQUAD = PaperTable(
    "Table 1",
    "SQuAD 1.1 and 2.0",
    (
        *_columns("SQuAD 1.1", {"1.1 EM": "exact_match", "1.1 F1": "f1"}),
        *_columns("SQuAD 2.0", {"2.0 EM": "best_exact", "2.0 F1": "best_f1"}),
    ),
    {
        "Human performance": (82.3, 91.2, 86.8, 89.4),
        "Google BERT": (84.3, 91.3, 80.0, 83.3),
        "Our BERT": (86.5, 92.6, 82.8, 85.9),
        "Our BERT-1seq": (87.5, 93.3, 83.8, 86.6),
        "SpanBERT": (88.8, 94.6, 85.7, 88.7),
    },
    f"{TEST} Scores of 2.0 here are those at the threshold that is best on the same dev files.",
)
MRQA = PaperTable(
    "Table 2",
    "F1 of five question answering sets of MRQA",
    (*_same("f1", *_QA), Column("Avg.", "", mean_of=tuple((task, "f1") for task in _QA))),
    {
        "Google BERT": (68.8, 77.5, 81.7, 78.3, 79.9, 77.3),
        "Our BERT": (71.0, 79.0, 81.8, 80.5, 80.5, 78.6),
        "Our BERT-1seq": (71.9, 80.4, 84.0, 80.3, 81.8, 79.7),
        "SpanBERT": (73.6, 83.6, 84.8, 83.0, 82.5, 81.5),
    },
    f"{TEST} The paper's test sets are halves of MRQA's dev sets that were not released.",
)
COREFERENCE = PaperTable(
    "Table 3",
    "OntoNotes coreference resolution",
    (*_prf("MUC"), *_prf("bcub", "B3"), *_prf("CEAFe"), Column("Avg. F1", "Coreference", "f1")),
    {
        "Lee et al. (2018)": (81.4, 79.5, 80.4, 72.2, 69.5, 70.8, 68.2, 67.1, 67.6, 73.0),
        "Google BERT": (84.9, 82.5, 83.7, 76.7, 74.2, 75.4, 74.6, 70.1, 72.3, 77.1),
        "Our BERT": (85.1, 83.5, 84.3, 77.3, 75.5, 76.4, 75.0, 71.9, 73.9, 78.3),
        "Our BERT-1seq": (85.5, 84.1, 84.8, 77.8, 76.7, 77.2, 75.3, 73.5, 74.4, 78.8),
        "SpanBERT": (85.8, 84.8, 85.3, 78.3, 77.9, 78.1, 76.4, 74.2, 75.3, 79.6),
    },
    TEST,
)
RELATIONS = PaperTable(
    "Table 4",
    "TACRED relation extraction",
    _columns("TACRED", {"P": "precision", "R": "recall", "F1": "f1"}),
    {
        "BERT_EM (Soares et al., 2019)": (None, None, 70.1),
        "BERT_EM + MTB (Soares et al., 2019)": (None, None, 71.5),
        "Google BERT": (69.1, 63.9, 66.4),
        "Our BERT": (67.8, 67.2, 67.5),
        "Our BERT-1seq": (72.4, 67.9, 70.1),
        "SpanBERT": (70.8, 70.9, 70.8),
    },
    f"{TEST} Runs with TACRED's score are taken for TACRED; the files below say what they really read.",
)
GLUE = PaperTable(
    "Table 5",
    "GLUE",
    (
        *_same("matthews", "CoLA"),
        *_same("accuracy", "SST-2"),
        *_columns("MRPC", {"MRPC F1": "f1", "MRPC acc.": "accuracy"}),
        *_columns("STS-B", {"STS-B Pearson": "pearson", "STS-B Spearman": "spearman"}),
        *_columns("QQP", {"QQP F1": "f1", "QQP acc.": "accuracy"}),
        *_same("accuracy", "MNLI-m", "MNLI-mm", "QNLI", "RTE"),
        Column("Avg.", "", mean_of=(*_GLUE, _WNLI)),
    ),
    {
        "Google BERT": (59.3, 95.2, 88.5, 84.3, 86.4, 88.0, 71.2, 89.0, 86.1, 85.7, 93.0, 71.1, 80.4),
        "Our BERT": (58.6, 93.9, 90.1, 86.6, 88.4, 89.1, 71.8, 89.3, 87.2, 86.6, 93.0, 74.7, 81.1),
        "Our BERT-1seq": (63.5, 94.8, 91.2, 87.8, 89.0, 88.4, 72.1, 89.5, 88.0, 87.4, 93.0, 72.1, 81.7),
        "SpanBERT": (64.3, 94.8, 90.9, 87.9, 89.9, 89.1, 71.9, 89.5, 88.1, 87.7, 94.3, 79.0, 82.8),
    },
    f"{TEST} The paper's average is that of nine tasks: it comes out with 65.1 for WNLI, which the table does not show. The"
    " average of runs needs WNLI too.",
)
_ABLATIONS = (
    *_same("best_f1", "SQuAD 2.0"),
    *_same("f1", "NewsQA", "TriviaQA", "Coreference"),
    *_same("accuracy", "MNLI-m", "QNLI"),
    Column("GLUE (Avg.)", "", mean_of=_GLUE),
)
MASKING = PaperTable(
    "Table 6",
    "Masking schemes, with two sequences and NSP",
    _ABLATIONS,
    {
        "Subword tokens": (83.8, 72.0, 76.3, 77.7, 86.7, 92.5, 83.2),
        "Whole words": (84.3, 72.8, 77.1, 76.6, 86.3, 92.8, 82.9),
        "Named entities": (84.8, 72.7, 78.7, 75.6, 86.0, 93.1, 83.2),
        "Noun phrases": (85.0, 73.0, 77.7, 76.7, 86.5, 93.2, 83.5),
        "Geometric spans": (85.4, 73.0, 78.8, 76.4, 87.0, 93.3, 83.4),
    },
    f"{DEV} GLUE here is the mean of the eight tasks of table 5, without WNLI; the paper does not say whether its own is.",
    {
        "table6_subword_tokens": "Subword tokens",
        "table6_whole_words": "Whole words",
        "table6_named_entities": "Named entities",
        "table6_noun_phrases": "Noun phrases",
        "table6_geometric_spans": "Geometric spans",
    },
)
OBJECTIVES = PaperTable(
    "Table 7",
    "Auxiliary objectives, with span masking",
    _ABLATIONS,
    {
        "Span masking (2seq) + NSP": (85.4, 73.0, 78.8, 76.4, 87.0, 93.3, 83.4),
        "Span masking (1seq)": (86.7, 73.4, 80.0, 76.3, 87.3, 93.8, 83.8),
        "Span masking (1seq) + SBO": (86.8, 74.1, 80.3, 79.0, 87.6, 93.9, 84.0),
    },
    MASKING.note,
    {
        "table6_geometric_spans": "Span masking (2seq) + NSP",
        "table7_single_sequence": "Span masking (1seq)",
        "table7_single_sequence_sbo": "Span masking (1seq) + SBO",
    },
)
TABLES = (SQUAD, MRQA, COREFERENCE, RELATIONS, GLUE, MASKING, OBJECTIVES)
