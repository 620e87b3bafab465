"""Optimizers with warm-up and linear decay: AdamW (Loshchilov & Hutter, 2019) with the oddities of the released code as settings,
LAMB (You et al., 2020; ALBERT's) and Muon (Jordan et al., 2024).
"""

import abc
import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from spanjax.trees import map_named, matches_any, named_leaves

ENCODER = "encoder/"
LAYERS, EMBEDDINGS = "encoder/layers/", "encoder/embeddings/"
WARMUP_STEPS = 10_000  # where warmup_steps is -1 and no task derives it
STACKED = "/layers/"  # in the names of parameters with a leading axis of layers


@dataclasses.dataclass(frozen=True)
class Optimizer(abc.ABC):
    """What all of them share: global-norm clipping, linear warm-up, linear decay to zero, decoupled weight decay."""

    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup_steps: int = -1
    """Updates over which the rate grows linearly to its peak; update number n (from 1) has peak * n / warmup_steps. -1: 10,000;
    of a task, the share objective.warmup of its steps."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    bias_correction: bool = True
    """Adam's division of its moments by 1 - beta^n; False: without it, as in the code that BERT, ALBERT, ELECTRA and XLNet were
    trained with, whose first updates are about three times as large."""
    weight_decay: float = 0.1
    """Decoupled: each update also subtracts rate * weight_decay * parameter."""
    no_decay: tuple[str, ...] = ("bias$", "norm[12]?/")
    """Patterns of parameter names without weight decay; empty decays everything, as the released code does (D8)."""
    clip_norm: float = 1.0
    """Largest global norm of the gradient; 0 does not clip."""
    gradient_scale: float = 1.0
    """Gradients are multiplied by this before clipping; the released code amounts to about 1/614 (D7)."""
    decay_from: Literal["warmup", "start"] = "warmup"
    """Where the linear decay is measured from: the end of warm-up, or update 0 as released (D9)."""
    peak_every: int = 0
    """The first and every so-many-th update has the peak rate, as released (updates per epoch, D9); 0 never."""

    layer_decay: float = 1.0
    """Rate of a layer over that of the layer above it, of the embeddings over that of the first layer, of the last layer over
    that of the heads; less than 1 keeps what is below as it was pretrained."""
    head_learning_rate: float = 0.0
    """Peak rate of all that is not the encoder; 0: that of the encoder."""
    head_warmup: bool = True
    """Whether `head_learning_rate` grows over warmup_steps; False: it begins at its peak, as released for
    coreference (D21)."""
    clip_apart: bool = False
    """Gradients of the encoder and of all else are clipped by norms of their own, as in the released coreference."""

    def problems(self) -> list[str]:
        """What is wrong with these values, in words; empty when nothing is."""
        found = []
        if not 0 < self.layer_decay <= 1:
            found.append(f"optimizer.layer_decay is {self.layer_decay}: expected more than 0 and at most 1")
        for name in ("learning_rate", "epsilon", "gradient_scale"):
            if getattr(self, name) <= 0:
                found.append(f"optimizer.{name} is {getattr(self, name)}: expected more than 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"optimizer.{name} is {getattr(self, name)}: expected at least 0 and less than 1")
        if self.warmup_steps < -1:
            found.append(f"optimizer.warmup_steps is {self.warmup_steps}: expected 0 or more, or -1 for the default")
        for name in ("weight_decay", "clip_norm", "peak_every", "head_learning_rate"):
            if getattr(self, name) < 0:
                found.append(f"optimizer.{name} is {getattr(self, name)}: expected 0 or more")
        return found

    def schedule(self, steps: int) -> optax.Schedule:
        """Learning rate of update `count` (0-based) in a run of `steps` updates."""

        warmup_steps = WARMUP_STEPS if self.warmup_steps < 0 else self.warmup_steps

        def rate(count: Any) -> Any:
            number = jnp.asarray(count, jnp.float32) + 1.0
            warmup = number / max(warmup_steps, 1)
            start = warmup_steps if self.decay_from == "warmup" else 0
            decay = jnp.clip((steps - number + 1.0) / max(steps - start, 1), 0.0, 1.0)
            factor = jnp.where(number <= warmup_steps, warmup, decay)
            if self.peak_every:
                factor = jnp.where(jnp.asarray(count) % self.peak_every == 0, 1.0, factor)
            return self.learning_rate * factor

        return rate

    def transformation(self, steps: int) -> optax.GradientTransformation:
        """The optax chain for a run of `steps` updates."""
        return optax.chain(
            optax.scale(self.gradient_scale),
            self._clipped(),
            *self.direction(),
            *([optax.stateless(self._slower_below)] if self.layer_decay < 1 else []),
            self._scaled(steps),
        )

    def _clipped(self) -> optax.GradientTransformation:
        if not self.clip_norm:
            return optax.identity()
        clip = optax.clip_by_global_norm(self.clip_norm)
        return optax.partition({"encoder": clip, "heads": clip}, _sides) if self.clip_apart else clip

    def _scaled(self, steps: int) -> optax.GradientTransformation:
        rate = optax.scale_by_learning_rate(self.schedule(steps))
        if not self.head_learning_rate:
            return rate
        warmup = self.warmup_steps if self.head_warmup else 0
        own = dataclasses.replace(self, learning_rate=self.head_learning_rate, warmup_steps=warmup)
        heads = optax.scale_by_learning_rate(own.schedule(steps))
        return optax.partition({"encoder": rate, "heads": heads}, _sides)

    @abc.abstractmethod
    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """What turns clipped gradients into the direction that the learning rate scales, weight decay included."""

    def _slower_below(self, updates: Any, _: Any) -> Any:
        """Updates times `layer_decay` to the power of how far below the heads they are."""
        depths = [len(leaf) for name, leaf in named_leaves(updates).items() if name.startswith(LAYERS)]
        layers = max(depths, default=0)

        def scaled(name: str, update: jax.Array) -> jax.Array:
            if name.startswith(LAYERS):
                factors = self.layer_decay ** (layers - jnp.arange(layers, dtype=jnp.float32))
                return update * factors.reshape(-1, *(1,) * (update.ndim - 1))
            return update * self.layer_decay ** (layers + 1) if name.startswith(EMBEDDINGS) else update

        return map_named(scaled, updates)

    def decayed(self, params: Any) -> Any:
        """A tree of whether each parameter decays."""
        return map_named(lambda name, _: not matches_any(self.no_decay, name), params)

    def adam(self) -> optax.GradientTransformation:
        """Adam's direction."""
        corrected = optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)
        return corrected if self.bias_correction else optax.GradientTransformation(corrected.init, self._uncorrected)

    def _uncorrected(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        """As `optax.scale_by_adam`, of whose state this one is, without its bias correction."""
        del params
        mu = optax.tree.update_moment(updates, state.mu, self.beta1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, self.beta2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + self.epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(count=optax.safe_increment(state.count), mu=mu, nu=nu)

    def decay(self) -> optax.GradientTransformation:
        """Decoupled weight decay."""
        return optax.add_decayed_weights(self.weight_decay, mask=self.decayed)


def _sides(params: Any) -> Any:
    """Whether each parameter is one of the encoder or of what stands above it."""
    return map_named(lambda name, _: "encoder" if name.startswith(ENCODER) else "heads", params)


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """See `Optimizer.direction`."""
        return self.adam(), self.decay()


@dataclasses.dataclass(frozen=True)
class Lamb(Optimizer):
    """AdamW whose update of each parameter that decays is scaled to the norm of that parameter, layer by layer: large batches.

    Biases and LayerNorms keep Adam's update, as in the released ALBERT: a bias of nothing could not grow by its own norm.
    """

    epsilon: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Part of the direction before it is scaled."""

    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """See `Optimizer.direction`."""
        return self.adam(), self.decay(), optax.stateless(self._to_norm_of_parameters)

    def _to_norm_of_parameters(self, updates: Any, params: Any) -> Any:
        """Updates of what decays times |parameter| / |update| (1 where either is 0); stacked layers have norms of their own."""
        named, decayed = named_leaves(params), named_leaves(self.decayed(params))

        def scaled(name: str, update: jax.Array) -> jax.Array:
            if not decayed[name]:
                return update
            axes = tuple(range(1, update.ndim)) if STACKED in name else tuple(range(update.ndim))
            size, length = (jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True)) for x in (named[name], update))
            return update * jnp.where((size > 0) & (length > 0), size / jnp.where(length > 0, length, 1.0), 1.0)

        return map_named(scaled, updates)


@dataclasses.dataclass(frozen=True)
class Muon(Optimizer):
    """Momentum orthogonalised by Newton-Schulz for the kernels of the layers, each by itself; AdamW for all other parameters.

    Updates of kernels are scaled to the root mean square of Adam's (0.2), so that AdamW's learning rates fit both.
    """

    momentum: float = 0.95
    """Decay of the kernels' momentum (Nesterov)."""
    iterations: int = 5
    """Newton-Schulz iterations."""

    def problems(self) -> list[str]:
        """See `Optimizer.problems`."""
        found = super().problems()
        if not 0 <= self.momentum < 1:
            found.append(f"optimizer.momentum is {self.momentum}: expected at least 0 and less than 1")
        if self.iterations < 1:
            found.append(f"optimizer.iterations is {self.iterations}: expected at least 1")
        return found

    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """See `Optimizer.direction`."""

        kernels = optax.chain(
            contrib.scale_by_muon(
                ns_steps=self.iterations,
                beta=self.momentum,
                weight_dimension_numbers=lambda params: jax.tree.map(lambda _: _LAYER_KERNEL, params),
            ),
            optax.stateless_with_tree_map(_as_large_as_adams),
        )
        parts: dict[Any, optax.GradientTransformation] = {"kernels": kernels, "others": self.adam()}

        def part(params: Any) -> Any:
            return map_named(lambda name, _: "kernels" if is_layer_kernel(name) else "others", params)

        return optax.partition(parts, part), self.decay()


def _as_large_as_adams(update: Any, _: Any) -> Any:
    """Orthogonal matrices [layers, inputs, outputs] have root mean square 1 / sqrt(larger side)."""
    return update * (0.2 * max(update.shape[1:]) ** 0.5)


_LAYER_KERNEL = contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)


def is_layer_kernel(name: str) -> bool:
    """Whether a parameter is a stack of matrices [layers, inputs, outputs]."""
    return STACKED in name and name.endswith("/kernel")
