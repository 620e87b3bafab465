"""Fills runs of [MASK] by the masked token head, by the span boundary head from the two neighbours alone, and by both."""

import dataclasses
import json

import rich.box
import rich.console
import rich.table
import rich.text

from spanjax.cli import Code
from spanjax.predict.answering import AnyModel, command
from spanjax.training.compilation_cache import CompilationCache


@dataclasses.dataclass(frozen=True)
class Spans:
    """Options of `spans`."""

    model: AnyModel
    text: str
    """A text, with one [MASK] for every token of a span."""
    hide: tuple[str, ...] = ()
    """Phrases of the text to mask first, token by token; the output then shows the original next to the prediction."""
    top: int = 3
    """Tokens shown per position."""
    json: bool = False
    """Print one JSON object."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def spans(options: Spans) -> None:
    """Prints a table a span, or JSON."""
    # these import jax, which --help does not need
    from spanjax.inference.fill_mask import Filler, noted, span_json
    from spanjax.pretrained.load import load_model

    found = Filler(noted(load_model(options.model))).spans(options.text, options.top, options.hide)
    if options.json:
        print(json.dumps({"text": options.text, "spans": [span_json(span) for span in found]}))
        return
    console = rich.console.Console(soft_wrap=True, highlight=False)
    for span in found:
        table = rich.table.Table("by", "fills in", "log p", "truth p", "places", box=rich.box.SIMPLE_HEAD)
        for name, fill in span.fills.items():
            places = " | ".join(" ".join(f"{piece} {chance:.3f}" for piece, chance in each) for each in fill.candidates)
            truth = "" if fill.truth is None else " ".join(f"{chance:.3f}" for chance in fill.truth)
            cells = (name, fill.text, f"{fill.log_probability:.2f}", truth, places)
            table.add_row(*map(rich.text.Text, cells))
        was = "" if span.truth is None else f", was: {span.truth}"
        console.print(f"tokens {span.position} to {span.position + span.pieces - 1}{was}", markup=False)
        console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Spans, __doc__, spans, "fill in", arguments, texts=("text", "hide"))
