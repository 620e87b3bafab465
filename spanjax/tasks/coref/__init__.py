"""Coreference resolution: which mentions of a document mean the same (SpanBERT, section 4.1 and appendix B).

A row is a whole document: its segments lie one behind the other, each of `length` positions, and the encoder reads every
segment on its own. Above it one document is resolved at a time (`spanjax.nn.coreference`).

Shapes: B documents, L positions of a row, G positions of a segment, N pieces of a document in order (also padded to L), X
segments of all rows, W widths, M spans that are kept, A antecedents, D hidden size.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.bounds import AtLeast1, NotNegative
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.coreference import Coreference
from spanjax.nn.coreference_parts import CoreferenceConfig, CorefInputs, Resolved, antecedent_loss, in_parts, log_total
from spanjax.nn.dropout import DropoutKey, hash32
from spanjax.nn.layer import linear
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import coref as scoring
from spanjax.scoring.coref.classes import classes
from spanjax.tasks.base import HEAD_SITE, LOSS, Examples, Outputs, ReportRow, Task
from spanjax.tasks.coref.answers import CorefPrediction, answer_of, gold_clusters, prediction_json
from spanjax.tasks.coref.documents import CorefDocument
from spanjax.tasks.coref.files import document_of, read_documents
from spanjax.tasks.coref.segments import independent, mention_pieces, overlapping, pieces_of
from spanjax.tasks.coref.writing import write_json, write_jsonl, write_writable
from spanjax.tasks.rows import Row

FLAT = ("sentence_BL", "word_BL", "speaker_BL", "place_BL", "cluster_BLW")
"""Fields of pieces in order; `place_BL` is the position of a piece in the row."""
ENCODED = 64  # segments that the encoder reads at a time without dropout
CUT = 0x5EC0DE


@dataclasses.dataclass(frozen=True)
class Coref(Task):
    """Clusters of mentions, by the coarse-to-fine model; `length` is that of a segment."""

    length: int = 384
    """Positions of a segment, [CLS] and [SEP] included."""
    max_segments: AtLeast1 = 3
    """Training takes this many consecutive segments of a longer document, others each time; larger segment
    distances share one bucket."""
    overlap: bool = False
    """Read the document twice, the second time half a segment later, and mix the states (`overlap` of Joshi et al., 2019)."""
    model: CoreferenceConfig = CoreferenceConfig()
    """The model above the encoder."""
    singletons: Literal["drop", "keep"] = "drop"
    """Clusters of one mention: OntoNotes has none, LitBank has. drop: neither learnt nor predicted nor scored. keep: a span with
    a mention score above 0 is a cluster though nothing refers to it; it needs a `mention_loss`."""
    mention_loss: NotNegative = 0.0
    """Weight of a loss on mention scores: the cross-entropy of being a gold mention, over the spans that are kept. The published
    model has none: a mention that is not kept teaches it nothing."""
    keep_gold: bool = False
    """Keep gold mentions in training whatever their scores. The published model does not: a mention that is not kept teaches it
    nothing, and long ones, which are rare, may never be kept."""
    genres: tuple[str, ...] = ()
    """Genres with an embedding of their own; empty: those of the training documents."""
    language: str = "en"
    """Language of plain text, by whose rules spaCy cuts it into words and sentences; nothing else depends on it."""

    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {"coref": {}}
    predict_command = "coref"
    rows_together = 1  # a row is a whole document, and empty rows of a batch cost as much

    @property
    def metric(self) -> str:
        """The mean F1 of MUC, B-cubed and CEAF-phi4, as in CoNLL-2012."""
        return "f1"

    @property
    def report_row(self) -> ReportRow:
        """Coreference, whatever the documents."""
        return ReportRow("Coreference", self.metric)

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Implements `Task.problems`."""
        found = super().problems(encoder)
        if self.singletons == "keep" and self.mention_loss == 0:
            found.append("objective.mention_loss is 0: expected more with objective.singletons keep, say 1")
        return found

    def read(self, path: pathlib.Path) -> Examples:
        """Reads a file by `read_documents`; without singletons where `singletons` drops them."""
        return self.counted(read_documents(path, self.language))

    def counted(self, found: Examples) -> Examples:
        """The documents with the clusters that count: without singletons where `singletons` drops them."""
        if self.singletons == "keep":
            return found
        documents = [
            dataclasses.replace(each, clusters=each.clusters and tuple(c for c in each.clusters if len(c) > 1))
            for each in found
        ]
        return Examples(documents, found.problems, found.notes)

    def is_labelled(self, example: CorefDocument) -> bool:
        """Implements `Task.is_labelled`."""
        return example.clusters is not None

    def example(self, record: Mapping[str, Any], number: int) -> tuple[CorefDocument | None, str]:
        """Implements `Task.example` by `document_of`."""
        return document_of(record, number, self.language)

    def with_training_labels(self, examples: Sequence[CorefDocument], vocabulary: Vocabulary) -> Self:
        """Infers the genres from these documents. ValueError where none of them has clusters."""
        if not any(each.clusters for each in examples):
            raise ValueError("no training document has clusters: give documents with coreference")
        if self.genres:
            return self
        return dataclasses.replace(self, genres=tuple(sorted({each.genre for each in examples} - {""})))

    def lengths(self, longest: int) -> tuple[int, ...]:
        """Whole numbers of segments: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... up to the longest document."""
        most = math.ceil(longest / self.length)
        counts = [1, *(each for power in range(1, 30) for each in (2**power, 3 * 2 ** (power - 1)))]
        return (*(self.length * count for count in sorted(counts) if count < most), self.length * most)

    def rows(self, examples: Sequence[CorefDocument], vocabulary: Vocabulary) -> Iterator[Row]:
        """The segments of every document one after the other. Fields of pieces in order, zeros after the last: `sentence_BL`
        from 1, `word_BL`, `speaker_BL` from 1 and 0 for nobody, `place_BL` in the row, `cluster_BLW` the gold cluster from 1
        of the span that begins there with each width; with overlap also `shifted_BL` (tokens) and `shifted_place_BL`. `genre_B`
        is 0 for an unknown one."""
        specials, width = vocabulary.specials, self.model.max_width
        for number, document in enumerate(examples):
            pieces = pieces_of(document, vocabulary)
            first = independent(pieces, self.length, specials)
            # TaskRows cuts every BL field by the row's token count: both passes and all fields are padded to one size
            second = overlapping(pieces, self.length, specials, first) if self.overlap else None
            size = max(len(first.tokens_T), len(second.tokens_T) if second else 0)
            names = {name: place + 1 for place, name in enumerate(dict.fromkeys(filter(None, document.speakers)))}
            speaker = np.array([names.get(each, 0) for each in document.speakers], np.int32)
            cluster_NW = np.zeros((len(pieces.ids_N), width), np.int32)
            for own, cluster in enumerate(document.clusters or (), start=1):
                for mention in cluster:
                    begin, end = mention_pieces(pieces, mention)
                    if end - begin < width:
                        cluster_NW[begin, end - begin] = own
            flat = (pieces.sentence_N + 1, pieces.word_N, speaker[pieces.word_N], first.place_N, cluster_NW)
            fields: dict[str, Any] = {name: padded(array, size) for name, array in zip(FLAT, flat, strict=True)}
            if second:
                fields["shifted_BL"] = padded(second.tokens_T, size, specials.pad)
                fields["shifted_place_BL"] = padded(second.place_N, size)
            genre = self.genres.index(document.genre) + 1 if document.genre in self.genres else 0
            fields |= {"genre_B": np.int32(genre), "pad_B": np.int32(specials.pad)}
            tokens = padded(first.tokens_T, size, specials.pad)
            yield Row(tokens, np.zeros(size, np.int32), number, fields, pieces)

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: Any) -> None:
        """`coreference`, and `overlap_gate` where segments overlap."""
        module.coreference = Coreference(encoder, self.model, len(self.genres), self.max_segments, rngs)
        if self.overlap:
            module.overlap_gate = linear(2 * encoder.hidden_size, encoder.hidden_size, encoder, rngs)

    def _states(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Hidden states of the pieces in order, [B, N, D]."""
        read_BLD = read_segments(module, batch["tokens_BL"], batch["pad_B"], self.length, key)
        states_BND = jnp.take_along_axis(read_BLD, batch["place_BL"][..., None], axis=1)
        if not self.overlap:
            return states_BND
        again = DropoutKey(hash32(key.key), key.row_B) if key else None
        read_BLD = read_segments(module, batch["shifted_BL"], batch["pad_B"], self.length, again)
        other_BND = jnp.take_along_axis(read_BLD, batch["shifted_place_BL"][..., None], axis=1)
        kernel, bias = module.overlap_gate.kernel[...], module.overlap_gate.bias[...]
        joined = jnp.einsum("bnc,cd->bnd", jnp.concatenate([states_BND, other_BND], axis=-1), kernel)
        share_BND = jax.nn.sigmoid(joined + bias[None, None])
        return share_BND * states_BND + (1 - share_BND) * other_BND

    def _resolved(self, module: Any, batch: Batch, key: DropoutKey | None) -> tuple[Resolved, jax.Array]:
        """(spans and antecedents of every document, arrays with a leading axis of documents; gold clusters of spans [B, M])."""
        batch = cut(batch, self.length, self.max_segments, key)
        states_BND = self._states(module, batch, key)
        row_B = key.row_B if key else batch["row_B"]

        def one(given: tuple[Any, ...]) -> tuple[Resolved, jax.Array]:
            states_ND, sentence_N, word_N, speaker_N, place_N, cluster_NW, genre, row = given
            own = DropoutKey(key.key, row[None]) if key else None
            pieces = CorefInputs(sentence_N, word_N, speaker_N, place_N // self.length, genre)
            sure_NW = cluster_NW > 0 if key and self.keep_gold else None
            found = module.coreference(states_ND, pieces, own, HEAD_SITE, sure_NW)
            return found, cluster_NW[found.first_M, found.last_M - found.first_M] * found.real_M

        given = (states_BND, *(batch[name] for name in FLAT), batch["genre_B"], row_B)
        if len(row_B) == 1:
            return jax.tree.map(lambda x: x[None], one(jax.tree.map(lambda x: x[0], given)))
        return jax.lax.map(one, given)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of documents."""
        return {LOSS: jnp.sum(batch["weight_B"])}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Implements `Task.measure` by `_means`."""
        return self._means(*self._resolved(module, batch, key), batch["weight_B"])

    def _means(self, found: Resolved, cluster_BM: jax.Array, weight_B: jax.Array) -> dict[str, Mean]:
        """The loss of a document: nats summed over its spans, as published; and the share of gold mentions among spans."""
        loss_B = jax.vmap(antecedent_loss)(found, cluster_BM)
        if self.mention_loss:
            sign_BM = jnp.where(cluster_BM > 0, -1.0, 1.0)
            wrong_BM = jax.nn.softplus(sign_BM * found.mention_M) * found.real_M
            loss_B += self.mention_loss * jnp.sum(wrong_BM, axis=1)
        kept_B = jnp.sum(found.real_M, axis=1)
        gold_B = jnp.sum(cluster_BM > 0, axis=1)
        return {
            LOSS: Mean(jnp.sum(loss_B * weight_B), jnp.sum(weight_B)),
            "task/gold_spans": Mean(jnp.sum(gold_B * weight_B), jnp.sum(kept_B * weight_B)),
        }

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """The second result of `measure_with_outputs`."""
        return self.measure_with_outputs(module, batch)[1]

    def measure_with_outputs(self, module: Any, batch: Batch) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """The means of `measure`; of every span its pieces, the best antecedent (-1: none), the probability to have one."""
        found, cluster_BM = self._resolved(module, batch, None)
        top_BM, best_BM = found.score_MA.max(axis=2), found.score_MA.argmax(axis=2)
        best_BM = jnp.take_along_axis(found.antecedent_MA, best_BM[..., None], axis=2)[..., 0]
        outputs = {
            "first_BM": found.first_M,
            "last_BM": found.last_M,
            "real_BM": found.real_M,
            "mention_BM": found.mention_M,
            "antecedent_BM": jnp.where(top_BM > 0, best_BM, -1),
            "linked_BM": 1 - jnp.exp(-log_total(found.score_MA)),
        }
        return self._means(found, cluster_BM, batch["weight_B"]), outputs

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of the encoder over whole segments, forward and backward, without the model above it."""
        return float(encoder.flops(tokens, tokens * self.length))

    def predictions(
        self, examples: Sequence[CorefDocument], rows: Sequence[Row], outputs: Sequence[Outputs]
    ) -> list[CorefPrediction]:
        """Clusters of every document: spans joined with their best antecedents, and these with theirs."""
        keep = self.singletons == "keep"
        return [answer_of(row.notes, output, keep) for row, output in zip(rows, outputs, strict=True)]

    def scores(self, examples: Sequence[CorefDocument], predictions: Sequence[CorefPrediction]) -> dict[str, float]:
        """The official scores over all documents; `f1` is the mean of MUC's, B-cubed's and CEAF-phi4's."""
        return scoring.percents(
            list(zip(gold_clusters(examples), (each.clusters for each in predictions), strict=True))
        )

    def write(
        self, folder: pathlib.Path, examples: Sequence[CorefDocument], predictions: Sequence[CorefPrediction]
    ) -> list[pathlib.Path]:
        """Writes predictions.jsonl; predictions.conll for the official scorer; where clusters are known key.conll too, and
        recall.json: of mentions and right antecedents by class, and by width. Columns lack mentions that brackets cannot hold
        (`write_writable`); left_out.json has their number for each file."""
        clusters = [each.clusters for each in predictions]
        files = [folder / "predictions.jsonl"]
        write_jsonl(files[0], examples, clusters)
        columns = {"predictions.conll": clusters}
        if all(each.clusters is not None for each in examples):
            columns["key.conll"] = gold_clusters(examples)
            found = classes(zip((each.sentences for each in examples), columns["key.conll"], clusters, strict=True))
            files.append(write_json(folder / "recall.json", dataclasses.asdict(found)))
        fewest = 1 if self.singletons == "keep" else 2
        left_out = {name: write_writable(folder / name, examples, given, fewest) for name, given in columns.items()}
        return [*files, *(folder / name for name in columns), write_json(folder / "left_out.json", left_out)]

    def prediction_json(
        self, example: CorefDocument, prediction: CorefPrediction, outputs: Sequence[Outputs]
    ) -> dict[str, Any]:
        """Implements `Task.prediction_json` by that of `answers`."""
        return prediction_json(example, prediction)


def padded(array: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """An array of integers filled up to `size` along its first axis, int32."""
    spare = ((0, size - len(array)), *((0, 0),) * (array.ndim - 1))
    return np.pad(array.astype(np.int32), spare, constant_values=value)


def read_segments(
    module: Any, tokens_BL: jax.Array, pad_B: jax.Array, segment: int, key: DropoutKey | None
) -> jax.Array:
    """Hidden states [B, L, D] of rows of segments, each segment read on its own; `pad_B` is the id of padding."""
    rows, length = tokens_BL.shape
    count = length // segment
    tokens_XG = tokens_BL.reshape(-1, segment)
    inside_XG = (tokens_XG != jnp.repeat(pad_B, count)[:, None]).astype(jnp.int32)
    positions_XG = jnp.arange(segment, dtype=jnp.int32)[None] * inside_XG

    def encoded(given: tuple[jax.Array, ...], key: DropoutKey | None) -> jax.Array:
        tokens_XG, inside_XG, positions_XG = given
        return module.encoder(tokens_XG, inside_XG, positions_XG, jnp.zeros_like(tokens_XG), key)

    given = (tokens_XG, inside_XG, positions_XG)
    if key is None:
        return in_parts(lambda part: encoded(part, None), given, ENCODED).reshape(rows, length, -1)
    row_BX = (key.row_B.astype(jnp.uint32)[:, None] << 16) + jnp.arange(count, dtype=jnp.uint32)[None]
    return encoded(given, DropoutKey(key.key, row_BX.reshape(-1))).reshape(rows, length, -1)


def cut(batch: Batch, segment: int, most: int, key: DropoutKey | None) -> Batch:
    """In training (with `key`) `most` consecutive segments of each document, sampled by its number and the step."""
    size = most * segment
    if key is None or batch["tokens_BL"].shape[1] <= size:
        return batch

    def slide(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
        # dynamic_slice moves a start near the end back so that the slice fits, which would shift the positions: pad first
        spare = jnp.pad(array, ((0, size), *((0, 0),) * (array.ndim - 1)))
        return jax.lax.dynamic_slice_in_dim(spare, start, size)

    def one(row: dict[str, jax.Array], number: jax.Array) -> dict[str, jax.Array]:
        real_N = row["sentence_BL"] > 0
        segments = jnp.max(jnp.where(real_N, row["place_BL"], 0)) // segment + 1
        drawn = hash32(key.key ^ hash32(number.astype(jnp.uint32) ^ jnp.uint32(CUT)))
        choices = jnp.maximum(segments - most + 1, 1).astype(jnp.uint32)
        first = (drawn % choices).astype(jnp.int32) * segment
        begin = jnp.sum(real_N & (row["place_BL"] < first))
        made = dict(row) | {name: slide(row[name], begin, size) for name in FLAT}
        place_N = made["place_BL"] - first
        inside_N = (made["sentence_BL"] > 0) & (place_N < size)
        made["sentence_BL"] = jnp.where(inside_N, made["sentence_BL"], 0)
        made["place_BL"] = jnp.where(inside_N, place_N, 0)
        made["tokens_BL"] = slide(row["tokens_BL"], first, size)
        if "shifted_BL" in row:
            place_N = slide(row["shifted_place_BL"], begin, size)
            before = place_N[0] // segment * segment
            made["shifted_BL"] = slide(row["shifted_BL"], before, size + 2 * segment)
            made["shifted_place_BL"] = jnp.where(inside_N, place_N - before, 0)
        return made

    return jax.vmap(one)(dict(batch), batch["row_B"])
