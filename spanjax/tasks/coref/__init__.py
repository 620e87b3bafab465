"""Coreference resolution: which mentions of a document mean the same (SpanBERT, section 4.1 and appendix B).

A row is a whole document: its segments lie one behind the other, each of `length` positions, and the encoder reads every
segment on its own. The head above it (`spanjax.nn.coreference`) resolves short documents together and long ones one at a time.

Shapes: B documents, L positions of a row, G positions of a segment, N pieces of a document in order (also padded to L), X
segments of all rows, W widths, M spans that are kept, J candidates for antecedents, A antecedents, D hidden size.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.bounds import AtLeast0, AtLeast1, NotNegative
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.coreference import Coreference
from spanjax.nn.coreference_parts import (
    CoreferenceConfig,
    CorefInputs,
    Given,
    Resolved,
    Spans,
    antecedent_loss,
    in_parts,
    log_total,
)
from spanjax.nn.dropout import DropoutKey, hash32
from spanjax.nn.layer import linear
from spanjax.nn.start_end import StartEnd
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import coref as scoring
from spanjax.scoring.coref import gap as gap_scores
from spanjax.scoring.coref.classes import classes
from spanjax.tasks.base import HEAD_SITE, LOSS, Examples, Outputs, ReportRow, Task
from spanjax.tasks.coref.answers import CorefPrediction, answer_of, gold_clusters, prediction_json
from spanjax.tasks.coref.conllu import write_conllu
from spanjax.tasks.coref.documents import CorefDocument, Mention, with_key_words
from spanjax.tasks.coref.excerpts import FLAT, cut, excerpt, read_segments
from spanjax.tasks.coref.files import document_of, read_documents
from spanjax.tasks.coref.gap import decision, write_gap
from spanjax.tasks.coref.segments import independent, mention_pieces, overlapping, pieces_of
from spanjax.tasks.coref.writing import write_json, write_jsonl, write_writable
from spanjax.tasks.rows import Row

TOGETHER = 1536  # positions of the documents that the head resolves at the same time


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
    mentions: Literal["given", "gold", "found"] = "given"
    """Spans that are resolved. given: those that a document brings with it (`mentions`), of other documents those that the model
    finds; gold: those of the gold clusters; found: those that the model finds, of all documents."""
    memory: AtLeast0 = 0
    """Spans that are remembered where a document is read in windows, for predictions: a span may refer to these and to those
    of its own window. 0 resolves whole documents, as published."""
    window: AtLeast1 = 8
    """Segments of a window; it needs a `memory`."""
    language: str = "en"
    """Language of plain text, by whose rules spaCy cuts it into words and sentences; nothing else depends on it."""

    scored: Literal["spans", "heads", "gap"] = "spans"
    """Mentions that count as the same in scores. spans: those with the same first and last word; heads: those with the same
    head, as in CorefUD; gap: the pronoun and the two names of a document of GAP, whose scores these are."""

    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "coref": {},
        "coref-gold-mentions": {"mentions": "gold"},
        "coref-no-singletons": {"singletons": "drop"},
        "corefud": {"scored": "heads"},
        "gap": {"scored": "gap", "mentions": "found"},
        "gap-given": {"scored": "gap", "mentions": "given"},
    }
    predict_command = "coref"
    positions_together = 12_288  # 32 segments of 384; a longer document is a batch of its own

    @property
    def metric(self) -> str:
        """The mean F1 of MUC, B-cubed and CEAF-phi4, as in CoNLL-2012; that of GAP where `scored` says so."""
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
        is 0 for an unknown one. Where a document brings its mentions, `given_B` is 1 for such and `cluster_BLW` has -1 for
        mentions of no cluster."""
        specials, width = vocabulary.specials, self.model.max_width
        # rows without given mentions have the fields, and so the fingerprint, of version 0.1
        some_given = any(self._given(document) is not None for document in examples)
        for number, document in enumerate(examples):
            pieces = pieces_of(document, vocabulary)
            first = independent(pieces, self.length, specials)
            # TaskRows cuts every BL field by the row's token count: both passes and all fields are padded to one size
            second = overlapping(pieces, self.length, specials, first) if self.overlap else None
            size = max(len(first.tokens_T), len(second.tokens_T) if second else 0)
            names = {name: place + 1 for place, name in enumerate(dict.fromkeys(filter(None, document.speakers)))}
            speaker = np.array([names.get(each, 0) for each in document.speakers], np.int32)
            given = self._given(document)
            cluster_NW = np.zeros((len(pieces.ids_N), width), np.int32)
            for own, cluster in [(-1, given or ()), *enumerate(document.clusters or (), start=1)]:
                for mention in cluster:
                    begin, end = mention_pieces(pieces, mention)
                    if end - begin < width and (given is None or mention in given):
                        cluster_NW[begin, end - begin] = own
            flat = (pieces.sentence_N + 1, pieces.word_N, speaker[pieces.word_N], first.place_N, cluster_NW)
            fields: dict[str, Any] = {name: padded(array, size) for name, array in zip(FLAT, flat, strict=True)}
            if second:
                fields["shifted_BL"] = padded(second.tokens_T, size, specials.pad)
                fields["shifted_place_BL"] = padded(second.place_N, size)
            genre = self.genres.index(document.genre) + 1 if document.genre in self.genres else 0
            fields |= {"genre_B": np.int32(genre), "pad_B": np.int32(specials.pad)}
            if some_given:
                fields["given_B"] = np.int32(given is not None)
            tokens = padded(first.tokens_T, size, specials.pad)
            yield Row(tokens, np.zeros(size, np.int32), number, fields, pieces)

    def _given(self, document: CorefDocument) -> frozenset[Mention] | None:
        """The mentions that are resolved; None where the model finds them."""
        if self.mentions == "gold":
            return frozenset(mention for cluster in gold_clusters([document])[0] for mention in cluster)
        return None if self.mentions == "found" or document.mentions is None else frozenset(document.mentions)

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: Any) -> None:
        """`coreference`, and `overlap_gate` where segments overlap."""
        if self.model.head == "start_end":
            module.coreference = StartEnd(encoder, self.model, rngs)
        else:
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

        def one(row: Mapping[str, jax.Array]) -> tuple[Resolved, jax.Array]:
            own = DropoutKey(key.key, row["row_B"][None]) if key else None
            cluster_NW = row["cluster_BLW"]
            sure_NW = cluster_NW > 0 if key and self.keep_gold else None
            pieces, given = self._inputs(row)
            found = module.coreference(row["states"], pieces, own, HEAD_SITE, sure_NW, given)
            return found, cluster_NW[found.first_M, found.last_M - found.first_M] * found.real_M

        rows = {**batch, "states": states_BND, "row_B": row_B}
        if len(row_B) == 1:
            return jax.tree.map(lambda x: x[None], one(jax.tree.map(lambda x: x[0], rows)))
        # memory of the head is that of TOGETHER positions, or of one document, however many documents a batch has
        documents = TOGETHER // states_BND.shape[1]
        return in_parts(jax.vmap(one), rows, documents) if documents > 1 else jax.lax.map(one, rows)

    def _inputs(self, row: Mapping[str, jax.Array], segments: jax.Array | int = 0) -> tuple[CorefInputs, Given | None]:
        """Inputs of a document behind this number of segments, and the mentions that it brings."""
        segment_N = row["place_BL"] // self.length + segments
        pieces = CorefInputs(row["sentence_BL"], row["word_BL"], row["speaker_BL"], segment_N, row["genre_B"])
        if "given_B" not in row:
            return pieces, None
        # behind the pieces of an excerpt there are marks of the mentions that follow it
        length, widths = row["cluster_BLW"].shape
        last_NW = jnp.arange(length)[:, None] + jnp.arange(widths)[None]
        inside_NW = last_NW < jnp.sum(row["sentence_BL"] > 0)
        return pieces, Given((row["cluster_BLW"] != 0) & inside_NW, row["given_B"] > 0)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of documents."""
        return {LOSS: jnp.sum(batch["weight_B"])}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """The loss of a document: nats summed over its spans, as published; and the share of gold mentions among spans."""
        return self._means(*self._resolved(module, batch, key), batch["weight_B"])

    def _means(self, found: Resolved, cluster_BM: jax.Array, weight_B: jax.Array) -> dict[str, Mean]:
        return _weighted(jax.vmap(self._sums)(found, cluster_BM), weight_B)

    def _sums(self, found: Resolved, cluster_M: jax.Array, cluster_J: jax.Array | None = None) -> "Sums":
        """Sums over the spans of a document or window; `cluster_J` as in `antecedent_loss`."""
        loss = antecedent_loss(found, cluster_M, cluster_J)
        if self.mention_loss:
            sign_M = jnp.where(cluster_M > 0, -1.0, 1.0)
            wrong_M = jax.nn.softplus(sign_M * found.mention_M) * found.real_M
            loss += self.mention_loss * jnp.sum(wrong_M)
        return Sums(loss, jnp.sum(found.real_M), jnp.sum(cluster_M > 0))

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """The second result of `measure_with_outputs`."""
        return self.measure_with_outputs(module, batch)[1]

    def measure_with_outputs(self, module: Any, batch: Batch) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """The means of `measure`; of every span its pieces, the best antecedent (-1: none), the probability to have one."""
        if self.memory and batch["tokens_BL"].shape[1] > self.window * self.length:
            sums, outputs = jax.lax.map(lambda row: self._by_windows(module, row), dict(batch))
            return _weighted(sums, batch["weight_B"]), outputs
        found, cluster_BM = self._resolved(module, batch, None)
        return self._means(found, cluster_BM, batch["weight_B"]), jax.vmap(_span_outputs)(found)

    def _by_windows(self, module: Any, row: dict[str, jax.Array]) -> tuple["Sums", dict[str, jax.Array]]:
        """The sums and outputs of a document, read window by window with a memory of the newest spans."""
        size = self.window * self.length
        windows = -(-row["tokens_BL"].shape[0] // size)

        def window(state: tuple[Spans, jax.Array], number: jax.Array) -> tuple[Any, Any]:
            part, begin = excerpt(row, number * size, size, self.length)

            def read(state: tuple[Spans, jax.Array]) -> tuple[Any, Any]:
                memory, before = state
                states_ND = self._states(module, jax.tree.map(lambda x: x[None], part), None)[0]
                pieces, given = self._inputs(part, number * self.window)
                found, every, memory = module.coreference.with_memory(
                    states_ND, pieces, part["cluster_BLW"], memory, before, given
                )
                sums = self._sums(found, every.cluster_M[self.memory :], every.cluster_M)
                outputs = _span_outputs(found, every.number_M)
                for name in ("first_BM", "last_BM"):
                    outputs[name] += begin
                return (memory, before + sums.spans), (sums, outputs)

            def skip(state: tuple[Spans, jax.Array]) -> tuple[Any, Any]:
                return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read, state)[1])

            # rows of a batch are as long as its longest document
            return jax.lax.cond((part["sentence_BL"] > 0).any(), read, skip, state)

        state = (module.coreference.no_memory(self.memory), jnp.int32(0))
        sums, outputs = jax.lax.scan(window, state, jnp.arange(windows))[1]
        flat = {name: value.reshape(-1) for name, value in outputs.items()}
        # numbers of spans count the real ones of all windows: these come first
        order_M = jnp.argsort(~flat["real_BM"], stable=True)
        return jax.tree.map(jnp.sum, sums), {name: value[order_M] for name, value in flat.items()}

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of the encoder over whole segments, forward and backward, without the model above it."""
        return float(encoder.flops(tokens, tokens * self.length))

    def predictions(
        self, examples: Sequence[CorefDocument], rows: Sequence[Row], outputs: Sequence[Outputs]
    ) -> list[CorefPrediction]:
        """Clusters of every document: spans joined with their best antecedents, and these with theirs."""
        keep = self.singletons == "keep"
        return [
            answer_of(row.notes, output, keep, bool(row.fields.get("given_B")))
            for row, output in zip(rows, outputs, strict=True)
        ]

    def scores(self, examples: Sequence[CorefDocument], predictions: Sequence[CorefPrediction]) -> dict[str, float]:
        """The official scores over all documents; `f1` is the mean of MUC's, B-cubed's and CEAF-phi4's, or that of GAP."""
        documents = list(zip(examples, gold_clusters(examples), (each.clusters for each in predictions), strict=True))
        if self.scored == "gap":
            return gap_scores.percents(
                (each.words[(each.mentions or key[0])[0][0]], decision(each, key), decision(each, found))
                for each, key, found in documents
            )
        if self.scored == "heads":
            return scoring.percents([(key, with_key_words(each, key, found)) for each, key, found in documents])
        return scoring.percents([(key, found) for _, key, found in documents])

    def write(
        self, folder: pathlib.Path, examples: Sequence[CorefDocument], predictions: Sequence[CorefPrediction]
    ) -> list[pathlib.Path]:
        """Writes predictions.jsonl; predictions.conll for the official scorer, predictions.conllu for that of CorefUD where the
        documents have trees, gap.tsv for that of GAP where `scored` is; where clusters are known key.conll too, and
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
        if self.scored == "gap":
            files.append(write_gap(folder / "gap.tsv", examples, clusters))
        if self.scored == "heads" or any(each.governors for each in examples):
            files.append(write_conllu(folder / "predictions.conllu", examples, clusters, fewest))
        return [*files, *(folder / name for name in columns), write_json(folder / "left_out.json", left_out)]

    def prediction_json(
        self, example: CorefDocument, prediction: CorefPrediction, outputs: Sequence[Outputs]
    ) -> dict[str, Any]:
        """Implements `Task.prediction_json` by that of `answers`."""
        return prediction_json(example, prediction)


class Sums(NamedTuple):
    """Sums over the spans of a document: nats of loss, spans, spans that are gold mentions."""

    loss: jax.Array
    spans: jax.Array
    gold: jax.Array


def _weighted(sums: Sums, weight_B: jax.Array) -> dict[str, Mean]:
    loss, spans, gold = (jnp.sum(each * weight_B) for each in sums)
    return {LOSS: Mean(loss, jnp.sum(weight_B)), "task/gold_spans": Mean(gold, spans)}


def _span_outputs(found: Resolved, number_J: jax.Array | None = None) -> dict[str, jax.Array]:
    """Outputs of a document's spans; `number_J` are the numbers of the candidates, by default their indices."""
    best_M = jnp.take_along_axis(found.antecedent_MA, found.score_MA.argmax(axis=1)[:, None], axis=1)[:, 0]
    return {
        "first_BM": found.first_M,
        "last_BM": found.last_M,
        "real_BM": found.real_M,
        "mention_BM": found.mention_M,
        "antecedent_BM": jnp.where(
            found.score_MA.max(axis=1) > 0, best_M if number_J is None else number_J[best_M], -1
        ),
        "linked_BM": 1 - jnp.exp(-log_total(found.score_MA)),
    }


def padded(array: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """An array of integers filled up to `size` along its first axis, int32."""
    spare = ((0, size - len(array)), *((0, 0),) * (array.ndim - 1))
    return np.pad(array.astype(np.int32), spare, constant_values=value)
