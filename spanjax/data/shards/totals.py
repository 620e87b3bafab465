"""Totals of prepared rows, as numbers and as a table."""

import sys
from collections.abc import Mapping
from typing import Any

import rich.console
import rich.table

from spanjax.data.shards.shards import Manifest


def totals(manifest: Manifest) -> dict[str, Any]:
    """Totals of a folder of rows: those of its manifest, and ratios.

    A word is a word start and the tokens up to the next, as in masking. The unigram entropy, in nats, is the loss of a model
    that knows only frequencies.
    """
    names = ("documents", "sentences", "words", "text_tokens", "blocks", "rows", "length", "fill")
    return {name: getattr(manifest, name) for name in names} | {
        "blocks_per_row": manifest.blocks / max(1, manifest.rows),
        "unknown_share": manifest.unknown_tokens / max(1, manifest.text_tokens),
        "tokens_per_word": manifest.text_tokens / max(1, manifest.words),
        "unigram_entropy": manifest.unigram_entropy,
        "tagged_spans": manifest.settings.get("tagged_spans", {}) if manifest.tags else {},
        "skipped": manifest.skipped,
        "fingerprint": manifest.fingerprint,
    }


_LINES = {  # title -> total, format
    "documents": ("documents", ","),
    "sentences": ("sentences", ","),
    "words": ("words", ","),
    "tokens": ("text_tokens", ","),
    "tokens per word": ("tokens_per_word", ".3f"),
    "unknown %": ("unknown_share", ".3%"),
    "unigram entropy (nats)": ("unigram_entropy", ".3f"),
    "rows": ("rows", ","),
    "positions a row": ("length", ","),
    "fill %": ("fill", ".2%"),
    "blocks": ("blocks", ","),
    "blocks a row": ("blocks_per_row", ".3f"),
}


def totals_table(by_split: Mapping[str, Mapping[str, Any]]) -> rich.table.Table:
    """A column with the `totals` of every split."""
    table = rich.table.Table("", box=None, pad_edge=False)
    for split in by_split:
        table.add_column(split, justify="right")
    for title, (name, form) in _LINES.items():
        table.add_row(title, *(format(each[name], form).removesuffix("%") for each in by_split.values()))
    for what, name in (("tagged", "tagged_spans"), ("skipped", "skipped")):
        for kind in sorted({kind for each in by_split.values() for kind in each[name]}):
            table.add_row(f"{what} {kind}", *(f"{each[name].get(kind, 0):,}" for each in by_split.values()))
    return table


def print_totals(manifests: Mapping[str, Manifest]) -> None:
    """Prints the totals of every split as a table, with the tagged spans, and what was skipped."""
    table = totals_table({split: totals(manifest) for split, manifest in manifests.items()})
    rich.console.Console(width=None if sys.stdout.isatty() else 100).print(table)
