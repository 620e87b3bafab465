"""MRQA: the SQuAD 1.1 scores over its `answers`, by hand and on its files."""

import gzip
import json
import pathlib

import pytest

from spanjax.scoring import mrqa

FILES = ("NewsQA_sample.jsonl", "NaturalQuestionsShort-dev.jsonl.gz", "SQuAD-dev-6articles.jsonl.gz")


def answers(path: pathlib.Path) -> dict[str, list[str]]:
    """Gold answers by qid of a file in MRQA's form."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in text.splitlines()]
    return {qa["qid"]: qa["answers"] for row in rows for qa in row.get("qas", [])}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, shared_data: pathlib.Path) -> None:
    """The last answer of every second question, in other letters, is half of all; nobody answers the others."""
    gold = answers(shared_data / "mrqa" / name)
    half = {qid: f"The {texts[-1].upper()}!" for qid, texts in list(gold.items())[::2]}
    share = 100.0 * len(half) / len(gold)
    assert mrqa.score(gold, half, missing_is_wrong=True) == {
        "exact_match": share,
        "f1": pytest.approx(share, rel=1e-13),
    }
    with pytest.raises(
        ValueError, match=f"MRQA cannot be computed:\n  - {len(gold) - len(half)} ids have no prediction"
    ):
        mrqa.score(gold, half)


def test_by_hand() -> None:
    gold = {"a": ["in the late 1990s", "late 1990s"], "b": ["Houston , Texas"], "c": ["a"]}
    predictions = {"a": "the 1990s", "b": "Houston, Texas", "c": ""}
    assert mrqa.score(gold, predictions) == {"exact_match": 100 * 2 / 3, "f1": 100 * (2 / 3 + 1 + 0) / 3}
