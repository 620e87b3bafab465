"""Contrastive training: tables, InfoNCE against a plain loop, over devices, vectors equal to `encode`, the exported folder."""

import dataclasses
import json
import pathlib
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from flax import nnx

from spanjax import load, train
from spanjax.convert import main as convert
from spanjax.convert.export import exportable, save
from spanjax.convert.options import ToTorch
from spanjax.evaluate import main as evaluate
from spanjax.experiment.finetune import open_task_session, read_examples
from spanjax.inference.encode import TextEncoder
from spanjax.inference.task_model import open_model
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, stored_vocabulary
from spanjax.run import Run, describe
from spanjax.sharding import MeshConfig, make_mesh, to_global
from spanjax.tasks.base import LOSS
from spanjax.tasks.contrastive import Contrastive, Texts
from spanjax.tasks.rows import TaskRows
from spanjax.training.checkpoint import write_weights
from spanjax.training.state import abstract_module, state_factory, state_shardings
from spanjax.training.step import StepBuilder
from tests.made import made_sentences, tiny_encoder
from tests.running import ROOT, records
from tests.tasks.small_vocabulary import small_wordpiece
from tests.torch_format.references import REASON

VOCABULARY = small_wordpiece()
ENCODER = tiny_encoder(vocab_size=VOCABULARY.size, initializer_std=0.3, positions=32)
TASK = Contrastive(length=16)
EXAMPLES = [
    Texts("0", "red cat", "the red cat sat", ("blue dog", "Anna in Bonn")),
    Texts("1", "blue dog", "the dog sat"),
    Texts("2", "IBM works", "the dog sat", ("red cat",)),
    Texts("3", "red cat", "red cat at Bonn"),
    Texts("4", "Anna works", "Anna works for IBM", ("Anna works for IBM", "Bonn")),
    Texts("5", "born in Bonn", "lives in Bonn"),
]
"""Equal positives (1 and 2), equal anchors (0 and 3), an anchor that is a negative (0 and 2), and one's own positive (4)."""


def batch_of(
    examples: list[Texts], places: list[int], length: int = 64, task: Contrastive = TASK
) -> dict[str, jax.Array]:
    """The rows of these examples, -1 for an empty one, padded to `length`."""
    packed = TaskRows(task.rows(examples, VOCABULARY), VOCABULARY.specials.pad, task.lengths)
    made = packed.batch(np.array(places), np.arange(len(places)), length)
    return {name: jnp.asarray(value) for name, value in made.items()}


def plain_loss(vectors: Any, examples: list[Texts], temperature: float, log_sum_exp: Any) -> list[Any]:
    """InfoNCE of every example by loops over texts; vectors[i][s] are those of text s of example i, of any length."""
    losses = []
    for i, own in enumerate(examples):
        scores = []
        for j, other in enumerate(examples):
            for s, text in enumerate(other.texts):
                is_own = i == j and s == 1
                no_negative = text in own.texts[:2] or (s == 1 and other.first == own.first)
                if s > 0 and (is_own or not no_negative):
                    one, two = vectors[i][0], vectors[j][s]
                    cosine = (one * two).sum() / ((one * one).sum() * (two * two).sum()) ** 0.5
                    scores.insert(0 if is_own else len(scores), cosine / temperature)
        losses.append(log_sum_exp(scores) - scores[0])
    return losses


def vectors_of(module: Any, task: Contrastive, examples: list[Texts]) -> list[list[np.ndarray]]:
    model = model_of(module, task)
    return [list(TextEncoder(model).encode(example.texts)) for example in examples]


def model_of(module: Any, task: Contrastive, config: EncoderConfig = ENCODER) -> Model:
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.split(module.encoder)[1]))
    return Model(
        config, {"encoder": params}, VOCABULARY, pathlib.Path("made"), task=describe(task), pooling=task.pooling
    )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_loss_is_that_of_plain_loops(pooling: Any) -> None:
    """With equal texts that are no negatives, hard negatives of different numbers, and empty rows in between."""
    task = dataclasses.replace(TASK, pooling=pooling, temperature=0.1)
    module = task.build(ENCODER, nnx.Rngs(0))
    batch = batch_of(EXAMPLES, [0, -1, 1, 2, 3, 4, 5, -1], task=task)
    found = task.measure(module, batch, None)
    vectors = vectors_of(module, task, EXAMPLES)
    losses = plain_loss(vectors, EXAMPLES, 0.1, lambda scores: float(np.logaddexp.reduce(scores)))
    assert float(found[LOSS].count) == float(task.counts(batch)[LOSS]) == 6
    assert float(found[LOSS].total) == pytest.approx(sum(losses), rel=1e-5)
    assert min(losses) > 1e-4 and len({round(loss, 4) for loss in losses}) == 6
    # a smaller batch has fewer negatives: the loss is that of the whole batch
    halves = [
        task.measure(module, batch_of(EXAMPLES, half, task=task), None)[LOSS].total for half in ([0, 1, 2], [3, 4, 5])
    ]
    assert float(sum(halves)) < 0.9 * sum(losses)


def test_the_gradient_is_that_of_torch() -> None:
    """By hidden states, through the plain loops."""
    torch: Any = pytest.importorskip("torch", reason=REASON)
    batch = batch_of(EXAMPLES, list(range(6)))
    hidden_BLD = np.random.default_rng(0).normal(size=(*batch["tokens_BL"].shape, 8)).astype(np.float32)

    def loss(hidden_BLD: jax.Array) -> jax.Array:
        given = types.SimpleNamespace(encoder=lambda *_: hidden_BLD)
        given.encoder.types = 2
        return TASK.measure(given, batch, None)[LOSS].total

    gradient = jax.grad(loss)(jnp.asarray(hidden_BLD))
    theirs = torch.tensor(hidden_BLD, requires_grad=True)
    segments = np.asarray(batch["segments_BL"])
    vectors = [
        [theirs[i][segments[i] == s + 1].mean(dim=0) for s in range(len(example.texts))]
        for i, example in enumerate(EXAMPLES)
    ]
    losses = plain_loss(vectors, EXAMPLES, TASK.temperature, lambda scores: torch.logsumexp(torch.stack(scores), 0))
    torch.stack(losses).sum().backward()
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert np.abs(gradient).max() > 0.1


def stepped(mesh: MeshConfig, devices: int) -> tuple[float, Any]:
    """(loss, parameters) of one step of plain gradient descent over these devices."""
    grid = make_mesh(mesh, jax.devices()[:devices])
    structure, params = abstract_module(TASK, ENCODER)
    builder = StepBuilder(TASK, structure, params, grid, jnp.float32, microbatches=1, seed=5)
    descent = optax.sgd(1.0)
    make = state_factory(TASK, ENCODER, descent, seed=5)
    shardings = state_shardings(jax.eval_shape(make), descent, grid)
    step = builder.train_step(descent, optax.constant_schedule(1.0), shardings)
    batch = {name: np.asarray(value) for name, value in batch_of(EXAMPLES, [0, 1, 2, 3, -1, 4, 5, -1]).items()}
    state, found = step(jax.jit(make, out_shardings=shardings)(), to_global(batch, grid))
    return jax.device_get(found["means"])[LOSS].value(), jax.device_get(state.params)


def test_loss_and_gradient_are_those_of_one_device() -> None:
    """Negatives, equal texts and empty rows lie on other devices; two axes split the rows. With dropout."""
    loss, params = stepped(MeshConfig(), 1)
    other_loss, other_params = stepped(MeshConfig(replica=2), 4)
    assert other_loss == pytest.approx(loss, rel=1e-5) and loss > 0.1
    moved = jax.device_get(jax.jit(state_factory(TASK, ENCODER, optax.sgd(1.0), seed=5))().params)
    for one, other, first in zip(*map(jax.tree.leaves, (params, other_params, moved)), strict=True):
        # the gradient is what the weights moved by: it is compared, and not weights that hardly move
        np.testing.assert_allclose(other - first, one - first, rtol=1e-3, atol=2e-5 * max(1, np.abs(one - first).max()))


@pytest.mark.parametrize("settings", [{}, {"rope_theta": 100.0, "norm_first": True}, {"relative_attention": True}])
@pytest.mark.parametrize("pooling", ["mean", pytest.param("cls", marks=pytest.mark.slow)])
def test_vectors_of_packed_texts_are_those_of_encode(pooling: Any, settings: dict[str, Any]) -> None:
    """The texts of a row do not see each other, and padding changes nothing."""
    config = dataclasses.replace(ENCODER, **settings)
    task = dataclasses.replace(TASK, pooling=pooling)
    module = task.build(config, nnx.Rngs(0))
    vectors_BSD = task.vectors(module, batch_of(EXAMPLES, list(range(6)), task=task), None)
    model = model_of(module, task, config)
    for example, found_SD in zip(EXAMPLES, vectors_BSD, strict=True):
        expected_SD = TextEncoder(model).encode(example.texts)
        expected_SD /= np.linalg.norm(expected_SD, axis=1, keepdims=True)
        np.testing.assert_allclose(found_SD[: len(expected_SD)], expected_SD, atol=2e-6)
        assert not np.any(found_SD[len(expected_SD) :])


def test_the_two_vectors_of_a_single_text_differ_by_dropout() -> None:
    """Its two copies have masks of their own."""
    module, batch = (
        TASK.build(ENCODER, nnx.Rngs(0)),
        batch_of([Texts("0", "red cat", None), Texts("1", "Bonn", None)], [0, 1]),
    )
    key = DropoutKey(step_key(0, jnp.int32(3)), batch["row_B"])
    still_BSD, dropped_BSD = TASK.vectors(module, batch, None), TASK.vectors(module, batch, key)
    np.testing.assert_allclose(still_BSD[:, 0], still_BSD[:, 1], atol=1e-6)
    assert np.abs(dropped_BSD[:, 0] - dropped_BSD[:, 1]).max(axis=1).min() > 0.05
    assert batch["text_BS"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.unit
def test_tables_are_read(tmp_path: pathlib.Path) -> None:
    def read(name: str, content: str, *columns: str) -> tuple[list[Texts], list[str], list[str]]:
        (tmp_path / name).write_text(content)
        task = Contrastive(columns=columns)
        found, problems = read_examples(task, [str(tmp_path / name)], "--train")
        return list(found), problems, found.notes

    assert read("a.csv", "query,answer,id\nred,cat,1\n") == ([Texts("0", "red", "cat")], [], [])
    assert read("b.csv", "sentence1,sentence2,score\nred,cat,3.5\n")[0] == [Texts("0", "red", "cat", (), 3.5)]
    triplets = 'anchor,positive,negative,negative_2,negatives\nred,cat,dog,,"[""a b"", ""c""]"\nblue,dog,x,y,\n'
    assert read("c.csv", triplets)[0] == [
        Texts("0", "red", "cat", ("dog", "a b", "c")),
        Texts("1", "blue", "dog", ("x", "y")),
    ]
    lists = json.dumps({"q": "red", "a": "cat", "other": ["dog", None, "x"]})
    assert read("d.jsonl", f"{lists}\n", "anchor=q", "positive=a", "negative=other")[0][0].negatives == ("dog", "x")
    (single,), problems, notes = read("e.csv", "text,label\nred,1\n")
    assert single == Texts("0", "red", None) and not problems and "single texts" in notes[0]
    # a dev file has other columns than the training file, whose columns are named
    found, problems, notes = read("f.csv", "sentence1,sentence2,score\nred,cat,1\n", "anchor=q", "positive=a")
    assert found == [Texts("0", "red", "cat", (), 1.0)] and not problems and "read by the usual names" in notes[0]
    _, problems, _ = read("g.csv", "question,reply\nred,cat\n")
    assert "name yours with --columns positive=reply" in problems[0]


def test_sts_is_read_whole(shared_data: pathlib.Path) -> None:
    found = Contrastive().read(shared_data / "glue" / "STS-B" / "dev.tsv")
    assert len(found) == 1_500 and not found.problems and all(example.label is not None for example in found)


@pytest.mark.unit
def test_equal_texts_have_one_number() -> None:
    """As the encoder reads them: cut at `length`."""
    task = dataclasses.replace(TASK, length=8)
    long = "red blue cat dog sat in"
    rows = [*task.rows([Texts("0", long, "the cat"), Texts("1", f"{long} Bonn", "the  cat", ("red",))], VOCABULARY)]
    assert [row.fields["text_BS"].tolist() for row in rows] == [[0, 1, -1], [0, 1, 2]]
    assert rows[1].tokens_T.tolist().count(VOCABULARY.specials.cls) == 3
    assert rows[1].fields["positions_BL"].tolist() == [*range(8), *range(4), *range(3)]
    assert task.lengths(1000)[-4:] == (640, 768, 896, 1024) and task.lengths(20) == (16, 32, 48, 64)


@pytest.mark.unit
def test_settings_follow_from_the_examples() -> None:
    singles = [Texts("0", "red", None), Texts("1", "cat", None)]
    assert TASK.with_training_labels(singles, VOCABULARY).unsupervised
    assert not TASK.with_training_labels(EXAMPLES, VOCABULARY).unsupervised
    for examples, words in (
        ([Texts("0", "a", "b", (), 1.0)], "all examples have a score"),
        ([*singles, *EXAMPLES], "2 of 8 examples are single texts"),
    ):
        with pytest.raises(ValueError, match=words):
            TASK.with_training_labels(examples, VOCABULARY)
    alike = dataclasses.replace(TASK, unsupervised=True)
    still = dataclasses.replace(ENCODER, dropout=0.0, attention_dropout=0.0)
    assert "encoder.dropout is 0" in alike.problems(still)[0] and not alike.problems(ENCODER) + TASK.problems(still)
    assert "microbatches is 2: Contrastive compares each row" in Run(objective=TASK, microbatches=2).problems()[0]


@pytest.mark.unit
def test_scores_are_correlations() -> None:
    gold, found = [0.0, 1.0, 5.0, 2.0], [0.1, 0.3, 0.9, 0.2]
    examples = [Texts("", "a", "b", (), score) for score in gold]
    scores, by = TASK.scores(examples, found), cast(Any, scipy.stats)
    assert scores["spearman"] == pytest.approx(100 * by.spearmanr(gold, found)[0])
    assert scores["pearson"] == pytest.approx(100 * by.pearsonr(gold, found)[0])
    assert TASK.scores(examples, [0.5] * 4) == {"pearson": 0.0, "spearman": 0.0}


@pytest.fixture(scope="module", params=["mean", "cls"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, pathlib.Path]:
    """A model that a contrastive run stored, and its folder for sentence-transformers."""
    task, folder = dataclasses.replace(TASK, pooling=request.param), tmp_path_factory.mktemp("exported")
    module = task.build(ENCODER, nnx.Rngs(1))
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.split(module)[1]))
    meta = {
        "kind": "task",
        "run": {"objective": describe(task), "encoder": describe(ENCODER)},
        "vocabulary": stored_vocabulary(VOCABULARY),
        "report_row": task.report_row._asdict(),
    }
    write_weights(folder / "run", params, meta, step=3)
    model = load_model(folder / "run")
    save(exportable(model), ToTorch(str(folder / "run"), str(folder / "hf"), sentence_transformers=True))
    return model, folder / "hf"


def test_the_folder_has_the_modules_and_the_pooling_of_the_run(
    exported: tuple[Model, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    model, folder = exported
    assert model.task and model.pooling == model.task["pooling"]
    texts = [example.first for example in EXAMPLES]
    pooled = TextEncoder(model).encode(texts)
    np.testing.assert_array_equal(pooled, TextEncoder(model).encode(texts, model.pooling))
    modules = json.loads((folder / "modules.json").read_text())
    assert [(each["idx"], each["path"], each["type"].rpartition(".")[2]) for each in modules] == [
        (0, "", "Transformer"),
        (1, "1_Pooling", "Pooling"),
    ]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == ENCODER.hidden_size
    assert [name for name, value in pooling.items() if value is True and name != "include_prompt"] == [
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[model.pooling]
    ]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == ENCODER.positions
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and 'SentenceTransformer("hf")' in card
    # the pooling is read back, and kept where weights are converted
    assert load_model(folder).pooling == model.pooling
    assert convert(["from-torch", str(folder), str(tmp_path / "back")]) == 0
    np.testing.assert_array_equal(load(tmp_path / "back").encode(texts), pooled)
    # sentence-transformers writes the name of the pooling from version 6 on
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    told = load_model(folder)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**pooling, "pooling_mode": model.pooling}))
    assert told.pooling == "mean" and "the pooling 'max' is unknown here" in told.notes[-1]
    assert load_model(folder).pooling == model.pooling


def test_vectors_are_those_of_transformers_with_that_pooling(exported: tuple[Model, pathlib.Path]) -> None:
    torch: Any = pytest.importorskip("torch", reason=REASON)
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    model, folder = exported
    texts = [text for example in EXAMPLES for text in example.texts]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden_BLD = transformers.AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state.numpy()
    mask_BL1 = inputs["attention_mask"].numpy()[:, :, None]
    by_hand = hidden_BLD[:, 0] if model.pooling == "cls" else (hidden_BLD * mask_BL1).sum(axis=1) / mask_BL1.sum(axis=1)
    np.testing.assert_allclose(TextEncoder(model).encode(texts), by_hand, atol=1e-5)


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(exported: tuple[Model, pathlib.Path]) -> None:
    library: Any = pytest.importorskip("sentence_transformers", reason="pip install --no-deps sentence-transformers")
    model, folder = exported
    texts = [*(text for example in EXAMPLES for text in example.texts), "the cat sat in Bonn " * 20]
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    ours = TextEncoder(model).encode(texts, truncate=True)
    np.testing.assert_allclose(theirs.encode(texts), ours, atol=1e-5)
    assert theirs.similarity_fn_name == "cosine"


@pytest.mark.slow
def test_it_learns_is_evaluated_used_and_exported(
    run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences whose halves change places belong together; the score of a pair is 1 if they do, 0 for any others."""
    monkeypatch.chdir(ROOT)
    halves = [sentence.rstrip(".").split(" for ") for sentence in made_sentences(300)]
    pairs = [{"anchor": " for ".join(each), "positive": " for ".join(each[::-1])} for each in halves]
    scored = [
        {"sentence1": pairs[i]["anchor"], "sentence2": pairs[(i + j) % 60]["positive"], "score": int(not j)}
        for i in range(60)
        for j in (0, 1, 7)
    ]
    for name, lines in (("pairs", pairs[60:]), ("dev", scored)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = tmp_path / "run"
    arguments = [f"--init-from={run_folder}", f"--train={tmp_path / 'pairs.jsonl'}", f"--dev={tmp_path / 'dev.jsonl'}"]
    arguments += ["--config=contrastive", "--batch-size=16", "--optimizer.learning-rate=3e-3", "--objective.length=48"]
    arguments += ["--objective.epochs=4", "--objective.evaluations=1", "--objective.pooling=cls", f"--workdir={run}"]
    assert train.main(arguments) == 0
    found = records(run, "eval/score/spearman")
    assert max(found.values()) > 70 and "eval/task/loss" not in (run / "metrics.jsonl").read_text()
    capsys.readouterr()
    assert evaluate([str(run), "--data", str(tmp_path / "dev.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["spearman"] == pytest.approx(max(found.values()))
    model = load(run)
    texts = [pairs[0]["anchor"], pairs[0]["positive"]]
    one, two = model.encode(texts)
    np.testing.assert_array_equal([one, two], model.encode(texts, "cls"))
    (answer,) = open_model(run).answers([{"sentence1": texts[0], "sentence2": texts[1]}])
    assert answer["prediction"] == pytest.approx(one @ two / np.linalg.norm(one) / np.linalg.norm(two), abs=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert (
        predict(["encode", str(run), "--input", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "v.npy")]) == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), [one, two])
    for _ in range(2):  # the second time it replaces its own folder
        assert convert(["to-torch", str(run), str(tmp_path / "st"), "--sentence-transformers", "--overwrite"]) == 0
    assert json.loads((tmp_path / "st" / "config.json").read_text())["architectures"] == ["BertModel"]
    np.testing.assert_allclose(load(tmp_path / "st").encode(texts), [one, two], atol=1e-6)


@pytest.mark.slow
def test_operations_are_counted_by_text(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Texts of a row do not attend to each other: the square of each length counts, not that of the row."""
    (tmp_path / "pairs.csv").write_text("anchor,positive\n" + "red cat,the cat\n" * 8)
    task = dataclasses.replace(TASK, train=(str(tmp_path / "pairs.csv"),))
    session = open_task_session(Run(objective=task, init_from=str(run_folder), batch_size=8, steps=1))
    batch = next(session.feed(0))
    sizes = [np.bincount(row)[1:] for row in batch["segments_BL"]]
    pairs = float(sum((size**2).sum() for size in sizes))
    expected = session.run.encoder.flops(float(sum(size.sum() for size in sizes)), pairs)
    assert session.flops(batch) == expected
