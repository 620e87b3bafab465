"""Byte-level BPE and tokenizer.json: the ids of `tokenizers`, specials that no text reaches, word starts, files, errors."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import (
    ByteBpeVocabulary,
    WordPieceVocabulary,
    load_vocabulary,
    save_vocabulary,
    vocabulary_from_files,
)
from spanjax.data.vocab.training import train_byte_bpe
from tests.made import made_sentences

pytestmark = pytest.mark.unit

TEXTS = [
    *made_sentences(50),
    "Hello <mask> wörld  double [MASK]<s> 東京 e\u0301 😀👩\u200d👧\ta",
    "don't (we're) 12345 ...x\u00a0y",
    "",
    " ",
]
TRAINED = train_byte_bpe(made_sentences(300), 400)

STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
BARE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def changed(**settings: Any) -> bytes:
    """The trained file with other settings, those of the model by their name with model_ before it."""
    content = json.loads(TRAINED)
    for name, value in settings.items():
        if name.startswith("model_"):
            content["model"][name.removeprefix("model_")] = value
        else:
            content[name] = value
    return json.dumps(content).encode()


def gpt2_files() -> tuple[dict[str, int], list[str]]:
    """vocab.json and merges.txt of the trained one, in GPT-2's order and without specials."""
    model = json.loads(TRAINED)["model"]
    pieces = [
        piece for piece in sorted(model["vocab"], key=model["vocab"].get) if not piece.startswith("<") or piece == "<"
    ]
    return {piece: number for number, piece in enumerate(pieces)}, [" ".join(pair) for pair in model["merges"]]


def test_ids_are_those_of_tokenizers_and_text_comes_back() -> None:
    vocabulary, plain = ByteBpeVocabulary(TRAINED), tokenizers.Tokenizer.from_str(TRAINED.decode())
    plain.no_truncation()
    for text, ids in zip(TEXTS, vocabulary.encode(TEXTS), strict=True):
        assert ids.dtype == np.int32 and vocabulary.decode(ids) == (text if text.strip() else "")
        if "<" not in text:
            assert ids.tolist() == plain.encode(text, add_special_tokens=False).ids
    assert {*vocabulary.specials}.isdisjoint(np.concatenate(vocabulary.encode(TEXTS)).tolist())
    assert [vocabulary.pieces[i] for i in vocabulary.specials] == ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert (vocabulary.specials.cls, vocabulary.specials.pad, vocabulary.specials.mask) == (0, 1, 4)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_blank_is_put_before_every_text(prefix: bool) -> None:
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    content = changed(pre_tokenizer=BARE | {"add_prefix_space": prefix}, truncation=cut)
    vocabulary, plain = ByteBpeVocabulary(content), tokenizers.Tokenizer.from_str(content.decode())
    plain.no_truncation()
    [ids] = vocabulary.encode(["the harbour, the tower"])
    assert ids.tolist() == plain.encode(" the harbour, the tower", add_special_tokens=False).ids
    assert (ids.tolist() == plain.encode("the harbour, the tower", add_special_tokens=False).ids) is prefix


def test_merges_written_in_the_old_way_are_the_same() -> None:
    merges = [" ".join(pair) for pair in json.loads(TRAINED)["model"]["merges"]]
    old, new = ByteBpeVocabulary(changed(model_merges=merges)), ByteBpeVocabulary(TRAINED)
    assert old.specials == new.specials
    for left, right in zip(old.encode(TEXTS), new.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(left, right)


def test_words_begin_with_a_blank_and_take_their_punctuation() -> None:
    vocabulary = ByteBpeVocabulary(TRAINED)
    [ids] = vocabulary.encode(["Zq, the\txy  (東)"])
    words: list[str] = []
    for number in ids.tolist():
        if vocabulary.word_starts[number]:
            words.append("")
        words[-1] += vocabulary.pieces[number]
    assert words == ["ĠZq,", "Ġthe", "ĉxy", "Ġ", "Ġ(", "æĿ±)"], "Chinese has no blanks: a piece is a word"
    assert vocabulary.word_starts[list(vocabulary.specials)].all()


def test_vocab_json_and_merges_are_read_and_lacking_specials_follow(tmp_path: pathlib.Path) -> None:
    ids, merges = gpt2_files()
    ids |= {"<|endoftext|>": len(ids), "<mask>": len(ids) + 1, "日本": len(ids) + 2}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    vocabulary = load_vocabulary(tmp_path)
    assert isinstance(vocabulary, ByteBpeVocabulary) and vocabulary.size == len(ids) + 4
    assert vocabulary.specials == (len(ids), len(ids) + 1, len(ids) + 2, len(ids) + 3, ids["<mask>"])
    texts = TEXTS[:50]
    shift = {number: vocabulary.pieces.index(piece) for piece, number in json.loads(TRAINED)["model"]["vocab"].items()
             if piece in ids}  # fmt: skip
    for ours, trained in zip(vocabulary.encode(texts), ByteBpeVocabulary(TRAINED).encode(texts), strict=True):
        assert ours.tolist() == [shift[number] for number in trained.tolist()]
    assert ids["<mask>"] not in vocabulary.encode(["a <mask> b"])[0]
    assert vocabulary.decode([ids["日本"], vocabulary.specials.sep]) == "日本 [SEP]"
    assert load_vocabulary(tmp_path / "vocab.json").fingerprint == vocabulary.fingerprint


def test_files_and_folder_give_the_same_vocabulary(tmp_path: pathlib.Path) -> None:
    vocabulary = ByteBpeVocabulary(TRAINED)
    save_vocabulary(vocabulary, tmp_path / "v")
    (tmp_path / "roberta").mkdir()
    (tmp_path / "roberta" / "tokenizer.json").write_bytes(TRAINED)
    found = [
        vocabulary_from_files(vocabulary.files()),
        load_vocabulary(tmp_path / "v"),
        load_vocabulary(tmp_path / "roberta"),
    ]
    for other in found:
        assert other.fingerprint == vocabulary.fingerprint and other.specials == vocabulary.specials
        assert [ids.tolist() for ids in other.encode(TEXTS)] == [ids.tolist() for ids in vocabulary.encode(TEXTS)]
    with pytest.raises(ValueError, match="byte-bpe vocabulary has its own casing"):
        load_vocabulary(tmp_path / "v", lower_case=True)


def test_a_special_that_merges_make_is_text() -> None:
    content = json.loads(TRAINED)
    size = len(content["model"]["vocab"])
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<mask>"]
    content["model"]["vocab"] |= {"[M": size, "AS": size + 1, "K]": size + 2, "[MAS": size + 3, "[MASK]": size + 4}
    del content["model"]["vocab"]["<mask>"]
    content["model"]["vocab"]["[free]"] = 4
    content["model"]["merges"] += [["[", "M"], ["A", "S"], ["K", "]"], ["[M", "AS"], ["[MAS", "K]"]]
    vocabulary = ByteBpeVocabulary(json.dumps(content).encode())
    assert vocabulary.specials.mask == size + 5 and vocabulary.pieces[size + 5] == "[MASK]#"


def test_bytes_without_a_piece_are_unknown() -> None:
    content = json.loads(TRAINED)
    byte = content["model"]["vocab"].pop("ð")
    content["model"]["vocab"]["[free]"] = byte
    vocabulary = ByteBpeVocabulary(json.dumps(content).encode())
    assert vocabulary.encode(["😀"])[0].tolist().count(vocabulary.specials.unk) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(pre_tokenizer={"type": "Metaspace"}), "not ByteLevel.*.model file"),
        (changed(model_dropout=0.1, model_end_of_word_suffix="</w>"), "dropout is 0.1.*where words begin"),
        (changed(model_vocab={"a": 0, "b": 2, "c": 4}, added_tokens=[]), r"2 id\(s\) have no piece \(1, 3\)"),
        (changed(added_tokens=[{"id": 7, "content": "<x>"}]), "id 7 is both"),
        (changed(normalizer=STRIP, pre_tokenizer=BARE), "normalizer removes blanks"),
        (b'{"model": {"type": "BPE"}}', "no vocab and merges"),
    ],
)
def test_what_cannot_be_kept_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)my.json: .*{message}"):
        ByteBpeVocabulary(content, "my.json")


def test_merges_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    ids, merges = gpt2_files()
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("\n".join([*merges, "zz qq", "a b c"]))
    with pytest.raises(ValueError, match=r"(?s)do not fit.*'a b c': expected two.*'zz qq': its pieces"):
        load_vocabulary(tmp_path)


def wordpiece_json(lower_case: bool, **normalizer: Any) -> dict[str, Any]:
    """A tokenizer.json of BERT's kind."""
    pieces = [*SPECIAL_PIECES, "span", "##s", "é", "mask"]
    plain = BertWordPieceTokenizer({piece: n for n, piece in enumerate(pieces)}, lowercase=lower_case)
    content = json.loads(plain.to_str())
    content["normalizer"] |= normalizer
    return content


def test_wordpiece_in_a_tokenizer_json(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokenizer.json"
    for lower in (True, False):
        path.write_text(json.dumps(wordpiece_json(lower)))
        vocabulary = load_vocabulary(path)
        assert isinstance(vocabulary, WordPieceVocabulary) and vocabulary.lower_case is lower
        assert vocabulary.pieces[5:] == ("span", "##s", "é", "mask") and vocabulary.encode(["spans"])[0].tolist() == [
            5,
            6,
        ]
    assert load_vocabulary(path, lower_case=True).casing == "lower"
    content = wordpiece_json(True, strip_accents=False)
    content["pre_tokenizer"] = {"type": "Whitespace"}
    content["model"]["max_input_chars_per_word"] = 200
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="(?s)strip_accents is False.*'Whitespace'.*is 200: expected 100"):
        load_vocabulary(path)
    content = wordpiece_json(True)
    content["added_tokens"].append({"id": 12, "content": "[new]"})
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"3 id\(s\) have no piece \(9, 10, 11\)"):
        load_vocabulary(path)
    content["added_tokens"][-1]["id"] = 9
    path.write_text(json.dumps(content))
    assert load_vocabulary(path).pieces[9] == "[new]"
