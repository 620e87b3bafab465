"""Masking statistics of a pretraining run next to Figure 2 of the paper, and spans that its checkpoint fills in.

Shapes: B rows, K slots a row.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.feed import masking
from spanjax.data.feed.batch import Batch, FeedSpec
from spanjax.data.feed.host_slice import AnyRows, HostShare
from spanjax.data.feed.mixture import MixedRows, stage_of
from spanjax.data.feed.rows import open_rows
from spanjax.data.inspect.as_text import block_tokens, first_block_length, first_block_spans, fragments, piece_name
from spanjax.data.inspect.masking_figures import MaskingCounts, MaskingFigures, span_mean, span_shares
from spanjax.data.inspect.row_figures import parts, some_of
from spanjax.data.shards.remote import local_rows
from spanjax.data.vocab.base import Vocabulary
from spanjax.inference.fill_mask import compiled
from spanjax.objectives.base import FillHead, Pretraining
from spanjax.pages.document import Block, Cell, Entry, Figure, Figures, Heading, Table, Text, Words, percent
from spanjax.pages.plot import bar_plot, colours
from spanjax.pretrained.electra import filling
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.report.runs import Group, Recorded
from spanjax.run_format import STARTED_IN, restored
from spanjax.storage.local import found_again

LONGEST = 15  # longest length with a bar of its own
SPANS = 12  # listed per row
TOKENS = 160  # shown per row
_ROLES = {
    **dict.fromkeys(("left", "right", "both"), "boundary"),
    **dict.fromkeys(("special", "offset", "mark"), "mark"),
    **{role: role for role in ("mask", "random", "kept")},
}
"""Roles of fragments of text -> roles of words; of all others "text"."""


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
        legend = [
            [Words("–")] if head.neighbours and not bounded else _pieces(ids[row, slots].tolist(), truth, vocabulary)
            for head, ids in found.items()
        ]
        yield [_pieces(truth, None, vocabulary), _pieces(seen, None, vocabulary), *legend]


def masked_words(batch: Batch, row: int, vocabulary: Vocabulary) -> list[Words]:
    """Returns the first block of a row: «masked words → the model's input», boundary tokens between bars."""
    tokens = block_tokens(batch, row, 1, vocabulary)
    cut = tokens[:TOKENS]
    words = [Words(part.text, _ROLES.get(part.role, "text")) for part in fragments(cut, offsets=False)]
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
        reason = " ".join(str(error).split())
        return [Text(f"No examples of what {run.path.name} fills in: {reason}.")]
    accuracy = []
    for head, ids in found.items():
        counted_BK = np.asarray(batch["slot_boundary_weight_BK" if head.neighbours else "slot_weight_BK"]) > 0
        right = int((ids == np.asarray(batch["slot_target_BK"]))[counted_BK].sum())
        accuracy.append(f"by {head.name.upper()} {right} of {int(counted_BK.sum())}")
    rows = [row for row in range(len(batch["row_B"])) if first_block_length(batch, row)]
    blocks: list[Block] = [
        Text(
            f"Examples: {len(rows)} {which}, filled in by the checkpoint of step {model.step:,} of {run.path.name}."
            f" Right pieces: {', '.join(accuracy)}. «original words → model input», |boundary tokens|."
        )
    ]
    for row in rows:
        cells = list(_spans(batch, row, found, vocabulary))
        blocks.append(Text(masked_words(batch, row, vocabulary), sample=True))
        if cells:
            head = ["Truth", "Model input", *(f"by {head.name.upper()}" for head in found)]
            blocks.append(Table(head, cells, numbers=False))
    return blocks


class Opened(NamedTuple):
    """Rows of a run, and their feed settings."""

    rows: AnyRows
    held_out: AnyRows | None
    spec: FeedSpec


def _found(run: Recorded, name: str) -> pathlib.Path:
    """Finds a run's folder of rows by name, relative to where the run was started, to this folder, or to the run's parents."""
    bases = (str(run.settings.get(STARTED_IN, "")), "", *run.path.resolve().parents)
    return local_rows(found_again(name, bases))


def opened(run: Recorded) -> Opened:
    """Opens the rows of a run with their masking. ValueError if they are gone, or no longer those of the run."""
    data = run.settings.get("data", {})
    folders = [_found(run, each) for each in data.get("rows", [])]
    gone = [str(folder) for folder in folders if not folder.is_dir()]
    if gone or not folders:
        raise ValueError(f"its rows are not here any more ({', '.join(gone) or 'none named'})")
    splits = [folder / "train" if (folder / "train").is_dir() else folder for folder in folders]
    train = [open_rows(split) for split in splits]
    stages = [stage_of(each) for each in data.get("stages", ())]
    mixture = (tuple(data.get("weights", ())), stages, data.get("temperature", 1.0))
    rows = MixedRows(train, *mixture) if len(train) > 1 else train[0]
    if rows.manifest.fingerprint != run.settings.get("rows_fingerprint"):
        raise ValueError(f"the rows in {', '.join(map(str, folders))} are not those that it was trained on")
    held_out = [open_rows(folder / "validation") for folder in folders if (folder / "validation").is_dir()]
    objective = restored(run.objective, Pretraining)
    spec = objective.feed_spec(seed=run.seed, batch_size=1, order="uniform")
    return Opened(rows, held_out[0] if held_out else None, spec)


def measured(found: Opened, sample: int) -> MaskingFigures:
    """Measures `sample` training rows, sampled by the run's seed (0: all)."""
    counts = MaskingCounts(found.spec, found.rows.vocabulary.specials, found.rows.manifest.tags)
    share = HostShare(found.rows, found.spec, held_out=True)
    for index_B in parts(some_of(len(found.rows), sample, found.spec.seed)):
        counts.add(*share.masked(index_B))
    return counts.figures()


def span_figure(name: str, figures: MaskingFigures) -> Figure:
    """Draws span lengths, by words and by tokens, next to Figure 2."""
    paper = (0.0, *masking.GeometricSpans().length_distribution().tolist())
    given: dict[str, Sequence[float]] = {"Figure 2 of the paper, words": paper}
    if figures.proposed_words is not None and not np.array_equal(figures.proposed_words, paper):
        given["proposed, tokens" if figures.every_token else "proposed, words"] = figures.proposed_words
    given |= {"measured, words": figures.span_words, "measured, tokens": figures.span_tokens}
    columns = [
        (f"{what}, mean {span_mean(counts):.2f}", [100 * share for share in span_shares(counts, LONGEST)])
        for what, counts in given.items()
    ]
    names = [*map(str, range(1, LONGEST + 1)), f"{LONGEST + 1}+"]
    title = f"{name}: span lengths, % of spans"
    rows = [[each, *(percent(values[place]) for _, values in columns)] for place, each in enumerate(names)]
    caption = (
        f"{figures.rows:,} rows, {figures.spans:,} spans, {100 * figures.masked_share:.2f} % of the text tokens masked."
        " Figure 2 is the geometric distribution with p = 0.2, cut at 10 words and renormalised. A measured span is a run of"
        " masked tokens: proposals that touch are one, and the last of a block is cut by the budget."
    )
    svg = bar_plot(title, names, columns, "length of the span")
    legend = [Entry(what, colour) for (what, _), colour in zip(columns, colours(len(columns)), strict=True)]
    return Figure(
        svg, caption, Table(["Length", *(what for what, _ in columns)], rows, title), "Span lengths, % of spans", legend
    )


def masking_blocks(groups: Sequence[Group], sample: int, count: int) -> list[Block]:
    """Builds the section: a figure of the first run of each group of pretraining runs, and `count` examples of its checkpoint."""
    some = [group for group in groups if not group.tuned]
    blocks: list[Block] = [Heading(2, "Masking and filled spans")] if some else []
    for group in some:
        blocks.append(Heading(3, group.name))
        try:
            found = opened(group.first)
            blocks.append(Figures([span_figure(group.name, measured(found, sample))]))
        except (ValueError, OSError) as error:
            blocks.append(Text(f"No figures and no examples: {error}."))
            continue
        if count:
            rows = found.rows if found.held_out is None else found.held_out
            batch = HostShare(rows, found.spec, held_out=True).masked(np.arange(min(count, len(rows)))).batch
            which = "training rows (none are held out)" if found.held_out is None else "held-out rows"
            blocks += example_blocks(group.first, batch, rows.vocabulary, which)
    return blocks
