"""From a Run to everything that runs it: rows, mesh, step functions, state. All problems are found before the first step."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from spanjax.data.batch import Batch, FeedSpec
from spanjax.data.feed import open_feed
from spanjax.data.mixture import MixedRows
from spanjax.data.rows import open_rows
from spanjax.data.share import AnyRows, HostShare
from spanjax.mean import Mean
from spanjax.model import load_model
from spanjax.nn.attention import choose_backend
from spanjax.parallel import make_mesh, replicated, row_shards, to_global
from spanjax.run import Data, Run
from spanjax.starting import Start, start_from
from spanjax.training.state import TrainState, abstract_module, state_factory, state_shardings
from spanjax.training.step import StepBuilder
from spanjax.trees import map_named


@dataclasses.dataclass(frozen=True)
class Session:
    """A run with its rows opened and its functions built; nothing is initialised or compiled yet."""

    run: Run
    """The run with `encoder.vocab_size` filled in."""
    rows: AnyRows
    validation: AnyRows | None
    mesh: Mesh
    spec: FeedSpec
    optimizer: optax.GradientTransformation
    builder: StepBuilder
    abstract: TrainState
    """Shapes, types and shardings of the state."""
    attention: str
    """What computes attention, and why."""

    @property
    def shardings(self) -> TrainState:
        """Where every leaf of the state lies."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract)

    def fresh_state(self, start: Start | None = None) -> TrainState:
        """The state of step 0, made where it lies; with the weights of `start` where it has them."""
        make = state_factory(self.run.objective, self.run.encoder, self.optimizer, self.run.seed)
        state = jax.jit(make, out_shardings=self.shardings)()
        if start is None:
            return state

        def laid(name: str, leaf: jax.Array) -> jax.Array:
            if name not in start.leaves:
                return leaf
            return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: start.leaves[name][index])

        return state._replace(params=map_named(laid, state.params))

    def start(self) -> Start | None:
        """The weights of `init_from`, read and checked; None where the run draws all of its own."""
        if not self.run.init_from:
            return None
        model, encoder = load_model(self.run.init_from), self.run.encoder
        return start_from(model, encoder, self.rows.vocabulary, self.abstract.params, self.run.seed)

    def feed(self, start: int) -> Iterator[Batch]:
        """This process's rows of batch `start`, `start + 1`, ..."""
        return open_feed(
            self.run.data.feed, self.rows, self.spec, start, host=jax.process_index(), hosts=jax.process_count()
        )

    def batch_rows(self, number: int) -> list[int]:
        """Indices of the rows of a global batch, of all processes; those of a mixture go through all folders."""
        return HostShare(self.rows, self.spec).global_rows(number)[0].tolist()

    def held_out_feed(self) -> Iterator[Batch]:
        """Every held-out row once, with the masks of epoch 0."""
        assert self.validation is not None
        return open_feed(
            "numpy",
            self.validation,
            self.spec,
            host=jax.process_index(),
            hosts=jax.process_count(),
            held_out=True,
        )

    def evaluator(self) -> Any:
        """A function: parameters -> held-out losses and accuracies, and their weighted sum as "loss"; {} without rows."""
        step, weights = self.builder.eval_step(), self.run.objective.loss_weights()

        def evaluate(params: Any) -> dict[str, float]:
            if self.validation is None:
                return {}
            sums: dict[str, Mean] = {}
            for number, rows in enumerate(self.held_out_feed()):
                if self.run.cadence.eval_batches and number >= self.run.cadence.eval_batches:
                    break
                means = step(params, to_global(rows, self.mesh))
                sums = {name: sums[name].merge(mean) if sums else mean for name, mean in means.items()}
            values = {name: Mean(*mean).value() for name, mean in jax.device_get(sums).items()}
            return {**values, "loss": sum(weight * values[name] for name, weight in weights.items())}

        return evaluate

    def predictor(self) -> Any:
        """A function: (parameters, a batch of any size) -> most probable pieces of every head, NumPy [B, K]."""
        dtype = jnp.dtype(self.run.compute_dtype)

        def predict(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
            return self.run.objective.predict(nnx.merge(self.builder.structure, cast), batch)

        whole = jax.jit(predict, out_shardings=replicated(self.mesh))
        return lambda params, batch: jax.device_get(whole(params, dict(batch)))


def _find_rows(data: Data) -> tuple[AnyRows | None, AnyRows | None, list[str]]:
    """(training rows, validation rows or None, problems) of folders written by prepare; several are mixed."""
    train, held_out, problems = [], [], []
    if not any(data.rows):
        problems.append("data.rows is not set: give --data.rows FOLDER, written by `python -m spanjax.prepare`")
    for folder in filter(None, data.rows):
        path = pathlib.Path(folder)
        try:
            if not (path / "train").is_dir():
                train.append(open_rows(path))
                continue
            train.append(open_rows(path / "train"))
            if (path / "validation").is_dir():
                held_out.append(open_rows(path / "validation", train[-1].vocabulary))
        except (ValueError, OSError) as error:
            problems.append(f"data.rows {folder}: {error}")
    if data.weights and len(data.weights) != len(data.rows):
        problems.append(f"data.weights has {len(data.weights)} values for {len(data.rows)} folders: give one each")
    if problems:
        return None, None, problems
    try:
        mixed = MixedRows(train, data.weights) if len(train) > 1 else train[0]
        if not held_out:
            return mixed, None, []
        return mixed, MixedRows(held_out) if len(held_out) > 1 else held_out[0], []
    except ValueError as error:
        return None, None, [f"data.rows: {error}"]


def _row_problems(run: Run, rows: AnyRows, validation: AnyRows | None) -> list[str]:
    found = []
    size, folders = rows.vocabulary.size, ", ".join(run.data.rows)
    if run.encoder.vocab_size not in (0, size):
        found.append(
            f"encoder.vocab_size is {run.encoder.vocab_size:,} but the rows in {folders} have a vocabulary of {size:,}:"
            " set it to 0, or prepare rows with the right vocabulary"
        )
    if rows.length > run.encoder.positions:
        found.append(
            f"rows of {rows.length} tokens need encoder.positions of at least {rows.length}, got {run.encoder.positions}"
        )
    if not len(rows):
        found.append(f"data.rows {folders} holds no rows: prepare a larger text")
    if validation is not None and validation.length != rows.length:
        found.append(
            f"validation rows have length {validation.length}, training rows {rows.length}: prepare both alike"
        )
    if validation is not None and not len(validation):
        found.append(f"{folders}: validation holds no rows: hold out more of the text")
    return found + _feed_problems(run, rows, validation)


def _feed_problems(run: Run, rows: AnyRows, validation: AnyRows | None) -> list[str]:
    """What keeps the feeds from these rows: order, tags, sizes."""
    spec = run.objective.feed_spec(seed=run.seed, batch_size=run.batch_size, order=run.data.order)
    found = []
    for some, held_out in ((rows, False), (validation, True)):
        try:
            if some is not None and len(some):
                HostShare(some, spec, held_out=held_out)
        except ValueError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def attention_backend(run: Run, mesh: Mesh, length: int) -> tuple[str, str]:
    """What computes attention for rows of this length on this mesh, and why. ValueError where what is asked for cannot."""
    encoder, device = run.encoder, mesh.devices.flat[0]
    wanted = encoder.attention
    if mesh.shape["tensor"] > 1:
        if wanted not in ("auto", "xla"):
            raise ValueError(
                f"encoder.attention {wanted!r} cannot split its heads over mesh.tensor: use 'xla', or tensor=1"
            )
        return "xla", "the one that splits its heads over mesh.tensor"
    return choose_backend(
        wanted,
        device.platform,
        length=length,
        head_size=encoder.hidden_size // encoder.heads,
        dtype=jnp.dtype(run.compute_dtype),
        dropout=encoder.attention_dropout,
        device_kind=device.device_kind,
    )


def batch_problems(run: Run, shards: int) -> list[str]:
    """What keeps the rows of a batch from being split over so many devices and this many processes."""
    processes, parts = jax.process_count(), shards * run.microbatches
    if min(run.batch_size, parts) < 1:
        return []  # the run says so itself
    if run.batch_size % parts:
        return [
            f"batch_size {run.batch_size} does not divide over {shards} device(s) x {run.microbatches} microbatch(es):"
            f" use a multiple of {parts}"
        ]
    if run.batch_size % processes:
        return [
            f"batch_size {run.batch_size} does not divide over {processes} processes: use a multiple of {processes}"
        ]
    return []


def open_session(run: Run) -> Session:
    """Opens the rows, lays out the mesh and builds every function. Raises one ValueError that lists all problems."""
    problems = run.problems()
    rows, validation, row_problems = _find_rows(run.data)
    problems += row_problems
    mesh = None
    try:
        mesh = make_mesh(run.mesh)
        problems += batch_problems(run, row_shards(mesh))
    except ValueError as error:
        problems.append(str(error))
    if rows is not None and mesh is not None and not problems:
        problems += _row_problems(run, rows, validation)
        try:
            attention_backend(run, mesh, rows.length)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    assert rows is not None and mesh is not None
    encoder = dataclasses.replace(run.encoder, vocab_size=rows.vocabulary.size)
    return assemble(dataclasses.replace(run, encoder=encoder), rows, validation, mesh)


def assemble(run: Run, rows: AnyRows, validation: AnyRows | None, mesh: Mesh) -> Session:
    """The functions of a run whose settings are known to be good."""
    backend, reason = attention_backend(run, mesh, rows.length)
    run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, attention=backend))  # pyright: ignore
    structure, params = abstract_module(run.objective, run.encoder)
    optimizer = run.optimizer.transformation(run.steps)
    abstract = jax.eval_shape(state_factory(run.objective, run.encoder, optimizer, run.seed))
    shardings = state_shardings(abstract, optimizer, mesh)
    laid_out = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
    builder = StepBuilder(
        objective=run.objective,
        structure=structure,
        abstract_params=params,
        mesh=mesh,
        compute_dtype=jnp.dtype(run.compute_dtype),
        microbatches=run.microbatches,
        seed=run.seed,
        fsdp=run.mesh.fsdp,
    )
    spec = run.objective.feed_spec(seed=run.seed, batch_size=run.batch_size, order=run.data.order)
    return Session(run, rows, validation, mesh, spec, optimizer, builder, laid_out, f"{backend} ({reason})")
