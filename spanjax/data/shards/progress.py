"""Progress and totals of prepare: a bar on a terminal, a log line at intervals elsewhere."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import rich.console
import rich.progress
import rich.table

from spanjax.data.shards.shards import Manifest

_SECONDS = 10.0  # between plain lines
log = logging.getLogger("spanjax.prepare")


class Progress:
    """Context manager that shows the numbers of finished portions, documents, tokens and characters."""

    def __init__(self, name: str):
        self._name = name
        self._began = self._printed = time.monotonic()
        self._portions = self._documents = self._tokens = self._characters = 0
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            columns = (rich.progress.SpinnerColumn(), rich.progress.TextColumn("{task.description}"))
            self._bar = rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._name, total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, documents: int, tokens: int, characters: int) -> None:
        """Adds a portion of so many documents, tokens and characters."""
        self._portions += 1
        self._documents += documents
        self._tokens += tokens
        self._characters += characters
        now = time.monotonic()
        if now - self._printed < (0.2 if self._bar else _SECONDS):
            return
        self._printed = now
        speed = self._characters / 1e6 / (now - self._began)
        done = f"{self._portions:,} portions, {self._documents:,} documents, {self._tokens:,} tokens"
        line = f"{self._name}: {done}, {speed:.1f} million characters/s"
        if self._bar:
            self._bar.update(self._task, description=line)
        else:
            log.info(line)


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
