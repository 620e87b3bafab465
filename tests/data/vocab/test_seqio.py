"""The graph's ids are those of the vocabularies, on real text and on text made to separate tokenizers."""

import collections
import itertools
import pathlib
import unicodedata

import numpy as np
import pytest

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.feeds import open_feed
from spanjax.data.feed.rows import open_rows
from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.corpus import InstalledDocs, open_sources
from spanjax.data.sources.sentences import sentences
from spanjax.data.vocab.loading import (
    ByteBpeVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    load_vocabulary,
    save_vocabulary,
)
from spanjax.data.vocab.training import train_byte_bpe, train_sentencepiece
from spanjax.prepare import main
from tests.made import made_sentences

HARD = [
    "literal [MASK] and [CLS]x[SEP] stay text ##ing",
    "don't $5.00 <b>a+b=c</b> `x|y~z^` ¿qué? 5°",
    "naïve Ångström İstanbul ΣΊΣΥΦΟΣ Straße ﬁ",
    "東京は日本の首都です。𠀀",
    "zero\u200bwidth\ufeff no\u00a0break\u3000space\ttab",
    "emoji 😀👩\u200d👧 flags 🇫🇷",
    "한국어 텍스트 ภาษาไทยไม่มีเว้นวรรค नमस्ते दुनिया",
    "a\u0301 e\u0301\u0327 —dash… “quotes”",
    "\x00\x01 ctl\x7f \ue000priv",
    "Ⅷ ½ ¨a ªº ŉ ſ ŀ ǆ ς Σ ΑΣ. Ας ẞ ﬀ ĳ Việt ĐẶNG Ơ K Å Ω ﷺ ㎏ ℀ ① ℝ",
    "nach\ufffdher क्\u200dष می\u200cشود ٱلْعَرَبِيَّة ֑א कि ก็",
    *("東" * 150, "東京" * 60 + "abc.", "." * 150 + "x" * 101 + "," + "x" * 100),
    *("x" * 100, "x" * 101, "x" * 1200, "é" * 60 + " " + "é" * 101, "\u0e01" * 90 + " a", "", " "),
]


def wiki_sentences(folder: pathlib.Path, count: int) -> list[str]:
    documents = open_sources([str(folder / "wiki" / "validation.jsonl.gz")]).documents(collections.Counter())
    return list(itertools.islice((s for d in documents for s in sentences(clean(d.text))), count))


def check(vocabulary: Vocabulary, texts: list[str]) -> None:
    import tensorflow as tf

    from spanjax.data.vocab.seqio import seqio_vocabulary

    texts = [clean(text) for text in texts]
    graph = seqio_vocabulary(vocabulary)
    found = [each.tolist() for each in vocabulary.encode(texts)]
    ragged = tf.function(graph.encode_tf)(tf.constant(texts))
    for text, expected, ids in zip(texts, found, ragged.to_list(), strict=True):
        assert ids == expected, text
    assert graph.encode(texts[0]) == found[0] and graph.vocab_size == vocabulary.size
    ids_N = np.concatenate([np.array(each, np.int32) for each in found])
    np.testing.assert_array_equal(graph.word_starts_tf(tf.constant(ids_N)).numpy(), vocabulary.word_starts[ids_N])
    assert (
        graph.decode_tf(tf.constant(found[0])).numpy().decode() == vocabulary.decode(found[0]) == graph.decode(found[0])
    )


@pytest.mark.parametrize(
    "name", ["bert-base-cased-vocab.txt", "bert-base-uncased-vocab.txt", "sentencepiece-test.model"]
)
def test_ids_in_the_graph_are_equal(name: str, shared_data: pathlib.Path) -> None:
    vocabulary = load_vocabulary(shared_data / "vocab" / name)
    assert vocabulary.casing == {"bert-base-cased-vocab.txt": "cased", "bert-base-uncased-vocab.txt": "lower"}.get(
        name, "model"
    )
    check(vocabulary, wiki_sentences(shared_data, 3000) + HARD)


@pytest.mark.parametrize(
    "name", [pytest.param("bert-base-cased-vocab.txt", marks=pytest.mark.slow), "bert-base-uncased-vocab.txt"]
)
def test_every_character_is_normalised_alike(name: str, shared_data: pathlib.Path) -> None:
    """Of those that have been what they are since Unicode 3.2; U+166D, say, is no punctuation any more."""
    from spanjax.data.vocab.seqio import encode_in_graph

    vocabulary = load_vocabulary(shared_data / "vocab" / name)
    letters = [chr(code) for code in (*range(0x20, 0xAC00), *range(0xF900, 0xFFFF)) if clean(chr(code)) == chr(code)]
    kind = unicodedata.category
    old = [each for each in letters if unicodedata.ucd_3_2_0.category(each)[0] == kind(each)[0] and kind(each) != "Cn"]
    assert len(old) > 38_000
    texts = [f"a{each}b {each}c" for each in old]
    for text, ours, graph in zip(texts, vocabulary.encode(texts), encode_in_graph(vocabulary, texts), strict=True):
        assert ours.tolist() == graph.tolist(), (text, hex(ord(text[1])))


def test_a_single_text_is_encoded_as_among_others(shared_data: pathlib.Path) -> None:
    import tensorflow as tf

    from spanjax.data.vocab.seqio import seqio_vocabulary

    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    dataset = tf.data.Dataset.from_tensor_slices(HARD[:3] + ["x" * 101]).map(seqio_vocabulary(vocabulary).encode_tf)
    for ids, expected in zip(dataset.as_numpy_iterator(), vocabulary.encode(HARD[:3] + ["x" * 101]), strict=True):
        assert ids.dtype == np.int32 and ids.tolist() == expected.tolist()


def test_ids_of_a_trained_model_are_equal() -> None:
    documents = itertools.islice(InstalledDocs(("optax",)).documents(collections.Counter()), 30)
    texts = [sentence for document in documents for sentence in sentences(clean(document.text))]
    check(SentencePieceVocabulary(train_sentencepiece(texts, 300)), texts + HARD)


def test_byte_bpe_works_in_python_and_says_that_it_has_no_graph() -> None:
    import tensorflow as tf

    from spanjax.data.vocab.seqio import encode_in_graph, seqio_vocabulary

    vocabulary = ByteBpeVocabulary(train_byte_bpe(made_sentences(100), 300))
    graph = seqio_vocabulary(vocabulary)
    text = "the old sailor 東京"
    [ids] = vocabulary.encode([text])
    assert graph.encode(text) == ids.tolist() and graph.decode(graph.encode(text)) == text
    assert (graph.vocab_size, graph.pad_id, graph.unk_id) == (300, 1, 3)
    assert graph.decode_tf(tf.constant(ids)).numpy().decode() == text
    np.testing.assert_array_equal(graph.word_starts_tf(tf.constant(ids)).numpy(), vocabulary.word_starts[ids])
    with pytest.raises(NotImplementedError, match="no operation for it.*prepare rows"):
        graph.encode_tf(tf.constant([text]))
    with pytest.raises(ValueError, match="nothing to compare"):
        encode_in_graph(vocabulary, [text])
    assert graph == seqio_vocabulary(ByteBpeVocabulary(vocabulary.tokenizer_json))


def test_rows_of_byte_bpe_go_through_both_feeds(corpus_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    save_vocabulary(ByteBpeVocabulary(train_byte_bpe(made_sentences(300), 400)), tmp_path / "v")
    arguments = ["--input", str(corpus_file), "--vocab", str(tmp_path / "v"), "--length", "64", "--workers", "1"]
    assert main(["rows", *arguments, "--output", str(tmp_path / "rows")]) == 0
    rows = open_rows(tmp_path / "rows" / "train")
    assert isinstance(rows.vocabulary, ByteBpeVocabulary)
    feeds = [open_feed(kind, rows, FeedSpec(seed=1, batch_size=8)) for kind in ("tf", "numpy")]
    for _ in range(2):
        left, right = map(next, feeds)
        for name in right:
            np.testing.assert_array_equal(left[name], right[name])
    for feed in feeds:
        feed.close()
