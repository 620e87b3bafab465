"""Files of documents for coreference resolution, by the ending of their names: CoNLL columns, JSON lines, text.

docs/coref_files.md has an example of every layout.
"""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from spanjax.tasks.base import Examples
from spanjax.tasks.coref_conll import read_conll, write_conll
from spanjax.tasks.coref_documents import Document
from spanjax.tasks.coref_json import read_record, write_jsonl
from spanjax.tasks.coref_wordpieces import SEGMENT_MAPS, read_segments
from spanjax.tasks.tables import Record, kind_of, read_lines, read_records

__all__ = ["document_of", "read_documents", "write_conll", "write_jsonl"]
COLUMNS = (".key", ".response")  # names of the official scorer's files; also every name that ends in conll


def read_documents(path: pathlib.Path) -> Examples:
    """The Documents of a file, plain or compressed, without those that have problems, which are listed.

    ValueError where the file is missing, is not readable or not UTF-8, or is text and spaCy is absent.
    """
    examples = _examples_of(path, kind_of(path))
    if not examples and not examples.problems:
        examples.problems.append(f"{path}:1: no documents: expected one at least")
    return examples


def _examples_of(path: pathlib.Path, kind: str) -> Examples:
    if kind.endswith("conll") or kind in COLUMNS:
        return read_conll(path)
    if kind == ".txt":
        text = "\n".join(line for _, line in read_lines(path))
        return _examples([(f"{path}:1", {"text": text, "id": path.name.partition(".")[0]}, "")])
    if kind in (".jsonl", ".jsonlines"):
        return _examples(read_records(path))
    expected = "a name that ends in conll, .jsonl, .jsonlines or .txt, plain or compressed"
    return Examples([], [f"{path}:1: the ending {kind!r} is of no known layout: expected {expected}"])


def _examples(records: Iterable[Record]) -> Examples:
    examples = Examples()
    for number, (place, record, problem) in enumerate(records, start=1):
        document = None
        if record is not None:
            document, problem = document_of(record, number)
        if document is None:
            examples.problems.append(f"{place}: {problem}")
        else:
            examples.append(document)
    return examples


def document_of(record: Mapping[str, Any], number: int) -> tuple[Document | None, str]:
    """(the document of a record, or None; what is wrong with it, or ""). It is named `number` where it has no name.

    A record has `text`, `words` (`tokens`) or `sentences`, and may have `clusters`, `speakers`, `genre` and `id`
    (`doc_key`); or it has segments of word pieces, as the released code's files: see `read_segments`.
    """
    if any(name in record for name in SEGMENT_MAPS):
        return read_segments(record, number)
    return read_record(record, number)
