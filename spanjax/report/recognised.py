"""Recognises the task of a fine-tuning run, and the arm of the paper's ablations of a pretraining run, by their settings."""

import pathlib
from collections.abc import Mapping
from typing import Any

from spanjax.data.feed.masking import GeometricSpans, MaskingPolicy, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.pairing import NextSentence, Single
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.report.runs import Recorded
from spanjax.run_format import describe
from spanjax.scoring import glue
from spanjax.tasks.base import SCORE

MRQA: Mapping[str, str] = {
    "newsqa": "NewsQA",
    "triviaqa": "TriviaQA",
    "searchqa": "SearchQA",
    "hotpotqa": "HotpotQA",
    "naturalquestions": "Natural Questions",
    "naturalq": "Natural Questions",
    "squad": "SQuAD (MRQA)",
}
"""Prefix of MRQA's file names, in lower case -> the set."""
PLAIN = ("Glue", "Questions", "Squad", "Mrqa", "Relation", "Coref")
"""Objectives that add a plain head to the encoder, as in the SpanBERT paper; others are named next to the model."""


def _file_names(files: Any) -> list[str]:
    names = [str(each).replace("\\", "/").rstrip("/") for each in files] if isinstance(files, list) else []
    return [part.casefold().replace("-", "").replace("_", "") for name in names for part in name.split("/")[-2:]]


def _mrqa(files: Any) -> str:
    found = {name for part in _file_names(files) for begin, name in MRQA.items() if part.startswith(begin)}
    return found.pop() if len(found) == 1 else "MRQA"


def task_of(run: Recorded) -> str:
    """The name of a fine-tuning run's task: as in `scoring.glue.TASKS`, "SQuAD 1.1", "SQuAD 2.0", "Quoref", a set of MRQA (by the
    names of the dev files), "TACRED", "SemEval-2010", "Coreference"; else the name of the objective's class."""
    settings, kind = run.objective, str(run.objective.get("class", ""))
    if "numbers" in settings or settings.get("task") in glue.TASKS:
        return str(settings.get("task", "own")) if settings.get("task") in glue.TASKS else "own sentences"
    version = str(settings.get("version", ""))
    lowered = kind.casefold()
    if "mrqa" in lowered or version == "mrqa":
        return _mrqa(settings.get("dev"))
    if settings.get("answers") == "set":
        return "Quoref"
    if version in ("1.1", "2.0"):
        return f"SQuAD {version}"
    if lowered.startswith("squad") or lowered.startswith("question"):
        two = any(f"{SCORE}best_f1" in record.values for record in run.evaluations)
        return "SQuAD 2.0" if two else "SQuAD 1.1"
    if "relation" in lowered or "scheme" in settings:
        return "SemEval-2010" if settings.get("scheme") == "semeval" else "TACRED"
    return "Coreference" if kind == "Coref" else kind or "a task"


def dev_names(run: Recorded) -> str:
    """The names of a run's dev files with their folders, and the half of them that it scores."""
    files, half = run.objective.get("dev"), run.objective.get("dev_half")
    names = ", ".join("/".join(pathlib.PurePath(str(each)).parts[-2:]) for each in files) if files else "no file"
    return f"{names}, the half {half}" if half else names


def dev_files(run: Recorded) -> str:
    """Returns the same with the number of examples, if a checkpoint records it."""
    examples = run.meta.get("examples")
    size = examples.get("dev") if isinstance(examples, dict) else None
    return f"{dev_names(run)} ({size:,} examples)" if isinstance(size, int) else dev_names(run)


def variant_of(run: Recorded) -> str:
    """The class of the objective if it is more than a plain head, else ""."""
    kind = str(run.objective.get("class", ""))
    return "" if kind in PLAIN else kind


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
