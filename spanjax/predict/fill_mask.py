"""The most probable tokens at every [MASK] of a text, by the masked token head."""

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
class FillMask:
    """Options of `fill-mask`."""

    model: AnyModel
    text: tuple[str, ...]
    """Texts, with [MASK] once for every piece to be filled in."""
    top: int = 5
    """Tokens shown per mask."""
    json: bool = False
    """Print one JSON object a text."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def fill_mask(options: FillMask) -> None:
    """Prints a table a text, or JSON."""
    # these import jax, which --help does not need
    from spanjax.inference.fill_mask import Filler, noted
    from spanjax.pretrained.load import load_model

    filler, console = Filler(noted(load_model(options.model))), rich.console.Console(soft_wrap=True, highlight=False)
    for text in options.text:
        found = filler.fill_mask(text, options.top)
        if options.json:
            print(json.dumps({"text": text, "masks": [each._asdict() for each in found]}))
            continue
        table = rich.table.Table("rank", box=rich.box.SIMPLE_HEAD)
        for number, each in enumerate(found, start=1):
            table.add_column(f"mask {number} (token {each.position})")
        for rank in range(options.top):
            cells = [f"{piece} {chance:.4f}" for piece, chance in (each.candidates[rank] for each in found)]
            table.add_row(str(rank + 1), *map(rich.text.Text, cells))
        console.print(text, markup=False)
        console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(FillMask, __doc__, fill_mask, "fill in", arguments, texts=("text",))
