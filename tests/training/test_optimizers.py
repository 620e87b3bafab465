"""AdamW against a step written by hand, the schedule's corners, decay by name; LAMB and Muon on stacked layers."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spanjax.run import load
from spanjax.sharding import map_named, named_leaves
from spanjax.training.optimizers import AdamW, Lamb, Muon, Optimizer, clip_by_global_norm


def rates(optimizer: AdamW, steps: int) -> list[float]:
    return [float(np.asarray(optimizer.rate_schedule(steps)(count))) for count in range(steps)]


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


@pytest.mark.parametrize("kind", [AdamW, Muon], ids=["adamw", "muon"])
def test_updates_without_bias_correction_by_hand(kind: type[Optimizer]) -> None:
    """Moments as they are, from nothing: the first update is 0.1 / sqrt(0.001) times as large as a corrected one."""
    optimizer = kind(
        bias_correction=False, learning_rate=1.0, warmup_steps=0, weight_decay=0.25, clip_norm=0, epsilon=1e-3
    )
    transform, value, moments = optimizer.transformation(10**6), np.asarray([2.0, -1.0]), [np.zeros(2), np.zeros(2)]
    state = transform.init({"kernel": jnp.asarray(value)})
    for grad in ([0.5, -3.0], [1.0, 2.0], [-0.125, 0.0]):
        given = {"kernel": jnp.asarray(value)}
        updates: Any
        updates, state = transform.update({"kernel": jnp.asarray(grad)}, state, given)
        moments = [0.9 * moments[0] + 0.1 * np.asarray(grad), 0.999 * moments[1] + 0.001 * np.square(grad)]
        expected = -(moments[0] / (np.sqrt(moments[1]) + 1e-3) + 0.25 * value)
        np.testing.assert_allclose(updates["kernel"], expected, rtol=2e-5)
        value = value + expected
    same = jax.tree.structure(kind(warmup_steps=0).transformation(10).init({"kernel": jnp.asarray(value)}))
    assert jax.tree.structure(state) == same, "a checkpoint of either can be continued with the other"


def test_problems_are_all_named() -> None:
    assert len(AdamW(learning_rate=0, beta2=1.0, warmup_steps=-2, epsilon=0).problems()) == 4


def stacked(random: np.random.Generator) -> Any:
    shapes = {
        "encoder": {"layers": {"query": {"kernel": (3, 6, 4), "bias": (3, 4)}}, "token": {"embedding": (5, 4)}},
        "mlm": {"dense": {"kernel": (4, 4)}},
    }
    return jax.tree.map(
        lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def test_lamb_scales_every_layer_to_its_own_norm() -> None:
    """After one update the change of each kernel is rate * its norm, that of a bias rate * Adam's; Adam's first direction is
    g / (|g| + epsilon)."""
    random = np.random.default_rng(0)
    params, grads = stacked(random), stacked(random)
    optimizer = Lamb(learning_rate=0.1, warmup_steps=0, weight_decay=0.0, clip_norm=0.0)
    transform = optimizer.transformation(1000)
    updates: Any = transform.update(grads, transform.init(params), params)[0]

    def direction(gradient: Any) -> np.ndarray:
        return np.asarray(gradient) / (np.abs(np.asarray(gradient)) + optimizer.epsilon)

    kernel, update = (np.asarray(tree["encoder"]["layers"]["query"]["kernel"]) for tree in (params, updates))
    for layer in range(3):
        expected = -direction(grads["encoder"]["layers"]["query"]["kernel"][layer])
        expected *= 0.1 * np.linalg.norm(kernel[layer]) / np.linalg.norm(expected)
        np.testing.assert_allclose(update[layer], expected, rtol=1e-5)
    expected = -0.1 * direction(grads["encoder"]["layers"]["query"]["bias"])
    np.testing.assert_allclose(updates["encoder"]["layers"]["query"]["bias"], expected, rtol=1e-5)
    table, update = (np.asarray(tree["encoder"]["token"]["embedding"]) for tree in (params, updates))
    assert np.linalg.norm(update) == pytest.approx(0.1 * np.linalg.norm(table), rel=1e-5)
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = transform.update(grads, transform.init(zero), zero)
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(updates))


def updated(transform: optax.GradientTransformation, grads: Any, params: Any) -> Any:
    return transform.update(grads, transform.init(params), params)[0]


def test_muon_orthogonalises_kernels_of_layers_and_leaves_the_rest_to_adam() -> None:
    random = np.random.default_rng(1)
    params, grads = stacked(random), stacked(random)
    settings: Any = {"learning_rate": 0.1, "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": 0.0}
    transforms = [kind(**settings).transformation(1000) for kind in (Muon, AdamW)]
    muon, adam = (updated(transform, grads, params) for transform in transforms)
    for layer in np.asarray(muon["encoder"]["layers"]["query"]["kernel"]):
        singular = np.linalg.svd(layer, compute_uv=False) / (0.1 * 0.2 * np.sqrt(6))
        assert ((singular > 0.6) & (singular < 1.3)).all(), singular
    for path in (("encoder", "token", "embedding"), ("mlm", "dense", "kernel"), ("encoder", "layers", "query", "bias")):
        left, right = muon, adam
        for name in path:
            left, right = left[name], right[name]
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "optimizer",
    [Lamb(warmup_steps=0, bias_correction=False), Muon(warmup_steps=0), Muon(warmup_steps=0, neuron_beta2=0.95)],
    ids=["lamb", "muon", "normuon"],
)
def test_sharded_moments_give_the_same_update(optimizer: Optimizer) -> None:
    """Three updates with state on one device, and split over two times two."""
    from spanjax.sharding import MeshConfig, make_mesh
    from spanjax.training.state import TrainState, state_shardings

    random = np.random.default_rng(2)
    params, grads = stacked(random), stacked(random)
    transform, found = optimizer.transformation(10), []
    for devices in (1, 4):
        mesh = make_mesh(MeshConfig(tensor=min(2, devices)), jax.devices()[:devices])
        state = TrainState(jnp.zeros((), jnp.int32), params, transform.init(params))
        shardings = state_shardings(jax.eval_shape(lambda state=state: state), transform, mesh)
        state = jax.device_put(state, shardings)

        def update(state: TrainState) -> TrainState:
            updates, opt_state = transform.update(grads, state.opt_state, state.params)
            return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)

        for _ in range(3):
            state = jax.jit(update, out_shardings=shardings)(state)
        found.append(jax.device_get(state.params))
        for leaf in jax.tree.leaves(state.opt_state):
            if leaf.ndim > 2:  # inputs over `data`, outputs over `tensor`; one moment per output over `tensor` alone
                parts = devices if leaf.shape[1] > 1 else min(2, devices)
                assert leaf.addressable_shards[0].data.size * parts == leaf.size
    for left, right in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def orthogonalised(matrix: np.ndarray, iterations: int) -> np.ndarray:
    """Newton-Schulz with the coefficients of Jordan et al. (2024), of a wide matrix in float64."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalised(matrix.T, iterations).T
    found = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(iterations):
        gram = found @ found.T
        found = 3.4445 * found + (-4.7750 * gram + 2.0315 * gram @ gram) @ found
    return found


def test_normuon_is_a_plain_loop_over_layers_and_neurons() -> None:
    """Four updates in float64, output by output; a layer without a gradient gets none, and Muon is another optimizer."""
    random = np.random.default_rng(7)
    params = stacked(random)
    settings: Any = {"learning_rate": 0.1, "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": 0.0}
    optimizer = Muon(neuron_beta2=0.9, epsilon=1e-6, momentum=0.8, **settings)
    transform = optimizer.transformation(10**9)
    plain = dataclasses.replace(optimizer, neuron_beta2=0.0).transformation(10**9)
    state, other = transform.init(params), plain.init(params)
    momentum, square, apart = np.zeros((3, 6, 4)), np.zeros((3, 4)), 0.0
    for step in range(1, 5):
        grads = stacked(random)
        kernel = grads["encoder"]["layers"]["query"]["kernel"].at[2].set(0.0) * jnp.asarray([[[0.1, 1.0, 3.0, 9.0]]])
        grads["encoder"]["layers"]["query"]["kernel"] = kernel
        updates: Any
        plain_updates: Any
        updates, state = transform.update(grads, state, params)
        plain_updates, other = plain.update(grads, other, params)
        got, muon = (np.asarray(each["encoder"]["layers"]["query"]["kernel"]) for each in (updates, plain_updates))
        gradient = np.asarray(kernel, np.float64)
        momentum = 0.8 * momentum + 0.2 * gradient
        for layer in range(3):
            nesterov = 0.8 * momentum[layer] / (1 - 0.8 ** (step + 1)) + 0.2 * gradient[layer] / (1 - 0.8**step)
            direction = orthogonalised(nesterov, 5)
            for neuron in range(4):
                column = direction[:, neuron]
                square[layer, neuron] = 0.9 * square[layer, neuron] + 0.1 * np.sum(column**2) / 6
                direction[:, neuron] = column / (np.sqrt(square[layer, neuron]) + 1e-6)
            size = np.linalg.norm(direction)
            expected = -0.1 * 0.2 * np.sqrt(6 * 4) / size * direction if size else np.zeros((6, 4))
            np.testing.assert_allclose(got[layer], expected, rtol=1e-3, atol=1e-5)
        apart = max(apart, np.abs(got - muon).max())
        np.testing.assert_array_equal(
            updates["encoder"]["token"]["embedding"], plain_updates["encoder"]["token"]["embedding"]
        )
    assert apart > 1e-3


def test_wrong_settings_of_muon_are_named() -> None:
    assert len(Muon(momentum=1.0, iterations=0, learning_rate=0, neuron_beta2=1.0).problems()) == 4


def test_lower_layers_learn_more_slowly() -> None:
    layers = {"query": {"kernel": jnp.ones((3, 2, 2)), "bias": jnp.ones((3, 2))}}
    tree = {"encoder": {"embeddings": {"token": jnp.ones(4)}, "layers": layers}, "classifier": jnp.ones(2)}
    whole, decayed = (
        AdamW(learning_rate=1.0, warmup_steps=0, weight_decay=0.0, clip_norm=0.0, layer_decay=rate).transformation(10)
        for rate in (1.0, 0.5)
    )
    expected = whole.update(tree, whole.init(tree), tree)[0]
    got = decayed.update(tree, decayed.init(tree), tree)[0]
    ratio = jax.tree.map(lambda a, b: np.asarray(a / b), got, expected)
    np.testing.assert_allclose(ratio["encoder"]["layers"]["query"]["kernel"][:, 0, 0], [0.125, 0.25, 0.5])
    np.testing.assert_allclose(ratio["encoder"]["layers"]["query"]["bias"][:, 1], [0.125, 0.25, 0.5])
    np.testing.assert_allclose(ratio["encoder"]["embeddings"]["token"], 0.0625)
    np.testing.assert_allclose(ratio["classifier"], 1.0)
    assert AdamW(layer_decay=0.0).problems() == ["optimizer.layer_decay is 0.0: expected more than 0 and at most 1"]


def two_sides() -> dict[str, dict[str, jnp.ndarray]]:
    """A parameter of the encoder and one above it."""
    return {"encoder": {"kernel": jnp.ones((2, 2))}, "head": {"kernel": jnp.ones((2, 2))}}


def test_heads_have_a_rate_of_their_own():
    """D21: with `head_warmup` off it begins at its peak, while that of the encoder grows."""
    params: Any = two_sides()
    for warmup, first in ((True, 0.02 / 4), (False, 0.02)):
        optimizer = AdamW(
            learning_rate=0.01, warmup_steps=4, weight_decay=0.0, head_learning_rate=0.02, head_warmup=warmup
        ).transformation(10)
        state = optimizer.init(params)
        updates: Any = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)[0]
        np.testing.assert_allclose(-updates["encoder"]["kernel"], 0.01 / 4, rtol=1e-5)
        np.testing.assert_allclose(-updates["head"]["kernel"], first, rtol=1e-5)


@pytest.mark.parametrize("size", [0.01, 3.0])
def test_clipping_is_that_of_optax(size: float) -> None:
    """A norm that is given is taken in place of that of the gradients, unless they were scaled since it was measured."""
    grads = {"encoder": {"a": jnp.array([[3.0, -4.0]]) * size}, "head": {"b": jnp.array([12.0]) * size}}
    one, _ = clip_by_global_norm(1.0, measured=True).update(grads, optax.EmptyState(), norm=13.0 * size)
    other, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), one, other)
    double: Any = clip_by_global_norm(1.0, measured=True).update(grads, optax.EmptyState(), norm=26.0)[0]
    np.testing.assert_allclose(double["head"]["b"], 12.0 * size / 26)
    settings: Any = {"learning_rate": 1.0, "warmup_steps": 0, "weight_decay": 0.0, "epsilon": 1e-3}
    cases: Any = [({}, 26.0), ({"gradient_scale": 2.0}, 26.0 * size), ({"sample_size_workers": 2}, 26.0 * size)]
    for changes, taken in cases:
        transform = optax.with_extra_args_support(AdamW(**settings, **changes).transformation(10))
        updates: Any = transform.update(grads, transform.init(grads), grads, norm=26.0, targets=1.0)[0]
        scale = 2.0 if changes else 1.0
        clipped = scale * 12 * size / max(taken, 1.0)
        np.testing.assert_allclose(updates["head"]["b"], -clipped / (clipped + 1e-3), rtol=1e-5)


def test_clipping_apart():
    """With a large epsilon the first update is -g / (|g| + epsilon) of the clipped gradient."""
    params: Any = two_sides()
    grads: Any = {"encoder": {"kernel": jnp.full((2, 2), 3.0)}, "head": {"kernel": jnp.full((2, 2), 0.1)}}
    settings: Any = {"learning_rate": 1.0, "warmup_steps": 0, "weight_decay": 0.0, "epsilon": 10.0}
    for apart, left in ((True, 0.1), (False, 0.1 / np.hypot(6.0, 0.2))):
        transform = AdamW(clip_norm=1.0, clip_apart=apart, **settings).transformation(10)
        updates: Any = updated(transform, grads, params)
        np.testing.assert_allclose(-updates["head"]["kernel"], left / (left + 10), rtol=1e-5)
        assert float(jnp.max(-updates["encoder"]["kernel"])) < 0.51 / 10


def bert_sized(random: np.random.Generator) -> Any:
    """Stacked parameters as the encoder names them, and a head."""
    shapes = {
        "encoder": {
            "embeddings": {"token": {"embedding": (5, 4)}},
            "layers": {name: {"kernel": (3, 4, 4), "bias": (3, 4)} for name in ("query", "key", "value")},
        },
        "classifier": {"kernel": (4, 2), "bias": (2,)},
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32), shapes, is_leaf=is_shape)


def unstacked(tree: Any) -> dict[str, np.ndarray]:
    """One array for each tensor that the original has: a layer's own query, key and value among them."""
    found: dict[str, np.ndarray] = {}
    for name, leaf in named_leaves(tree).items():
        parts = enumerate(leaf) if "/layers/" in name else [(None, leaf)]
        found |= {name if number is None else f"{name} of layer {number}": np.asarray(part) for number, part in parts}
    return found


def test_bert_adam_is_a_plain_loop_over_the_tensors_of_the_original() -> None:
    """Three updates: each tensor's gradient clipped to 1 by itself, moments without correction, decay in the update, warm-up
    from 0 and a decay to 0 from its end."""
    random = np.random.default_rng(4)
    params: Any = bert_sized(random)
    optimizer = AdamW(
        learning_rate=0.1,
        warmup_steps=2,
        warmup_form="from_zero",
        epsilon=1e-6,
        weight_decay=0.01,
        bias_correction=False,
        clip_norm=1.0,
        clip_per_parameter=True,
    )
    assert optimizer.problems() == []
    transform, steps = optimizer.transformation(6), 4
    state, values = transform.init(params), unstacked(params)
    first, second = ({name: np.zeros_like(each) for name, each in values.items()} for _ in range(2))
    clipped = []
    for step in range(steps):
        # scales around the norm at which clipping begins, so that some tensors and layers are clipped and others not
        grads = jax.tree.map(lambda leaf, step=step: leaf * (0.1 + 0.25 * step), bert_sized(random))
        updates, state = transform.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        progress, warmup = step / 6, 2 / 6
        rate = 0.1 * (progress / warmup if progress < warmup else max((progress - 1) / (warmup - 1), 0))
        for name, gradient in unstacked(grads).items():
            norm = np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
            clipped.append(norm > 1)
            gradient = gradient / max(norm, 1.0)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            update = first[name] / (np.sqrt(second[name]) + 1e-6)
            update = update + (0.0 if "bias" in name else 0.01) * values[name]
            values[name] = values[name] - rate * update
    assert 5 < sum(clipped) < len(clipped) - 5
    for name, found in unstacked(params).items():
        np.testing.assert_allclose(found, values[name], rtol=1e-5, atol=1e-6, err_msg=name)


def with_coreference(tree: Any) -> Any:
    """The head under the name of that of coreference."""
    return {"encoder": tree["encoder"], "coreference": tree["classifier"]}


def test_two_adams_of_the_released_coreference() -> None:
    """Encoder: no correction, epsilon 1e-6; heads: TensorFlow's Adam, epsilon beside the uncorrected second moment. D21."""
    random = np.random.default_rng(5)
    params: Any = with_coreference(bert_sized(random))
    optimizer: Any = load("configs/finetune/coref_as_released.py").optimizer
    optimizer = dataclasses.replace(optimizer, warmup_steps=2)
    assert optimizer.problems() == []
    transform, steps = optimizer.transformation(10), 5
    state, values = transform.init(params), unstacked(params)
    first, second = ({name: np.zeros(each.shape) for name, each in values.items()} for _ in range(2))
    for step in range(steps):
        # head gradients small enough that their epsilon counts
        grads = map_named(
            lambda name, leaf: leaf * (1e-7 if name.startswith("coreference") else 1.0),
            with_coreference(bert_sized(random)),
        )
        updates, state = transform.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        parts = unstacked(grads)
        for side in (True, False):
            names = [name for name in parts if name.startswith("coreference") == side]
            norm = np.sqrt(sum(np.sum(parts[name].astype(np.float64) ** 2) for name in names))
            for name in names:
                gradient = parts[name] / max(norm, 1.0)
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                if side:
                    rate = 1e-4 * (1 - step / 10) * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
                    values[name] = values[name] - rate * first[name] / (np.sqrt(second[name]) + 1e-8)
                else:
                    rate = 2e-5 * (step / 2 if step < 2 else 1 - step / 10)
                    decay = 0.0 if "bias" in name else 0.01
                    update = first[name] / (np.sqrt(second[name]) + 1e-6) + decay * values[name]
                    values[name] = values[name] - rate * update
    start = unstacked(with_coreference(bert_sized(np.random.default_rng(5))))
    for name, found in unstacked(params).items():
        change = np.abs(values[name] - start[name]).max()
        assert change > 0
        # parameters of 1 are rounded to 6e-8 in every update
        np.testing.assert_allclose(found, values[name], rtol=0, atol=1e-5 * change + steps * 1.2e-7, err_msg=name)
    same = jax.tree.structure(
        dataclasses.replace(optimizer, head_bias_correction=None, epsilon_hat=False).transformation(10).init(params)
    )
    assert jax.tree.structure(state) == same


def test_forms_of_warm_up() -> None:
    """From 1, from 0 through the last update of warm-up, and from 0 below it: they part where the decay begins at 0."""
    settings: Any = {"learning_rate": 1.0, "warmup_steps": 4, "decay_from": "start"}
    expected = {
        "from_one": [0.25, 0.5, 0.75, 1.0, 0.5, 0.375],
        "from_zero": [0.0, 0.25, 0.5, 0.75, 1.0, 0.375],
        "from_zero_exclusive": [0.0, 0.25, 0.5, 0.75, 0.5, 0.375],
    }
    for form, values in expected.items():
        np.testing.assert_allclose(rates(AdamW(**settings, warmup_form=form), 8)[:6], values, rtol=1e-6)  # pyright: ignore
    none = AdamW(learning_rate=1.0, warmup_steps=0, warmup_form="from_zero")
    np.testing.assert_allclose(rates(none, 4), [1.0, 0.75, 0.5, 0.25], rtol=1e-6)


def test_peaks_come_after_warm_up_alone() -> None:
    """D9: the end of an epoch inside warm-up does not jump to the peak; the first update has it."""
    optimizer = AdamW(learning_rate=1.0, warmup_steps=5, decay_from="start", peak_every=3)
    got = rates(optimizer, 10)
    np.testing.assert_allclose(got, [1.0, 0.4, 0.6, 0.8, 1.0, 0.5, 1.0, 0.3, 0.2, 1.0], rtol=1e-6)


def test_settings_that_exclude_each_other_are_named() -> None:
    found = AdamW(clip_apart=True, clip_per_parameter=True, epsilon_hat=True, bias_correction=False).problems()
    assert len(found) == 2 and "clip_per_parameter" in found[0] and "epsilon_hat" in found[1]
    assert len(AdamW(sample_size_workers=-1, head_epsilon=-1e-8).problems()) == 2
