"""AdamW against a step written by hand, the schedule's corners, decay by name."""

import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.training.optimizer import AdamW


def rates(optimizer: AdamW, steps: int) -> list[float]:
    return [float(np.asarray(optimizer.schedule(steps)(count))) for count in range(steps)]


def test_schedule_warms_up_and_decays_to_zero() -> None:
    got = rates(AdamW(learning_rate=1.0, warmup_steps=4), 12)
    np.testing.assert_allclose(got, [0.25, 0.5, 0.75, 1.0] + [(8 - i) / 8 for i in range(8)], rtol=1e-6)


def test_released_schedule() -> None:
    """First and every 5th update at the peak; decay measured from 0, so it drops when warm-up ends (D9)."""
    got = rates(AdamW(learning_rate=1.0, warmup_steps=4, decay_from="start", peak_every=5), 10)
    np.testing.assert_allclose(got, [1.0, 0.5, 0.75, 1.0, 0.6, 1.0, 0.4, 0.3, 0.2, 0.1], rtol=1e-6)


def params() -> dict:
    return {
        "layer": {"kernel": jnp.asarray([1.0, -2.0]), "bias": jnp.asarray([3.0])},
        "norm1": {"scale": jnp.asarray([2.0])},
    }


@pytest.mark.parametrize(
    ("no_decay", "decayed"), [(("bias$", "norm[12]?/"), {"kernel"}), ((), {"kernel", "bias", "scale"})]
)
def test_one_update_by_hand(no_decay: tuple[str, ...], decayed: set[str]) -> None:
    optimizer = AdamW(
        learning_rate=0.1, warmup_steps=0, weight_decay=0.5, no_decay=no_decay, clip_norm=1.0, epsilon=1e-3
    )
    transform = optimizer.transformation(10)
    grads = {
        "layer": {"kernel": jnp.asarray([3.0, 0.0]), "bias": jnp.asarray([4.0])},
        "norm1": {"scale": jnp.asarray([12.0])},
    }
    updates, _ = transform.update(grads, transform.init(params()), params())
    for (room, name), value in {
        ("layer", "kernel"): [1.0, -2.0],
        ("layer", "bias"): [3.0],
        ("norm1", "scale"): [2.0],
    }.items():
        clipped = np.asarray(grads[room][name]) / 13.0
        adam = clipped / (np.abs(clipped) + 1e-3)
        expected = -0.1 * (adam + (0.5 * np.asarray(value) if name in decayed else 0.0))
        np.testing.assert_allclose(np.asarray(updates[room][name]), expected, rtol=1e-5)  # pyright: ignore


def test_gradient_scale_makes_epsilon_matter() -> None:
    """Gradients of 1/614 of their size leave a clip at 1 inactive and make epsilon 614 times as large (D7)."""

    def first(optimizer: AdamW) -> np.ndarray:
        transform = optimizer.transformation(10)
        grads = {"layer": {"kernel": jnp.asarray([1e-3, 2e-3])}}
        values = {"layer": {"kernel": jnp.zeros(2)}}
        return np.asarray(transform.update(grads, transform.init(values), values)[0]["layer"]["kernel"])  # pyright: ignore

    plain = AdamW(learning_rate=1.0, warmup_steps=0, weight_decay=0.0, epsilon=614e-6)
    scaled = AdamW(learning_rate=1.0, warmup_steps=0, weight_decay=0.0, epsilon=1e-6, gradient_scale=1 / 614)
    np.testing.assert_allclose(first(plain), first(scaled), rtol=1e-5)


def test_problems_are_all_named() -> None:
    assert len(AdamW(learning_rate=0, beta2=1.0, warmup_steps=-1, epsilon=0).problems()) == 4
