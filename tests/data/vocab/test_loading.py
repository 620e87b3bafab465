"""Vocabularies: ids, casing, specials, word starts, files and their errors."""

import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax.data.vocab.base import SPECIAL_PIECES, Specials
from spanjax.data.vocab.loading import (
    SentencePieceVocabulary,
    WordPieceVocabulary,
    load_vocabulary,
    save_vocabulary,
    vocabulary_from_files,
)
from spanjax.data.vocab.training import train_sentencepiece

pytestmark = pytest.mark.unit

PIECES = [*SPECIAL_PIECES, "span", "##s", "Span", "bert", "[", "]", "MASK", "mask", "."]
SENTENCES = [
    f"The quick brown fox number {n} jumps over the lazy dog, and nobody saw it {n * 7} times." for n in range(200)
]


def test_wordpiece_encodes_words_and_literal_specials_as_text() -> None:
    vocabulary = WordPieceVocabulary(PIECES)
    assert [vocabulary.pieces[i] for i in vocabulary.encode(["Spans  spanbert [MASK].x"])[0]] == [
        "Span", "##s", "[UNK]", "[", "MASK", "]", ".", "[UNK]",
    ]  # fmt: skip
    assert vocabulary.encode(["", " "])[1].dtype == np.int32
    assert vocabulary.decode(vocabulary.encode(["spans span"])[0]) == "spans span"


def test_word_starts_are_all_but_continuations() -> None:
    vocabulary = WordPieceVocabulary(PIECES)
    assert [p for p, start in zip(PIECES, vocabulary.word_starts, strict=True) if not start] == ["##s"]


def test_casing_is_guessed_and_can_be_set() -> None:
    assert WordPieceVocabulary(PIECES).lower_case is False
    lower = WordPieceVocabulary([*SPECIAL_PIECES, "span", "mask"])
    assert lower.lower_case is True and lower.encode(["SPÁN"])[0].tolist() == [5]
    assert WordPieceVocabulary(lower.pieces, lower_case=False).encode(["SPAN"])[0].tolist() == [1]


def test_uncased_vocabulary_of_bert_is_known_as_such(shared_data: pathlib.Path) -> None:
    for name, lower in (("bert-base-uncased-vocab.txt", True), ("bert-base-cased-vocab.txt", False)):
        vocabulary = load_vocabulary(shared_data / "vocab" / name)
        assert isinstance(vocabulary, WordPieceVocabulary) and vocabulary.lower_case is lower
    odd = [*SPECIAL_PIECES, "a", "\u211d"]  # a double-struck R has no lowercase form: BERT's uncased vocabulary has it
    assert WordPieceVocabulary(odd).lower_case and not WordPieceVocabulary([*odd, "A"]).lower_case


def test_lower_casing_a_cased_vocabulary_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    with pytest.raises(ValueError, match=r"vocab.txt: 2 of 14 pieces are cased \('Span', say\).*uncased vocabulary"):
        load_vocabulary(tmp_path / "vocab.txt", lower_case=True)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *(f"w{n}" for n in range(200)), "GmbH"]))
    assert load_vocabulary(tmp_path / "vocab.txt", lower_case=True).casing == "lower"  # a few are no mistake


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.vocab", "a", r"end in .vocab .*give the .model file.*tokenizer.json"),
        ("x.bin", "a", r"end in .bin are no vocabulary.*expected a vocab.txt"),
        ("merges.txt", "a b", r"only the merges.*vocab.json"),
        ("vocab.json", "{}", r"needs the merges.txt"),
        ("x.json", "{", r"not JSON"),
        ("x.json", "[1]", r'no "model" in it'),
        ("x.json", '{"model": {"type": "Unigram"}}', r"its model has no vocab: expected pieces with scores"),
        ("x.json", '{"model": {"type": "WordLevel"}}', r"WordLevel model"),
    ],
)
def test_files_of_other_kinds_are_named(name: str, content: str, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        load_vocabulary(tmp_path / name)


def test_casing_option_is_for_wordpiece_and_damaged_folders_are_named(tmp_path: pathlib.Path) -> None:
    save_vocabulary(SentencePieceVocabulary(train_sentencepiece(SENTENCES, 100)), tmp_path)
    with pytest.raises(ValueError, match="sentencepiece vocabulary has its own casing"):
        load_vocabulary(tmp_path, lower_case=False)
    (tmp_path / "vocabulary.json").write_text('{"kind": "unigram"}')
    with pytest.raises(ValueError, match="unigram.*expected one of the kinds wordpiece, sentencepiece, byte-bpe"):
        load_vocabulary(tmp_path)
    (tmp_path / "vocabulary.json").write_text("{")
    with pytest.raises(ValueError, match="vocabulary.json: damaged"):
        load_vocabulary(tmp_path)


def test_folders_of_standard_files_are_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    assert load_vocabulary(tmp_path).pieces == tuple(PIECES)
    (tmp_path / "vocab.txt").rename(tmp_path / "other.txt")
    (tmp_path / "spiece.model").write_bytes(train_sentencepiece(SENTENCES, 100))
    assert load_vocabulary(tmp_path).size == 100
    (tmp_path / "two.model").write_bytes(b"")
    with pytest.raises(ValueError, match="a folder without .*it holds other.txt, spiece.model, two.model"):
        load_vocabulary(tmp_path)


def test_fingerprint_depends_on_casing_and_pieces() -> None:
    base = WordPieceVocabulary(PIECES)
    others = [
        WordPieceVocabulary(PIECES, True),
        WordPieceVocabulary([*PIECES, "x"]),
        WordPieceVocabulary(PIECES[:-2] + PIECES[:-3:-1]),
    ]
    assert len({base.fingerprint, *(each.fingerprint for each in others)}) == 4
    assert base.fingerprint == WordPieceVocabulary(list(PIECES), False).fingerprint


def test_broken_wordpiece_lists_everything(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[CLS]\na\na\n")
    with pytest.raises(ValueError, match=r"(?s)vocab.txt.*\[UNK\], \[SEP\], \[MASK\].*append.*'a'"):
        load_vocabulary(path)
    path.write_text("")
    with pytest.raises(ValueError, match="empty"):
        load_vocabulary(path)
    path.write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ValueError, match="vocab.txt:2: not UTF-8"):
        load_vocabulary(path)
    with pytest.raises(ValueError, match="no such file"):
        load_vocabulary(tmp_path / "absent.txt")
    (tmp_path / "x.model").write_bytes(b"junk")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        load_vocabulary(tmp_path / "x.model")


def test_trained_sentencepiece_is_deterministic_and_keeps_specials_out_of_text() -> None:
    model = train_sentencepiece(SENTENCES, 120, seed=1)
    assert model == train_sentencepiece(SENTENCES, 120, seed=1)
    vocabulary = SentencePieceVocabulary(model)
    assert vocabulary.size == 120 and sorted(vocabulary.specials) == [0, 1, 2, 3, 4]
    [ids] = vocabulary.encode(["The lazy [MASK] and [CLS] dog"])
    assert not set(ids.tolist()) & {0, 2, 3, 4}
    assert (
        vocabulary.word_starts[ids[0]] and vocabulary.decode(vocabulary.encode(["The lazy dog"])[0]) == "The lazy dog"
    )


def sentencepiece_model(**settings: Any) -> bytes:
    """A model of 100 pieces."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=100, minloglevel=2, **settings
    )
    return model.getvalue()


def test_specials_under_the_names_of_xlnet_are_known() -> None:
    symbols = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
    vocabulary = SentencePieceVocabulary(sentencepiece_model(control_symbols=symbols, user_defined_symbols=["<eop>"]))
    assert vocabulary.size == 100
    assert vocabulary.specials == Specials(pad=5, unk=0, cls=3, sep=4, mask=6)
    assert vocabulary.specials.mask not in vocabulary.encode(["a <mask> b"])[0]


def test_sentencepiece_without_specials_gets_them_after_its_ids() -> None:
    vocabulary = SentencePieceVocabulary(sentencepiece_model(user_defined_symbols=["[MASK]"]))
    assert (
        vocabulary.size == 104
        and vocabulary.specials.unk == 0
        and min(vocabulary.specials[:1] + vocabulary.specials[2:]) == 100
    )
    assert (
        vocabulary.specials.mask not in vocabulary.encode(["a [MASK] b"])[0]
    )  # the user-defined piece is not the special


def test_training_errors_say_why() -> None:
    with pytest.raises(ValueError, match="(?i)cannot train a vocabulary of 50000 .*vocabulary size"):
        train_sentencepiece(SENTENCES, 50_000)
    with pytest.raises(ValueError, match="no text"):
        train_sentencepiece([], 100)


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_files_and_folder_give_the_same_vocabulary(kind: str, tmp_path: pathlib.Path) -> None:
    vocabulary = (
        WordPieceVocabulary(PIECES, lower_case=True)
        if kind == "wordpiece"
        else SentencePieceVocabulary(train_sentencepiece(SENTENCES, 100))
    )
    save_vocabulary(vocabulary, tmp_path / "v")
    for other in (vocabulary_from_files(vocabulary.files()), load_vocabulary(tmp_path / "v")):
        assert other.fingerprint == vocabulary.fingerprint and other.specials == vocabulary.specials
        np.testing.assert_array_equal(other.encode(["Span dog"])[0], vocabulary.encode(["Span dog"])[0])
    with pytest.raises(ValueError, match="without vocabulary.json"):
        load_vocabulary(tmp_path)
