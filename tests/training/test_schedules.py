"""Learning rates in every form against plain formulas, the version before, optax and transformers; combinations that conflict."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spanjax.training.optimizers import AdamW, Lamb, Muon, Optimizer
from spanjax.training.optimizers.schedules import Schedule

STEPS, WARMUP, PEAK = 60, 7, 3e-4
FORMS: dict[str, Callable[[float], float]] = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "sqrt": lambda t: 1 - math.sqrt(t),
}


def rates(optimizer: Optimizer, steps: int = STEPS) -> np.ndarray:
    """The rate of every update, as a training step computes it."""
    return np.asarray(jax.jit(jax.vmap(optimizer.rate_schedule(steps)))(jnp.arange(steps)))


def made(schedule: Schedule, **settings: Any) -> AdamW:
    return AdamW(**{"learning_rate": PEAK, "warmup_steps": WARMUP, **settings}, schedule=schedule)


def plain(form: str, first: int, floor: float = 0.0, warmup: int = WARMUP, before: int = 1) -> list[float]:
    """The rate of every update: warm-up, stable, decay from update `first`; `before` is the number of the first update."""
    found = []
    for n in range(STEPS):
        if n + before <= warmup:
            found.append(PEAK * (n + before) / warmup)
        elif n < first:
            found.append(PEAK)
        else:
            found.append(PEAK * (floor + (1 - floor) * FORMS[form]((n - first) / (STEPS - first))))
    return found


@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("placed", "first"),
    [({}, WARMUP), ({"decay_steps": 12}, 48), ({"decay_share": 0.25}, 45), ({"decay_from": 40}, 40)],
    ids=["whole", "steps", "share", "from"],
)
def test_every_form_is_its_plain_formula(form: Any, placed: dict[str, Any], first: int, floor: float) -> None:
    optimizer = made(Schedule(decay=form, floor=floor, **placed))
    assert not optimizer.problems() and not optimizer.schedule_problems(STEPS)
    np.testing.assert_allclose(rates(optimizer), plain(form, first, floor), rtol=2e-5, atol=1e-6 * PEAK)


def test_without_decay_the_rate_is_constant() -> None:
    assert (rates(made(Schedule(decay="none")))[WARMUP - 1 :] == np.float32(PEAK)).all()
    assert (rates(made(Schedule(decay="none"), warmup_steps=0)) == np.float32(PEAK)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_up_to_the_decay_the_bits_are_those_of_a_stable_run(form: Any, floor: float) -> None:
    """Runs of other lengths too; the first update of the decay still has the peak."""
    stable = rates(made(Schedule(decay="none")), 100)
    for first in (WARMUP, 30, 59):
        planned = rates(made(Schedule(decay=form, decay_from=first, floor=floor)))
        np.testing.assert_array_equal(planned[: first + 1], stable[: first + 1])
        assert (np.diff(planned[first:]) < 0).all()


def before_schedules(optimizer: AdamW, steps: int) -> Callable[[Any], Any]:
    """The schedule of version 0.2, copied."""

    def rate(count: Any) -> Any:
        warmup_steps, form = optimizer.warmup_steps, optimizer.warmup_form
        number = jnp.asarray(count, jnp.float32) + 1.0
        before = number if form == "from_one" else number - 1.0
        warming = before < warmup_steps if form == "from_zero_exclusive" else before <= warmup_steps
        start = warmup_steps if optimizer.decay_from == "warmup" else 0
        decay = jnp.clip((steps - number + 1.0) / max(steps - start, 1), 0.0, 1.0)
        factor = jnp.where(warming, before / max(warmup_steps, 1), decay) if warmup_steps else decay
        if optimizer.peak_every:
            peaks = (jnp.asarray(count) % optimizer.peak_every == 0) & ((number == 1.0) | ~warming)
            factor = jnp.where(peaks, 1.0, factor)
        return optimizer.learning_rate * factor

    return rate


@pytest.mark.parametrize("warmup_form", ["from_one", "from_zero", "from_zero_exclusive"])
@pytest.mark.parametrize("decay_from", ["warmup", "start"])
@pytest.mark.parametrize(("warmup_steps", "peak_every"), [(0, 0), (7, 0), (7, 5), (80, 0)])
def test_the_default_is_the_program_of_version_0_2(
    warmup_form: Any, decay_from: Any, warmup_steps: int, peak_every: int
) -> None:
    """The same operations in the same order, so the same bits in every program."""
    optimizer = AdamW(warmup_form=warmup_form, decay_from=decay_from, warmup_steps=warmup_steps, peak_every=peak_every)
    now, then = (
        jax.make_jaxpr(each)(0) for each in (optimizer.rate_schedule(STEPS), before_schedules(optimizer, STEPS))
    )
    assert str(now) == str(then)


def test_cosine_is_that_of_optax_and_transformers() -> None:
    optimization = pytest.importorskip("transformers.optimization")
    torch = pytest.importorskip("torch")
    ours = rates(made(Schedule(decay="cosine", floor=0.2), warmup_form="from_zero_exclusive"))
    theirs = optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, STEPS, end_value=0.2 * PEAK)
    np.testing.assert_allclose(ours, [float(np.asarray(theirs(n))) for n in range(STEPS)], rtol=2e-5, atol=1e-6 * PEAK)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    torchs = optimization.get_cosine_with_min_lr_schedule_with_warmup(sgd, WARMUP, STEPS, min_lr_rate=0.2)
    np.testing.assert_allclose(ours, followed(torchs), rtol=2e-5, atol=1e-6 * PEAK)


def followed(scheduler: Any) -> list[float]:
    """Rates of a scheduler of PyTorch."""
    found = []
    for _ in range(STEPS):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(("form", "theirs"), [("linear", "linear"), ("sqrt", "1-sqrt")])
def test_warmup_stable_decay_is_that_of_transformers(form: Any, theirs: str) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    torch = pytest.importorskip("torch")
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    parts = {"num_warmup_steps": WARMUP, "num_stable_steps": 40 - WARMUP, "num_decay_steps": STEPS - 40}
    scheduler = optimization.get_wsd_schedule(sgd, **parts, decay_type=theirs)
    ours = rates(made(Schedule(decay=form, decay_steps=STEPS - 40), warmup_form="from_zero_exclusive"))
    np.testing.assert_allclose(ours, followed(scheduler), rtol=2e-5, atol=1e-6 * PEAK)


@pytest.mark.parametrize("kind", [AdamW, Lamb, Muon])
def test_settings_of_the_optimizers_keep_their_meaning(kind: type[Optimizer]) -> None:
    """Peaks, the head's own rate and its warm-up work with a stable phase, and updates scale with the rate."""
    schedule = Schedule(decay="sqrt", decay_steps=20)
    optimizer = kind(learning_rate=PEAK, warmup_steps=WARMUP, peak_every=9, schedule=schedule)
    got, without = rates(optimizer), rates(dataclasses.replace(optimizer, peak_every=0))
    peaks = [n for n in range(STEPS) if n % 9 == 0 and (n == 0 or n >= WARMUP)]
    assert (got[peaks] == np.float32(PEAK)).all()
    others = [n for n in range(STEPS) if n not in peaks]
    np.testing.assert_array_equal(got[others], without[others])
    optimizer = kind(
        learning_rate=PEAK, warmup_steps=WARMUP, head_learning_rate=2 * PEAK, head_warmup=False, schedule=schedule,
        clip_norm=0.0, weight_decay=0.0,
    )  # fmt: skip
    tree = {"encoder": {"kernel": jnp.ones((2, 2))}, "head": {"kernel": jnp.ones((2, 2))}}
    transform, ratios = optimizer.transformation(STEPS), []
    state, update = transform.init(tree), jax.jit(transform.update)
    for _ in range(STEPS):
        updates: Any
        updates, state = update(tree, state, tree)
        ratios.append(float(updates["head"]["kernel"][0, 0] / updates["encoder"]["kernel"][0, 0]))
    np.testing.assert_allclose(ratios, [2 * PEAK / min(PEAK, PEAK * (n + 1) / WARMUP) for n in range(STEPS)], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": Schedule(decay_steps=5, decay_from=5)}, "decay_steps 5 and optimizer.schedule.decay_from 5 both"),
        (
            {"schedule": Schedule(decay="none", decay_share=0.5)},
            "is none, which optimizer.schedule.decay_share 0.5 cannot",
        ),
        ({"schedule": Schedule(decay="none", floor=0.5)}, "is none, which optimizer.schedule.floor 0.5 cannot change"),
        (
            {"schedule": Schedule(decay_steps=5), "decay_from": "start"},
            "is start, and optimizer.schedule.decay_steps is 5",
        ),
        ({"schedule": Schedule(decay="none"), "decay_from": "start"}, "is start, and optimizer.schedule.decay is none"),
        ({"schedule": Schedule(floor=1.5)}, "optimizer.schedule.floor is 1.5: expected"),
        ({"schedule": Schedule(decay_share=1.5)}, "optimizer.schedule.decay_share is 1.5: expected"),
    ],
)
def test_what_conflicts_is_one_message(settings: dict[str, Any], message: str) -> None:
    (problem,) = AdamW(**settings).problems()
    assert message in problem


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        (Schedule(decay_from=60), 60),
        (Schedule(decay_from=6), 6),
        (Schedule(decay_steps=54), 6),
        (Schedule(decay_share=1.0), 0),
    ],
)
def test_a_decay_outside_of_the_run_is_refused(schedule: Schedule, first: int) -> None:
    (problem,) = made(schedule).schedule_problems(STEPS)
    assert f"begins at update {first}: expected one from 7 (the end of warm-up) to 59 (the last one)" in problem
    assert made(schedule, warmup_steps=-1).schedule_problems(STEPS) == [], "derived later"


@pytest.mark.parametrize(
    ("optimizer", "line"),
    [
        (made(Schedule()), "warm-up over 7 updates, linear decay to 0 over 53"),
        (made(Schedule(decay="none")), "warm-up over 7 updates, then constant"),
        (
            made(Schedule(decay="sqrt", decay_share=0.1, floor=0.1)),
            "warm-up over 7 updates, stable until update 54, sqrt decay to 3.00e-05 over 6",
        ),
        (
            made(Schedule(), decay_from="start", peak_every=5),
            "decay to 0 over 60 (measured from update 0); the peak again",
        ),
    ],
)
def test_the_line_of_a_schedule(optimizer: AdamW, line: str) -> None:
    assert line in optimizer.schedule_line(STEPS)
