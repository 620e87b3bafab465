"""The best results of all runs, each in a sentence."""

from collections.abc import Mapping, Sequence

from spanjax.objectives.base import Pretraining
from spanjax.pages.document import Block, Finding, Headline, Words
from spanjax.report.comparisons import comparable, p_text
from spanjax.report.labels import inline, unit
from spanjax.report.masking import opened
from spanjax.report.runs import Group, Recorded, score_names
from spanjax.report.tables import dev_files
from spanjax.run_format import restored
from spanjax.scoring.spread import Spread
from spanjax.scoring.welch import welch

MOST = 3  # results of pretraining that are listed, if they are not comparable


def headline_blocks(groups: Sequence[Group]) -> list[Block]:
    """Builds the headline: a finding for each task, and for each kind of pretraining; empty before the first evaluation."""
    evaluated = [group for group in groups if group.spread(group.first.metric)]
    kinds = comparable(evaluated)
    pretraining = [kind for kind in kinds if not kind[0].tuned]
    found = [_pretrained(kind) for kind in pretraining]
    if len(pretraining) > MOST:
        # their losses have no common scale: a list of them all would read as a ranking
        words = [
            Words(f"{len(pretraining)} kinds of pretraining", "value"),
            Words(" with losses that are not comparable"),
        ]
        found = [
            Finding(words, "Their rows, masking or loss terms differ: the table lists the held-out losses of each.")
        ]
    found += [_tuned(kind) for kind in kinds if kind[0].tuned]
    return [Headline(found)] if found else []


def _first(groups: Sequence[Group]) -> list[Group]:
    """Comparable groups, the best first."""
    sign = 1 if groups[0].tuned else -1

    def quality(group: Group) -> float:
        spread = group.spread(group.first.metric)
        return sign * spread.mean if spread else 0.0

    return sorted(groups, key=quality, reverse=True)


def main_loss(run: Recorded) -> tuple[str, Mapping[str, tuple[float, str]]]:
    """Name of the loss with the largest weight, and the baselines of losses if the held-out rows are still there."""
    best, baselines = run.best, {}
    names = set(best.values) if best else set()
    try:
        objective = restored(run.objective, Pretraining)
        weights = objective.loss_weights()
    except (ValueError, TypeError):  # an objective of another version, or of a user's module
        return run.metric, {}
    known = [name for name in weights if name in names]
    try:
        # several folders have an entropy each, and the held-out rows of a run are all of theirs
        held_out = opened(run).held_out if len(run.settings.get("data", {}).get("rows", [])) == 1 else None
        baselines = objective.baseline_losses(held_out.manifest.unigram_entropy) if held_out else {}
    except (ValueError, OSError):
        baselines = {}
    return max(known, key=lambda name: weights[name], default=run.metric), baselines


def _pretrained(groups: Sequence[Group]) -> Finding:
    best, *others = _first(groups)
    name, baselines = main_loss(best.first)
    spread = best.spread(name)
    if spread is None:  # a term may be NaN where the total is finite, as with a weight of 0
        name, baselines = best.first.metric, {}
        spread = best.spread(name)
    assert spread is not None
    against, known = "", ""
    if name in baselines:
        value, what = baselines[name]
        side = "below" if spread.mean < value else "above"
        against = f", {abs(value - spread.mean):.4f} {side} the {what.removesuffix(' of the held-out text')}"
        known = f" A model without context reaches {value:.4f} nats."
    words = [Words(f"Best held-out {inline(name)} "), Words(f"{spread.mean:.4f}{unit(name)}", "value"), Words(against)]
    return Finding(words, _detail(best, others, spread, 4) + known)


def _tuned(groups: Sequence[Group]) -> Finding:
    best, *others = _first(groups)
    name, *_ = score_names(best.runs)
    spread = best.spread(name)
    assert spread is not None
    words = [Words(f"Best {best.first.row.name} {inline(name)} "), Words(f"{spread.mean:.2f}{unit(name)}", "value")]
    return Finding(words, f"{_detail(best, others, spread, 2)} Dev files: {dev_files(best.first)}.")


def _detail(best: Group, others: Sequence[Group], spread: Spread, digits: int) -> str:
    """Runs and steps of a result, its spread over seeds, and the distance to the next group."""
    steps = sorted({run.best.step for run in best.runs if run.best})
    when = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    seeds = len(spread.values)
    what = f"Run {best.name}" if seeds == 1 else f"Mean of {seeds} seeds of {best.name}"
    deviation = f", standard deviation {spread.deviation:.{digits}f}" if seeds > 1 else ""
    parts = [f"{what}, {when}{deviation}."]
    if others:
        metric = best.first.metric
        mine, next_best = best.spread(metric), others[0].spread(metric)
        assert mine is not None and next_best is not None
        distance = abs(mine.mean - next_best.mean)
        test = ""
        if min(len(mine.values), len(next_best.values)) > 1:
            p = welch(mine.values, next_best.values).p
            test = f" (Welch's t-test: p {p_text(p) if p < 1e-4 else f'= {p_text(p)}'})" if p == p else ""
        unlike = "" if best.tuned else f" {inline(metric)}"
        side = "above" if best.tuned else "below"
        parts.append(
            f"Best of {len(others) + 1} groups:{unlike} {distance:.{digits}f} {side} the next, {others[0].name}{test}."
        )
    return " ".join(parts)
