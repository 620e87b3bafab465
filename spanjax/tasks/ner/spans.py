"""Named entities as classified spans of words, which may be nested, overlap, or have several types.

A word is the hidden state of its first piece. A span has the vectors of its first and last word, that of `nn.span_network` of all
its words, and an embedding of its width; a hidden layer and a sigmoid for each type follow. A sigmoid, not a softmax: an entity
of two types is two decisions.

Shapes: B rows, L positions, T tokens of a row, S widths of spans (words), D hidden size, C types, G groups of types.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.bounds import AtLeast1, Bounds
from spanjax.data.sources.columns import Columns
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.heads import gather_positions
from spanjax.nn.layer import float32_outputs, linear, normal
from spanjax.nn.pointwise import ACTIVATIONS
from spanjax.nn.span_network import SpanNetwork, SpanNetworkConfig
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import entities as scoring
from spanjax.scoring.calibration import calibrated, calibration_scores, curve_problems, inferred_curve
from spanjax.tasks.base import HEAD_SITE, LOSS, Examples, Outputs, TokenTask
from spanjax.tasks.ner import entity_json, named_scores, windows, word_pieces
from spanjax.tasks.ner.files import read_tagged
from spanjax.tasks.ner.records import TAGS, has_records, read_tagged_records
from spanjax.tasks.ner.span_files import (
    COLUMNS,
    ENTITIES,
    Spanned,
    from_tags,
    is_conllu,
    read_conllu,
    read_spanned_records,
    spanned,
)
from spanjax.tasks.rows import Row

PRIOR = 0.01  # probability of every entity before training: most spans are none
BITS = 31  # types in an int32 of the rows


class ScoredEntity(NamedTuple):
    """A predicted entity."""

    kind: str
    first: int
    last: int
    """The word after its last."""
    score: float
    """Log-odds."""

    @property
    def entity(self) -> scoring.Entity:
        """The entity without its score."""
        return self.kind, self.first, self.last


@dataclasses.dataclass(frozen=True)
class SpanNer(TokenTask):
    """Types of all spans of words; entities are scored as sets."""

    labels: tuple[str, ...] = ()
    """Types in the order of their numbers; empty: all types of the training examples."""
    max_width: AtLeast1 = 10
    """Most words of an entity."""
    overlaps: Literal["any", "nested", "none"] = "any"
    """Entities that predictions keep. any: all that are probable enough; nested: of those that cross each other, the one with the
    highest score; none: of those that share a word."""
    threshold: Annotated[float, Bounds(0, 1, above=True, below=True)] = 0.5
    """Least probability of an entity, before the curve."""
    calibration_curve: tuple[float, ...] = ()
    """Parameters a, b, c of the curve from the probability of an entity to its confidence, see `scoring.calibration`.
    Where it is not set, inference takes the curve that fits the model's dev examples."""
    network: SpanNetworkConfig = SpanNetworkConfig(span_level="max")
    """The vector of a span's words: a convolution with the maximum over its windows, or attention."""
    word_column: int = 0
    """Columns of tagged files: that of the words, from 0; -1 is the last."""
    tag_column: int = -1
    """That of the tags."""
    word_prefix: str = ""
    """Prefix of every word of tagged files that is no part of it: en: in WikiANN."""
    tag_names: tuple[str, ...] = ()
    """Tags of files that have numbers in their place, in the order of the numbers from 0."""

    predict_command = "ner"
    card_settings = ("max_width", "overlaps")

    @property
    def metric(self) -> str:
        """F1 of entities."""
        return "f1"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Implements `Task.label_names`."""
        return self.labels

    @property
    def table(self) -> Columns:
        """Implements `Task.table`: `tokens` and `entities`, or `ner_tags`, and the user's."""
        return dataclasses.replace(COLUMNS, named=self.columns)

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `Task.problems` repeated types, one column for both words and tags, and a network for one vector a row."""
        found = super().problems(encoder) + curve_problems(self.calibration_curve)
        if len({*self.labels}) < len(self.labels):
            found.append(f"objective.labels is {self.labels}: expected each type once")
        if self.word_column == self.tag_column:
            found.append(f"objective.word_column and objective.tag_column are {self.word_column}: expected two columns")
        if self.network.span_level != "max" or self.network.padding != "masked":
            levels = f"{self.network.span_level} and {self.network.padding}"
            found.append(f"objective.network has span_level and padding {levels}: expected max and masked")
        return found

    def read(self, path: pathlib.Path) -> Examples:
        """Reads records with `entities`, CoNLL-U, and whatever `Ner` reads, which has no entities that overlap."""
        if is_conllu(path):
            return read_conllu(path)
        if not has_records(path, self.table):
            return from_tags(read_tagged(path, "iob2", self.word_column, self.tag_column, self.word_prefix))
        record = next((record for _, record, _ in self.table.records(path) if record is not None), {})
        has = [not record.keys().isdisjoint(role.columns) for role in (ENTITIES, TAGS)]
        if has == [False, True]:
            return from_tags(read_tagged_records(path, self.table, "iob2", self.tag_names, self.word_prefix))
        return read_spanned_records(path, self.table)

    def is_labelled(self, example: Spanned) -> bool:
        """Implements `Task.is_labelled`."""
        return example.entities is not None

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Spanned | None, str]:
        """Reads `words` (or `tokens`) or `text`, as `Ner.example` does."""
        return spanned({name: value for name, value in record.items() if name not in ENTITIES.columns})

    def notes(self, examples: Sequence[Spanned]) -> list[str]:
        """Counts the entities that no prediction can have."""
        every = [entity for each in examples for entity in each.entities or ()]
        long = sum(last - first > self.max_width for _, first, last in every)
        if not long:
            return []
        width = f"objective.max_width {self.max_width}"
        return [f"{long:,} of {len(every):,} entities have more words than {width}: they count as missed"]

    def with_training_labels(self, examples: Sequence[Spanned], vocabulary: Vocabulary) -> Self:
        """Infers labels: all types of the examples, in alphabetical order."""
        if all(each.entities is None for each in examples):
            raise ValueError("no training example has entities: give records with `entities`, or a file with tags")
        if self.labels:
            return self
        kinds = {kind for each in examples for kind, *_ in each.entities or ()}
        if not kinds:
            raise ValueError("the training examples have no entity: expected one at least")
        return dataclasses.replace(self, labels=tuple(sorted(kinds)))

    def rows(self, examples: Sequence[Spanned], vocabulary: Vocabulary) -> Iterator[Row]:
        """[CLS] pieces [SEP] of every window of a sentence, as for `Ner`. Fields: `word_BL` the number in the sentence, from
        1, of the words of the row in order, then 0; `place_BL` the positions of their first pieces; `kinds_BLSG` the types of the
        spans that begin with these words, a bit each. An entity that is cut by a window is in none."""
        specials, groups = vocabulary.specials, -(-len(self.labels) // BITS)
        numbers = {kind: number for number, kind in enumerate(self.labels)}
        pieces = word_pieces((word for each in examples for word in each.words), vocabulary)
        for number, sentence in enumerate(examples):
            for window in windows([pieces[word] for word in sentence.words], self.length - 2):
                ends = np.cumsum([1, *(len(found) for _, found in window)])
                tokens = np.concatenate([[specials.cls], *(found for _, found in window), [specials.sep]])
                word, place = (np.zeros(len(tokens), np.int32) for _ in range(2))
                kinds = np.zeros((len(tokens), self.max_width, groups), np.int32)
                word[: len(window)] = [at + 1 for at, _ in window]
                place[: len(window)] = ends[:-1]
                # words without pieces are in no row: a span is named by the words that are
                first_of = {at: index for index, (at, _) in enumerate(window)}
                for kind, first, last in sentence.entities or ():
                    one, other = first_of.get(first), first_of.get(last - 1)
                    if kind in numbers and one is not None and other is not None and other - one < self.max_width:
                        kinds[one, other - one, numbers[kind] // BITS] |= 1 << numbers[kind] % BITS
                known = np.float32(sentence.entities is not None)
                fields = {"word_BL": word, "place_BL": place, "kinds_BLSG": kinds, "known_B": known}
                yield Row(tokens.astype(np.int32), np.zeros(len(tokens), np.int32), number, fields)

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """`span_network`, `span_width`, `span_hidden`, `classifier`, and the requested `prediction_head`."""
        super().add_heads(module, encoder, rngs)
        size = encoder.hidden_size
        module.span_network = SpanNetwork(encoder, self.network, rngs, 1, self.max_width)
        module.span_hidden = linear(3 * size, size, encoder, rngs)
        module.span_width = nnx.Embed(self.max_width, size, embedding_init=normal(encoder), rngs=rngs)
        module.classifier = linear(size, len(self.labels), encoder, rngs)
        prior = jnp.full(len(self.labels), np.log(PRIOR / (1 - PRIOR)), jnp.float32)
        module.classifier.bias[...] = prior  # pyright: ignore[reportOptionalSubscript]
        module.rate, module.activation = encoder.dropout, encoder.activation

    def logits(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Log-odds of every type of the spans that begin with the words of a row, float32 [B, L, S, C]."""
        read_BLD = self.read_vectors(module, self.hidden(module, batch, key))
        word_BLD = gather_positions(read_BLD, batch["place_BL"])
        word_BLD = jnp.where((batch["word_BL"] > 0)[..., None], word_BLD, 0)
        word_BLD = dropout(word_BLD, module.rate, key, HEAD_SITE)
        size, kernel, bias = word_BLD.shape[-1], module.span_hidden.kernel[...], module.span_hidden.bias[...]
        # one product with each third of the kernel: the 3 D inputs of every span are never put together
        first_BLD, last_BLD = (jnp.einsum("bld,dh->blh", word_BLD, kernel[at : at + size]) for at in (0, size))
        inner_BLSD = module.span_network.of_every_span(word_BLD, self.max_width)
        inner_BLSD = jnp.einsum("blsd,dh->blsh", inner_BLSD, kernel[2 * size :])
        count = word_BLD.shape[1]
        padded_BLD = jnp.pad(last_BLD, ((0, 0), (0, self.max_width), (0, 0)))
        last_BLSD = jnp.stack([padded_BLD[:, at : at + count] for at in range(self.max_width)], axis=2)
        width_SD = module.span_width.embedding[...] + bias[None]
        hidden_BLSD = first_BLD[:, :, None] + last_BLSD + inner_BLSD + width_SD[None, None].astype(word_BLD.dtype)
        return float32_outputs(module.classifier, ACTIVATIONS[module.activation](hidden_BLSD))

    def _valid(self, batch: Batch) -> jax.Array:
        """True for the spans of words that exist, bool [B, L, S]."""
        used_BL = batch["word_BL"] > 0
        place_1LS = jnp.arange(used_BL.shape[1])[None, :, None] + jnp.arange(self.max_width)[None, None]
        return place_1LS < jnp.sum(used_BL, axis=1)[:, None, None]

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of words of sentences whose entities are known."""
        return {LOSS: jnp.sum((batch["word_BL"] > 0) * (batch["weight_B"] * batch["known_B"])[:, None])}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """The cross-entropy of all decisions in nats, summed over the spans of a sentence, for each word."""
        logits_BLSC = self.logits(module, batch, key)
        bit_C = np.arange(len(self.labels), dtype=np.int32)
        kinds_BLSC = jnp.take(batch["kinds_BLSG"], bit_C // BITS, axis=-1)
        gold_BLSC = (kinds_BLSC >> (bit_C % BITS).reshape(1, 1, 1, -1)) & 1
        loss_BLSC = jax.nn.softplus(jnp.where(gold_BLSC > 0, -logits_BLSC, logits_BLSC))
        known_BLS = self._valid(batch) & ((batch["weight_B"] * batch["known_B"]) > 0)[:, None, None]
        return {LOSS: Mean(jnp.sum(jnp.where(known_BLS[..., None], loss_BLSC, 0)), self.counts(batch)[LOSS])}

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """{"logits_BLSC"}."""
        return {"logits_BLSC": self.logits(module, batch, None)}

    def predictions(
        self, examples: Sequence[Spanned], rows: Sequence[Row], outputs: Sequence[Outputs]
    ) -> list[tuple[ScoredEntity, ...]]:
        """The entities of every sentence, sorted; `overlaps` tells which."""
        least = float(np.log(self.threshold / (1 - self.threshold)))
        found: list[list[ScoredEntity]] = [[] for _ in examples]
        for row, output in zip(rows, outputs, strict=True):
            word_T = row.fields["word_BL"]
            count = int((word_T > 0).sum())
            for first, width, kind in np.argwhere(output["logits_BLSC"][:count] > least).tolist():
                if first + width < count:
                    score = float(output["logits_BLSC"][first, width, kind])
                    one, other = int(word_T[first]) - 1, int(word_T[first + width])
                    found[row.example].append(ScoredEntity(self.labels[kind], one, other, score))
        return [
            tuple(sorted(kept(each, self.overlaps), key=lambda one: (one.first, -one.last, one.kind))) for each in found
        ]

    def calibration(
        self,
        examples: Sequence[Spanned],
        rows: Sequence[Row],
        predictions: Sequence[Sequence[ScoredEntity]],
        outputs: Sequence[Outputs],
    ) -> dict[str, float]:
        """Calibration of the confidences of entities."""
        gold = [{*(each.entities or ())} for each in examples]
        every = [(one, one.entity in known) for found, known in zip(predictions, gold, strict=True) for one in found]
        return calibration_scores(
            probabilities([one for one, _ in every]), [right for _, right in every], self.calibration_curve
        )

    def inferred_settings(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """The curve of confidences, where none was set."""
        return inferred_curve(scores, self.calibration_curve)

    def scores(self, examples: Sequence[Spanned], predictions: Sequence[Sequence[ScoredEntity]]) -> dict[str, float]:
        """F1, precision and recall of entities, and `f1_TYPE` of every type. An entity is right where type and words are."""
        if missing := sum(each.entities is None for each in examples):
            raise ValueError(f"{missing} sentences have no entities: scores need a file with them")
        found = scoring.score_sets(
            [each.entities or () for each in examples], [[one.entity for one in each] for each in predictions]
        )
        return named_scores(found.micro, found.types)

    def prediction_json(
        self, example: Spanned, prediction: Sequence[ScoredEntity], outputs: Sequence[Outputs]
    ) -> dict[str, Any]:
        """The entities with type, words, confidence and, of a text, their characters [start, end)."""
        confidences = calibrated(probabilities(prediction), self.calibration_curve).tolist()
        return {
            "prediction": [
                entity_json(example, one.entity, confidence)
                for one, confidence in zip(prediction, confidences, strict=True)
            ]
        }

    def write(
        self, folder: pathlib.Path, examples: Sequence[Spanned], predictions: Sequence[Sequence[ScoredEntity]]
    ) -> list[pathlib.Path]:
        """Writes predictions.jsonl, a record of `tokens` and `entities` a line, as this task reads them."""
        lines = []
        for each, found in zip(examples, predictions, strict=True):
            entities = [[one.first, one.last, one.kind] for one in found]
            lines.append(json.dumps({"tokens": list(each.words), "entities": entities}, ensure_ascii=False))
        file = folder / "predictions.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [file]


def probabilities(found: Sequence[ScoredEntity]) -> np.ndarray:
    """The probabilities of these entities, before the curve."""
    return 1 / (1 + np.exp(-np.array([one.score for one in found], np.float64)))


def kept(found: Sequence[ScoredEntity], overlaps: str) -> list[ScoredEntity]:
    """The entities that `SpanNer.overlaps` keeps, the highest score first."""
    chosen: list[ScoredEntity] = []
    for one in sorted(found, key=lambda each: -each.score):
        apart = (one.last <= other.first or other.last <= one.first for other in chosen)
        inside = (
            (other.first <= one.first and one.last <= other.last)
            or (one.first <= other.first and other.last <= one.last)
            for other in chosen
        )
        allowed = overlaps == "any" or all(
            separate or (overlaps == "nested" and within) for separate, within in zip(apart, inside, strict=True)
        )
        chosen += [one] * allowed
    return chosen
