"""The graph's ids are those of the vocabularies, on real text and on text made to separate tokenizers."""

import collections
import itertools
import os
import pathlib

import numpy as np
import pytest

from spanjax.data.corpus import Files, InstalledDocs
from spanjax.data.sentences import clean, sentences
from spanjax.data.vocab import SentencePieceVocabulary, Vocabulary, load_vocabulary, train_sentencepiece

DATA = pathlib.Path(os.environ.get("SPANJAX_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "vocab").is_dir(), reason="no data: set SPANJAX_DATA to its folder")
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
    *("x" * 100, "x" * 101, "x" * 1200, "é" * 60 + " " + "é" * 101, "\u0e01" * 90 + " a", "", " "),
]


def wiki_sentences(count: int) -> list[str]:
    documents = Files((DATA / "wiki" / "validation.jsonl.gz",)).documents(collections.Counter())
    return list(itertools.islice((s for d in documents for s in sentences(clean(d.text))), count))


def check(vocabulary: Vocabulary, texts: list[str]) -> None:
    import tensorflow as tf

    from spanjax.data.seqio_vocab import seqio_vocabulary

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


@needs_data
@pytest.mark.parametrize(
    "name", ["bert-base-cased-vocab.txt", "bert-base-uncased-vocab.txt", "sentencepiece-test.model"]
)
def test_ids_in_the_graph_are_equal(name: str) -> None:
    check(load_vocabulary(DATA / "vocab" / name), wiki_sentences(3000) + HARD)


def test_ids_of_a_trained_model_are_equal() -> None:
    documents = itertools.islice(InstalledDocs(("optax",)).documents(collections.Counter()), 30)
    texts = [sentence for document in documents for sentence in sentences(clean(document.text))]
    check(SentencePieceVocabulary(train_sentencepiece(texts, 300)), texts + HARD)
