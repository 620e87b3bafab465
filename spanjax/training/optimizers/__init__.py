"""Optimizers and their schedules: AdamW (Loshchilov & Hutter, 2019) with the oddities of the released code as settings, LAMB
(You et al., 2020; ALBERT's) and Muon (Jordan et al., 2024) with NorMuon (Li et al., 2025).
"""

import abc
import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from spanjax.bounds import AtLeast0, AtLeast1, Derived0, DropRate, NotNegative, Positive, Share, range_problems
from spanjax.sharding import map_named, matches_any, named_leaves
from spanjax.training.optimizers.averaging import Average, moving_average
from spanjax.training.optimizers.schedules import Schedule, WarmupForm, warmup_decay

DecayFrom = Literal["warmup", "start"]
ENCODER = "encoder/"
STACKED = "/layers/"  # in the names of parameters with a leading axis of layers
LAYERS, EMBEDDINGS = "encoder/layers/", "encoder/embeddings/"
UPDATE_RMS = 0.2  # root mean square of Adam's updates, to which Muon's are scaled
WARMUP_STEPS = 10_000  # where warmup_steps is -1 and no task derives it


@dataclasses.dataclass(frozen=True)
class Optimizer(abc.ABC):
    """Common to all optimizers: global-norm clipping, linear warm-up, decay by a schedule, decoupled weight decay."""

    learning_rate: Positive = 1e-4
    """Peak learning rate."""
    warmup_steps: Derived0 = -1
    """Updates over which the rate grows linearly to its peak. -1: 10,000; of a task, the share objective.warmup of its steps."""
    warmup_form: WarmupForm = "from_one"
    """from_one: update n (from 1) has n / warmup_steps of the peak. from_zero: n counts from 0, through update warmup_steps, as
    in fairseq (D9) and BertAdam. from_zero_exclusive: n counts from 0, below update warmup_steps, as in BERT's TensorFlow code;
    it differs where the decay is measured from the start."""
    beta1: DropRate = 0.9
    """Decay of the first moment."""
    beta2: DropRate = 0.999
    """Decay of the second moment."""
    epsilon: Positive = 1e-8
    """Added to the root of the second moment."""
    epsilon_hat: bool = False
    """Add epsilon to the root of the uncorrected second moment (the epsilon hat of Kingma & Ba, 2015), as in fairseq's and
    TensorFlow's Adam (D7); False: to that of the corrected one, as the paper's algorithm and PyTorch do."""
    bias_correction: bool = True
    """Adam's division of its moments by 1 - beta^n; False: without it, as in the code that BERT, ALBERT, ELECTRA and XLNet were
    trained with, whose first updates are about three times as large."""
    weight_decay: NotNegative = 0.1
    """Decoupled: each update also subtracts rate * weight_decay * parameter."""
    no_decay: tuple[str, ...] = ("bias$", "norm[12]?/")
    """Patterns of parameter names without weight decay; empty decays everything, as the released code does (D8)."""
    clip_norm: NotNegative = 1.0
    """Largest global norm of the gradient; 0 does not clip."""
    gradient_scale: Positive = 1.0
    """Gradients are multiplied by this before clipping."""
    sample_size_workers: AtLeast0 = 0
    """Multiply gradients by this number over the targets of the batch's first loss (masked tokens, over all devices and hosts):
    the released code divides a gradient that is a mean already by the targets of a worker's batch (D7). 0 does not."""
    schedule: Schedule = Schedule()
    """Learning rate after warm-up: form, first update and floor of its decay."""
    decay_from: DecayFrom = "warmup"
    """Start of the decay where the schedule sets none: the end of warm-up, or update 0 as released (D9)."""
    peak_every: AtLeast0 = 0
    """The first and, after warm-up, every so-many-th update has the peak rate, as released (updates per epoch, D9); 0 never."""

    layer_decay: Share = 1.0
    """Rate of a layer over that of the layer above it, of the embeddings over that of the first layer, of the last layer over
    that of the heads; less than 1 keeps lower layers closer to their pretrained values."""
    head_learning_rate: NotNegative = 0.0
    """Peak rate of all that is not the encoder; 0: that of the encoder."""
    head_warmup: bool = True
    """Warm-up of `head_learning_rate` over warmup_steps; False: it begins at its peak, as released for coreference (D21)."""
    clip_apart: bool = False
    """Clip gradients of the encoder and of all else by norms of their own, as in the released coreference."""
    clip_per_parameter: bool = False
    """Clip the gradient of every parameter by its own norm, separately for each layer, as BertAdam does in the released
    fine-tuning of questions, relations and GLUE."""
    head_bias_correction: bool | None = None
    """Bias correction of all that is not the encoder; None: that of the encoder."""
    head_epsilon: NotNegative = 0.0
    """Epsilon of all that is not the encoder; 0: that of the encoder."""

    ema_decay: DropRate = 0.0
    """Decay per update of an exponential moving average of the weights (0.999, say), with which the run is evaluated and its
    model is loaded; training continues from the weights themselves. 0 keeps no average."""
    ema_warmup: bool = True
    """Decay of update n (from 0) of at most (1 + n) / (10 + n), so that the average soon forgets the initial weights."""

    def problems(self) -> list[str]:
        """Returns a message for every problem of these values; empty if there is none."""
        found = range_problems(self, "optimizer.")
        for number, pattern in enumerate(self.no_decay):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                found.append(f"optimizer.no_decay.{number} is {pattern!r}: expected a regular expression ({error})")
        if self.clip_apart and self.clip_per_parameter:
            found.append("optimizer.clip_apart and optimizer.clip_per_parameter are both set: keep one")
        if self.epsilon_hat and not (self.bias_correction or self.head_bias_correction):
            found.append(
                "optimizer.epsilon_hat changes nothing without bias correction: leave it out, or correct a group"
            )
        found += self.schedule.problems()
        if self.decay_from == "start" and (self.schedule.placed or self.schedule.decay == "none"):
            name, value = next(iter(self.schedule.placed.items()), ("decay", "none"))
            found.append(
                f"optimizer.decay_from is start, and optimizer.schedule.{name} is {value}: both set the first update of the"
                " decay; give --optimizer.decay-from warmup, or keep the default schedule"
            )
        return found

    def schedule_problems(self, steps: int) -> list[str]:
        """Returns a message if the decay does not fit into a run of `steps` updates; none if steps or warm-up are not set."""
        if not self.schedule.placed or min(steps, self.warmup_steps) < 0 or self.schedule.problems():
            return []
        first, (name, value) = self._decay_start(steps), next(iter(self.schedule.placed.items()))
        # a run that ends within its warm-up, as short trials of a config do, never comes to its decay
        if self.warmup_steps <= first < steps or (self.warmup_steps >= steps and self.schedule.decay_from < 0):
            return []
        return [
            f"optimizer.schedule.{name} is {value}, so the decay begins at update {first:,}: expected one from"
            f" {self.warmup_steps:,} (the end of warm-up) to {steps - 1:,} (the last one); change it, --steps or"
            " --optimizer.warmup-steps"
        ]

    def _decay_start(self, steps: int) -> int:
        return self.schedule.first_update(steps, self._warmup if self.decay_from == "warmup" else 0)

    @property
    def _warmup(self) -> int:
        return WARMUP_STEPS if self.warmup_steps < 0 else self.warmup_steps

    def schedule_line(self, steps: int) -> str:
        """Describes the learning rate of a run of `steps` updates as text."""
        schedule, first = self.schedule, self._decay_start(steps)
        begins = f"warm-up over {self._warmup:,} updates, " if self._warmup else ""
        if schedule.decay == "none":
            return f"{begins}then constant" if begins else "constant"
        stable = f"stable until update {first:,}, " if first > self._warmup else ""
        since = " (measured from update 0)" if self.decay_from == "start" else ""
        floor = f"{schedule.floor * self.learning_rate:.2e}" if schedule.floor else "0"
        peaks = f"; the peak again every {self.peak_every:,} updates" if self.peak_every else ""
        return f"{begins}{stable}{schedule.decay} decay to {floor} over {steps - first:,}{since}{peaks}"

    def average(self) -> Average | None:
        """Returns the update of the moving average of the weights; None if the run keeps none."""
        return moving_average(self.ema_decay, self.ema_warmup) if self.ema_decay else None

    def average_lines(self) -> tuple[str, ...]:
        """Describes the moving average as text; () without one."""
        warmup = ", warmed up by (1 + n) / (10 + n)" if self.ema_warmup else ""
        line = f"average     of the weights, decay {self.ema_decay:g}{warmup}: evaluated, and loaded from checkpoints"
        return (line,) if self.ema_decay else ()

    def rate_schedule(self, steps: int) -> optax.Schedule:
        """Learning rate of update `count` (0-based) in a run of `steps` updates."""
        start = self._decay_start(steps)
        return warmup_decay(
            self.learning_rate, steps, self._warmup, self.warmup_form, start, self.peak_every, self.schedule
        )

    def transformation(self, steps: int) -> optax.GradientTransformation:
        """Builds the optax chain for a run of `steps` updates.

        Its update takes extra arguments: `norm`, the global norm of the gradients, which it computes itself where none is given,
        and with `sample_size_workers` also `targets`, the targets of the whole batch.
        """
        scale, workers = self.gradient_scale, self.sample_size_workers
        return optax.chain(
            scale_by_sample_size(scale, workers) if workers else optax.scale(scale),
            self._clipped(),
            *self.direction(),
            *self._scaled_directions(steps),
        )

    def _scaled_directions(self, steps: int) -> tuple[optax.GradientTransformation, ...]:
        """Returns the transformations from directions to updates."""
        slower = (optax.stateless(self._slower_below),) if self.layer_decay < 1 else ()
        return (*slower, self._scaled(steps))

    def _clipped(self) -> optax.GradientTransformation:
        if not self.clip_norm:
            return optax.identity()
        if self.clip_per_parameter:
            return clip_per_parameter(self.clip_norm)
        scaled = self.gradient_scale != 1 or self.sample_size_workers > 0
        clip = clip_by_global_norm(self.clip_norm, measured=not (scaled or self.clip_apart))
        return optax.partition({"encoder": clip, "heads": clip}, parameter_groups) if self.clip_apart else clip

    def _scaled(self, steps: int) -> optax.GradientTransformation:
        rate = optax.scale_by_learning_rate(self.rate_schedule(steps))
        if not self.head_learning_rate:
            return rate
        warmup = self.warmup_steps if self.head_warmup else 0
        own = dataclasses.replace(self, learning_rate=self.head_learning_rate, warmup_steps=warmup)
        heads = optax.scale_by_learning_rate(own.rate_schedule(steps))
        return optax.partition({"encoder": rate, "heads": heads}, parameter_groups)

    @abc.abstractmethod
    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """Returns what turns clipped gradients into the direction that the learning rate scales, weight decay included."""

    def _slower_below(self, updates: Any, _: Any) -> Any:
        """Multiplies updates by `layer_decay` to the power of their distance below the heads."""
        depths = [len(leaf) for name, leaf in named_leaves(updates).items() if name.startswith(LAYERS)]
        layers = max(depths, default=0)

        def scaled(name: str, update: jax.Array) -> jax.Array:
            if name.startswith(LAYERS):
                factors = self.layer_decay ** (layers - jnp.arange(layers, dtype=jnp.float32))
                return update * factors.reshape(-1, *(1,) * (update.ndim - 1))
            return update * self.layer_decay ** (layers + 1) if name.startswith(EMBEDDINGS) else update

        return map_named(scaled, updates)

    def decayed(self, params: Any) -> Any:
        """Returns a tree of booleans: True for parameters that decay."""
        return map_named(lambda name, _: not matches_any(self.no_decay, name), params)

    def adam(self) -> optax.GradientTransformation:
        """Builds Adam's direction, in the form of each parameter's group; the state has one shape in all forms."""
        encoder = AdamForm(self.epsilon, self.bias_correction, self.epsilon_hat)
        corrected = self.bias_correction if self.head_bias_correction is None else self.head_bias_correction
        heads = AdamForm(self.head_epsilon or self.epsilon, corrected, self.epsilon_hat)
        if encoder == heads == AdamForm(self.epsilon, bias_correction=True, epsilon_hat=False):
            return optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)
        return scale_by_adam_form(self.beta1, self.beta2, lambda name: encoder if name.startswith(ENCODER) else heads)

    def decay(self) -> optax.GradientTransformation:
        """Decoupled weight decay."""
        return optax.add_decayed_weights(self.weight_decay, mask=self.decayed)


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    decay_first: bool = False
    """Round parameters to float32 after their decay and again after the step, as the released code does (D8); False: both are
    one update."""

    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """Implements `Optimizer.direction`."""
        return (self.adam(),) if self.decay_first else (self.adam(), self.decay())

    def _scaled_directions(self, steps: int) -> tuple[optax.GradientTransformation, ...]:
        scaled = super()._scaled_directions(steps)
        return (decay_first(optax.chain(*scaled), self._decay_of),) if self.decay_first else scaled

    def _decay_of(self, params: Any) -> Any:
        """weight_decay * parameter, 0 for those that do not decay."""
        decayed = named_leaves(self.decayed(params))
        return map_named(lambda name, leaf: leaf * (self.weight_decay if decayed[name] else 0.0), params)


@dataclasses.dataclass(frozen=True)
class Lamb(Optimizer):
    """AdamW whose update of each parameter that decays is scaled to the norm of that parameter, layer by layer: large batches.

    Biases and LayerNorms keep Adam's update, as in the released ALBERT: a zero bias could not grow by its own norm.
    """

    epsilon: Positive = 1e-6
    """Added to the root of the second moment."""
    weight_decay: NotNegative = 0.01
    """Part of the direction before it is scaled."""

    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """Implements `Optimizer.direction`."""
        return self.adam(), self.decay(), optax.stateless(self._to_norm_of_parameters)

    def _to_norm_of_parameters(self, updates: Any, params: Any) -> Any:
        """Scales updates that decay by |parameter| / |update| (1 where either is 0); stacked layers have norms of their own."""
        named, decayed = named_leaves(params), named_leaves(self.decayed(params))

        def scaled(name: str, update: jax.Array) -> jax.Array:
            if not decayed[name]:
                return update
            size, length = (norms_of_parameters(name, x) for x in (named[name], update))
            return update * jnp.where((size > 0) & (length > 0), size / jnp.where(length > 0, length, 1.0), 1.0)

        return map_named(scaled, updates)


@dataclasses.dataclass(frozen=True)
class Muon(Optimizer):
    """Momentum orthogonalised by Newton-Schulz for each kernel of the layers; AdamW for all other parameters.

    Updates of kernels are scaled to the root mean square of Adam's (`UPDATE_RMS`), so that AdamW's learning rates fit both.
    """

    momentum: DropRate = 0.95
    """Decay of the kernels' momentum (Nesterov)."""
    iterations: AtLeast1 = 5
    """Newton-Schulz iterations."""
    neuron_beta2: DropRate = 0.0
    """NorMuon: divide the orthogonalised update of every neuron (output of a kernel) by the root of its mean square over the
    updates so far, which decays by this factor (0.95 in the paper), and scale the whole kernel to a root mean square of 0.2. 0
    leaves it out."""

    def direction(self) -> tuple[optax.GradientTransformation, ...]:
        """Implements `Optimizer.direction`."""
        stacked = contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)  # [layers, inputs, outputs]
        kernels = optax.chain(
            contrib.scale_by_muon(
                ns_steps=self.iterations,
                beta=self.momentum,
                weight_dimension_numbers=lambda params: jax.tree.map(lambda _: stacked, params),
            ),
            scale_by_neurons(self.neuron_beta2, self.epsilon)
            if self.neuron_beta2
            else optax.stateless_with_tree_map(_as_large_as_adams),
        )
        parts: dict[Any, optax.GradientTransformation] = {"kernels": kernels, "others": self.adam()}

        def part(params: Any) -> Any:
            return map_named(
                lambda name, _: "kernels" if STACKED in name and name.endswith("/kernel") else "others", params
            )

        return optax.partition(parts, part), self.decay()


def _as_large_as_adams(update: Any, _: Any) -> Any:
    """Scales orthogonal matrices [layers, inputs, outputs], whose root mean square is 1 / sqrt(larger side)."""
    return update * (UPDATE_RMS * max(update.shape[1:]) ** 0.5)


class NeuronMoments(NamedTuple):
    """State of `scale_by_neurons`."""

    nu: Any
    """Mean square of the updates of every neuron: [layers, 1, outputs] for every kernel."""


def scale_by_neurons(beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Builds NorMuon's step after the orthogonalisation of kernels [layers, inputs, outputs] (Li et al., 2025, algorithm 1).

    The second moment begins at 0 and has no bias correction: the scale to `UPDATE_RMS` cancels a common factor.
    """

    def init(params: Any) -> NeuronMoments:
        return NeuronMoments(jax.tree.map(lambda kernel: jnp.zeros_like(kernel[:, :1]), params))

    def scaled(update: jax.Array, nu: jax.Array) -> jax.Array:
        update = update / (jnp.sqrt(nu) + epsilon)
        size = jnp.sqrt(jnp.mean(jnp.square(update), axis=(1, 2), keepdims=True))
        # a layer without a gradient has no update, rather than one of 0 / 0
        return update * (UPDATE_RMS / jnp.where(size > 0, size, 1.0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, NeuronMoments]:
        del params
        squares = jax.tree.map(lambda each: jnp.mean(jnp.square(each), axis=1, keepdims=True), updates)
        nu = optax.tree.update_moment(squares, state.nu, beta2, 1)
        return jax.tree.map(scaled, updates, nu), NeuronMoments(nu)

    return optax.GradientTransformation(init, update)


def parameter_groups(params: Any) -> Any:
    """Returns a tree of the group of every parameter: "encoder", or "heads" for all above it."""
    return map_named(lambda name, _: "encoder" if name.startswith(ENCODER) else "heads", params)


def norms_of_parameters(name: str, leaf: jax.Array) -> jax.Array:
    """L2 norm of a parameter with its axes kept as 1: of each layer's own tensor if layers are stacked, else of the whole."""
    axes = tuple(range(1 if STACKED in name else 0, leaf.ndim))
    return jnp.sqrt(jnp.sum(leaf * leaf, axis=axes, keepdims=True))


def clip_by_global_norm(most: float, measured: bool) -> optax.GradientTransformationExtraArgs:
    """Multiplies gradients by most / norm where their global norm is larger than `most`.

    With `measured` the update may be given this norm as `norm`. Optax's divides and multiplies, and XLA's compiler for CPUs keeps
    these quotients in memory for both moments, where it computes products twice.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        norm = extra["norm"] if measured and "norm" in extra else optax.tree.norm(updates)
        factor = jnp.where(norm > most, most / norm, 1.0)
        return jax.tree.map(lambda gradient: gradient * factor, updates), state

    return optax.GradientTransformationExtraArgs(optax.identity().init, update)


def clip_per_parameter(most: float) -> optax.GradientTransformation:
    """Clips the gradient of every parameter to a norm of its own, as BertAdam does (pytorch-pretrained-BERT 0.6)."""

    def clipped(name: str, gradient: jax.Array) -> jax.Array:
        norm = norms_of_parameters(name, gradient)
        return jnp.where(norm > most, gradient / jnp.where(norm > most, norm, 1.0) * most, gradient)

    return optax.stateless(lambda updates, _: map_named(clipped, updates))


def scale_by_sample_size(scale: float, workers: int) -> optax.GradientTransformationExtraArgs:
    """Multiplies gradients by scale * workers / targets; the step passes `targets` of the whole batch (D7).

    A batch without targets counts as one of a single target. The state is that of `optax.scale`.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        factor = scale * workers / jnp.maximum(extra["targets"], 1.0)
        return jax.tree.map(lambda gradient: gradient * factor, updates), state

    return optax.GradientTransformationExtraArgs(optax.scale(scale).init, update)


# All forms share the state of `optax.scale_by_adam`, so a checkpoint of one can be continued with another.
@dataclasses.dataclass(frozen=True)
class AdamForm:
    """Form in which Adam computes a parameter's direction from its moments."""

    epsilon: float
    """Added to the root of the second moment."""
    bias_correction: bool
    """Divide both moments by 1 - beta^n."""
    epsilon_hat: bool
    """Add epsilon to the root of the uncorrected second moment."""


def scale_by_adam_form(beta1: float, beta2: float, form_of: Callable[[str], AdamForm]) -> optax.GradientTransformation:
    """Builds Adam (Kingma & Ba, 2015) with one form for each parameter, by its name (`encoder/layers/query/kernel`)."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        mu = optax.tree.update_moment(updates, state.mu, beta1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, beta2, 2)
        count = jnp.asarray(optax.safe_increment(state.count))
        correction1, correction2 = (_bias_correction(beta, count) for beta in (beta1, beta2))

        def direction(path: Any, m: jax.Array, v: jax.Array) -> jax.Array:
            form = form_of("/".join(str(entry.key) for entry in path))
            if not form.bias_correction:
                return m / (jnp.sqrt(v) + form.epsilon)
            if form.epsilon_hat:
                return jnp.sqrt(correction2) / correction1 * m / (jnp.sqrt(v) + form.epsilon)
            return m / correction1 / (jnp.sqrt(v / correction2) + form.epsilon)

        # by paths, as the leaves that `optax.partition` gives to another part are no leaves here
        directions = jax.tree_util.tree_map_with_path(direction, mu, nu)
        return directions, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1=beta1, b2=beta2).init, update)


def _bias_correction(beta: float, count: jax.Array) -> jax.Array:
    """Computes 1 - beta^count; float32 powers of 0.999 would lose five of its digits in the first updates."""
    return -jnp.expm1(count.astype(jnp.float32) * math.log(beta)) if beta else jnp.float32(1.0)


def decay_first(tail: optax.GradientTransformation, decay: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Builds `tail` (directions -> updates) with decoupled weight decay applied before the step instead of together with it.

    `decay` returns the decay of a tree of parameters, to be scaled as directions are. Only the rounding differs: parameters
    are rounded to float32 twice, after the decay and after the step, as in code that changes them in place (D8).
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, after = tail.update(updates, state, params)
        decays, _ = tail.update(decay(params), state, params)
        # the difference of two close floats is exact, so that adding it gives the parameter rounded twice
        return jax.tree.map(lambda p, decay, step: (p + decay) + step - p, params, decays, steps), after

    return optax.GradientTransformation(tail.init, update)
