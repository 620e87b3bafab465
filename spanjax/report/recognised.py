"""Recognises the dev files of a fine-tuning run, and the arm of the paper's ablations of a pretraining run, by their settings."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spanjax.report.runs import Recorded


def dev_names(run: Recorded) -> str:
    """The names of a run's dev files with their folders, and the part of them that it scores."""
    files = run.objective.get("dev")
    names = ", ".join("/".join(pathlib.PurePath(str(each)).parts[-2:]) for each in files) if files else "no file"
    return f"{names}, {run.row.part}" if run.row.part else names


def dev_files(run: Recorded) -> str:
    """Returns the same with the number of examples, if a checkpoint records it."""
    examples = run.meta.get("examples")
    size = examples.get("dev") if isinstance(examples, dict) else None
    return f"{dev_names(run)} ({size:,} examples)" if isinstance(size, int) else dev_names(run)


def arm_of(settings: Mapping[str, Any] | None, name: str) -> str:
    """Returns the row of tables 6 and 7 of a pretraining run: by its settings if known, else by the name of its folder, which is
    that of a config in configs/ablations. "" for another one."""
    if settings is None:
        named = {arm: arm for arm in ARMS} | {"table7_two_sequences": "table6_geometric_spans"}
        return next((named[arm] for arm in sorted(named, key=len, reverse=True) if arm in name), "")
    objective = settings.get("objective", {})
    masking, pairing = objective.get("masking", {}), objective.get("pairing", {})
    terms = [term.get("class") for term in objective.get("terms", []) if isinstance(term, dict)]
    made = (masking.get("class"), masking.get("tag") or None, pairing.get("class"), terms)
    return next((arm for arm, looks in ARMS.items() if looks == made), "")


_TWO: Sequence[str] = ["MaskedTokens", "SentencePair"]
ARMS: Mapping[str, tuple[str, str | None, str, Sequence[str]]] = {
    "table6_subword_tokens": ("Tokens", None, "NextSentence", _TWO),
    "table6_whole_words": ("WholeWords", None, "NextSentence", _TWO),
    "table6_named_entities": ("TaggedSpans", "entities", "NextSentence", _TWO),
    "table6_noun_phrases": ("TaggedSpans", "noun_phrases", "NextSentence", _TWO),
    "table6_geometric_spans": ("GeometricSpans", None, "NextSentence", _TWO),
    "table7_single_sequence": ("GeometricSpans", None, "Single", ["MaskedTokens"]),
    "table7_single_sequence_sbo": ("GeometricSpans", None, "Single", ["MaskedTokens", "SpanBoundary"]),
}
"""Config in configs/ablations -> class and tag of its masking, pairing, terms; table7_two_sequences is table6_geometric_spans."""
