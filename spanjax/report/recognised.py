"""Recognises the dev files of a fine-tuning run, and the arm of the paper's ablations of a pretraining run, by their settings."""

import pathlib
from collections.abc import Mapping
from typing import Any

from spanjax.data.feed.masking import GeometricSpans, MaskingPolicy, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.pairing import NextSentence, Single
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.report.runs import Recorded
from spanjax.run_format import describe


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
    made = _looks(settings.get("objective", {}))
    return next((arm for arm, objective in ARMS.items() if _looks(describe(objective)) == made), "")


def _looks(objective: Mapping[str, Any]) -> list[Any]:
    """Classes of a described objective's masking, pairing and terms, and the tag of its masking: what the arms differ in."""
    masking, pairing = objective.get("masking", {}), objective.get("pairing", {})
    terms = [term.get("class") for term in objective.get("terms", []) if isinstance(term, dict)]
    return [masking.get("class"), masking.get("tag") or None, pairing.get("class"), *terms]


def _masked(masking: MaskingPolicy) -> MaskedPrediction:
    return MaskedPrediction(masking=masking, pairing=NextSentence(), terms=(MaskedTokens(), SentencePair()))


ARMS: Mapping[str, MaskedPrediction] = {
    "table6_subword_tokens": _masked(Tokens()),
    "table6_whole_words": _masked(WholeWords()),
    "table6_named_entities": _masked(TaggedSpans(tag="entities")),
    "table6_noun_phrases": _masked(TaggedSpans(tag="noun_phrases")),
    "table6_geometric_spans": _masked(GeometricSpans()),
    "table7_single_sequence": MaskedPrediction(GeometricSpans(), Single(), (MaskedTokens(),)),
    "table7_single_sequence_sbo": MaskedPrediction(GeometricSpans(), Single(), (MaskedTokens(), SpanBoundary())),
}
"""Config in configs/ablations -> an objective that looks like its own; table7_two_sequences is table6_geometric_spans."""
