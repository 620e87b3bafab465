"""Fine-tuned models to transformers' classes and back: runs of the command line, and every kind of task in every family."""

import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from spanjax import train
from spanjax.convert import main as convert
from spanjax.experiment.init_from import start_from
from spanjax.inference.task_model import open_model
from spanjax.nn.heads import Pooler, PredictionHead
from spanjax.nn.layer import linear
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, equal_weights, module_params, stored_vocabulary
from spanjax.run_format import describe
from spanjax.sharding import named_leaves
from spanjax.tasks.base import TaskModule
from spanjax.tasks.glue import Glue, Sentences
from spanjax.tasks.rows import TaskRows
from spanjax.torch_format.folder import read_folder
from spanjax.training.checkpoint import write_weights
from spanjax.training.state import abstract_module
from tests.made import tiny_encoder
from tests.running import ROOT, TINY
from tests.torch_format.references import REASON, saved, vocabulary
from tests.torch_format.test_task_tables import batch_of_rows, our_scores, transformers_scores

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"position_offset": 1, "types": 1, "norm_epsilon": 1e-5},
    "albert": {"num_layer_groups": 1, "embedding_size": 8, "activation": "gelu_tanh"},
    "distilbert": {"types": 0},
    "modernbert": {
        **{"norm_first": True, "rope_theta": 1e4, "gated_mlp": True, "biases": False, "types": 0, "norm_epsilon": 1e-5},
        **{"layers": 2, "local_window": 2, "global_every": 2, "local_rope_theta": 50.0},
    },
}
NER = {"class": "Ner", "labels": ["O", "B-PER", "I-PER"], "train": ["/home/somebody/train.txt"], "length": 16}
RELATION = {"class": "Relation", "labels": ["none", "born", "died"], "pieces": [["SUBJ-PER", 7], ["OBJ-LOC", 8]]}
QUESTIONS = {"class": "Questions", "max_answer": 30}
TASKS = {"token": NER, "sequence": RELATION, "question": QUESTIONS}
PAIRS = [
    ("the cat sat", "on the mat", "yes"),
    ("the river", "sat", "no"),
    ("a model on a mat", "the cat", "perhaps"),
] * 4


def converted(*words: Any) -> int:
    return convert([str(word) for word in words])


def refused(capsys: Any, source: pathlib.Path, output: pathlib.Path, *more: str) -> str:
    """What to-torch says that has to fail and to write nothing."""
    assert converted("to-torch", source, output, *more) == 2 and not output.exists()
    return capsys.readouterr().err


def checkpoint(folder: pathlib.Path, task: dict[str, Any], family: str = "bert", **heads: int) -> pathlib.Path:
    """A work directory of a task with random weights: `classifier` or `qa` with so many outputs, `pooler` where it is not 0."""
    sizes = {"vocab_size": vocabulary().size, "layers": 1, "initializer_std": 0.3}
    encoder = tiny_encoder(**{**sizes, **FAMILIES[family]})
    rngs = nnx.Rngs(1)
    module: Any = TaskModule(encoder, nnx.Rngs(0))
    if heads.pop("pooler", 0):
        module.pooler = Pooler(encoder, rngs)
    if heads.pop("prediction_head", 0):
        module.prediction_head = PredictionHead(encoder, rngs)
    for name, outputs in heads.items():
        setattr(module, name, linear(encoder.hidden_size, outputs, encoder, rngs))
    random, params = np.random.default_rng(2), nnx.to_pure_dict(nnx.split(module)[1])
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + random.normal(0, 0.05, leaf.shape).astype(np.float32), params)
    if encoder.norm_first:
        params["encoder"]["layers"]["attention_norm"]["scale"][0] = 1  # which nothing reads
    meta = {
        "run": {"objective": task, "encoder": describe(encoder)},
        "vocabulary": stored_vocabulary(vocabulary()),
        "judged": [[3, -71.5]],
        "examples": {"train": 1200, "dev": 7},
    }
    write_weights(folder, params, meta, step=3)
    return folder


def heads_of(kind: str, family: str = "bert") -> dict[str, int]:
    head = {"qa": 2} if kind == "question" else {"classifier": 3}
    return {**head, "prediction_head": 1} if family == "modernbert" else {**head, "pooler": int(kind == "sequence")}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of configs/finetune/glue.py with three labels for pairs, a checkpoint after each of two epochs; not to be changed."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["sentence1\tsentence2\tlabel", *("\t".join(pair) for pair in PAIRS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary().pieces) + "\n", encoding="utf-8")
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    files = [f"--train={folder / 'rows.tsv'}", f"--dev={folder / 'rows.tsv'}", f"--workdir={folder / 'run'}"]
    settings = ["--objective.length=32", "--objective.epochs=2", f"--objective.vocabulary={folder / 'vocab.txt'}"]
    tiny = [word for word in TINY if "layers" not in word]
    config = f"--config={ROOT / 'configs/finetune/glue.py'}"
    settings.append("--optimizer.learning-rate=0.01")
    assert train.main([config, *tiny, "--encoder.layers=1", *files, *settings]) == 0
    return folder / "run"


def logits(model: Model, pairs: list[tuple[str, str]], task: Glue) -> tuple[np.ndarray, list[Any]]:
    """Scores here of rows that the task makes, and the rows."""
    assert model.vocabulary is not None
    rows = list(task.rows([Sentences("", first, second, None) for first, second in pairs], model.vocabulary))
    packed, index = TaskRows(rows, model.vocabulary.specials.pad, task.lengths), np.arange(len(rows))
    batch: Any = packed.batch(index, index, packed.length_of(index))
    structure, abstract = abstract_module(task, model.encoder)
    module = nnx.merge(structure, jax.tree.map(jax.numpy.asarray, module_params(model, abstract)))
    with jax.default_matmul_precision("highest"):
        return np.asarray(task.outputs(module, batch)["logits_BC"]), rows


@pytest.mark.parametrize(
    "name", ["bert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("roberta", "electra", "distilbert"))]
)
def test_a_run_leaves_as_a_class_of_transformers(
    name: str, pairs: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """Real rows, by our task and by AutoTokenizer with AutoModelForSequenceClassification: the same ids and logits."""
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    import torch

    run, task = pairs, Glue(labels=("no", "perhaps", "yes"), length=32)
    if name == "roberta":  # one token type and a number
        task = Glue(numbers=True, length=32)
        run = checkpoint(tmp_path / "run", describe(task), "roberta", classifier=1, pooler=1)
    if name == "electra":  # gelu between two layers
        task = Glue(labels=("no", "perhaps", "yes"), length=32, pooler="gelu")
        run = checkpoint(tmp_path / "run", describe(task), "bert", classifier=3, pre_classifier=16)
    if name == "distilbert":  # relu between two layers, no token types
        task = Glue(labels=("no", "perhaps", "yes"), length=32, pooler="relu")
        run = checkpoint(tmp_path / "run", describe(task), "distilbert", classifier=3, pre_classifier_relu=16)
    assert converted("to-torch", run, tmp_path / "hf", "--verify") == 0
    said = capsys.readouterr().out
    assert "sequence logits" in said and "all within" in said and "not compared" not in said
    model = load_model(run)
    assert model.kind == "sequence" and model.task is not None and model.task["class"] == "Glue"
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [(first, second) for first, second, _ in PAIRS[:3]]
    ours, rows = logits(model, texts, task)
    assert np.isfinite(ours).all()
    for row, text, expected in zip(rows, texts, ours, strict=True):
        encoded = tokenizer(*text, return_tensors="pt")
        assert encoded["input_ids"][0].tolist() == row.tokens_T.tolist()
        if name == "bert":
            assert encoded["token_type_ids"][0].tolist() == row.types_T.tolist()
        with torch.no_grad():
            np.testing.assert_allclose(theirs(**encoded).logits[0].numpy(), expected, atol=1e-5)
    config = theirs.config
    if name != "roberta":
        assert (config.num_labels, config.id2label) == (3, {0: "no", 1: "perhaps", 2: "yes"})
        assert config.label2id == {"no": 0, "perhaps": 1, "yes": 2}
        classes = {"bert": "Bert", "electra": "Electra", "distilbert": "DistilBert"}
        assert type(theirs).__name__ == f"{classes[name]}ForSequenceClassification"
        back = load_model(tmp_path / "hf")
        assert back.task is not None and back.task["pooler"] == task.pooler
    else:
        assert (config.num_labels, config.problem_type) == (1, "regression")
        assert type(theirs).__name__ == "RobertaForSequenceClassification"


def test_nothing_is_missing_and_nothing_is_drawn(pairs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    assert converted("to-torch", pairs, tmp_path / "hf") == 0
    known = transformers.AutoModelForSequenceClassification
    _, told = known.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    found = transformers.pipeline("text-classification", model=str(tmp_path / "hf"))("the cat sat")
    assert found[0]["label"] in ("no", "perhaps", "yes")


@pytest.mark.parametrize("family", ["bert", "roberta", pytest.param("albert", marks=pytest.mark.slow), "modernbert"])
@pytest.mark.parametrize("kind", TASKS)
def test_every_kind_there_and_back(family: str, kind: str, tmp_path: pathlib.Path) -> None:
    """The same scores within 1e-5, then the same tensors and the same task again."""
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    task = {**TASKS[kind], "pooler": "prediction_head"} if family == "modernbert" else TASKS[kind]
    run = checkpoint(tmp_path / "run", task, family, **heads_of(kind, family))
    assert converted("to-torch", run, tmp_path / "hf") == 0
    before, config = load_model(run), json.loads((tmp_path / "hf" / "config.json").read_text())
    theirs = getattr(transformers, config["architectures"][0]).from_pretrained(tmp_path / "hf")
    batch = batch_of_rows(before.encoder)
    with jax.default_matmul_precision("highest"):
        ours, expected = our_scores(before, batch), transformers_scores(theirs.eval(), batch)
    used = batch["segments_BL"] > 0 if ours.ndim > 2 else slice(None)
    assert np.ptp(ours[used]) > 0.1
    np.testing.assert_allclose(ours[used], expected[used], atol=1e-5)
    assert converted("from-torch", tmp_path / "hf", tmp_path / "back") == 0
    after = load_model(tmp_path / "back")
    assert equal_weights(before, after) == [] and before.kind == after.kind == kind
    settings = {name: value for name, value in TASKS[kind].items() if name != "train"}
    assert after.task is not None and {**after.task, **settings} == after.task
    assert "somebody" not in "".join(p.read_text() for p in (tmp_path / "hf").glob("*.[jm][sd]*"))
    assert converted("to-torch", tmp_path / "back", tmp_path / "again") == 0
    for name, array in read_folder(tmp_path / "hf").tensors.items():
        np.testing.assert_array_equal(array, read_folder(tmp_path / "again").tensors[name])
    assert json.loads((tmp_path / "again" / "config.json").read_text())["architectures"] == config["architectures"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_pooling_of_a_modernbert_is_kept(pooling: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    """`--verify` computes the mean on rows with padding; config.json decides over the stored setting."""
    task = {**RELATION, "pooler": "prediction_head", "pooling": pooling}
    run = checkpoint(tmp_path / "run", task, "modernbert", classifier=3, prediction_head=1)
    assert converted("to-torch", run, tmp_path / "hf", "--verify") == 0
    said = capsys.readouterr().out
    assert "sequence logits" in said and "all within" in said and "sequence logits   not" not in said
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["ModernBertForSequenceClassification"]
    assert (config["classifier_pooling"], config["classifier_dropout"]) == (pooling, 0.1)
    assert (config["problem_type"], config["id2label"]["1"]) == ("single_label_classification", "born")
    other = {"cls": "mean", "mean": "cls"}[pooling]
    for written in (pooling, other):
        (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"classifier_pooling": written}))
        read = load_model(tmp_path / "hf").task
        assert read is not None and read.get("pooling", "cls") == written
    assert converted("verify", run, tmp_path / "hf") == 1
    assert "above 0.0001: sequence logits" in capsys.readouterr().out
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"classifier_pooling": "max"}))
    with pytest.raises(ValueError, match="classifier_pooling is 'max': expected cls or mean"):
        load_model(tmp_path / "hf")


def test_pieces_of_relations_are_in_the_config(tmp_path: pathlib.Path) -> None:
    run = checkpoint(tmp_path / "run", RELATION, classifier=3, pooler=1)
    assert converted("to-torch", run, tmp_path / "hf") == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["task_specific_params"]["spanjax"]["pieces"] == RELATION["pieces"]


def test_the_best_checkpoint_is_taken(pairs: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    """By the scores that the metas hold; a damaged best one is passed over and said. Evaluation 3 was best, then 6."""
    run = tmp_path / "run"
    shutil.copytree(pairs, run)
    (run / "checkpoints" / "3" / "checksums.json").unlink()
    (run / "checkpoints" / "6" / "checksums.json").unlink()
    for step in (3, 6):
        file = run / "checkpoints" / str(step) / "meta" / "metadata"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"judged": [[3, -80.0], [6, -70.0]][: step // 3]}))
    assert load_model(run).step == 3
    assert converted("to-torch", run, tmp_path / "hf") == 0
    assert "step 3 is the best" in capsys.readouterr().out
    shutil.rmtree(run / "checkpoints" / "3" / "state")
    model = load_model(run)
    assert model.step == 6 and any("checkpoint 3 is damaged (without state)" in line for line in model.notes)


def test_the_card_says_task_labels_and_scores(pairs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert converted("to-torch", pairs, tmp_path / "hf") == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    for words in (
        "pipeline_tag: text-classification",
        "import AutoTokenizer, BertForSequenceClassification",
        "| task | Glue own |",
        "pairs of sentences, 3 labels: no, perhaps, yes |",
        "| examples | train 12, dev 12 |",
        "| dev accuracy |",
    ):
        assert words in card, words
    assert "rows.tsv" not in card and "vocab.txt" not in card, "paths of this machine"
    checkpoint(tmp_path / "ner", NER, classifier=3)
    assert converted("to-torch", tmp_path / "ner", tmp_path / "ner_hf") == 0
    card = (tmp_path / "ner_hf" / "README.md").read_text()
    assert "pipeline_tag: token-classification" in card and "| dev score | 71.5000 |" in card
    assert "O, B-PER, I-PER" in card and "BertForTokenClassification" in card


def test_inspect_verify_and_the_report_know_them(tmp_path: pathlib.Path, capsys: Any) -> None:
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    saved("roberta_sequence", tmp_path / "theirs", **labels)
    assert converted("from-torch", tmp_path / "theirs", tmp_path / "ours") == 0
    said = capsys.readouterr().out
    assert "task      classification of sentences and pairs of sentences, 2 labels: bad, good" in said
    for source in ("theirs", "ours"):
        assert converted("inspect", tmp_path / source, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["kind"] == "sequence" and found["task"]["labels"] == ["bad", "good"]
        assert found["task"]["class"] == "Glue" and found["task"]["length"] == 64
    assert converted("verify", tmp_path / "ours", tmp_path / "theirs", "--tolerance", "1e-5") == 0
    assert "sequence logits" in capsys.readouterr().out
    from safetensors.numpy import load_file, save_file

    changed = load_file(tmp_path / "theirs" / "model.safetensors")
    changed["classifier.out_proj.bias"] += 1
    save_file(changed, tmp_path / "theirs" / "model.safetensors", metadata={"format": "pt"})
    assert converted("verify", tmp_path / "ours", tmp_path / "theirs") == 1
    assert "above 0.0001: sequence logits" in capsys.readouterr().out


def test_what_has_no_class_is_refused_with_the_remedy(tmp_path: pathlib.Path, capsys: Any) -> None:
    out = tmp_path / "out"
    unpooled = checkpoint(tmp_path / "unpooled", {**RELATION, "pooler": "none"}, classifier=3)
    message = refused(capsys, unpooled, out)
    assert "BertForSequenceClassification" in message and "--objective.pooler dense" in message
    spans = checkpoint(tmp_path / "spans", RELATION, classifier=3, span_network=4)
    message = refused(capsys, spans, out)
    assert "span_network" in message and "pooler" not in message, "one reason"
    wide = checkpoint(tmp_path / "wide", {**RELATION, "labels": ["a", "b"]}, classifier=3, pooler=1)
    assert "the task has 2 labels, the classifier 3 outputs" in refused(capsys, wide, out)
    tuned = checkpoint(tmp_path / "tuned", RELATION, classifier=3, pooler=1)
    assert "no heads of fine-tuning: use --format hf" in refused(capsys, tuned, out, "--format", "fairseq")
    mean = checkpoint(tmp_path / "mean", {**RELATION, "pooling": "mean"}, classifier=3, pooler=1)
    message = refused(capsys, mean, out)
    assert "objective.pooling is mean: BertForSequenceClassification reads [CLS] alone" in message
    assert "--objective.pooling cls" in message and "pooler" not in message
    headed = checkpoint(tmp_path / "headed", NER, classifier=3, prediction_head=1)
    assert "reads every position directly; fine-tune with --objective.pooler none" in refused(capsys, headed, out)
    for name, task, heads in (
        ("modern_dense", RELATION, {"classifier": 3, "pooler": 1}),
        ("modern_tags", NER, {"classifier": 3}),
        ("modern_answers", QUESTIONS, {"qa": 2}),
    ):
        message = refused(capsys, checkpoint(tmp_path / name, task, "modernbert", **heads), out)
        assert "through a dense layer and a LayerNorm; fine-tune with --objective.pooler prediction_head" in message
    assert converted("to-torch", checkpoint(tmp_path / "ner", NER, classifier=3), out) == 0, "tokens need no pooler"


def test_runs_start_from_their_fine_tuned_models(tmp_path: pathlib.Path) -> None:
    """The same labels in another order move the classifier's columns; other labels draw it fresh; so do other numbers of them."""
    names = {0: "neutral", 1: "yes", 2: "no"}
    theirs = saved("bert_sequence", tmp_path / "hf", id2label=names, label2id={name: n for n, name in names.items()})
    model = load_model(tmp_path / "hf")
    assert model.vocabulary is not None

    def started(*labels: str) -> Any:
        shapes = abstract_module(Glue(labels=labels), model.encoder)[1]
        return start_from(model, model.encoder, model.vocabulary, shapes, 0, labels)  # pyright: ignore[reportArgumentType]

    kernel, bias = theirs.classifier.weight.detach().numpy().T, theirs.classifier.bias.detach().numpy()
    moved = started("no", "yes", "neutral")
    np.testing.assert_array_equal(moved.leaves["classifier/kernel"], kernel[:, [2, 1, 0]])
    np.testing.assert_array_equal(moved.leaves["classifier/bias"], bias[[2, 1, 0]])
    same = started("neutral", "yes", "no")
    np.testing.assert_array_equal(same.leaves["classifier/kernel"], kernel)
    assert {*same.leaves} == {*named_leaves(model.params)}
    for other in (("no", "yes"), ("no", "yes", "perhaps")):
        start = started(*other)
        assert "classifier/kernel" not in start.leaves and "pooler/dense/kernel" in start.leaves
        assert any("trained for neutral, yes, no, not for the labels of this run" in line for line in start.lines)
        assert "drawn fresh: classifier" in start.lines


def test_a_written_folder_answers_as_its_run(pairs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """So does one without our settings in its config.json: labels are those of transformers."""
    assert converted("to-torch", pairs, tmp_path / "hf") == 0
    records = [{"sentence1": first, "sentence2": second} for first, second, _ in PAIRS[:3]]
    expected = list(open_model(pairs, 4).answers(records))
    assert {*expected[0]["probabilities"]} == {"no", "perhaps", "yes"}
    file = tmp_path / "hf" / "config.json"
    for keys in ((), ("task_specific_params",)):
        config = json.loads(file.read_text())
        file.write_text(json.dumps({name: value for name, value in config.items() if name not in keys}))
        model = open_model(tmp_path / "hf", 4)
        assert model.task.length == (128 if keys else 32)
        for answer, other in zip(model.answers(records), expected, strict=True):
            assert answer["prediction"] == other["prediction"]
            assert answer["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)


@pytest.mark.slow
def test_a_run_goes_on_from_a_written_folder(pairs: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    """--init-from of the folder of a fine-tuned model: encoder, pooler and classifier are loaded."""
    assert converted("to-torch", pairs, tmp_path / "hf") == 0
    rows = pairs.parent / "rows.tsv"
    config = f"--config={ROOT / 'configs/finetune/glue.py'}"
    words = [config, f"--train={rows}", f"--init-from={tmp_path / 'hf'}", "--batch-size=4", "--objective.length=32"]
    assert train.main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "loaded classifier, encoder, pooler" in said and "drawn fresh" not in said
