"""The vocabularies of `vocab.py` as `seqio.Vocabulary`, with encoding in the TensorFlow graph; the ids are the same.

The only vocabulary module that imports TensorFlow; text should have gone through `sentences.clean` for ids to agree.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from spanjax.data.vocab import SentencePieceVocabulary, Vocabulary, WordPieceVocabulary

# BERT's punctuation: ASCII that is no letter, digit or blank, and Unicode's P categories.
_LONG_WORD = r"[^\s\pP$+<=>^`|~]{101,}"
_FLAT_IDS: dict[str, Any] = {"token_out_type": tf.int32}
_NO_PIECE = "\U0010fffd"  # private use, removed by clean: a word of this alone is unknown


class _SpanjaxVocabulary(seqio.Vocabulary):
    """What both kinds share: ids and word starts come from the vocabulary itself."""

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
    """BERT's WordPiece in the graph: tf_text's normaliser, then its linear-time matching."""

    @functools.cached_property
    def _tools(self) -> tuple[tf_text.FastBertNormalizer, tf_text.FastWordpieceTokenizer]:
        assert isinstance(self.vocabulary, WordPieceVocabulary)
        with tf.init_scope():
            return (
                tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=self.vocabulary.lower_case),
                # tf_text limits words by bytes, BERT by characters: the limit is kept by _encode_tf.
                tf_text.FastWordpieceTokenizer(list(self.vocabulary.pieces), max_bytes_per_word=1000, **_FLAT_IDS),
            )

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        normalizer, tokenizer = self._tools
        text = tf.strings.regex_replace(normalizer.normalize(s), _LONG_WORD, _NO_PIECE)
        return cast(tf.Tensor, tokenizer.tokenize(text))


class SeqioSentencePiece(_SpanjaxVocabulary):
    """SentencePiece in the graph, from the same model bytes."""

    @functools.cached_property
    def _tools(self) -> tf_text.SentencepieceTokenizer:
        assert isinstance(self.vocabulary, SentencePieceVocabulary)
        with tf.init_scope():
            return tf_text.SentencepieceTokenizer(self.vocabulary.model)  # int32 ids

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return cast(tf.Tensor, self._tools.tokenize(s))


def seqio_vocabulary(vocabulary: Vocabulary) -> SeqioWordPiece | SeqioSentencePiece:
    """The seqio form of a vocabulary."""
    if isinstance(vocabulary, WordPieceVocabulary):
        return SeqioWordPiece(vocabulary)
    return SeqioSentencePiece(vocabulary)
