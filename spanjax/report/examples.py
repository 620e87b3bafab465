"""Masked text and the predictions of a run's newest checkpoint for its spans, right and wrong tokens apart.

Shapes: B rows, K slots a row.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from spanjax.data.feed.batch import Batch
from spanjax.data.inspect.as_text import block_tokens, first_block_length, first_block_spans, fragments, piece_name
from spanjax.data.vocab.base import Vocabulary
from spanjax.inference.fill_mask import compiled
from spanjax.objectives.base import FillHead
from spanjax.pretrained.electra import filling
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.report.document import Block, Cell, Table, Text, Words
from spanjax.report.runs import Recorded

SPANS = 12  # listed per row
TOKENS = 160  # shown per row
_ROLES = {"left": "boundary", "right": "boundary", "both": "boundary", "special": "mark", "offset": "mark"}


def guesses(model: Model, batch: Batch) -> dict[FillHead, np.ndarray]:
    """Most probable token at every slot, int32 [B, K], by each head that predicts tokens. ValueError without such a head."""
    model = filling(model)
    heads = model.objective().fill_heads
    if not heads:
        raise ValueError("it has no head that predicts tokens")
    found = compiled(model, lambda objective, module, batch: objective.predict(module, batch))(dict(batch))
    return {head: np.asarray(found[head.name]) for head in heads}


def _pieces(ids: Sequence[int], truth: Sequence[int] | None, vocabulary: Vocabulary) -> list[Words]:
    """Tokens with blanks between them; right or wrong if the truth is given."""
    words = []
    for place, number in enumerate(ids):
        role = "text" if truth is None else "right" if number == truth[place] else "wrong"
        words += [*([Words(" ")] if place else []), Words(piece_name(int(number), vocabulary), role)]
    return words


def _spans(
    batch: Batch, row: int, found: Mapping[FillHead, np.ndarray], vocabulary: Vocabulary
) -> Iterator[list[Cell]]:
    """Yields a row of cells for each span of the first block: truth, the model's input, the prediction of every head."""
    for first, count in first_block_spans(batch, row)[:SPANS]:
        slots = slice(first, first + count)
        truth = np.asarray(batch["slot_target_BK"][row][slots]).tolist()
        seen = np.asarray(batch["tokens_BL"][row])[batch["slot_position_BK"][row][slots]].tolist()
        bounded = bool((np.asarray(batch["slot_boundary_weight_BK"][row][slots]) > 0).any())
        told = [
            [Words("–")] if head.neighbours and not bounded else _pieces(ids[row, slots].tolist(), truth, vocabulary)
            for head, ids in found.items()
        ]
        yield [_pieces(truth, None, vocabulary), _pieces(seen, None, vocabulary), *told]


def masked_words(batch: Batch, row: int, vocabulary: Vocabulary) -> list[Words]:
    """Returns the first block of a row: «masked words → the model's input», boundary tokens between bars."""
    tokens = block_tokens(batch, row, 1, vocabulary)
    cut = tokens[:TOKENS]
    words = [
        Words(
            part.text, _ROLES.get(part.role, part.role if part.role in ("mask", "random", "kept", "mark") else "text")
        )
        for part in fragments(cut, offsets=False)
    ]
    return [*words, *([Words(" …", "mark")] if len(tokens) > TOKENS else [])]


def example_blocks(run: Recorded, batch: Batch, vocabulary: Vocabulary, which: str) -> list[Block]:
    """Shows every row of the batch as text with a table of its spans, skipping empty rows; without a checkpoint, the reason."""
    try:
        if not run.checkpoint:
            raise ValueError("there is no checkpoint yet")
        model = load_model(run.path)
        found = guesses(model, batch)
    except (ValueError, OSError, KeyError) as error:
        # one run without a usable checkpoint must not end a report of many
        said = " ".join(str(error).split())
        return [Text(f"No examples of what {run.path.name} fills in: {said}.")]
    accuracy = []
    for head, ids in found.items():
        counted_BK = np.asarray(batch["slot_boundary_weight_BK" if head.neighbours else "slot_weight_BK"]) > 0
        right = int((ids == np.asarray(batch["slot_target_BK"]))[counted_BK].sum())
        accuracy.append(f"by {head.name.upper()} {right} of {int(counted_BK.sum())}")
    rows = [row for row in range(len(batch["row_B"])) if first_block_length(batch, row)]
    blocks: list[Block] = [
        Text(
            f"Examples: {len(rows)} {which}, filled in by the checkpoint of step {model.step:,} of {run.path.name}."
            f" Right pieces: {', '.join(accuracy)}. «words that were there → what the model sees», |boundary tokens|."
        )
    ]
    for row in rows:
        cells = list(_spans(batch, row, found, vocabulary))
        blocks.append(Text(masked_words(batch, row, vocabulary)))
        if cells:
            head = ["truth", "what the model sees", *(f"by {head.name.upper()}" for head in found)]
            blocks.append(Table(head, cells, numbers=False))
    return blocks
