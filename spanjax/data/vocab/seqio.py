"""The vocabularies of `loading` as `seqio.Vocabulary`, with encoding in the TensorFlow graph; the ids are the same.

The only vocabulary module that imports TensorFlow; text must have gone through `cleaning.clean` for ids to agree.
Byte-level BPE and the SentencePiece models of a tokenizer.json have no operation in TensorFlow: prepare tokenizes such text, and
only its ids reach a graph.
"""

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text as tf_text
import tokenizers

from spanjax.data.vocab.loading import (
    ByteBpeVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    WordPieceVocabulary,
)
from spanjax.data.vocab.tokenizer_json import JsonVocabulary
from spanjax.data.vocab.wordpiece import MAX_WORD_CHARACTERS

# Ends of words: blanks, BERT's punctuation (ASCII that is no letter or digit, Unicode's P categories), and the Chinese
# characters that are words of their own.
_CHINESE = (
    r"\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}\x{2a700}-\x{2ceaf}\x{2f800}-\x{2fa1f}"
)
_BETWEEN = rf"\s\pP$+<=>^`|~{_CHINESE}"
_LETTER, _LONG = rf"[^{_BETWEEN}]", rf"(?s).*x{{{MAX_WORD_CHARACTERS + 1}}}.*"
_REMOVED = (
    r"[\x{200c}\x{200d}\x{fffd}]"  # by BERT; joiners stay in some scripts, and tf_text puts blanks in their place
)
_FLAT_IDS: dict[str, Any] = {"token_out_type": tf.int32}
_TOGETHER = 2048  # texts encoded at a time
_NO_PIECE = "\U0010fffd"  # private use, removed by clean: a word of this alone is unknown


class _SpanjaxVocabulary(seqio.Vocabulary):
    """Base of all kinds: ids and word starts come from the vocabulary itself."""

    def __init__(self, vocabulary: Vocabulary):
        """Wraps `vocabulary`."""
        super().__init__()
        self.vocabulary = vocabulary

    @property
    def pad_id(self) -> int:
        """Id of [PAD]."""
        return self.vocabulary.specials.pad

    @property
    def eos_id(self) -> int | None:
        """None: rows end blocks with [SEP] themselves."""
        return None

    @property
    def unk_id(self) -> int | None:
        """Id of [UNK]."""
        return self.vocabulary.specials.unk

    @property
    def _base_vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def word_starts(self) -> np.ndarray:
        """bool[V], see `Vocabulary.word_starts`."""
        return self.vocabulary.word_starts

    def word_starts_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """bool, of the shape of `ids`: whether each id begins a word."""
        return tf.gather(tf.constant(self.vocabulary.word_starts), ids)

    def _encode(self, s: str) -> Sequence[int]:
        return self.vocabulary.encode([s])[0].tolist()

    def _decode(self, ids: Iterable[int]) -> str:
        return self.vocabulary.decode(list(ids))

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(ids_N: np.ndarray) -> np.ndarray:
            texts = [self.vocabulary.decode(row) for row in ids_N.reshape(-1, ids_N.shape[-1])]
            return np.array([text.encode() for text in texts], dtype=object).reshape(ids_N.shape[:-1])

        texts = tf.numpy_function(decode, [ids], tf.string)
        texts.set_shape(ids.shape[:-1])
        return texts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.vocabulary.fingerprint == other.vocabulary.fingerprint

    def __hash__(self) -> int:
        return hash(self.vocabulary.fingerprint)


class SeqioWordPiece(_SpanjaxVocabulary):
    """BERT's WordPiece in the graph: tf_text's normaliser, then its linear-time matching.

    Lower-casing is BERT's, in steps: tf_text's own also turns sharp s into ss and ligatures into letters.
    """

    @functools.cached_property
    def _tools(self) -> tuple[tf_text.FastBertNormalizer, tf_text.FastWordpieceTokenizer]:
        assert isinstance(self.vocabulary, WordPieceVocabulary)
        with tf.init_scope():
            return (
                tf_text.FastBertNormalizer(),
                # tf_text limits words by bytes, BERT by characters: the limit is kept by _encode_tf.
                tf_text.FastWordpieceTokenizer(list(self.vocabulary.pieces), max_bytes_per_word=1000, **_FLAT_IDS),
            )

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        assert isinstance(self.vocabulary, WordPieceVocabulary)
        if s.shape.rank == 0:  # tf_text's normaliser fails on a single text
            return self._encode_tf(tf.reshape(s, [1])).values
        normalizer, tokenizer = self._tools
        text = tf.strings.regex_replace(s, _REMOVED, "")
        if self.vocabulary.lower_case:
            text = tf.strings.regex_replace(tf_text.normalize_utf8(text, "NFD"), _accents(), "")
            text = tf.strings.regex_replace(
                text, "\u03a3", "\u03c3"
            )  # else a sigma at the end of a word becomes another
            text = tf.strings.lower(text, encoding="utf-8")
        text = cast(tf.Tensor, normalizer.normalize(text))
        return cast(tf.Tensor, tokenizer.tokenize(_without_long_words(text)))


def _without_long_words(text: tf.Tensor) -> tf.Tensor:
    """Replaces words of over 100 characters by `_NO_PIECE`, which no vocabulary has."""
    flat = tf.reshape(text, [-1])
    # Splitting into words is slow: only texts are split in which writing letters as x shows a word that is too long.
    long = tf.where(tf.strings.regex_full_match(tf.strings.regex_replace(flat, _LETTER, "x"), _LONG))
    words: Any = tf_text.regex_split(tf.gather_nd(flat, long), f"[{_BETWEEN}]", f"[{_BETWEEN}]")
    words = tf.where(tf.strings.length(words, "UTF8_CHAR") > MAX_WORD_CHARACTERS, _NO_PIECE, words)
    flat = tf.tensor_scatter_nd_update(flat, long, tf.strings.reduce_join(words, axis=-1))
    return tf.reshape(flat, tf.shape(text))


@functools.cache
def _accents() -> str:
    """Pattern of the accents that BERT strips, taken from `tokenizers`, whose Unicode is older than others'."""
    strip = tokenizers.normalizers.BertNormalizer(False, False, True, False).normalize_str
    marks = (chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M")
    return "[" + "".join(rf"\x{{{ord(mark):x}}}" for mark in marks if not strip(mark)) + "]"


class SeqioSentencePiece(_SpanjaxVocabulary):
    """SentencePiece in the graph, from the same model bytes."""

    @functools.cached_property
    def _tools(self) -> tf_text.SentencepieceTokenizer:
        assert isinstance(self.vocabulary, SentencePieceVocabulary)
        with tf.init_scope():
            return tf_text.SentencepieceTokenizer(self.vocabulary.model)  # int32 ids

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        assert isinstance(self.vocabulary, SentencePieceVocabulary)
        found = self._tools.tokenize(s)
        if not self.vocabulary.layout:
            return cast(tf.Tensor, found)
        own_ids = tf.constant(self.vocabulary.own_ids)
        return cast(tf.Tensor, tf.ragged.map_flat_values(lambda ids: tf.gather(own_ids, ids), found))


class SeqioOfTokenizers(_SpanjaxVocabulary):
    """A vocabulary that `tokenizers` encodes: encoding and decoding in Python, decoding in the graph, no encoding there."""

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError(
            f"{_name(self.vocabulary)} cannot be encoded in a TensorFlow graph: tensorflow_text has no operation for it. "
            "Tokenize the text beforehand with `python -m spanjax.prepare rows` and feed the ids, or use encode() in Python"
        )


def seqio_vocabulary(vocabulary: Vocabulary) -> SeqioWordPiece | SeqioSentencePiece | SeqioOfTokenizers:
    """The seqio form of a vocabulary."""
    if isinstance(vocabulary, WordPieceVocabulary):
        return SeqioWordPiece(vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary):
        return SeqioSentencePiece(vocabulary)
    assert isinstance(vocabulary, JsonVocabulary), vocabulary.kind
    return SeqioOfTokenizers(vocabulary)


def _name(vocabulary: Vocabulary) -> str:
    return (
        "byte-level BPE" if isinstance(vocabulary, ByteBpeVocabulary) else "the SentencePiece model of a tokenizer.json"
    )


def encode_in_graph(vocabulary: Vocabulary, texts: Sequence[str]) -> list[np.ndarray]:
    """int32 ids of every text by the TensorFlow graph; ValueError for a vocabulary that has no graph form."""
    if isinstance(vocabulary, JsonVocabulary):
        raise ValueError(
            f"{_name(vocabulary)} is not encoded in TensorFlow graphs: there is nothing to compare; leave it out"
        )
    signature = [tf.TensorSpec([None], tf.string)]
    encode = tf.function(seqio_vocabulary(vocabulary).encode_tf, input_signature=signature)
    results: list[np.ndarray] = []
    for first in range(0, len(texts), _TOGETHER):
        found = encode(tf.constant(list(texts[first : first + _TOGETHER])))
        results += np.split(found.values.numpy(), found.row_splits.numpy()[1:-1])
    return results
