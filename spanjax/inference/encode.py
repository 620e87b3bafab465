"""Vectors of texts by the encoder of a model: pooled, of tokens with their characters, or of spans of characters.

    from spanjax.inference.encode import TextEncoder
    from spanjax.pretrained.load import load_model

    encoder = TextEncoder(load_model("runs/mine"))
    encoder.encode(["a text", "another"])                     # [2, D], by default the mean over tokens
    encoder.encode(["a text"], pooling="none")[0].offsets     # characters of every token
    encoder.encode(["a text"], spans=[[(2, 6)]])[0]           # [1, D], the mean over the tokens of "text"
    encoder.encode(["a text"], layers=[0, -1])                # two times [1, D]: embeddings and last layer

Shapes: K layers, B texts, L positions, T tokens of a text, S spans of a text, D hidden size.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.bounds import raise_problems
from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.offsets import TokenizedText, pieces_of
from spanjax.nn.encoder import Encoder
from spanjax.pretrained.model import Model, vocabulary_of
from spanjax.sharding import map_named, named_leaves

Pooling = Literal["mean", "cls", "none", "endpoints"]
CharacterSpan = tuple[int, int]
"""[start, end) in characters of a text."""
Layers = tuple[int, ...] | None
"""Hidden states by number, 0 for the embeddings; None: those of the last layer, without keeping the others."""
BATCH_SIZE, SHORTEST, PROBLEMS = 32, 16, 8


class TokenVectors(NamedTuple):
    """The tokens of one text, with [CLS] before and [SEP] behind them."""

    vectors_TD: np.ndarray
    """float32: hidden states of a layer, by default the last."""
    offsets_T2: np.ndarray
    """int32: [start, end) of each token in characters of the text; (0, 0) of [CLS] and [SEP]."""
    tokens: list[str]
    """Tokens as the vocabulary writes them."""


class TextEncoder:
    """Computes vectors of texts with an encoder on one device. ValueError for a model without a vocabulary.

    Texts of similar length share a batch. Its shape is rounded up, so that few programs are compiled: lengths to `bucket`, rows
    of batches that are not full to a power of two.
    """

    def __init__(self, model: Model):
        self.model, self.vocabulary = model, vocabulary_of(model)
        structure, abstract = nnx.split(nnx.eval_shape(lambda: Encoder(model.encoder, nnx.Rngs(0))))
        leaves = named_leaves(model.params["encoder"])
        self._params = map_named(lambda name, _: jnp.asarray(leaves[name]), nnx.to_pure_dict(abstract))

        # weights are an argument: as constants they would be compiled into every program
        def vectors(
            params: Any, tokens_BL: jax.Array, count_B: jax.Array, pooling: Pooling, layers: Layers
        ) -> jax.Array:
            used_BL = (jnp.arange(tokens_BL.shape[1])[None] < count_B[:, None]).astype(jnp.int32)
            positions_BL = jnp.arange(tokens_BL.shape[1], dtype=jnp.int32)[None] * used_BL
            encoder: Any = nnx.merge(structure, params)
            given = tokens_BL, used_BL, positions_BL, jnp.zeros_like(tokens_BL)
            hidden_KBLD = (
                encoder(*given)[None] if layers is None else encoder.every_state(*given)[np.array(layers, np.int32)]
            )
            if pooling == "cls":
                return hidden_KBLD[:, :, 0]
            if pooling == "mean":
                return jnp.sum(hidden_KBLD * used_BL[None, :, :, None], axis=2) / jnp.maximum(count_B, 1)[None, :, None]
            return hidden_KBLD

        self._run = jax.jit(vectors, static_argnames=("pooling", "layers"))
        self.programs = set[tuple[str, Layers, int, int]]()
        """Compiled programs: pooling, layers, rows and length of each."""

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pooling: Literal["mean", "cls"] | None = None,
        *,
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pooling: Literal["none"],
        *,
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> list[TokenVectors]: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pooling: Literal["mean", "endpoints"] | None = None,
        *,
        spans: Sequence[Sequence[CharacterSpan]],
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> list[np.ndarray]: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pooling: Literal["mean", "cls"] | None = None,
        *,
        layers: Sequence[int],
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> list[np.ndarray]: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pooling: Literal["none"],
        *,
        layers: Sequence[int],
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> list[list[TokenVectors]]: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pooling: Literal["mean", "endpoints"] | None = None,
        *,
        spans: Sequence[Sequence[CharacterSpan]],
        layers: Sequence[int],
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> list[list[np.ndarray]]: ...

    def encode(
        self,
        texts: Sequence[str],
        pooling: Pooling | None = None,
        *,
        spans: Sequence[Sequence[CharacterSpan]] | None = None,
        layers: Sequence[int] | None = None,
        batch_size: int = BATCH_SIZE,
        truncate: bool = False,
    ) -> Any:
        """Returns float32 vectors of texts, in their order.

        Without `spans`: "mean" over all tokens of a text, [CLS] and [SEP] included as in sentence-transformers, or "cls", the
        vector of [CLS]: [B, D]; by default the one of the model, `Model.pooling`. "none": `TokenVectors` of every text.

        With `spans`, [start, end) in characters for every text, vectors of the tokens that have characters of a span: their
        "mean", [S, D] for every text, or "endpoints", the first and the last of them concatenated as in SpanBERT's coreference
        and relation models, [S, 2 D].

        With `layers`, a list with one such result for each, from one pass: numbers as in the `hidden_states` of transformers, 0
        for the embeddings, 1 for the first layer, -1 for the last. Without, the last layer alone is kept in memory.

        `truncate` reads the first tokens of a text that is longer than the model's positions. ValueError lists all texts that
        are too long without it, and all spans without a token.
        """
        pooling = pooling or ("mean" if spans is not None else self.model.pooling)
        states = self.model.encoder.layers + 1
        raise_problems(_argument_problems(texts, pooling, spans, batch_size, layers, states))
        chosen = None if layers is None else tuple(int(number) % states for number in layers)
        located = pieces_of(texts, self.vocabulary) if pooling == "none" or spans is not None else None
        pieces = (
            [each.ids_T for each in located] if located else self.vocabulary.encode([clean(text) for text in texts])
        )
        ids = self._with_specials(pieces, truncate)
        # before anything is computed, so that a wrong span costs nothing
        places = None if spans is None else _token_spans(located or [], [len(each) for each in ids], spans)
        count = 1 if chosen is None else len(chosen)
        found: list[Any] = [[None] * len(ids) for _ in range(count)]
        if located is None:
            found = [*np.empty((count, len(ids), self.model.encoder.hidden_size), np.float32)]

        def result(vectors: np.ndarray, number: int) -> Any:
            if located is None:
                return vectors
            vectors_TD = vectors[: len(ids[number])]
            if places is not None:
                return _span_vectors(vectors_TD, places[number], pooling)
            return self._token_vectors(vectors_TD.copy(), ids[number], located[number])

        for numbers, of_layers in self._batches(ids, "none" if located else pooling, chosen, batch_size):
            for own, of_batch in zip(found, of_layers, strict=True):
                for row, number in enumerate(numbers):
                    own[number] = result(of_batch[row], number)
        return found[0] if layers is None else found

    def _with_specials(self, pieces: Sequence[np.ndarray], truncate: bool) -> list[np.ndarray]:
        """[CLS] pieces [SEP] of every text; ValueError lists texts that are too long, unless they are to be cut."""
        cls, sep = [self.vocabulary.specials.cls], [self.vocabulary.specials.sep]
        most = self.model.encoder.positions - 2
        long = [(number, len(each) + 2) for number, each in enumerate(pieces) if len(each) > most]
        if long and not truncate:
            lines = [f"the text at index {number} has {count:,} tokens" for number, count in long[:PROBLEMS]]
            lines += [f"and {len(long) - PROBLEMS:,} more texts are too long"] if len(long) > PROBLEMS else []
            raise ValueError(
                "\n".join([*lines, f"the model reads at most {most + 2:,}: shorten them, or give truncate=True"])
            )
        return [np.concatenate([cls, each[:most], sep]).astype(np.int32) for each in pieces]

    def _batches(
        self, ids: Sequence[np.ndarray], pooling: Pooling, layers: Layers, batch_size: int
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Yields the indices of texts and their vectors, the longest texts first, so that memory runs out at once or never."""
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        pending = None
        while order:
            length = bucket(len(ids[order[0]]), self.model.encoder.positions)
            rows = self._rows([len(ids[number]) for number in order[:batch_size]], length, batch_size)
            numbers, order = order[:rows], order[rows:]
            tokens_BL = np.full((rows, length), self.vocabulary.specials.pad, np.int32)
            count_B = np.zeros(rows, np.int32)
            for row, number in enumerate(numbers):
                count_B[row] = len(ids[number])
                tokens_BL[row, : count_B[row]] = ids[number]
            self.programs.add((pooling, layers, rows, length))
            result = self._run(self._params, tokens_BL, count_B, pooling=pooling, layers=layers)
            # the device computes this batch while the host takes the one before
            if pending:
                yield pending[0], np.asarray(pending[1])
            pending = (numbers, result)
        if pending:
            yield pending[0], np.asarray(pending[1])

    def _rows(self, lengths: Sequence[int], length: int, batch_size: int) -> int:
        """Rows of the next batch, whose texts have these lengths: `batch_size`, else a power of two."""
        if len(lengths) == batch_size and 3 * lengths[-1] >= 2 * length:
            return batch_size
        # few long texts before shorter ones: a full batch would be padding for the most part
        same = sum(bucket(each, self.model.encoder.positions) == length for each in lengths)
        return min(batch_size, 1 << (same - 1).bit_length())

    def _token_vectors(self, vectors_TD: np.ndarray, ids_T: np.ndarray, text: TokenizedText) -> TokenVectors:
        inner, offsets_T2 = len(ids_T) - 2, np.zeros((len(ids_T), 2), np.int32)
        offsets_T2[1:-1, 0], offsets_T2[1:-1, 1] = text.starts_T[:inner], text.ends_T[:inner]
        return TokenVectors(vectors_TD, offsets_T2, [self.vocabulary.pieces[number] for number in ids_T.tolist()])


def bucket(length: int, most: int) -> int:
    """Rounds a number of tokens up to 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ..., at most `most`, the positions of the model."""
    step = max(SHORTEST, 1 << (length - 1).bit_length()) // 8  # four lengths from a power of two to the next
    return min(max(SHORTEST, -(-length // step) * step), most)


def _argument_problems(texts: Any, pooling: str, spans: Any, batch_size: int, layers: Any, states: int) -> list[str]:
    """Wrong arguments of `encode`, one line each; `states` is the number of hidden states."""
    if isinstance(texts, str):
        return [f"texts is {texts[:40]!r}, one text: expected a list, write [text]"]
    wrong = [(number, text) for number, text in enumerate(texts) if not isinstance(text, str)]
    found = [f"texts[{number}] is {repr(text)[:40]}: expected a text" for number, text in wrong[:PROBLEMS]]
    expected = ("mean", "cls", "none") if spans is None else ("mean", "endpoints")
    if pooling not in expected:
        given = "without spans" if spans is None else "with spans"
        found.append(f"pooling is {pooling!r}: expected one of {', '.join(expected)} {given}")
    if spans is not None and len(spans) != len(texts):
        found.append(f"spans has {len(spans)} items for {len(texts)} texts: give a list of (start, end) for each")
    if layers is not None and (
        isinstance(layers, int) or not [*layers] or not all(_is_state(n, states) for n in layers)
    ):
        found.append(
            f"layers is {layers!r}: expected numbers from 0, the embeddings, to {states - 1}, the last layer, or -{states} to -1"
        )
    if batch_size < 1:
        found.append(f"batch_size is {batch_size}: expected at least 1")
    return found


def _is_state(number: Any, states: int) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and -states <= int(number) < states


def _token_spans(
    texts: Sequence[TokenizedText], counts: Sequence[int], spans: Sequence[Sequence[CharacterSpan]]
) -> list[list[tuple[int, int]]]:
    """First and last token (inclusive, [CLS] is 0) of every span of every text; ValueError lists spans without a token."""
    found: list[list[tuple[int, int]]] = []
    problems = []
    for number, (text, count, wanted) in enumerate(zip(texts, counts, spans, strict=True)):
        starts_T, ends_T = text.starts_T[: count - 2], text.ends_T[: count - 2]
        found.append([])
        for start, end in wanted:
            (tokens,) = np.nonzero((starts_T < end) & (ends_T > start))
            if start < 0 or len(tokens) == 0:
                behind = int(ends_T[-1]) if len(ends_T) else 0
                problems.append(
                    f"span ({start}, {end}) of the text at index {number} has no token: expected characters of a word, as"
                    f" [start, end) before {behind}"
                )
            else:
                found[-1].append((int(tokens[0]) + 1, int(tokens[-1]) + 1))
    more = [f"and {len(problems) - PROBLEMS:,} more spans"] if len(problems) > PROBLEMS else []
    raise_problems([*problems[:PROBLEMS], *more])
    return found


def _span_vectors(vectors_TD: np.ndarray, spans: Sequence[tuple[int, int]], pooling: Pooling) -> np.ndarray:
    width = vectors_TD.shape[1] * (2 if pooling == "endpoints" else 1)
    if pooling == "endpoints":
        rows = [np.concatenate([vectors_TD[first], vectors_TD[last]]) for first, last in spans]
    else:
        rows = [vectors_TD[first : last + 1].mean(axis=0) for first, last in spans]
    return np.array(rows, np.float32).reshape(len(spans), width)
