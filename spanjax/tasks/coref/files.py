"""Files of documents for coreference resolution, by the ending of their names: CoNLL columns, CoNLL-U, JSON, GAP, text.

docs/coref_files.md has an example of every layout.
"""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from spanjax.data.sources.tables import TableRecord, kind_of, read_records
from spanjax.tasks.base import Examples
from spanjax.tasks.coref.conll import read_conll
from spanjax.tasks.coref.conllu import read_conllu
from spanjax.tasks.coref.documents import CorefDocument
from spanjax.tasks.coref.gap import read_gap
from spanjax.tasks.coref.json_lines import SEGMENT_MAPS, read_record, read_segments
from spanjax.tasks.coref.text import bare_name, read_text

COLUMNS = (".key", ".response")  # names of the official scorer's files; also every name that ends in conll
RECORDS = (".jsonl", ".jsonlines", ".json")
CONLLU, GAP, TEXT = ".conllu", ".tsv", ".txt"


def read_documents(path: pathlib.Path, language: str = "en", others_are_text: bool = False) -> Examples:
    """The Documents of a file, plain or compressed, without those that have problems, which are listed.

    `language` is that of text, see `split_text`. A file of another ending is a problem, or a text where `others_are_text`.
    ValueError where the file is missing, is not readable or not UTF-8, or is text that spaCy cannot split, or is absent for.
    """
    examples = _examples_of(path, kind_of(path), language, others_are_text)
    if not examples and not examples.problems:
        examples.problems.append(f"{path}:1: no documents: expected one at least")
    return examples


def _examples_of(path: pathlib.Path, kind: str, language: str, others_are_text: bool) -> Examples:
    if kind.endswith("conll") or kind in COLUMNS:
        return read_conll(path)
    if kind == CONLLU:
        return read_conllu(path)
    if kind == GAP:
        return read_gap(path, language)
    if kind in RECORDS:
        return _examples(read_records(path), language)
    if kind == TEXT or others_are_text:
        return _examples([(f"{path}:1", {"text": read_text(path), "id": bare_name(path, TEXT)}, "")], language)
    expected = "a name that ends in conll, .conllu, .jsonl, .jsonlines, .json, .tsv or .txt, plain or compressed"
    return Examples([], [f"{path}:1: the ending {kind!r} is of no known layout: expected {expected}"])


def _examples(records: Iterable[TableRecord], language: str) -> Examples:
    examples = Examples()
    for number, (place, record, problem) in enumerate(records, start=1):
        document, problem = (None, problem) if record is None else document_of(record, number, language)
        examples.take(place, document, problem)
    return examples


def document_of(record: Mapping[str, Any], number: int, language: str = "en") -> tuple[CorefDocument | None, str]:
    """(the document of a record, or None; its problem, or ""). A document without a name gets `number`.

    A record has `text`, `words` (`tokens`) or `sentences`, and may have `clusters`, `speakers`, `genre` and `id`
    (`doc_key`); or it has segments of word pieces, as the released code's files: see `read_segments`.
    `language` is that of `text`.
    """
    if any(name in record for name in SEGMENT_MAPS):
        return read_segments(record, number)
    return read_record(record, number, language)
