"""Every number of a run's settings has bounds, and none of them may be NaN or infinite."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from spanjax.bounds import LARGEST, Bounds, collect, flag_problems, raise_problems, range_problems
from spanjax.data.feed.masking import EveryToken, GeometricSpans, Ngrams, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.pairing import NextSentence, SentenceOrder
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.causal_lm import CausalPrediction
from spanjax.objectives.electra import ReplacedDetection
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.run import Data, Run
from spanjax.tasks.coref import Coref
from spanjax.tasks.glue import Glue
from spanjax.tasks.ner import Ner
from spanjax.tasks.relation import Relation
from spanjax.tasks.span_tuning import SpanTuning
from spanjax.tasks.squad import Questions
from spanjax.training.optimizers import AdamW, Lamb, Muon

pytestmark = pytest.mark.unit

OBJECTIVES = (
    MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(), SentencePair("nsp")), pairing=NextSentence()),
    *(
        MaskedPrediction(masking=each)
        for each in (GeometricSpans(), Ngrams(), TaggedSpans(), Tokens(), WholeWords(), EveryToken())
    ),
    MaskedPrediction(pairing=SentenceOrder()),
    *(PermutedPrediction(), ReplacedDetection(boundary=SpanBoundary()), CausalPrediction()),
    *(Coref(), Glue(class_weights=(1.0, 2.0), spans=SpanTuning()), Ner(), Relation(), Questions()),
)
RUNS = [Run(objective=each, data=Data(weights=(1.0,))) for each in OBJECTIVES]
RUNS += [Run(optimizer=each) for each in (AdamW(), Lamb(), Muon())]


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """(path, number) of every int and float inside of a setting."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from numbers(each, (*path, place))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The setting with another number at this path. ValueError where a class refuses it at once."""
    if not path:
        return new
    first, *rest = path
    if isinstance(value, tuple):
        return (*value[:first], changed(value[first], tuple(rest), new), *value[first + 1 :])
    return dataclasses.replace(value, **{first: changed(getattr(value, first), tuple(rest), new)})


def refused(run: Run, path: tuple[Any, ...], new: Any) -> bool:
    try:
        wrong = changed(run, path, new)
    except ValueError:  # masking and pairing refuse theirs where they are built
        return True
    name = ".".join(map(str, path))
    return any(problem.startswith(f"{name} is ") for problem in wrong.problems())


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{type(run.objective).__name__} {type(run.optimizer).__name__}")
def test_no_number_of_a_run_may_be_out_of_bounds(run: Run) -> None:
    found = dict(numbers(run))
    assert len(found) > 50 and not range_problems(run)
    for path, value in found.items():
        bad = (math.nan, math.inf, -math.inf) if isinstance(value, float) else (10**30, -(10**30), 2**40)
        assert all(refused(run, path, each) for each in bad), path


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("optimizer", "learning_rate"), math.nan, "is nan: expected a finite number, more than 0"),
        (("optimizer", "clip_norm"), math.nan, "is nan: expected a finite number, 0 or more"),
        (("optimizer", "weight_decay"), -1.0, "is -1.0: expected 0 or more"),
        (("optimizer", "warmup_steps"), -2, "is -2: expected 0 or more, or -1 for the default"),
        (("optimizer", "no_decay"), ("bias$", "("), ".1 is '(': expected a regular expression"),
        (("objective", "terms", 0, "weight"), math.nan, "is nan: expected a finite number, 0 or more"),
        (("objective", "terms", 0, "extra_count"), -5.0, "is -5.0: expected 0 or more"),
        (("encoder", "initializer_std"), -1.0, "is -1.0: expected 0 or more"),
        (("encoder", "norm_epsilon"), -1.0, "is -1.0: expected more than 0"),
        (("encoder", "dropout"), 1.0, "is 1.0: expected at least 0 and less than 1"),
        (("guard", "stall_seconds"), math.nan, "is nan: expected a finite number, 0 or more"),
        (("data", "weights", 0), 0.0, "is 0.0: expected more than 0"),
        (("data", "weights", 0), -1.0, "is -1.0: expected more than 0"),
        (("steps",), 10**30, f"is a number of 31 digits: expected at most {LARGEST:,}"),
        (("steps",), 0, "is 0: expected at least 1, or -1 for the default"),
        (("cadence", "eval_every"), -2, "is -2: expected 0 or more, or -1 for the default"),
        (("seed",), -1, "is -1: expected 0 or more"),
    ],
)
def test_what_is_expected_is_told(path: tuple[Any, ...], value: Any, message: str) -> None:
    problems = changed(RUNS[0], path, value).problems()
    assert f"{'.'.join(map(str, path))}{'' if message[0] == '.' else ' '}{message}" in "\n".join(problems), problems


def test_all_problems_come_at_once_and_each_once() -> None:
    encoder = EncoderConfig(norm_epsilon=math.nan, layers=0)
    problems = Run(encoder=encoder, optimizer=AdamW(learning_rate=math.inf), steps=-7).problems()
    assert len(problems) == 4 == len({*problems}), problems


@dataclasses.dataclass(frozen=True)
class Options:
    worker_count: Annotated[int, Bounds(2, zero="one a core")] = 0


def test_zero_may_mean_something_else() -> None:
    assert not flag_problems(Options(0)) and not range_problems(Options(2))
    assert flag_problems(Options(1)) == ["--worker-count is 1: expected at least 2, or 0 for one a core"]


def test_problems_are_collected_and_raised_together() -> None:
    problems = ["first"]
    assert collect(problems, int, "3") == 3 and problems == ["first"]
    assert collect(problems, int, "x") is None and "invalid literal" in problems[1]
    raise_problems([])
    raise_problems([], "title:")
    for title, text in ((None, "first\n  more"), ("", "  - first\n  more"), ("title:", "title:\n  - first\n  more")):
        with pytest.raises(ValueError) as raised:
            raise_problems(["first", "  more"], title)
        assert str(raised.value) == text
