"""Progress and totals of prepare: a bar on a terminal, a log line at intervals elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import rich.console
import rich.progress
import rich.table

from spanjax.data.shards.shards import Manifest

_SECONDS = 10.0  # between plain lines
log = logging.getLogger("spanjax.prepare")

Column = TypeVar("Column")


class Progress:
    """Context manager that shows the numbers of finished portions, documents, tokens and characters."""

    def __init__(self, name: str):
        self._name = name
        self._began = self._told = time.monotonic()
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
        if now - self._told < (0.2 if self._bar else _SECONDS):
            return
        self._told = now
        speed = self._characters / 1e6 / (now - self._began)
        done = f"{self._portions:,} portions, {self._documents:,} documents, {self._tokens:,} tokens"
        line = f"{self._name}: {done}, {speed:.1f} million characters/s"
        if self._bar:
            self._bar.update(self._task, description=line)
        else:
            log.info(line)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "0"


def columns_table(columns: Mapping[str, Column], lines: Mapping[str, Callable[[Column], str]]) -> rich.table.Table:
    """A column for each item, a line for each figure of it."""
    table = rich.table.Table("", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    for title, value in lines.items():
        table.add_row(title, *map(value, columns.values()))
    return table


def totals_table(manifests: Mapping[str, Manifest]) -> None:
    """Prints the totals of every split as a table, with the tagged spans, and what was skipped."""
    lines = {
        "documents": lambda each: f"{each.documents:,}",
        "sentences": lambda each: f"{each.sentences:,}",
        "tokens": lambda each: f"{each.text_tokens:,}",
        "unknown %": lambda each: f"{100 * each.unknown_tokens / max(1, each.text_tokens):.3f}",
        "tokens per word": lambda each: f"{each.text_tokens / max(1, each.words):.3f}",
        "blocks": lambda each: f"{each.blocks:,}",
        "rows": lambda each: f"{each.rows:,}",
        "fill %": lambda each: f"{100 * each.fill:.2f}",
        "unigram entropy (nats)": lambda each: f"{each.unigram_entropy:.3f}",
    }
    if any(manifest.tags for manifest in manifests.values()):
        lines["tagged spans"] = lambda each: _counts(each.settings.get("tagged_spans", {}))
    lines["skipped"] = lambda each: _counts(each.skipped)
    rich.console.Console(width=None if sys.stdout.isatty() else 100).print(columns_table(manifests, lines))
