"""GLUE: files as they are published, pairs cut as BERT cuts them, labels, scores, what is wrong with a file."""

import dataclasses
import gzip
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
import scipy.stats
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.vocab.loading import WordPieceVocabulary, load_vocabulary
from spanjax.experiment.finetune import read_examples
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.scoring import glue as scoring
from spanjax.tasks.base import LOSS
from spanjax.tasks.glue import Glue, GlueName, Sentences, joined
from spanjax.tasks.rows import TaskRows
from tests.made import tiny_encoder
from tests.saved_dataset import saved_dataset

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
VOCABULARY = WordPieceVocabulary(PIECES, False)
REAL: list[tuple[GlueName, str, int]] = [
    ("CoLA", "CoLA/train.tsv", 8_551),
    ("CoLA", "CoLA/dev.tsv", 1_043),
    ("SST-2", "SST-2/dev.tsv", 872),
    ("SST-2", "SST-2-phrases/test.tsv.gz", 1_821),
    ("STS-B", "STS-B/dev.tsv", 1_500),
    ("RTE", "RTE/train.tsv", 2_490),
]


@pytest.mark.parametrize(("task", "name", "count"), REAL)
def test_published_files_are_read_whole(task: GlueName, name: str, count: int, shared_data: pathlib.Path) -> None:
    examples = Glue(task=task).read(shared_data / "glue" / name)
    assert len(examples) == count and not examples.problems
    labelled = [example for example in examples if example.label is not None]
    assert len(labelled) in (0, count)
    assert all((example.second is None) == (task in ("CoLA", "SST-2")) for example in examples)


def test_columns_of_the_other_tasks(tmp_path: pathlib.Path) -> None:
    files: dict[GlueName, list[str]] = {
        "MRPC": ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\ta b\tb a"],
        "QQP": ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "3\t1\t2\ta b\tb a\t1"],
        "QNLI": ["index\tquestion\tsentence\tlabel", "3\ta b\tb a\tentailment"],
        "MNLI-m": ["index\tsentence1\tsentence2\tlabel1\tgold_label", "3\ta b\tb a\tneutral\tentailment"],
    }
    for task, lines in files.items():
        path = tmp_path / f"{task}.tsv"
        path.write_text("\n".join(lines) + "\n")
        (example,) = Glue(task=task).read(path)
        assert (example.first, example.second) == ("a b", "b a"), task
        assert example.label == scoring.TASKS[task].labels[1 if task in ("MRPC", "QQP") else 0]


PARSES = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
MNLI = (
    f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence1\tsentence2\tlabel1\tgold_label",
    "0\t31193n\t31193n\tgovernment\t( a b )\t( b a )\t(S a b)\t(S b a)\ta b\tb a\tneutral\tentailment",
)
PUBLISHED: dict[GlueName, tuple[str, ...]] = {
    "CoLA": ("gj04\t1\t\ta b", "gj04\t0\t*\tb a"),
    "SST-2": ("sentence\tlabel", "a b\t1", "b a\t0"),
    "MRPC": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\ta b\tb a"),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tnone\tnone\tnone\t0\tnone\tnone\ta b\tb a\t3.200",
    ),
    "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "3\t1\t2\ta b\tb a\t1"),
    "MNLI-m": MNLI,
    "MNLI-mm": MNLI,
    "QNLI": ("index\tquestion\tsentence\tlabel", "3\ta b\tb a\tentailment"),
    "RTE": ("index\tsentence1\tsentence2\tlabel", "3\ta b\tb a\tentailment", "4\ta b\tb a\tnot_entailment"),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "3\ta b\tb a\t1", "4\ta b\tb a\t0"),
}
"""The first lines of the training files as GLUE has them; no header in CoLA's."""
AS_ONES_OWN = {("CoLA", "SST-2"), ("MRPC", "WNLI"), ("STS-B", "WNLI"), ("QQP", "WNLI"), ("QNLI", "RTE")}
"""(task, whose file): plain names and possible labels, as a file of one's own may have them; there is a note."""


@pytest.mark.parametrize("of", PUBLISHED)
@pytest.mark.parametrize("task", PUBLISHED)
def test_the_file_of_another_task_is_noticed(task: GlueName, of: GlueName, tmp_path: pathlib.Path) -> None:
    (path := tmp_path / f"{of}.tsv").write_text("\n".join(PUBLISHED[of]) + "\n")
    found, problems = read_examples(Glue(task=task, skip_bad=False), [str(path)], "--train")
    if task == of or {task, of} == {"MNLI-m", "MNLI-mm"}:
        assert not problems and len(found) == len(PUBLISHED[of]) - (of != "CoLA") and not found.notes
    elif (task, of) in AS_ONES_OWN:
        assert not problems and len(found) == 2 and len(found.notes) == 1
        assert of in found.notes[0] and f"read as examples of {task}" in found.notes[0]
    else:
        assert problems
        skipped, problems = read_examples(Glue(task=task, skip_bad=True), [str(path)], "--train")
        told = of in "".join(skipped.notes) if "MNLI" in task and of == "RTE" else not skipped and problems
        assert told, "a whole file is not left out as bad examples; half of RTE's labels are some of MNLI's"


@pytest.mark.parametrize(("task", "of"), [("CoLA", "MRPC"), ("QQP", "MRPC"), ("STS-B", "MRPC"), ("SST-2", "CoLA")])
def test_the_message_names_the_other_task(task: GlueName, of: GlueName, tmp_path: pathlib.Path) -> None:
    (path := tmp_path / "train.tsv").write_text("\n".join(PUBLISHED[of]) + "\n")
    with pytest.raises(ValueError, match=rf"train\.tsv.* {of}.*{task}.*--objective\.task"):
        Glue(task=task).read(path)


@pytest.mark.parametrize("name", ["CoLA/dev.tsv", "SST-2/dev.tsv", "STS-B/dev.tsv", "RTE/dev.tsv"])
def test_published_files_of_other_tasks_are_noticed(name: str, shared_data: pathlib.Path) -> None:
    of, path = name.partition("/")[0], shared_data / "glue" / name
    for task in PUBLISHED:
        if task != of:
            found, problems = read_examples(Glue(task=task), [str(path)], "--dev")
            assert problems or of in found.notes[0], task


@pytest.mark.parametrize("task", PUBLISHED)
def test_files_of_ones_own_suit_every_task(task: GlueName, tmp_path: pathlib.Path) -> None:
    label = "2.5" if task == "STS-B" else scoring.TASKS[task].labels[0]
    texts = {"sentence": "a"} if task in ("CoLA", "SST-2") else {"sentence1": "a", "sentence2": "b"}
    record = {**texts, "label": label, "score": 0.3, "year": 1999}
    (tmp_path / "own.jsonl").write_text(json.dumps(record) + "\n")
    for ending, sign in (("tsv", "\t"), ("csv", ",")):
        lines = [sign.join(map(str, each)) for each in (record, record.values())]
        (tmp_path / f"own.{ending}").write_text("\n".join(lines) + "\n")
    for ending in ("jsonl", "tsv", "csv"):
        found = Glue(task=task).read(tmp_path / f"own.{ending}")
        assert len(found) == 1 and not found.problems and not found.notes and found[0].label == label


def test_a_named_data_set_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tfds:glue/rte@train: the data set of another task than WNLI"):
        Glue(task="WNLI").read(pathlib.Path("tfds:glue/rte@train"))


def test_a_pair_needs_both_sentences_and_one_sentence_no_second(tmp_path: pathlib.Path) -> None:
    pairs = Glue(length=8).with_training_labels(
        [Sentences("0", "a b", "c", "no"), Sentences("1", "c", "d", "yes")], VOCABULARY
    )
    singles = Glue(length=8).with_training_labels([Sentences("0", "a b", None, "no")], VOCABULARY)
    mixed = Glue(length=8).with_training_labels(
        [Sentences("0", "a b", None, "no"), Sentences("1", "c", "d", "no")], VOCABULARY
    )
    assert (pairs.sentences, singles.sentences, mixed.sentences) == (2, 1, 0)
    for task in (pairs, Glue(task="RTE")):
        for record in (
            {"sentence1": "a"},
            {"sentence1": "a", "sentence2": None},
            {"sentence": "a"},
            {"sentence2": "b"},
        ):
            found, problem = task.example(record, 0)
            assert found is None and problem.startswith("one sentence: expected both `sentence1` and `sentence2`")
        assert task.example({"sentence1": "a", "sentence2": "b"}, 0)[0] == Sentences("0", "a", "b", None)
    for task in (singles, Glue(task="CoLA")):
        found, problem = task.example({"sentence1": "a", "sentence2": "b"}, 0)
        assert found is None and problem.startswith("two sentences: expected `sentence` alone")
    for record in ({"sentence": "a"}, {"sentence1": "a", "sentence2": "b"}):
        assert mixed.example(record, 0)[1] == Glue().example(record, 0)[1] == ""
    (path := tmp_path / "dev.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n{"sentence1": "a"}\n')
    (problem,) = pairs.read(path).problems
    assert problem.startswith(f"{path}:2: one sentence")
    assert "objective.sentences is 1: RTE has 2" in Glue(task="RTE", sentences=1).problems(EncoderConfig())[0]


def test_what_is_wrong_with_a_record_is_said_of_the_record() -> None:
    assert Glue().example({"sentence1": ["a"]}, 0)[1] == "a sentence is a JSON list: expected text"
    assert Glue().example({}, 0)[1] == "columns (none): expected `sentence`, or `sentence1` and `sentence2`"
    assert Glue().example({"sentence": " "}, 0)[1] == "an empty sentence: expected text"


def test_json_lines_and_unsettled_labels(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "snli.jsonl.gz"
    records = [{"sentence1": "a", "sentence2": "b", "gold_label": label} for label in ("neutral", "-", "entailment")]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    examples = Glue(task="SNLI").read(path)
    assert [example.label for example in examples] == ["neutral", "entailment"] and not examples.problems


def test_a_dash_is_no_label_in_files_of_inference_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("sentence1\tsentence2\tlabel\na\tb\t-\nc\td\tneutral\n")
    found = Glue(task="SNLI").read(path)
    assert [each.first for each in found] == ["c"] and "1 without a label that the annotators agreed on" in found.notes[
        0
    ]
    assert [each.label for each in Glue().read(path)] == ["-", "neutral"]
    (problem,) = Glue(task="RTE").read(tmp_path / "rows.tsv").problems[:1]
    assert "rows.tsv:2: label '-': expected one of" in problem


def test_labels_of_what_is_asked_are_not_looked_at() -> None:
    task = Glue(labels=("no", "yes"))
    for other in ({"label": "perhaps"}, {"score": 4.5}, {"label": None}, {"label": ""}):
        assert task.example({"sentence": "a", **other}, 3) == (Sentences("3", "a", None, None), "")


def test_a_trained_model_is_scored_on_labels_that_it_does_not_know(tmp_path: pathlib.Path) -> None:
    """As its dev examples were during training; where the labels are given, they are all."""
    path = tmp_path / "dev.jsonl"
    path.write_text('{"sentence": "a", "label": "no"}\n{"sentence": "b", "label": "perhaps"}\n')
    task = Glue(labels=("no", "yes"))
    assert len(task.read(path)) == 1 and len(examples := task.reader().read(path)) == 2
    assert task.scores(examples, ["no", "no"])["accuracy"] == 50
    assert len(Glue(task="RTE", labels=("entailment", "not_entailment")).reader().read(path).problems) == 2


def test_comma_separated_tables(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\r\n"good, ""film""",+\n\n"two\nlines",-\nbad\n')
    found = Glue().read(path)
    assert [(each.first, each.label) for each in found] == [('good, "film"', "+"), ("two\nlines", "-")]
    assert found.problems == [f"{path}:6: 1 columns: expected the 2 columns text, label"]
    path.write_text('text,label\n"never closed,+\n')
    assert "correct the quotes" in Glue().read(path).problems[0]


def test_bad_rows_are_named_with_file_and_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "own.tsv"
    path.write_text("sentence\tlabel\na b\t1\n \t0\nb\nc\t7\n")
    examples = Glue(task="SST-2").read(path)
    assert [example.first for example in examples] == ["a b"]
    assert [problem.removeprefix(str(path)) for problem in examples.problems] == [
        ":3: an empty sentence: expected text",
        ":4: 1 columns: expected the 2 columns sentence, label",
        ":5: label '7': expected one of 0, 1",
    ]
    lines = tmp_path / "own.jsonl"
    lines.write_text('{"sentence": "a", "label": "x"}\n{"sentence": \n[1]\n{"text2": "a"}\n')
    problems = Glue(numbers=True).read(lines).problems
    assert [problem.split(":")[1] for problem in problems] == ["1", "2", "3", "4"]
    assert "expected a number" in problems[0] and "not JSON" in problems[1] and "a JSON list" in problems[2]


def cut_by_turns(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """BERT's rule, a piece at a time."""
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


@given(st.integers(0, 30), st.integers(0, 30), st.integers(8, 40))
def test_pairs_are_cut_from_the_longer_one(one: int, other: int, length: int) -> None:
    first, second = np.full(one, 5), np.full(other, 6)
    tokens, types = joined(VOCABULARY, length, first, second)
    left, right = cut_by_turns(first.tolist(), second.tolist(), length - 3)
    assert tokens.tolist() == [2, *left, 3, *right, 3]
    assert types.tolist() == [0] * (len(left) + 2) + [1] * (len(right) + 1)


def test_rows_and_labels() -> None:
    task = Glue(length=8).with_training_labels(
        [Sentences("0", "a b", None, "no"), Sentences("1", "c", "d", "yes")], VOCABULARY
    )
    assert task.labels == ("no", "yes")
    rows = list(task.rows([Sentences("0", "a b", None, "no"), Sentences("1", "c", "d", "yes")], VOCABULARY))
    assert [row.tokens_T.tolist() for row in rows] == [[2, 5, 6, 3], [2, 7, 3, 8, 3]]
    assert [int(row.fields["label_B"]) for row in rows] == [0, 1] and [row.example for row in rows] == [0, 1]


def test_scores_are_the_official_ones(tmp_path: pathlib.Path) -> None:
    examples = [Sentences(str(n), "a", None, label) for n, label in enumerate("1101")]
    scores = Glue(task="MRPC").scores(examples, list("1001"))
    assert scores == {"accuracy": 75.0, "f1": 80.0, "mean": 77.5}
    files = Glue(task="SST-2").write(tmp_path, examples, list("1001"))
    assert [file.name for file in files] == ["predictions.jsonl", "SST-2.tsv"]
    assert files[1].read_text() == "index\tprediction\n0\t1\n1\t0\n2\t0\n3\t1\n"
    constant = Glue(numbers=True).scores([Sentences("0", "a", None, "1"), Sentences("1", "a", None, "2")], [3.0, 3.0])
    assert constant["mean"] == 0.0, "a run whose model says one number still has a score to be judged by"
    with pytest.raises(ValueError, match="example 0 has no label"):
        Glue().scores([Sentences("0", "a", None, None)], ["1"])


def test_settings_that_do_not_go_together() -> None:
    problems = Glue(task="RTE", labels=("yes", "no"), class_weights=(1.0, -1.0, 2.0), epochs=0).problems(
        EncoderConfig()
    )
    assert len(problems) == 4 and any("RTE has" in problem for problem in problems)


def test_a_real_sentence_has_its_pieces(shared_data: pathlib.Path) -> None:
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    (row,) = Glue(length=16).rows([Sentences("0", "They drank the pub dry.", None, "1")], vocabulary)
    assert vocabulary.decode(row.tokens_T) == "[CLS] They drank the pub dry . [SEP]"


def measured(task: Glue, examples: list[Sentences]) -> tuple[Any, np.ndarray]:
    """(what `measure` says of examples in one batch with an empty row, float32 [B, C] logits of the examples)."""
    encoder = tiny_encoder(vocab_size=len(PIECES), layers=1, positions=16, initializer_std=0.3)
    module: Any = task.build(encoder, nnx.Rngs(0))
    packed = TaskRows(task.rows(examples, VOCABULARY), 0, task.lengths)
    index_B = np.array([*range(len(examples)), -1])
    batch: Any = packed.batch(index_B, np.arange(len(index_B)), 16)
    assert float(task.counts(batch)[LOSS]) == float(task.measure(module, batch, None)[LOSS].count)
    return task.measure(module, batch, None), np.asarray(task.outputs(module, batch)["logits_BC"])[: len(examples)]


def test_a_label_without_training_examples_is_an_error_and_not_in_the_loss() -> None:
    trained = [Sentences("0", "a b", None, "no"), Sentences("1", "c", None, "yes")]
    task = Glue(length=16).with_training_labels(trained, VOCABULARY)
    asked = [
        *trained,
        Sentences("2", "d", None, "perhaps"),
        Sentences("3", "e f", None, "never"),
        Sentences("4", "g", None, None),
    ]
    found, logits_BC = measured(task, asked)
    losses = np.log(np.exp(logits_BC).sum(1)) - logits_BC[np.arange(5), [0, 1, 0, 0, 0]]
    assert np.isclose(float(found[LOSS].total), losses[:2].sum(), rtol=1e-5) and float(found[LOSS].count) == 2
    right = sum(int(logits_BC[number].argmax() == number) for number in range(2))
    assert (float(found["task/accuracy"].total), float(found["task/accuracy"].count)) == (right, 4)
    weighed, _ = measured(dataclasses.replace(task, class_weights=(1.0, 3.0)), asked)
    assert float(weighed[LOSS].count) == 4
    assert task.notes(asked) == [
        "2 of 5 have labels without training examples ('never', 'perhaps'): errors, not in the loss"
    ]
    assert task.notes(trained) == Glue(numbers=True).notes(asked) == []
    assert task.scores(asked[:4], ["no", "yes", "no", "no"])["accuracy"] == 50


def test_a_number_that_is_not_known_is_not_in_the_loss() -> None:
    asked = [Sentences("0", "a b", None, "2.5"), Sentences("1", "c", None, None)]
    found, logits_BC = measured(Glue(numbers=True, length=16), asked)
    assert float(found[LOSS].count) == 1
    assert np.isclose(float(found[LOSS].total), (logits_BC[0, 0] - 2.5) ** 2, rtol=1e-5)


@pytest.mark.parametrize("task", [Glue(), Glue(task="RTE"), Glue(numbers=True)])
def test_training_needs_labels(task: Glue) -> None:
    with pytest.raises(ValueError, match="no training example has a label: give examples with `label`"):
        task.with_training_labels([Sentences("0", "a", None, None)], VOCABULARY)


@pytest.mark.parametrize(
    ("pooler", "pooling", "parts"),
    [
        ("dense", "cls", {"encoder", "pooler", "classifier"}),
        ("gelu", "cls", {"encoder", "pre_classifier", "classifier"}),
        ("prediction_head", "mean", {"encoder", "prediction_head", "classifier"}),
        ("none", "mean", {"encoder", "classifier"}),
        ("none", "cls", {"encoder", "classifier"}),
    ],
)
def test_what_is_between_the_encoder_and_the_classifier(pooler: Any, pooling: Any, parts: set[str]) -> None:
    """All of it learns; the scores are those of its formula, without padding; dropout falls on what it reads."""
    examples = [Sentences("0", "a b", "c", "no"), Sentences("1", "c", None, "yes")]
    task = Glue(length=16, pooler=pooler, pooling=pooling).with_training_labels(examples, VOCABULARY)
    encoder = tiny_encoder(
        vocab_size=13, hidden_size=8, layers=1, intermediate_size=16, positions=16, initializer_std=0.4
    )
    module: Any = task.build(encoder, nnx.Rngs(0))
    packed = TaskRows(task.rows(examples, VOCABULARY), 0, task.lengths)
    batch: Any = packed.batch(np.arange(2), np.arange(2), 16)
    structure, params = nnx.split(module)
    pure = nnx.to_pure_dict(params)
    assert pure.keys() == parts

    def loss(params: Any) -> Any:
        return task.measure(nnx.merge(structure, params), batch, None)[LOSS].total

    for part in parts - {"encoder"}:
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(nnx.to_pure_dict(jax.grad(loss)(params))[part]))
    hidden_BLD, used_BL = np.asarray(task.hidden(module, batch, None), np.float64), batch["segments_BL"] > 0
    assert used_BL.sum(axis=1).tolist() == [6, 3]
    read_BD = hidden_BLD[:, 0]
    if pooling == "mean":
        read_BD = np.stack([row[used].mean(axis=0) for row, used in zip(hidden_BLD, used_BL, strict=True)])
    if pooler == "dense":
        read_BD = np.tanh(
            read_BD @ pure["pooler"]["dense"]["kernel"] + np.asarray(pure["pooler"]["dense"]["bias"])[None]
        )
    if pooler == "gelu":
        inner_BD = read_BD @ pure["pre_classifier"]["kernel"] + np.asarray(pure["pre_classifier"]["bias"])[None]
        read_BD = inner_BD * scipy.stats.norm.cdf(inner_BD)
    if pooler == "prediction_head":
        head = pure["prediction_head"]
        inner_BD = read_BD @ head["dense"]["kernel"] + np.asarray(head["dense"]["bias"])[None]
        inner_BD = inner_BD * scipy.stats.norm.cdf(inner_BD)
        inner_BD -= inner_BD.mean(axis=-1, keepdims=True)
        read_BD = inner_BD / np.sqrt((inner_BD**2).mean(axis=-1, keepdims=True) + encoder.norm_epsilon)
    expected_BC = read_BD @ pure["classifier"]["kernel"] + np.asarray(pure["classifier"]["bias"])[None]
    np.testing.assert_allclose(task.outputs(module, batch)["logits_BC"], expected_BC, atol=1e-5)
    key = DropoutKey(step_key(0, jnp.int32(0)), batch["row_B"])
    assert not np.allclose(task.vector(module, batch, key), task.vector(module, batch, None))


def test_named_columns_of_tables(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("id,review,reply,stars\n7,A fine film.,Yes!,5\n8,Dull.,No.,1\n")
    one, two = Glue(columns=("text=review", "label=stars")), Glue(columns=("text=review", "pair=reply", "label=stars"))
    assert list(one.read(path)) == [Sentences("7", "A fine film.", None, "5"), Sentences("8", "Dull.", None, "1")]
    assert list(two.read(path)) == [Sentences("7", "A fine film.", "Yes!", "5"), Sentences("8", "Dull.", "No.", "1")]
    assert (
        Glue(columns=("txt=review",))
        .problems(EncoderConfig())[0]
        .startswith("--columns txt=review: expected ROLE=COLUMN")
    )
    with pytest.raises(
        ValueError, match="columns id, review, reply, stars: .*--columns text=review label=stars"
    ) as caught:
        Glue().read(path)
    assert "\n" not in str(caught.value)


def test_a_table_without_labels_has_a_hint(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "A fine film.", "stars": 5}\n' * 2)
    found = Glue().read(path)
    assert found.hints == [
        f"{path}: no column of the label among text, stars: expected `label`; name yours with --columns label=stars"
    ]
    assert Glue(columns=("label=stars",)).read(path).hints == []


def test_a_saved_data_set_has_the_labels_of_the_files(tmp_path: pathlib.Path) -> None:
    """As TensorFlow Datasets', whose names of classes are the same."""
    rows = [{"sentence": "good", "label": 1, "idx": 0}, {"sentence": "hidden", "label": -1, "idx": 1}]
    feature = {"names": ["negative", "positive"], "_type": "ClassLabel"}
    saved_dataset(tmp_path / "sst2", pyarrow.Table.from_pylist(rows), {"label": feature})
    expected: tuple[tuple[GlueName, str], ...] = (("SST-2", "1"), ("own", "positive"))
    for task, label in expected:
        assert list(Glue(task=task).read(tmp_path / "sst2")) == [
            Sentences("0", "good", None, label),
            Sentences("1", "hidden", None, None),
        ]
