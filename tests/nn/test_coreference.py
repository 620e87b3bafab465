"""The model above the encoder equals one that is written out span by span and pair by pair."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.bounds import range_problems
from spanjax.nn import coreference, coreference_parts
from spanjax.nn.coreference import Coreference
from spanjax.nn.coreference_parts import CoreferenceConfig, CorefInputs, Resolved, antecedent_loss, distance_bucket
from spanjax.nn.dropout import DropoutKey
from tests.made import tiny_encoder

ENCODER = tiny_encoder(hidden_size=8, layers=1, intermediate_size=16, positions=512, initializer_std=0.5)
CONFIG = CoreferenceConfig(
    max_width=4, spans_per_piece=0.5, max_spans=30, antecedents=5, hidden_size=7, feature_size=3, dropout=0.3
)
PIECES = 26


def module(config: CoreferenceConfig = CONFIG) -> Coreference:
    """A model with two genres and three segments, with weights large enough that everything counts."""
    model = Coreference(ENCODER, config, 2, 3, nnx.Rngs(0))
    structure, state = nnx.split(model)
    return nnx.merge(structure, jax.tree.map(lambda leaf: 25 * leaf + 0.1, state))


def pieces(size: int = PIECES) -> CorefInputs:
    """Sentences of 7 pieces, words of one to three, four speakers, segments of 10; zeros behind PIECES."""
    place = np.arange(size)
    real = place < PIECES
    word = np.cumsum(np.random.default_rng(1).random(size) < 0.6)
    speaker = np.random.default_rng(2).integers(0, 4, size)
    arrays = [np.where(real, each, 0).astype(np.int32) for each in (place // 7 + 1, word, speaker, place // 10)]
    sentence_N, word_N, speaker_N, segment_N = map(jnp.asarray, arrays)
    return CorefInputs(sentence_N, word_N, speaker_N, segment_N, jnp.int32(1))


def hidden(size: int = PIECES, fill: float = 0.0) -> jax.Array:
    """Random states of PIECES pieces, `fill` behind them."""
    states = np.random.default_rng(3).normal(size=(PIECES, 8)).astype(np.float32)
    return jnp.asarray(np.concatenate([states, np.full((size - PIECES, 8), fill, np.float32)]))


@jax.jit
def resolved(model: Coreference, states: jax.Array, known: CorefInputs, key: DropoutKey | None) -> Resolved:
    """The model, compiled."""
    return model(states, known, key, 0)


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def softmax(x: np.ndarray) -> np.ndarray:
    """Of a vector."""
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


class WrittenOut:
    """The same model with every vector concatenated, in float64."""

    def __init__(self, model: Coreference, states: jax.Array, known: CorefInputs):
        self.model, self.config = model, model.config
        self.x = np.asarray(states, np.float64)
        self.known = [np.asarray(each) for each in known]

    def value(self, parameter) -> np.ndarray:
        """A parameter's array."""
        return np.asarray(parameter[...], np.float64)

    def dense(self, layer, x: np.ndarray) -> np.ndarray:
        """A linear layer."""
        return x @ self.value(layer.kernel) + self.value(layer.bias)

    def scorer(self, scorer, x: np.ndarray) -> float:
        """One hidden layer and a score."""
        return float(self.dense(scorer.score, relu(self.dense(scorer.hidden, x)))[0])

    def row(self, table, number: int) -> np.ndarray:
        """A row of a table of embeddings."""
        return self.value(table.embedding)[number]

    def vector(self, first: int, last: int) -> np.ndarray:
        """[first; last; width; head]."""
        inside = self.x[first : last + 1]
        head = softmax(inside @ self.value(self.model.head)) @ inside
        return np.concatenate([self.x[first], self.x[last], head, self.row(self.model.width, last - first)])

    def mention(self, first: int, last: int) -> float:
        """Mention score."""
        prior = self.scorer(self.model.width_score, self.row(self.model.width_prior, last - first))
        return self.scorer(self.model.mention, self.vector(first, last)) + prior

    def is_span(self, first: int, last: int) -> bool:
        """Inside of a sentence and of whole words."""
        sentence, word = self.known[:2]
        if last >= PIECES or sentence[first] != sentence[last]:
            return False
        begins = first == 0 or word[first - 1] != word[first]
        ends = last == PIECES - 1 or word[last + 1] != word[last]
        return not self.config.words_only or bool(begins and ends)

    def spans(self) -> list[tuple[int, int]]:
        """The kept ones, sorted."""
        every = [(s, s + w) for s in range(PIECES) for w in range(self.config.max_width) if self.is_span(s, s + w)]
        taken: list[tuple[int, int]] = []
        for span in sorted(every, key=lambda span: -self.mention(*span)):
            ordered = [sorted([span, other]) for other in taken]
            if not any(a[0] < b[0] <= a[1] < b[1] for a, b in ordered):
                taken.append(span)
        return sorted(taken[: int(self.config.spans_per_piece * PIECES)])

    def bucket(self, distance: int) -> int:
        """Of a distance."""
        return next(n for n, most in enumerate([0, 1, 2, 3, 4, 7, 15, 31, 63, 10**9]) if distance <= most)

    def resolved(self) -> tuple[list[tuple[int, int]], dict[tuple[int, int], float]]:
        """(spans, the score of every pair that reaches the fine scores)."""
        model, spans = self.model, self.spans()
        g = [self.vector(*span) for span in spans]
        score = [self.mention(*span) for span in spans]
        coarse: dict[tuple[int, int], float] = {}
        for i in range(len(spans)):
            own = {}
            for j in range(i):
                prior = self.dense(model.distance_prior, self.row(model.coarse_distance, self.bucket(i - j)))[0]
                own[i, j] = score[i] + score[j] + self.dense(model.coarse, g[i]) @ g[j] + prior
            coarse |= dict(sorted(own.items(), key=lambda each: -each[1])[: self.config.antecedents])
        total = coarse
        for number in range(self.config.refinements + 1):
            total = {pair: value + self.fine(spans, g, *pair) for pair, value in coarse.items()}
            if number < self.config.refinements:
                g = [self.refined(g, i, {j: value for (k, j), value in total.items() if k == i}) for i in range(len(g))]
        return spans, total

    def fine(self, spans: list[tuple[int, int]], g: list[np.ndarray], i: int, j: int) -> float:
        """The pair's score by everything that is known of it."""
        model, (_, _, speaker, segment, genre) = self.model, self.known
        a, b = spans[i][0], spans[j][0]
        features = [
            self.row(model.speaker, int(speaker[a] == speaker[b])),
            self.row(model.distance, self.bucket(i - j)),
            self.row(model.segment_distance, min(max(segment[a] - segment[b], 0), 2)),
            self.row(model.genre, int(genre)),
        ]
        return self.scorer(model.pair, np.concatenate([g[i], g[j], g[i] * g[j], *features]))

    def refined(self, g: list[np.ndarray], i: int, scores: dict[int, float]) -> np.ndarray:
        """A span with what its antecedents are."""
        share = softmax(np.array([0.0, *scores.values()]))
        mean = share[0] * g[i] + sum((p * g[j] for p, j in zip(share[1:], scores, strict=True)), np.zeros_like(g[i]))
        gate = 1 / (1 + np.exp(-self.dense(self.model.gate, np.concatenate([g[i], mean]))))
        return gate * mean + (1 - gate) * g[i]


@pytest.mark.parametrize(
    "settings", [{}, {"refinements": 0}, {"refinements": 2, "words_only": False}, {"antecedents": 50}], ids=str
)
def test_equals_the_model_written_out(settings):
    model = module(dataclasses.replace(CONFIG, **settings))
    found = resolved(model, hidden(), pieces(), None)
    spans, total = WrittenOut(model, hidden(), pieces()).resolved()
    real = int(found.real_M.sum())
    assert [(int(a), int(b)) for a, b in zip(found.first_M[:real], found.last_M[:real], strict=True)] == spans
    scores = {}
    for i in range(real):
        for j, value in zip(found.antecedent_MA[i], found.score_MA[i], strict=True):
            if value > -np.inf:
                scores[i, int(j)] = float(value)
    assert scores.keys() == total.keys() and len(spans) > 8
    for pair, value in total.items():
        assert scores[pair] == pytest.approx(value, rel=1e-4, abs=1e-4)
    assert bool(jnp.isneginf(found.score_MA[real:]).all())


def test_padding_changes_nothing():
    model = module()
    short = resolved(model, hidden(), pieces(), None)
    long = resolved(model, hidden(70, fill=9.0), pieces(70), None)
    count = int(short.real_M.sum())
    assert int(long.real_M.sum()) == count
    for a, b in zip(short, long, strict=True):
        a, b = a[:count], b[:count]
        if a.ndim == 2:
            width = min(a.shape[1], b.shape[1])
            real = np.asarray(short.score_MA[:count, :width]) > -np.inf
            a, b = np.where(real, a[:, :width], 0), np.where(real, b[:, :width], 0)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_spans_that_are_sure_are_kept_whatever_their_scores_are():
    """Where they are spans at all; the rest of the budget goes to the best of the others."""
    model = module()
    score_NW = np.asarray(model.span_scores(hidden(), pieces()))
    plain = resolved(model, hidden(), pieces(), None)
    before = {(int(a), int(b)) for a, b, real in zip(plain.first_M, plain.last_M, plain.real_M, strict=True) if real}
    spans = [(int(n), int(n + w)) for n, w in np.argwhere(np.isfinite(score_NW)) if (n, n + w) not in before]
    alone = [span for span in spans if span[0] == span[1]][:2]
    sure = np.zeros(score_NW.shape, bool)
    for first, last in alone:
        sure[first, last - first] = True
    no_span = tuple(int(each) for each in np.argwhere(~np.isfinite(score_NW))[0])
    sure[no_span] = True
    found = jax.jit(lambda x, known: model(x, known, None, 0, jnp.asarray(sure)))(hidden(), pieces())
    after = {(int(a), int(b)) for a, b, real in zip(found.first_M, found.last_M, found.real_M, strict=True) if real}
    assert len(alone) == 2 and {*alone} <= after and len(after) == len(before)
    assert (no_span[0], sum(no_span)) not in after and len(after & before) >= len(before) - 4
    np.testing.assert_allclose(
        found.mention_M[0], score_NW[int(found.first_M[0]), int(found.last_M[0] - found.first_M[0])], atol=1e-3
    )


def test_dropout_does_not_depend_on_padding_and_changes_scores():
    model, key = module(), DropoutKey(jnp.uint32(5), jnp.array([3]))
    plain, short = resolved(model, hidden(), pieces(), None), resolved(model, hidden(), pieces(), key)
    long = resolved(model, hidden(70), pieces(70), key)
    count = int(short.real_M.sum())
    np.testing.assert_allclose(short.mention_M[:count], long.mention_M[:count], rtol=1e-5, atol=1e-5)
    assert float(jnp.abs(plain.mention_M - short.mention_M).max()) > 0.01
    other = resolved(model, hidden(), pieces(), DropoutKey(jnp.uint32(6), jnp.array([3])))
    assert float(jnp.abs(other.mention_M - short.mention_M).max()) > 0.01


def without_gate(model: Coreference) -> Coreference:
    """The model with a gate that is shut: refining a span leaves it as it is."""
    model.gate.kernel[...] = jnp.zeros_like(model.gate.kernel[...])
    model.gate.bias[...] = jnp.full_like(model.gate.bias[...], -1e4)  # pyright: ignore[reportOptionalSubscript]
    return model


def test_masks_of_pairs_are_drawn_anew_after_a_refinement_where_that_is_set():
    """With a shut gate the second pass reads what the first one read: the same scores with its masks, others with new ones."""
    key, plain = DropoutKey(jnp.uint32(5), jnp.array([3])), dataclasses.replace(CONFIG, refinements=0)
    once = resolved(module(plain), hidden(), pieces(), key).score_MA
    real = np.asarray(once) > -np.inf

    def scores(**settings) -> np.ndarray:
        model = without_gate(module(dataclasses.replace(CONFIG, **settings)))
        return np.asarray(resolved(model, hidden(), pieces(), key).score_MA)[real]

    one, same = np.asarray(once)[real], scores()
    two, three = (scores(refinements=count, dropout_per_refinement=True) for count in (1, 2))
    assert len(one) > 20
    np.testing.assert_allclose(same, one, rtol=1e-5)
    for left, right in ((one, two), (one, three), (two, three)):
        assert (np.abs(left - right) > 0.01).mean() > 0.9
    fresh = dataclasses.replace(CONFIG, dropout_per_refinement=True)
    evaluated = [resolved(module(config), hidden(), pieces(), None).score_MA for config in (CONFIG, fresh)]
    np.testing.assert_array_equal(*evaluated)


def test_dropout_of_the_width_prior_is_that_of_the_width_where_that_is_set():
    """Mention scores of the width prior alone: spans of one width have one score, or one each."""
    key, scores = DropoutKey(jnp.uint32(5), jnp.array([3])), {}
    for kind in ("width", "span"):
        model = module(dataclasses.replace(CONFIG, width_dropout=kind))
        model.mention.score.kernel[...] = jnp.zeros_like(model.mention.score.kernel[...])
        found = resolved(model, hidden(), pieces(), key)
        width_M = np.asarray(found.last_M - found.first_M)[np.asarray(found.real_M)]
        mention_M = np.asarray(found.mention_M)[np.asarray(found.real_M)]
        scores[kind] = {int(width): {f"{score:.4f}" for score in mention_M[width_M == width]} for width in width_M}
        assert any((width_M == width).sum() > 2 for width in scores[kind])
        dry = np.asarray(resolved(model, hidden(), pieces(), None).mention_M)[np.asarray(found.real_M)]
        assert np.abs(dry - mention_M).max() > 0.01, "dropout reaches the prior"
    assert all(len(each) == 1 for each in scores["width"].values())
    assert any(len(each) > 1 for each in scores["span"].values())


def test_initial_weights_are_normal_or_truncated():
    """TensorFlow's truncated normal is cut off at two deviations and not scaled up again."""
    spread = {}
    for kind in ("normal", "truncated_normal"):
        config = dataclasses.replace(CONFIG, hidden_size=400, initializer=kind)
        model = Coreference(ENCODER, config, 2, 3, nnx.Rngs(0))
        drawn = [model.mention.hidden.kernel, model.coarse.kernel, model.width.embedding, model.head]
        leaves = np.concatenate([np.asarray(each[...]).ravel() for each in drawn])
        spread[kind] = (np.abs(leaves).max(), leaves.std())
        bias = model.mention.hidden.bias
        assert bias is not None and not np.asarray(bias[...]).any()
    assert spread["normal"][0] > 0.05 and spread["normal"][1] == pytest.approx(0.02, rel=0.05)
    # the variance of a standard normal between -2 and 2 is 0.7737
    assert spread["truncated_normal"][0] <= 0.04 and spread["truncated_normal"][1] == pytest.approx(0.0176, rel=0.05)


def test_chunks_and_parts_change_nothing(monkeypatch):
    model = module()
    whole = resolved(model, hidden(), pieces(), None)
    monkeypatch.setattr(coreference, "CHUNK", 5)
    monkeypatch.setattr(coreference_parts, "PART", 4)
    parts = jax.jit(lambda x, known: model(x, known, None, 0))(hidden(), pieces())
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_are_finite_and_reach_every_parameter():
    structure, state = nnx.split(module())
    cluster_M = jnp.zeros(14, jnp.int32).at[jnp.array([2, 5, 8])].set(1)

    def loss(state, states):
        found = nnx.merge(structure, state)(states, pieces(), DropoutKey(jnp.uint32(1), jnp.array([0])), 0)
        return antecedent_loss(found, cluster_M[: len(found.first_M)])

    grads, to_states = jax.jit(jax.grad(loss, argnums=(0, 1)))(state, hidden())
    flat = nnx.to_pure_dict(grads)
    for path, leaf in jax.tree_util.tree_flatten_with_path(flat)[0]:
        assert bool(jnp.isfinite(leaf).all()), path
        names = jax.tree_util.keystr(path)
        if "bias" not in names:
            assert float(jnp.abs(leaf).sum()) > 0, names
    assert bool(jnp.isfinite(to_states).all())


def test_the_loss_is_that_of_all_right_antecedents():
    found = resolved(module(), hidden(), pieces(), None)
    count = len(found.first_M)
    cluster = np.random.default_rng(0).integers(0, 3, count)
    expected = 0.0
    for i in range(count):
        if not found.real_M[i]:
            continue
        scores = {
            int(j): float(s) for j, s in zip(found.antecedent_MA[i], found.score_MA[i], strict=True) if s > -np.inf
        }
        right = [s for j, s in scores.items() if cluster[j] == cluster[i] > 0] or [0.0]
        expected += np.log(np.exp([0.0, *scores.values()]).sum()) - np.log(np.exp(right).sum())
    assert float(antecedent_loss(found, jnp.asarray(cluster))) == pytest.approx(expected, rel=1e-4)


def test_buckets_of_distances():
    found = distance_bucket(jnp.array([0, 1, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 5000, -3]))
    assert found.tolist() == [0, 1, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 0]


def test_wrong_settings_are_all_told():
    wrong = CoreferenceConfig(max_width=0, spans_per_piece=0, antecedents=0, dropout=1.0, refinements=-1)
    found = range_problems(wrong, "objective.model.")
    assert len(found) == 5
