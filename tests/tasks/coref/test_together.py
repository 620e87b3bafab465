"""Documents of one batch next to the same documents one at a time: predictions, losses and gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.experiment.finetune import EncodedExamples, predictor
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.span_pruning import keep_best
from spanjax.sharding import MeshConfig, make_mesh
from spanjax.tasks import coref
from spanjax.tasks.base import LOSS
from spanjax.tasks.coref import Coref
from spanjax.tasks.coref.documents import CorefDocument
from spanjax.training.state import abstract_module
from spanjax.training.step import StepBuilder
from tests.tasks.coref.test_coref import ENCODER, MODEL, SEGMENT, TASK, VOCABULARY, batch_of, longest, packed
from tests.tasks.coref_made import made_document
from tests.tasks.small_vocabulary import WORDS

HEADS = ("coarse_to_fine", "start_end")
LENGTH = 6 * SEGMENT


def short(count: int = 7) -> list[CorefDocument]:
    """Short documents of different lengths, every third of which brings its mentions."""
    made = [made_document(seed, longest=6, vocabulary=WORDS) for seed in range(count)]
    given = {seed: tuple(sorted({m for c in made[seed].clusters or () for m in c})) for seed in range(0, count, 3)}
    return [dataclasses.replace(each, mentions=given.get(seed)) for seed, each in enumerate(made)]


def with_head(head: str, **settings: Any) -> Coref:
    """The task with this head."""
    return dataclasses.replace(TASK, model=dataclasses.replace(MODEL, head=head), **settings)


def weights(task: Coref) -> Any:
    """The task's module with weights whose scores are of the order of ten."""
    structure, state = nnx.split(task.build(ENCODER, nnx.Rngs(0)))
    scaled = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * (4 if "coreference" in jax.tree_util.keystr(path) else 1), state
    )
    return nnx.merge(structure, scaled)


@pytest.fixture(params=[2 * LENGTH, 20 * LENGTH], ids=["pairs", "all"], name="together")
def _together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Documents resolved at the same time: two, the last one next to an empty one, or all."""
    monkeypatch.setattr(coref, "TOGETHER", request.param)
    return request.param


@pytest.mark.parametrize("head", HEADS)
def test_outputs_and_losses_are_those_of_one_at_a_time(head, together):
    task = with_head(head, singletons="keep", mention_loss=0.5)
    examples = short()
    rows, all_rows = packed(examples, task)
    assert {int(row.fields["given_B"]) for row in rows} == {0, 1} and together // LENGTH in (2, 20)
    model, judged = weights(task), jax.jit(task.measure_with_outputs)
    means, outputs = judged(model, batch_of(all_rows, list(range(len(rows))), LENGTH))
    total, spans, singletons = 0.0, 0, 0
    predictions = task.predictions(
        examples, rows, [{n: np.asarray(v[i]) for n, v in outputs.items()} for i in range(7)]
    )
    for number, row in enumerate(rows):
        mean, alone = judged(model, batch_of(all_rows, [number], LENGTH))
        # rounding is that of the largest scores, enlarged by LayerNorms of small vectors: 2.2e-6 on a CPU with AVX-512
        scale = max(1.0, float(jnp.abs(alone["mention_BM"]).max()))
        total += float(mean[LOSS].total)
        for name, value in alone.items():
            atol = 5e-6 * scale if name in ("mention_BM", "linked_BM") else 0
            np.testing.assert_allclose(outputs[name][number], value[0], rtol=0, atol=atol, err_msg=name)
        (expected,) = task.predictions([examples[number]], [row], [{n: np.asarray(v[0]) for n, v in alone.items()}])
        assert predictions[number].clusters == expected.clusters
        spans += int(alone["real_BM"].sum())
        singletons += sum(len(cluster) == 1 for cluster in expected.clusters)
    assert float(means[LOSS].total) == pytest.approx(total, rel=1e-6) and spans > 50 and singletons > 3
    assert float(means[LOSS].count) == len(rows)


@pytest.mark.parametrize("head", HEADS)
def test_gradients_are_the_sums_of_those_of_single_documents(head, together):
    """With dropout, whose masks belong to a row wherever it lies."""
    task = with_head(head, singletons="keep", mention_loss=0.5)
    _, all_rows = packed(short(), task)
    structure, state = nnx.split(weights(task))

    def loss(state: Any, batch: dict[str, jax.Array]) -> jax.Array:
        key = DropoutKey(jnp.uint32(3), batch["row_B"])
        return task.measure(nnx.merge(structure, state), batch, key)[LOSS].total

    gradient = jax.jit(jax.grad(loss))
    whole = nnx.to_pure_dict(gradient(state, batch_of(all_rows, list(range(7)), LENGTH)))
    parts = [nnx.to_pure_dict(gradient(state, batch_of(all_rows, [number], LENGTH))) for number in range(7)]
    expected = jax.tree.map(lambda *each: sum(each), *parts)
    assert together >= LENGTH
    # some gradients are zero but for rounding, which is that of the largest
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    for path, leaf in jax.tree_util.tree_flatten_with_path(whole)[0]:
        other = dict(jax.tree_util.tree_flatten_with_path(expected)[0])[path]
        np.testing.assert_allclose(leaf, other, rtol=0, atol=2e-6 * scale, err_msg=jax.tree_util.keystr(path))


def test_the_walk_that_few_documents_need_is_theirs():
    """Scores that fall steadily end in the walk, random ones before it."""
    fall_N = -jnp.arange(64.0)
    steady_NW = jnp.stack([0.1 * fall_N - 100, fall_N], axis=1)
    random_NW = jax.random.normal(jax.random.key(0), (64, 2))
    score_BNW = jnp.stack([steady_NW, random_NW, steady_NW[::-1]])
    budget_B = jnp.array([20, 15, 31])
    found = jax.jit(jax.vmap(lambda score, budget: keep_best(score, budget, 32)))(score_BNW, budget_B)
    for number, (score_NW, budget) in enumerate(zip(score_BNW, budget_B, strict=True)):
        for together, alone in zip(found, keep_best(score_NW, budget, 32), strict=True):
            np.testing.assert_array_equal(together[number], alone)


def predicted(task: Coref, examples: list[CorefDocument], batch_size: int, seen: list[tuple[int, int]]) -> Any:
    """Predictions in batches; `seen` gets the numbers of rows and positions of every batch."""
    structure, abstract = abstract_module(task, ENCODER)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    builder = StepBuilder(
        objective=task, structure=structure, abstract_params=abstract, mesh=mesh, compute_dtype=jnp.float32,
        microbatches=1, seed=0,
    )  # fmt: skip
    given = EncodedExamples.of(task, examples, VOCABULARY)
    whole = given.packed.batch

    def noted(index_B: np.ndarray, place_B: np.ndarray, length: int) -> Any:
        seen.append((len(index_B), length))
        return whole(index_B, place_B, length)

    object.__setattr__(given.packed, "batch", noted)
    counts: list[int] = []
    params = nnx.to_pure_dict(nnx.state(weights(task), nnx.Param))
    found = predictor(builder, task, mesh, batch_size)(params, given, None, counts.append)
    assert counts == [len(seen)]
    return found


def test_batches_of_predictions_are_bounded_by_positions_and_not_by_documents(monkeypatch):
    monkeypatch.setattr(Coref, "positions_together", 24 * SEGMENT)
    examples = [*short(13), *longest()]
    seen: list[tuple[int, int]] = []
    together = predicted(TASK, examples, 6, seen)
    assert all(rows == 1 or rows * length <= 24 * SEGMENT for rows, length in seen)
    assert 1 < max(rows for rows, _ in seen) < 6, "the bound decides"
    assert len({each for each in seen}) < len(seen), "batches share programs"
    alone: list[tuple[int, int]] = []
    one = predicted(TASK, examples, 1, alone)
    assert len(alone) == len(examples) > len(seen)
    for expected, found in zip(one.predictions, together.predictions, strict=True):
        assert found.clusters == expected.clusters
        assert found.linked == pytest.approx(expected.linked, abs=1e-5)
    assert together.means[LOSS] == pytest.approx(one.means[LOSS], rel=1e-5)
