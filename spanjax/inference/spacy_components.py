"""Components of spaCy pipelines: named entities, spans that may overlap, and clusters of coreference by fine-tuned models.

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("spanjax_ner", config={"model": "runs/conll2003"})
    nlp("Anna lives in Bonn.").ents

spaCy finds them by the entry points of the package. The model is opened at the first document. `nlp.to_disk` writes its weights
into the pipeline's folder; a pipeline that is loaded from there needs no other file.
"""

import abc
import functools
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from spanjax.data.sources.annotate import import_spacy
from spanjax.inference.task_model import TaskModel, open_model
from spanjax.pretrained.model import model_meta
from spanjax.training.checkpoint import write_weights

spacy = import_spacy()
MISALIGNED = "spanjax_misaligned"
"""Extension of documents: found spans that begin or end inside of a token."""
CONFIDENCE = "spanjax_confidence"
"""Extension of entities: the model's confidence."""
Words = Literal["spacy", "own"]
"""Words that a model reads: spaCy's tokens, or those that spanjax finds in the text."""
Alignment = Literal["strict", "contract", "expand"]
"""Treatment of spans that begin or end inside of a token, as in spaCy's `Doc.char_span`: skipped, cut, or made longer."""
SETTINGS: dict[str, Any] = {"model": "", "rows": None, "words": "spacy", "alignment": "strict"}
"""Default configuration of every component."""


class Found(NamedTuple):
    """A span of a document that the model found."""

    span: Any
    confidence: float


class Component(abc.ABC):
    """A component with a fine-tuned model."""

    command: ClassVar[str]
    """`Task.predict_command` of its models."""

    def __init__(self, name: str, model: str, rows: int | None, words: Words, alignment: Alignment):
        """`model` is a path as for `spanjax.load_task`, `rows` the number of rows in a batch of the model."""
        self.name, self.model = name, model
        self.rows, self.words, self.alignment = rows, words, alignment

    @functools.cached_property
    def task_model(self) -> TaskModel:
        """The opened model. ValueError if it is none for this component."""
        if not self.model:
            raise ValueError(f'{self.name} has no model: add it with config={{"model": PATH}}')
        return open_model(self.model, self.rows, predict_command=self.command)

    def __call__(self, doc: Any) -> Any:
        """Annotates one document."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Any], *, batch_size: int = 128) -> Iterator[Any]:
        """Annotates documents, `batch_size` of them together."""
        for docs in spacy.util.minibatch(stream, batch_size):
            self.annotate(docs)
            yield from docs

    def to_disk(self, path: str | pathlib.Path, *, exclude: Sequence[str] = ()) -> None:
        """Writes the weights, their vocabulary and their task into a folder."""
        del exclude
        weights = self.task_model.model
        write_weights(pathlib.Path(path), weights.params, model_meta(weights), weights.step)

    def from_disk(self, path: str | pathlib.Path, *, exclude: Sequence[str] = ()) -> "Component":
        """Takes the model that `to_disk` wrote."""
        del exclude
        self.model = str(path)
        vars(self).pop("task_model", None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # compiled programs cannot be pickled: a copy opens the model itself
        return {name: value for name, value in self.__dict__.items() if name != "task_model"}

    @abc.abstractmethod
    def annotate(self, docs: Sequence[Any]) -> None:
        """Annotates some documents in place."""

    def answers(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The model's answers. ValueError for a text that it cannot use."""
        found = list(self.task_model.answers(records))
        if problems := [each["error"] for each in found if "error" in each]:
            raise ValueError(f"{self.name}: {problems[0]}")
        return found

    def located(self, doc: Any, start: int, end: int, label: str) -> Any:
        """The span of these characters; None, and counted in the document, where it cannot be one of tokens."""
        found = doc.char_span(start, end, label=label, alignment_mode=self.alignment)
        exact = found is not None and (found.start_char, found.end_char) == (start, end)
        doc._.set(MISALIGNED, doc._.get(MISALIGNED) + (not exact))
        return found or None


def sentences(doc: Any) -> list[Any]:
    """The sentences of a document, or all of it where nothing has found any; none of blanks alone."""
    found = list(doc.sents) if doc.has_annotation("SENT_START") else [doc[:]]
    return [each for each in found if each.text.strip()]


def words_of(span: Any) -> list[Any]:
    """The tokens of a sentence that are words for a model."""
    return [token for token in span if token.text.strip()]


class EntityComponent(Component):
    """Finds entities, sentence by sentence."""

    command = "ner"

    def found(self, docs: Sequence[Any]) -> list[list[Found]]:
        """The entities of every document, in order; those of `SpanNer` may overlap."""
        parts = [(number, sentence) for number, doc in enumerate(docs) for sentence in sentences(doc)]
        if self.words == "own":
            records: list[dict[str, Any]] = [{"text": sentence.text} for _, sentence in parts]
        else:
            records = [{"words": [token.text for token in words_of(sentence)]} for _, sentence in parts]
        answers: list[list[Found]] = [[] for _ in docs]
        for (number, sentence), answer in zip(parts, self.answers(records), strict=True):
            doc, tokens = docs[number], words_of(sentence)
            for entity in answer["prediction"]:
                if self.words == "own":
                    start = sentence.start_char
                    span = self.located(doc, start + entity["start"], start + entity["end"], entity["type"])
                else:
                    first, last = tokens[entity["first"]], tokens[entity["first"] + len(entity["words"]) - 1]
                    span = spacy.tokens.Span(doc, first.i, last.i + 1, label=entity["type"])
                answers[number] += [Found(span, entity["confidence"])] if span is not None else []
        return answers


class Ents(EntityComponent):
    """`spanjax_ner`: writes `doc.ents`."""

    def annotate(self, docs: Sequence[Any]) -> None:
        """Sets the entities; of those that overlap the one with the highest confidence."""
        for doc, found in zip(docs, self.found(docs), strict=True):
            kept: list[Found] = []
            for one in sorted(found, key=lambda each: -each.confidence):
                if all(one.span.end <= each.span.start or each.span.end <= one.span.start for each in kept):
                    kept.append(one)
            doc.ents = [each.span for each in kept]
            confidences = {(each.span.start, each.span.end): each.confidence for each in kept}
            for span in doc.ents:
                span._.set(CONFIDENCE, confidences[span.start, span.end])


class Spans(EntityComponent):
    """`spanjax_spans`: writes a group of `doc.spans`, as spaCy's `spancat` does."""

    def __init__(self, key: str, *settings: Any):
        super().__init__(*settings)
        self.key = key

    def annotate(self, docs: Sequence[Any]) -> None:
        """Sets the group, with the confidences as its attribute `scores`."""
        for doc, found in zip(docs, self.found(docs), strict=True):
            group = spacy.tokens.SpanGroup(doc, name=self.key, spans=[each.span for each in found])
            group.attrs["scores"] = [each.confidence for each in found]
            doc.spans[self.key] = group


class Clusters(Component):
    """`spanjax_coref`: writes a group of `doc.spans` for every cluster."""

    command = "coref"

    def __init__(self, prefix: str, *settings: Any):
        super().__init__(*settings)
        self.prefix = prefix

    def annotate(self, docs: Sequence[Any]) -> None:
        """Sets the groups PREFIX_1, PREFIX_2, ... in the order of the clusters' first mentions."""
        for doc in docs:
            for name in [name for name in doc.spans if name.startswith(f"{self.prefix}_")]:
                del doc.spans[name]
        parts = [doc for doc in docs if doc.text.strip()]
        for doc, answer in zip(parts, self.answers([self._record(doc) for doc in parts]), strict=True):
            numbers, tokens = itertools.count(1), words_of(doc)
            for cluster in answer["prediction"]:
                spans = [self._span(doc, tokens, mention) for mention in cluster]
                if spans := [span for span in spans if span is not None]:
                    doc.spans[f"{self.prefix}_{next(numbers)}"] = spans

    def _record(self, doc: Any) -> dict[str, Any]:
        if self.words == "own":
            return {"text": doc.text}
        if doc.has_annotation("SENT_START"):
            return {"sentences": [[token.text for token in words_of(sentence)] for sentence in sentences(doc)]}
        return {"words": [token.text for token in words_of(doc)]}

    def _span(self, doc: Any, tokens: Sequence[Any], mention: dict[str, Any]) -> Any:
        if self.words == "own":
            return self.located(doc, mention["start"], mention["end"], "")
        return doc[tokens[mention["first"]].i : tokens[mention["last"]].i + 1]


def _register() -> None:
    """Adds the extensions, unless this process has them already."""
    for kind, name, default in ((spacy.tokens.Doc, MISALIGNED, 0), (spacy.tokens.Span, CONFIDENCE, None)):
        if not kind.has_extension(name):
            kind.set_extension(name, default=default)


_register()


@spacy.Language.factory("spanjax_ner", default_config=SETTINGS, assigns=["doc.ents"])
def spanjax_ner(nlp: Any, name: str, model: str, rows: int | None, words: Words, alignment: Alignment) -> Component:
    """Builds the component of entities that do not overlap."""
    return Ents(name, model, rows, words, alignment)


@spacy.Language.factory("spanjax_spans", default_config={**SETTINGS, "key": "sc"}, assigns=["doc.spans"])
def spanjax_spans(
    nlp: Any, name: str, model: str, rows: int | None, words: Words, alignment: Alignment, key: str
) -> Component:
    """Builds the component of entities that may overlap, the group `key` of `doc.spans`."""
    return Spans(key, name, model, rows, words, alignment)


@spacy.Language.factory("spanjax_coref", default_config={**SETTINGS, "prefix": "coref_clusters"}, assigns=["doc.spans"])
def spanjax_coref(
    nlp: Any, name: str, model: str, rows: int | None, words: Words, alignment: Alignment, prefix: str
) -> Component:
    """Builds the component of coreference, the groups PREFIX_1, PREFIX_2, ... of `doc.spans`."""
    return Clusters(prefix, name, model, rows, words, alignment)
