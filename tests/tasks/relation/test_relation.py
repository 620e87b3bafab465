"""Relation extraction: files, bad records, markers in rows, labels, official scores, a tiny model that learns by heart."""

import dataclasses
import gzip
import json
import pathlib
import random
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from spanjax import train
from spanjax.data.vocab.loading import load_vocabulary
from spanjax.evaluate import main as evaluate
from spanjax.nn.config import EncoderConfig
from spanjax.predict import main as predict
from spanjax.scoring.relation import SEMEVAL_LABELS
from spanjax.tasks.relation import Relation
from spanjax.tasks.relation.files import Mentions
from spanjax.tasks.relation.markers import Marking
from spanjax.tasks.rows import Row, TaskRows
from spanjax.training.checkpoint_files import stored_meta, whole_step
from tests.made import tiny_encoder
from tests.running import ROOT, records
from tests.tasks.small_vocabulary import WORDS, fit_arguments, small_wordpiece

GOOD: Mapping[str, Any] = {
    **{"id": "e1", "relation": "per:lives", "token": ["Anna", "lives", "in", "-LRB-", "Bonn", "-RRB-"]},
    **{"subj_start": 0, "subj_end": 0, "obj_start": 4, "obj_end": 4, "subj_type": "PERSON", "obj_type": "CITY"},
}
KINDS = ("PERSON", "CITY", "ORGANIZATION")
RELATIONS = ("no_relation", "per:lives", "org:in")
MARKINGS: tuple[Marking, ...] = ("types", "markers", "typed_markers", "none")


def written(tmp_path: pathlib.Path, found: list[Any], name: str = "examples.json") -> pathlib.Path:
    path = tmp_path / name
    lines = "\n".join(json.dumps(each) for each in found)
    path.write_text(lines + "\n" if name.endswith("jsonl") else json.dumps(found))
    return path


@st.composite
def mentions(draw: st.DrawFn) -> Mentions:
    """An example of any words, entities and types."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=30))
    spans = []
    for _ in range(2):
        first = draw(st.integers(0, len(words) - 1))
        spans.append((first, draw(st.integers(first + 1, len(words)))))
    kinds = draw(st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)))
    return Mentions("x", tuple(words), (spans[0], spans[1]), kinds, draw(st.sampled_from(RELATIONS)))


def spelled(row: Row, task: Relation) -> list[str]:
    """The pieces of a row, markers by their names."""
    vocabulary, names = small_wordpiece(), {number: name for name, number in task.pieces}
    return [names[number] if number in names else vocabulary.pieces[number] for number in row.tokens_T.tolist()]


def test_a_record_becomes_an_example(tmp_path: pathlib.Path) -> None:
    bare = {name: value for name, value in GOOD.items() if name not in ("id", "relation")}
    for name in ("examples.json", "examples.jsonl"):
        examples = Relation().read(written(tmp_path, [GOOD, {**bare, "obj_end": 5}], name))
        assert examples.problems == []
        words = ("Anna", "lives", "in", "(", "Bonn", ")")
        assert examples == [
            Mentions("e1", words, ((0, 1), (4, 5)), ("PERSON", "CITY"), "per:lives"),
            Mentions("1", words, ((0, 1), (4, 6)), ("PERSON", "CITY"), None),
        ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"subj_start": 6}, ["`subj_start` is 6: expected 0 to 5", "`subj_end` 0 is before `subj_start` 6"]),
        ({"obj_end": 6}, ["`obj_end` is 6: expected 0 to 5"]),
        ({"obj_end": -1}, ["`obj_end` is -1: expected 0 to 5"]),
        ({"obj_start": 5}, ["`obj_end` 4 is before `obj_start` 5: expected the last word of the entity"]),
        ({"obj_start": True}, ["`obj_start` is True: expected 0 to 5"]),
        ({"obj_start": "4"}, ["`obj_start` is '4': expected 0 to 5"]),
        ({"token": "Anna lives"}, ["`token` is 'Anna lives': expected a list of words"]),
        ({"token": []}, ["`token` is []: expected a list of words"]),
        ({"token": ["a", 3]}, ["`token` is ['a', 3]: expected a list of words"]),
        ({"subj_type": ""}, ["`subj_type` is '': expected a name"]),
        ({"relation": None}, ["`relation` is None: expected a name"]),
        ({"relation": "a\nb"}, ["`relation` is 'a\\nb': expected a name"]),
        ({"id": []}, ["`id` is []: expected a name or a number"]),
        (
            {"token": None, "obj_type": 3, "subj_end": None},
            ["`token` is None", "`obj_type` is 3", "`subj_end` is None"],
        ),
    ],
)
def test_bad_records_are_listed_with_all_that_is_wrong(
    changed: dict[str, Any], said: list[str], tmp_path: pathlib.Path
) -> None:
    path = written(tmp_path, [GOOD, {**GOOD, **changed}, GOOD])
    examples = Relation().read(path)
    assert len(examples) == 2 and len(examples.problems) == 1
    assert examples.problems[0].startswith(f"{path}:record 2: ") and all(each in examples.problems[0] for each in said)


def test_types_are_asked_for_where_the_marking_reads_them(tmp_path: pathlib.Path) -> None:
    bare = {name: value for name, value in GOOD.items() if not name.endswith("_type")}
    for marking in ("markers", "none"):
        task = Relation(marking=marking)
        found, problem = task.example(bare, 0)
        assert found is not None and found.kinds == ("", "") and not problem
        assert len(task.read(written(tmp_path, [bare, GOOD]))) == 2
        assert "`obj_type` is 3: expected a name" in task.example({**bare, "obj_type": 3}, 0)[1]
    for marking in ("types", "typed_markers"):
        assert "`subj_type` is absent" in Relation(marking=marking).example(bare, 0)[1]
        assert len(Relation(marking=marking).read(written(tmp_path, [bare])).problems) == 1


def test_absent_fields_and_records_that_are_none(tmp_path: pathlib.Path) -> None:
    examples = Relation().read(written(tmp_path, [{}, 3]))
    assert not examples and len(examples.problems) == 2
    for name in ("token", "subj_start", "subj_end", "obj_start", "obj_end", "subj_type", "obj_type"):
        assert f"`{name}` is absent" in examples.problems[0]
    assert "a JSON int: expected an object" in examples.problems[1]
    with pytest.raises(ValueError, match=r"expected a table \(\.jsonl, .*\.parquet, .*in TACRED's form, or \.txt"):
        Relation().read(tmp_path / "examples.xml")
    semeval = Relation(scheme="semeval").read(written(tmp_path, [GOOD]))
    assert "`relation` is 'per:lives': expected one of Cause-Effect(e1,e2)" in semeval.problems[0]


SEMEVAL = """1\t"The <e1>red cat</e1> sat in the <e2>works</e2>."\r
Component-Whole(e2,e1)\r
Comment: none\r
\r
2\t"A <e2>dog</e2>-<e1>cat</e1>"\r
Other\r
3\t"no <e1>second</e1> entity"\r
Other\r
4\t"an <e1></e1> empty <e2>one</e2>"\r
5\t"an <e1>a</e1> <e2>b</e2>"\r
Causes\r
6\t"<e1>a</e1> <e2>b</e2>"\r
Other\r
Other\r
"""


def test_semeval_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(SEMEVAL.encode())
    examples = Relation(scheme="semeval").read(path)
    untyped, words = ("", ""), ("The", "red", "cat", "sat", "in", "the", "works", ".")
    assert examples == [
        Mentions("1", words, ((1, 3), (6, 7)), untyped, "Component-Whole(e2,e1)"),
        Mentions("2", ("A", "dog", "-", "cat"), ((3, 4), (1, 2)), untyped, "Other"),
        Mentions("6", ("a", "b"), ((0, 1), (1, 2)), untyped, "Other"),
    ]
    said = [problem.removeprefix(f"{path}:") for problem in examples.problems]
    wanted = (
        "7: tags <e1> </e1>: expected each of",
        "9: no words from <e1> to its end",
        "10: relation 'Causes': expected one of",
        "14: 'Other': expected a number, a tab and a sentence",
    )
    assert len(said) == 4 and all(each.startswith(one) for each, one in zip(said, wanted, strict=True))


@given(st.lists(mentions(), min_size=1, max_size=6), st.sampled_from(MARKINGS), st.integers(8, 40))
def test_rows(examples: list[Mentions], marking: Marking, length: int) -> None:
    """[CLS] and [SEP] are always there, markers around the pieces of their entities, short sentences whole."""
    vocabulary = small_wordpiece()
    task = Relation(marking=marking, length=length).with_training_labels(examples, vocabulary)
    found = list(task.rows(examples, vocabulary))
    assert [row.example for row in found] == list(range(len(examples)))
    roomy = dataclasses.replace(task, length=500)
    for example, row, whole in zip(examples, found, roomy.rows(examples, vocabulary), strict=True):
        pieces = spelled(row, task)
        assert pieces[0] == "[CLS]" and pieces[-1] == "[SEP]" and 2 <= len(pieces) == min(length, len(whole.tokens_T))
        markers = [piece for piece in pieces[1:-1] if piece[0] == "["]
        assert len(markers) == {"types": 2, "none": 0}.get(marking, 4)
        assert task.labels[int(row.fields["label_B"])] == example.label and row.fields["known_B"] == 1
        if len(whole.tokens_T) > length or "markers" not in marking:
            continue
        assert [piece for piece in pieces[1:-1] if piece[0] != "["] == list(example.words)
        for role, (first, last), kind in zip(("SUBJ", "OBJ"), example.spans, example.kinds, strict=True):
            kind = f"-{kind}" if marking == "typed_markers" else ""
            inner = pieces[pieces.index(f"[{role}{kind}]") : pieces.index(f"[/{role}{kind}]")]
            assert [piece for piece in inner if piece[0] != "["] == list(example.words[first:last])


@given(st.lists(mentions(), min_size=1, max_size=12), st.randoms(use_true_random=False), st.sampled_from(MARKINGS))
def test_labels_and_markers_do_not_depend_on_order(
    examples: list[Mentions], draw: random.Random, marking: Marking
) -> None:
    vocabulary = small_wordpiece()
    other = draw.sample(examples, len(examples))
    task = Relation(marking=marking).with_training_labels(examples, vocabulary)
    assert task == Relation(marking=marking).with_training_labels(other, vocabulary)
    assert list(task.pieces) == sorted(task.pieces)
    assert task.labels == tuple(
        label for label in ("no_relation", "org:in", "per:lives") if label in {e.label for e in examples}
    )
    assert (
        task.with_training_labels([examples[0]._replace(kinds=("NEW", "NEW"), label="new")], vocabulary) == task
    )  # kept once set


def example(kinds: tuple[str, str] = ("PERSON", "CITY"), label: str | None = "per:lives") -> Mentions:
    return Mentions("1", ("Anna", "lives", "in", "Bonn"), ((0, 1), (3, 4)), kinds, label)


def test_types_and_labels_that_training_never_saw() -> None:
    vocabulary = small_wordpiece()
    task = Relation().with_training_labels([example(), example(label="no_relation")], vocabulary)
    rows = list(task.rows([example(("ROBOT", "CITY"), "per:new"), example(label=None), example()], vocabulary))
    assert spelled(rows[0], task) == ["[CLS]", "[SUBJ]", "lives", "in", "[OBJ-CITY]", "[SEP]"]
    assert [float(row.fields["known_B"]) for row in rows] == [0, 0, 1]
    assert spelled(rows[2], task)[1] == "[SUBJ-PERSON]"
    assert task.scores([example(label="per:new"), example()], ["no_relation", "per:lives"]) == {
        **{"f1": pytest.approx(200 / 3), "precision": 100.0, "recall": 50.0}
    }
    with pytest.raises(ValueError, match="1 examples have no relation"):
        task.scores([example(label=None)], ["no_relation"])
    with pytest.raises(ValueError, match="no training example has a relation"):
        Relation().with_training_labels([example(label=None)], vocabulary)


def test_only_known_labels_are_in_the_loss() -> None:
    vocabulary = small_wordpiece()
    task = Relation().with_training_labels([example(), example(label="no_relation")], vocabulary)
    encoder = tiny_encoder(vocab_size=vocabulary.size, layers=1, intermediate_size=16, positions=32)
    module = task.build(encoder, nnx.Rngs(0))

    def measured(labels: list[str | None]) -> dict[str, float]:
        packed = TaskRows(task.rows([example(label=label) for label in labels], vocabulary), 0, task.lengths)
        index_B = np.arange(2) if len(labels) > 1 else np.array([0, -1])
        batch = jax.tree.map(jax.numpy.asarray, packed.batch(index_B, np.arange(2), 16))
        found = jax.jit(lambda batch: task.measure(module, batch, None))(batch)
        assert float(task.counts(batch)["task/loss"]) == float(found["task/loss"].count)
        return {
            f"{name} {part}": float(value) for name, mean in found.items() for part, value in mean._asdict().items()
        }

    assert measured(["per:lives", "per:new"]) == pytest.approx(measured(["per:lives"]), abs=1e-5)
    assert measured(["per:lives", None]) == pytest.approx(measured(["per:lives"]), abs=1e-5)
    assert measured(["per:lives", "no_relation"])["task/loss count"] == 2


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Relation(scheme="semeval", labels=("a",)), "SemEval-2010 task 8 has its own"),
        (Relation(pieces=(("[SUBJ]", 3),)), "no id for [OBJ], which objective.marking types needs"),
        (Relation(marking="markers", pieces=(("[OBJ]", 4), ("[SUBJ]", 3))), "no id for [/OBJ], [/SUBJ]"),
        (Relation(pieces=(("[OBJ]", 3), ("[SUBJ]", 3))), "every id once"),
        (Relation(pieces=(("[OBJ]", 3), ("[SUBJ]", 900))), "has the ids [900]: the vocabulary has 100"),
    ],
)
def test_settings_that_cannot_be(task: Relation, said: str) -> None:
    assert said in "; ".join(task.problems(EncoderConfig(vocab_size=100)))


def test_files_of_predictions(tmp_path: pathlib.Path) -> None:
    examples = [example(), example(label="no_relation")]
    files = Relation().write(tmp_path, examples, ["no_relation", "per:lives"])
    assert [(file.name, file.read_text()) for file in files] == [
        ("predictions.txt", "no_relation\nper:lives\n"),
        ("key.txt", "per:lives\nno_relation\n"),
        (
            "predictions.jsonl",
            '{"id": "1", "label": "per:lives", "prediction": "no_relation"}\n'
            '{"id": "1", "label": "no_relation", "prediction": "per:lives"}\n',
        ),
    ]
    unlabelled = [each._replace(name=str(8001 + n), label=None) for n, each in enumerate(examples)]
    files = Relation(scheme="semeval").write(tmp_path, unlabelled, ["Other", "Cause-Effect(e2,e1)"])
    assert [file.read_text() for file in files] == [
        "8001\tOther\n8002\tCause-Effect(e2,e1)\n",
        '{"id": "8001", "label": null, "prediction": "Other"}\n'
        '{"id": "8002", "label": null, "prediction": "Cause-Effect(e2,e1)"}\n',
    ]


def relation_f1(gold: list[str], predicted: list[str]) -> float:
    """Micro F1 over what is not `no_relation`, from sets of (place, label)."""
    golds, guesses = ({(n, one) for n, one in enumerate(each) if one != "no_relation"} for each in (gold, predicted))
    return 100 * 2 * len(golds & guesses) / max(1, len(golds) + len(guesses))


def test_f1_against_sets() -> None:
    draw = random.Random(5)
    task = Relation()
    for _ in range(300):
        gold = [draw.choice(RELATIONS) for _ in range(draw.randint(1, 12))]
        predicted = [label if draw.random() < 0.5 else draw.choice(RELATIONS) for label in gold]
        found = task.scores([example(label=label) for label in gold], predicted)
        assert found["f1"] == pytest.approx(relation_f1(gold, predicted))


@pytest.mark.parametrize(
    "marking", [pytest.param("types", marks=pytest.mark.slow), pytest.param("typed_markers", marks=pytest.mark.slow)]
)
def test_a_tiny_model_learns_sixteen_examples(
    marking: Marking, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(ROOT)
    draw = random.Random(3)
    found = []
    for number in range(16):
        words = draw.choices(WORDS, k=7)
        places = draw.sample(range(len(words)), 2)
        ends = {
            f"{role}_{end}": place
            for role, place in zip(("subj", "obj"), places, strict=True)
            for end in ("start", "end")
        }
        kinds = {f"{role}_type": draw.choice(KINDS) for role in ("subj", "obj")}
        found.append({"id": str(number), "relation": draw.choice(RELATIONS), "token": words, **ends, **kinds})
    path = written(tmp_path, found)
    arguments = [*fit_arguments("configs/finetune/tacred.py", path, tmp_path), f"--objective.marking={marking}"]
    assert train.main(arguments) == 0
    scores = records(tmp_path / "run", "eval/score/f1")
    assert max(scores.values()) == 100.0
    stored = stored_meta(tmp_path / "run", whole_step(tmp_path / "run")[0])["run"]["objective"]
    task = Relation(marking=marking).with_training_labels(Relation().read(path), small_wordpiece())
    assert stored["pieces"] == [list(each) for each in task.pieces] and stored["labels"] == list(task.labels)

    capsys.readouterr()
    lines = written(tmp_path, [{k: v for k, v in each.items() if k != "relation"} for each in found], "asked.jsonl")
    assert (
        predict(["relation", str(tmp_path / "run"), "--file", str(lines), "--text", "<e1>Anna</e1> of <e2>Bonn</e2>"])
        == 0
    )
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["prediction"] for each in said[1:]] == [each["relation"] for each in found]
    assert said[0]["prediction"] in RELATIONS
    assert evaluate([str(tmp_path / "run"), "--data", str(path), "--output", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["f1"] == 100.0
    assert (tmp_path / "out" / "predictions.txt").read_text().split() == [each["relation"] for each in found]


def test_tacred_sample(shared_data: pathlib.Path) -> None:
    folder = shared_data / "relation" / "tacred_sample"
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    examples = Relation().read(folder / "train.json")
    assert len(examples) == 20 and examples.problems == []
    stored = json.loads((folder / "train.json").read_text())
    for one, record in zip(examples, stored, strict=True):
        assert one.words[one.spans[0][0] : one.spans[0][1]] == tuple(
            record["token"][record["subj_start"] : record["subj_end"] + 1]
        )
        assert one.kinds == (record["subj_type"], record["obj_type"]) and one.label == record["relation"]
    task = Relation().with_training_labels(examples, vocabulary)
    assert task.labels == ("no_relation", "org:city_of_headquarters")
    for name in ("dev.json", "test.json"):  # other types and relations
        others = task.read(folder / name)
        assert len(list(task.rows(others, vocabulary))) == len(others) == 20
        assert task.scores(others, ["no_relation"] * 20)["f1"] == 0


def test_semeval_files(shared_data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = shared_data / "relation" / "semeval2010_task8"
    task = Relation(scheme="semeval", marking="markers")
    train_file, test_file = (task.read(folder / name) for name in ("TRAIN_FILE.TXT.gz", "TEST_FILE_FULL.TXT.gz"))
    assert (len(train_file), len(test_file)) == (8000, 2717) and train_file.problems == test_file.problems == []
    assert {each.label for each in train_file} == set(SEMEVAL_LABELS)
    gold = [str(each.label) for each in test_file]
    predictions = task.write(tmp_path, test_file, gold)[0]
    key = (folder / "TEST_FILE_KEY.TXT").read_text().split()
    assert [each.partition("(")[0] for each in predictions.read_text().split()] == key  # the key has no directions
    assert task.scores(test_file, gold)["f1"] == 100.0
    json_form = task.read(folder / "tacred_format" / "test.json.gz")
    for one, other in zip(test_file, json_form, strict=True):  # blanks differ, what is an entity does not
        assert one.label == other.label
        for (a, b), (c, d) in zip(one.spans, other.spans, strict=True):
            assert "".join(one.words[a:b]) == "".join(other.words[c:d])


def test_fewrel_with_sentencepiece(shared_data: pathlib.Path) -> None:
    path = shared_data / "relation" / "fewrel_wiki" / "dev.json.gz"
    vocabulary = load_vocabulary(shared_data / "vocab" / "sentencepiece-test.model")
    task = Relation(marking="typed_markers", length=40)
    examples = task.read(path)
    assert len(examples) == len(json.loads(gzip.decompress(path.read_bytes()))) == 1600
    task = task.with_training_labels(examples, vocabulary)
    assert len(task.labels) == 16 and "no_relation" not in task.labels
    markers = [number for name, number in task.pieces if "ENTITY" in name]
    for row in task.rows(examples, vocabulary):
        tokens = row.tokens_T.tolist()
        assert len(tokens) <= 40 and (tokens[0], tokens[-1]) == (vocabulary.specials.cls, vocabulary.specials.sep)
        assert all(tokens.count(number) == 1 for number in markers)


def test_tables_of_text_with_marked_entities(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence,label\n<e1>Anna</e1> is in <e2>Bonn</e2>,lives\n<e1>a</e1> <e2>b</e2>,\n")
    words = ("Anna", "is", "in", "Bonn")
    assert list(Relation(marking="none", columns=("text=sentence",)).read(path)) == [
        Mentions("0", words, ((0, 1), (3, 4)), ("", ""), "lives"),
        Mentions("1", ("a", "b"), ((0, 1), (1, 2)), ("", ""), None),
    ]
    with pytest.raises(
        ValueError, match="columns sentence, label: expected `text` .*; name yours with --columns text=sentence"
    ):
        Relation(marking="none").read(path)
    semeval = Relation(marking="none", scheme="semeval", columns=("text=sentence",)).read(path)
    assert "`relation` is 'lives': expected one of Cause-Effect" in semeval.problems[0]


def test_tacreds_fields_in_cells(tmp_path: pathlib.Path) -> None:
    path, names = tmp_path / "a.tsv", ("token", "subj_start", "subj_end", "obj_start", "obj_end", "relation")
    path.write_text("\t".join(names) + "\nAnna is in -LRB- Bonn\t0\t0\t4\t4\tlives\n")
    assert list(Relation(marking="none").read(path)) == [
        Mentions("0", ("Anna", "is", "in", "(", "Bonn"), ((0, 1), (4, 5)), ("", ""), "lives")
    ]
