"""Columns of GLUE's and SNLI's published files: those of sentences, label and name, and the task that each file is of.

A user's own files name their columns `sentence`, or `sentence1` and `sentence2`, and `label`, and suit every task.
"""

import contextlib
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from spanjax.data.sources.tfds import is_tfds
from spanjax.tasks.tables import TABLES, Record, kind_of, read_lines, read_records
from spanjax.tasks.tfds_records import HIDDEN, read_tfds

FIRST = ("sentence", "sentence1", "#1 String", "question1", "question", "text", "premise", "Premise", "content")
SECOND = ("sentence2", "#2 String", "question2", "hypothesis", "Hypothesis")
LABEL = ("label", "Label", "gold_label", "score", "is_duplicate", "Quality")
INDEX = ("index", "id", "pairID", "idx")
UNSETTLED = "-"
COLA = ("source", "label", "mark", "sentence")
INFERENCE = ("SNLI", "MNLI-m", "MNLI-mm")
"""Tasks whose files have the label UNSETTLED where the annotators did not agree."""
OF_ONE_SENTENCE = ("CoLA", "SST-2")
_MNLI = ("MNLI-m", "MNLI-mm")
OWNERS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), ("MRPC",)),
    **dict.fromkeys(("qid1", "qid2", "question1", "question2", "is_duplicate"), ("QQP",)),
    **dict.fromkeys(("old_index", "score"), ("STS-B",)),
    **dict.fromkeys(("pairID", "sentence1_binary_parse", "sentence1_parse", "gold_label"), INFERENCE),
    **dict.fromkeys(("promptID",), _MNLI),
    **dict.fromkeys(("captionID",), ("SNLI",)),
    **dict.fromkeys(("Premise", "Hypothesis"), ("AX",)),
}
"""A column that only the published files of some tasks have -> these tasks."""
PLAIN: Mapping[tuple[str, ...], Sequence[str]] = {
    ("sentence", "label"): ("SST-2",),
    ("index", "sentence"): OF_ONE_SENTENCE,
    ("index", "sentence1", "sentence2", "label"): ("RTE", "WNLI"),
    ("index", "sentence1", "sentence2"): ("RTE", "WNLI", "AX"),
}
"""Whole headers of published files that a user's own file may have too -> the tasks that have them."""
TFDS_LABELS: Mapping[str, Sequence[str]] = {
    "CoLA": ("unacceptable", "acceptable"),
    "SST-2": ("negative", "positive"),
    "MRPC": ("not_equivalent", "equivalent"),
    "QQP": ("not_duplicate", "duplicate"),
    "WNLI": ("not_entailment", "entailment"),
}
"""Names in TensorFlow Datasets of the labels 0 and 1 of the files; other tasks have the files' names there."""
EXPECTED = ("`sentence`, or `sentence1` and `sentence2`", "`sentence` alone", "both `sentence1` and `sentence2`")
"""Columns of a user's own file, by the number of sentences of an example; 0: any number."""
_REMEDY = "give the file of the task, or name the task of the file (--objective.task; evaluate: --task)"
_TFDS = re.compile(r"tfds:glue/([a-z0-9]+)")


def read_glue(task: str, path: pathlib.Path, wanted: int, notes: list[str]) -> Iterator[Record]:
    """The records of a file, or of tfds:NAME with the labels of the files. Messages about its columns go to `notes`.

    ValueError for a file of another task, by its columns or their number of sentences (`wanted`, 0 for any).
    """
    if problem := wrong_source(task, path):
        raise ValueError(f"{path}: {problem}")
    headless = task == "CoLA" and not is_tfds(str(path)) and is_headless_cola(path)
    seen: set[tuple[str, ...]] = {COLA}
    records = _tfds_records(task, path) if is_tfds(str(path)) else read_records(path, COLA if headless else ())
    for place, record, problem in records:
        # the records of a table share their columns: each set of them is looked at once
        if record is not None and (columns := tuple(record)) not in seen:
            if wrong := wrong_file(task, columns, wanted, kind_of(path) in (".json", ".jsonl", ".jsonlines")):
                raise ValueError(f"{place}: {wrong}")
            notes += [f"{path}: {note}"] if (note := ambiguous(task, columns)) else []
            seen.add(columns)
        yield place, record, problem


def _tfds_records(task: str, path: pathlib.Path) -> Iterator[Record]:
    names = {name: str(number) for number, name in enumerate(TFDS_LABELS.get(task, ()))}
    for place, record, problem in read_tfds(str(path), (*FIRST, *SECOND, *LABEL, *INDEX)):
        if record and "label" in record:
            label = record["label"]
            if label is None and task == "SNLI":
                label = UNSETTLED
            elif label == HIDDEN and task == "STS-B":
                label = None
            record["label"] = names.get(label, label) if isinstance(label, str) else label
        yield place, record, problem


def sentences_of(columns: Iterable[str]) -> int:
    """Sentences for which a record has columns: 0, 1 or 2."""
    names = {*columns}
    pair = not names.isdisjoint(SECOND) or {"question", "sentence"} <= names  # QNLI has the latter
    return 0 if names.isdisjoint(FIRST) else 2 if pair else 1


def wrong_file(task: str, columns: Sequence[str], wanted: int, alone: bool = False) -> str:
    """Reason why records with these columns cannot be examples of the task; "" where they can.

    `wanted`: sentences of an example, 0 for any number. `alone`: only this record has them (JSON), so that its number of
    sentences does not describe the file.
    """
    # a `score` or `gold_label` next to a `label` is an extra column of a user's own file: it is not read
    names = [name for name in columns if not (name in ("score", "gold_label") and "label" in columns)]
    owners: Sequence[str] = next((OWNERS[name] for name in names if task not in OWNERS.get(name, (task,))), ())
    if not owners and {"question", "sentence"} <= {*names} and task != "QNLI":
        owners = ("QNLI",)
    if owners and task != "own":
        own = "`sentence`" if wanted == 1 else "`sentence1`, `sentence2`"
        return (
            f"columns {', '.join(columns)} are those of {' and '.join(owners)}, not of {task}: {_REMEDY}, or call the columns of"
            f" your own file {own} and `label`"
        )
    found = sentences_of(columns)
    if not alone and wanted and found and found != wanted:
        return f"columns {', '.join(columns)} hold {wrong_count(found, wanted)}"
    return ""


def wrong_count(found: int, wanted: int) -> str:
    """Message with the number of sentences that a record has, and the expected one."""
    return f"{'one sentence' if found == 1 else 'two sentences'}: expected {EXPECTED[wanted]} in every example"


def wrong_source(task: str, path: pathlib.Path) -> str:
    """Reason why the file or data set as a whole cannot be the task's, before its records are read; "" where it can."""
    if is_tfds(str(path)):
        found, bare = _TFDS.match(str(path)), re.sub("-mm?$", "", task).replace("-", "").lower()
        another = found is not None and task != "own" and found[1] != bare
        return f"the data set of another task than {task}: {_REMEDY}" if another else ""
    if task != "CoLA" and is_headless_cola(path):
        return f"four columns without a header, as in CoLA's files, not {task}'s: {_REMEDY}"
    return ""


def is_headless_cola(path: pathlib.Path) -> bool:
    """True if the first line has CoLA's four columns, 0 or 1 in the second, and no names."""
    if kind_of(path) in TABLES and kind_of(path) != ".tsv":
        return False
    with contextlib.closing(read_lines(path)) as lines:
        columns = next(lines, (0, ""))[1].split("\t")
    return len(columns) == len(COLA) and columns[1] in ("0", "1")


def ambiguous(task: str, columns: Sequence[str]) -> str:
    """A note on a header of another task's file that a user's own file may have as well; "" on any other."""
    owners = PLAIN.get(tuple(columns), (task,))
    if task == "own" or task in owners:
        return ""
    return f"columns {', '.join(columns)}, as in the files of {' and '.join(owners)}: read as examples of {task}"
