"""SentencePiece models of a tokenizer.json: ids of `tokenizers`, specials that no text reaches, starts of pieces, faults."""

import functools
import gzip
import json
import lzma
import pathlib
import random
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tokenizers

from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.loading import load_vocabulary, save_vocabulary, vocabulary_from_files
from spanjax.data.vocab.metaspace import MetaspaceVocabulary
from tests.data.vocab.sentencepiece_files import KINDS, SCRIPTS, TRAINING, model_file, tokenizer_json

BLOCKS = (
    *((0x20, 0x7F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F), (0x590, 0x5F4)),
    *((0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F), (0xA80, 0xAFF)),
    *((0xB80, 0xBFF), (0xC00, 0xC7F), (0xD00, 0xD7F), (0xE00, 0xE5B), (0xE80, 0xEDF), (0xF00, 0xFDA)),
    *((0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17F9)),
    *((0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2460, 0x24FF), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF)),
    *((0xFB00, 0xFB4F), (0xFF00, 0xFFEF), (0x1D400, 0x1D4FF), (0x1F300, 0x1F64F)),
)
"""Blocks of Unicode of more than 30 scripts, of compatibility letters and of emoji."""


@functools.cache
def opened(kind: str) -> MetaspaceVocabulary:
    return MetaspaceVocabulary(tokenizer_json(kind))


def generated(count: int, seed: int = 0) -> Iterator[str]:
    """Texts of words of one block each."""
    chance = random.Random(seed)
    for _ in range(count):
        words = []
        for _ in range(chance.randrange(1, 12)):
            first, last = chance.choice(BLOCKS)
            letters = (chr(chance.randrange(first, last + 1)) for _ in range(chance.randrange(1, 9)))
            words.append("".join(letter for letter in letters if unicodedata.category(letter) != "Cn"))
        yield " ".join(words)


def differing(vocabulary: MetaspaceVocabulary, content: bytes, texts: list[str]) -> list[str]:
    """The texts whose ids are not those of the plain library, which reads a text that needs it after a blank."""
    theirs = tokenizers.Tokenizer.from_str(content.decode())
    found = theirs.encode_batch(vocabulary.prefixed(texts), add_special_tokens=False)
    return [
        text
        for text, ours, each in zip(texts, vocabulary.encode(texts), found, strict=True)
        if ours.tolist() != each.ids
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_tokenizers(kind: str) -> None:
    vocabulary, content = opened(kind), tokenizer_json(kind)
    assert vocabulary.size == tokenizers.Tokenizer.from_str(content.decode()).get_vocab_size()
    texts = [clean(text) for text in [*SCRIPTS, *TRAINING[:50], *generated(500), "", "▁", "a  b", "<unused0>  <"]]
    assert differing(vocabulary, content, texts) == []


@pytest.mark.parametrize("kind", KINDS)
def test_specials_are_found_and_no_text_reaches_them(kind: str) -> None:
    vocabulary = opened(kind)
    names = {
        "xlm-roberta": ["<pad>", "<unk>", "<s>", "</s>", "<mask>"],
        "deberta-v2": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        "mmbert": ["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"],
    }
    found = [vocabulary.pieces[number] for number in vocabulary.specials]
    assert found == names.get(kind, names["xlm-roberta"])
    assert vocabulary.separators == (2 if "<s>" in found else 1)
    never = {*vocabulary.specials} - {vocabulary.specials.unk}
    never |= {number for number, piece in enumerate(vocabulary.pieces) if piece.endswith("NOTUSED")}
    for text in ("".join(vocabulary.pieces[number] for number in never), "a <s> b</s>NOTUSED", "＜s＞"):
        assert never.isdisjoint(vocabulary.encode([text])[0].tolist()), text


@pytest.mark.parametrize("kind", KINDS)
def test_starts_and_words(kind: str) -> None:
    vocabulary = opened(kind)
    texts = [clean(text).strip() for text in [*SCRIPTS, *TRAINING[:20], *generated(200, seed=1)]]
    texts = [text for text in texts if text]
    for text, (ids, starts) in zip(texts, vocabulary.encode_with_starts(texts), strict=True):
        np.testing.assert_array_equal(ids, vocabulary.encode([text])[0])
        assert (np.diff(starts) >= 0).all() and not any(text[start].isspace() for start in starts), text
    text = "the old sailor mended"
    [(ids, starts)] = vocabulary.encode_with_starts([text])
    assert starts[vocabulary.word_starts[ids]].tolist() == [0, 4, 8, 15] and vocabulary.decode(ids) == text
    assert vocabulary.word_starts[list(vocabulary.specials)].all()


@pytest.mark.parametrize("kind", KINDS)
def test_files_give_it_back(kind: str, tmp_path: pathlib.Path) -> None:
    vocabulary = opened(kind)
    save_vocabulary(vocabulary, tmp_path / "saved")
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(kind))
    again = [load_vocabulary(tmp_path / "saved"), load_vocabulary(tmp_path / "tokenizer.json")]
    for each in (*again, load_vocabulary(tmp_path), vocabulary_from_files(vocabulary.files())):
        assert (each.kind, each.fingerprint) == ("metaspace", vocabulary.fingerprint)


def test_next_to_a_model_file_that_counts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json("camembert"))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model_file("camembert"))
    (tmp_path / "config.json").write_text('{"model_type": "camembert"}')
    vocabulary = load_vocabulary(tmp_path)
    assert vocabulary.kind == "sentencepiece" and vocabulary.pieces == opened("camembert").pieces


def changed(kind: str, **settings: Any) -> bytes:
    content = json.loads(tokenizer_json(kind))
    return json.dumps(content | settings | {"model": content["model"] | settings.get("model", {})}).encode()


def test_specials_that_a_file_lacks_come_after_its_ids() -> None:
    content = json.loads(tokenizer_json("xlm-roberta"))
    content["model"]["vocab"].pop()
    added = [token for token in content["added_tokens"] if token["content"] != "<mask>"]
    vocabulary = MetaspaceVocabulary(json.dumps(content | {"added_tokens": added}).encode())
    assert vocabulary.specials.mask == vocabulary.size - 1 == len(content["model"]["vocab"])


def test_faults_of_a_file_are_named() -> None:
    gemma = json.loads(tokenizer_json("mmbert"))["model"]
    merged = {"vocab": {**gemma["vocab"], "<": 9000, "pad>": 9001}, "merges": [["<", "pad>"], *gemma["merges"]]}
    merged["vocab"] |= {f"x{number}": number for number in range(len(gemma["vocab"]), 9000)}
    late = json.loads(tokenizer_json("deberta-v2"))["added_tokens"]
    late[-1]["id"] += 1
    for content, words in (
        (changed("xlm-roberta", model={"unk_id": None}), "unk_id is null: .* set it to the id of <unk>"),
        (changed("xlm-roberta", model={"vocab": {}}), "has no vocab: expected pieces with scores"),
        (changed("mmbert", model={"dropout": 0.1}), "dropout is 0.1: .* set it to null"),
        (changed("mmbert", model={"merges": None}), "merges is no list"),
        (changed("mmbert", model=merged, added_tokens=[]), "merges make the special pieces <pad> from text"),
        (changed("mmbert", normalizer={"type": "Replace", "pattern": {"String": " "}, "content": ""}), "after a blank"),
        (changed("xlm-roberta", pre_tokenizer={"type": "Nothing"}), "tokenizers cannot read it"),
        (changed("deberta-v2", added_tokens=late), "one piece: id|1 id.* have no piece"),
    ):
        with pytest.raises(ValueError, match=words):
            MetaspaceVocabulary(content)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_ten_megabytes_are_those_of_tokenizers(kind: str, shared_data: pathlib.Path) -> None:
    """English articles, questions in other languages as far as there are any, and generated text of all blocks."""
    texts, size = list(generated(30_000, seed=2)), 0
    for file in sorted((shared_data / "wikipedia").glob("*.xz")) + sorted((shared_data / "wiki").glob("*.gz")):
        with (lzma if file.suffix == ".xz" else gzip).open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                texts += json.loads(line)["text"].split("\n")
                size += len(line)
                if size > 8_000_000:
                    break
        if size > 8_000_000:
            break
    texts = [clean(text) for text in texts]
    assert sum(len(text.encode()) for text in texts) > 9_000_000
    large = tokenizer_json(kind, 4000, tuple([*texts[::40], *SCRIPTS]))
    vocabulary = MetaspaceVocabulary(large)
    assert differing(vocabulary, large, texts) == []
