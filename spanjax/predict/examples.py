"""Fills hidden spans and words of prepared held-out text by one or several models, next to the original.

    python -m spanjax.predict examples runs/demo/run spanbert-mini --rows runs/demo/rows

Every model reads the same text with its own vocabulary. A span is two or three words, filled by both heads; a word is one that
every model (else the last one) has as a single token.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import tyro

from spanjax.bounds import AtLeast0, AtLeast1
from spanjax.cli import Code
from spanjax.predict.answering import command
from spanjax.training.compilation_cache import CompilationCache

if TYPE_CHECKING:
    from spanjax.data.feed.rows import Rows
    from spanjax.inference.fill_mask import Filler, Span

READ = 300  # held-out texts among which examples are looked for
AROUND = 16  # words of context on either side of what is hidden
WORD = re.compile(r"[^\W\d_]+")  # letters alone: no digits, no punctuation


@dataclasses.dataclass(frozen=True)
class Examples:
    """Options of `examples`."""

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL")]
    """Run directories, checkpoints, folders of PyTorch weights or installed models."""
    rows: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """Folder that `prepare` wrote; its held-out rows are read."""
    count: AtLeast1 = 4
    """Number of examples, half of them spans and half of them words."""
    top: AtLeast1 = 5
    """Candidates per token."""
    seed: AtLeast0 = 0
    """Choice of the rows and of the hidden words."""
    json: bool = False
    """Print one JSON object an example."""
    code: Code = ()
    compilation_cache: CompilationCache = True

    @property
    def model(self) -> str:
        """All models, for messages."""
        return ", ".join(self.models)


class Example(NamedTuple):
    """A piece of text and a phrase that occurs once in it."""

    text: str
    hidden: str


def hidden_phrases(text: str, words: int, rng: np.random.Generator) -> Iterator[Example]:
    """Yields phrases of that many plain words, each once in its text, in random order, with the words around them."""
    found = text.split()
    for first in rng.permutation(max(0, len(found) - words - 1)).tolist():
        first += 1  # the first word of a text often lacks the blank that a vocabulary expects before it
        hidden = found[first : first + words]
        around = " ".join(found[max(0, first - AROUND) : first + words + AROUND])
        phrase = " ".join(hidden)
        # one letter more than "the": a content word in most cases
        if all(WORD.fullmatch(word) for word in hidden) and max(map(len, hidden)) > 3 and around.count(phrase) == 1:
            yield Example(around, phrase)


def held_out_texts(rows: "Rows", rng: np.random.Generator) -> Iterator[str]:
    """Yields the text of one block of every row, in random order; blocks with unknown tokens are passed over."""
    vocabulary, specials = rows.vocabulary, rows.vocabulary.specials
    for index in rng.permutation(len(rows)).tolist():
        row = rows.fetch(np.array([index]))
        tokens = row.tokens_BL[0][row.segments_BL[0] == 1][1:-1]
        text = vocabulary.decode(tokens.tolist()).strip()
        if specials.unk not in tokens and text.isprintable():
            yield text


def chosen_examples(
    texts: Iterator[str], fillers: Sequence["Filler"], count: int, rng: np.random.Generator
) -> list[Example]:
    """Returns at most `count` examples, no two spans and no two words from one text: spans of two and three words, then words.

    Each word of a span is one token in all models: they fill each token on its own, so long spans compare little but their most
    frequent tokens. Where READ texts have too few such spans, longer ones fill up. A word is a single token of every model if one
    of its text is; of the last model otherwise. Texts that are too long for a model are passed over.
    """

    def phrases_of(text: str, words: int) -> list[Example]:
        return [each for each in hidden_phrases(text, words, rng) if all(_fits(each, one) for one in fillers)]

    # a vocabulary without such spans must not cost a pass over all rows, nor take the texts of the words
    read, behind = list(itertools.islice(texts, max(READ, count))), 0
    found, longer = list[Example](), list[Example]()
    while len(found) < count // 2 and behind < len(read):
        words = 2 + len(found) % 2
        phrases = phrases_of(read[behind], words)
        short = _of_tokens(phrases, fillers, words)
        found += short[:1]
        longer += [] if short else phrases[:1]
        behind += 1
    found += longer[: count // 2 - len(found)]
    for text in read[behind:] + read[:behind]:
        if len(found) == count:
            break
        phrases = phrases_of(text, 1)
        found += (_of_tokens(phrases, fillers, 1) or _of_tokens(phrases, fillers[-1:], 1))[:1]
    return found


def _fits(example: Example, filler: "Filler") -> bool:
    # the text is encoded in three parts: blanks at the cuts may take a token each
    return len(filler.vocabulary.encode([example.text])[0]) + 2 + 4 <= filler.model.encoder.positions


def _of_tokens(phrases: Sequence[Example], fillers: Sequence["Filler"], most: int) -> list[Example]:
    """Returns the phrases of at most so many tokens in every vocabulary."""
    return [
        each for each in phrases if all(len(filler.vocabulary.encode([each.hidden])[0]) <= most for filler in fillers)
    ]


def _percent(chance: float) -> str:
    return f"{100 * chance:.1f}%" if chance >= 0.001 else "<0.1%"


def model_lines(name: str, span: "Span") -> list[str]:
    """Describes the fills of one model: a word by its candidates, a span by every head and the candidates of every token."""
    lines = [f"  {name}"]
    for head, fill in span.fills.items():
        if span.pieces == 1 and head not in ("both", "all") and len(span.fills) > 1:
            continue
        chance = math.exp(fill.log_probability)
        truth = "" if fill.truth is None else f"   (the original has {_percent(math.prod(fill.truth))})"
        if span.pieces > 1:
            lines.append(f"    by {head:5s}{fill.text}   {_percent(chance)}{truth}")
        if head == list(span.fills)[-1]:
            for number, candidates in enumerate(fill.candidates, start=1):
                best = "  ".join(f"{piece.lstrip('▁Ġ') or '␣'} {_percent(share)}" for piece, share in candidates)
                lines.append(
                    f"    {f'token {number}' if span.pieces > 1 else 'top'}:  {best}{truth * (span.pieces == 1)}"
                )
    return lines


def _as_json(example: Example, names: Sequence[str], spans: Sequence["Span"]) -> dict[str, Any]:
    fills = {
        name: {head: fill._asdict() for head, fill in span.fills.items()}
        for name, span in zip(names, spans, strict=True)
    }
    return {"text": example.text, "hidden": example.hidden, "fills": fills}


def examples(options: Examples) -> None:
    """Prints the examples, each with the fills of every model. ValueError if a model cannot fill or no text suits."""
    # these import jax, which --help does not need
    from spanjax.data.feed.rows import open_rows
    from spanjax.data.shards.remote import local_rows
    from spanjax.inference.fill_mask import Filler, noted
    from spanjax.pretrained.load import load_model

    folder = local_rows(options.rows)
    rows = open_rows(folder / "validation" if (folder / "validation").is_dir() else folder)
    fillers = [Filler(noted(load_model(model))) for model in options.models]
    rng = np.random.default_rng(options.seed)
    found = chosen_examples(held_out_texts(rows, rng), fillers, options.count, rng)
    if not found:
        raise ValueError(f"--rows {options.rows}: no held-out text has a phrase to hide; prepare more text")
    for name, filler in zip(options.models, fillers, strict=True) if not options.json else ():
        encoder, vocabulary = filler.model.encoder, filler.vocabulary
        print(f"{name}: {encoder.layers} layers x {encoder.hidden_size}, {vocabulary.size:,} tokens in its vocabulary")
    for number, example in enumerate(found, start=1):
        spans = [filler.spans(example.text, options.top, [example.hidden])[0] for filler in fillers]
        if options.json:
            print(json.dumps(_as_json(example, options.models, spans)))
            continue
        before, after = example.text.split(example.hidden)
        print(f"\n{number}. … {before}[{'_' * len(example.hidden)}]{after} …\n  original: {example.hidden}")
        for name, span in zip(options.models, spans, strict=True):
            print("\n".join(model_lines(name, span)))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Examples, __doc__, examples, "fill in", arguments, texts=())
