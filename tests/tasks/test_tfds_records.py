"""GLUE from TensorFlow Datasets: TFDS's own builder makes data sets of small files, which are also read as files."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.text import glue as theirs

from spanjax import train
from spanjax.data.vocab.loading import save_vocabulary
from spanjax.experiment.finetune import open_task_session, read_examples
from spanjax.scoring import glue as scoring
from spanjax.suite import tuned
from spanjax.tasks.glue import TFDS_LABELS, Glue, GlueName, Sentences
from spanjax.tasks.tfds_records import FOLDER, read_tfds
from tests.running import ROOT, TINY
from tests.tasks.small_vocabulary import small_wordpiece

PAIR = "index\tsentence1\tsentence2"
MNLI = f"{PAIR}\tlabel1\tgold_label\n0\ta b\tb a\tneutral\tcontradiction\n1\tc\td é\tneutral\tneutral\n2\te\tf\t-\tentailment\n"
FILES = {
    "CoLA/train.tsv": "x\t1\t\tthe cat sat\nx\t0\t*\tsat cat the\n",
    "CoLA/dev.tsv": "x\t0\t*\tcat\n",
    "CoLA/test.tsv": "index\tsentence\n0\tthe cat\n",
    "SST-2/train.tsv": "sentence\tlabel\ngood cat\t1\nbad dog\t0\nvery good\t1\n",
    "SST-2/dev.tsv": "sentence\tlabel\nbad\t0\n",
    "SST-2/test.tsv": "index\tsentence\n0\tgood\n",
    "MRPC/msr_train.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta b\tb a\n0\t1\t2\ta\tb\n",
    "MRPC/dev_ids.tsv": "#1 ID\t#2 ID\n1\t2\n",
    "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\ta b\tb a\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n3\t1\t2\ta b\tb a\t1\n4\t1\t2\tc\td\t0\n",
    "STS-B/train.tsv": f"{PAIR}\tscore\n0\ta\tb\t3.800\n1\ta\tc\t0.000\n",
    "STS-B/test.tsv": f"{PAIR}\n0\ta\tb\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n0\twho\ta cat\tentailment\n1\twhy\tb\tnot_entailment\n",
    "RTE/train.tsv": f"{PAIR}\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n",
    "WNLI/train.tsv": f"{PAIR}\tlabel\n0\ta\tb\t1\n1\tc\td\t0\n",
    "MNLI/train.tsv": MNLI,
    "MNLI/dev_matched.tsv": MNLI,
    "MNLI/dev_mismatched.tsv": MNLI.replace("a b", "a c"),
}
TASKS: list[tuple[GlueName, str]] = [
    ("CoLA", "cola"), ("SST-2", "sst2"), ("MRPC", "mrpc"), ("QQP", "qqp"), ("STS-B", "stsb"), ("QNLI", "qnli"),
    ("RTE", "rte"), ("WNLI", "wnli"), ("MNLI-m", "mnli"),
]  # fmt: skip
OTHERS = {"MNLI-mm": "mnli_mismatched", "AX": "ax"}


class _Files:
    """In the place of TFDS's downloads: the files of a folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = str(folder)

    def download_and_extract(self, url: str) -> str:
        return self.folder

    def download(self, urls: Any) -> Any:
        names = {"dev_ids": "dev_ids.tsv", "train": "msr_train.tsv", "test": "test.tsv"}
        return {which: f"{self.folder}/MRPC/{name}" for which, name in names.items()}


class SpanjaxGlue(theirs.Glue):
    """TFDS's GLUE with other files, of which it may lack some."""

    __module__ = "spanjax_glue"  # see tests/data/sources/test_tfds.py
    files: pathlib.Path

    def _split_generators(self, dl_manager: Any) -> Any:
        files: Any = _Files(self.files)
        found, config = super()._split_generators(files), self.builder_config
        assert config
        return [each for each in found if config.name == "mrpc" or os.path.exists(each.gen_kwargs["data_file"])]


class SpanjaxSnli(tfds.core.GeneratorBasedBuilder):
    """SNLI's features, an example that nobody agreed on, text that is not UTF-8, and one without words."""

    __module__ = "spanjax_snli"
    VERSION = tfds.core.Version("1.1.0")
    ROWS = (("a", "b", 0), ("c", "d", -1), (b"\xff", "b", 1), ("e", "f", 2), (" ", "g", 1))

    def _info(self) -> Any:
        label = tfds.features.ClassLabel(names=["entailment", "neutral", "contradiction"])
        features = {"premise": tfds.features.Text(), "hypothesis": tfds.features.Text(), "label": label}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[Any]:
        for number, (first, second, label) in enumerate(self.ROWS):
            yield number, {"premise": first, "hypothesis": second, "label": label}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """The files, and a folder `tfds` of data sets, where TFDS_DATA_DIR points."""
    place = tmp_path_factory.mktemp("glue")
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    SpanjaxGlue.files = place
    for _, config in TASKS:
        kind = "tfrecord" if config == "rte" else "array_record"
        SpanjaxGlue(config=config, data_dir=str(place / "tfds"), file_format=kind).download_and_prepare()
    SpanjaxSnli(data_dir=str(place / "tfds"), file_format="array_record").download_and_prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(place / "tfds"))
        yield place


def in_order(examples: list[Sentences]) -> list[tuple[Any, ...]]:
    """Without names, which are lines in the files and other numbers in some data sets; numbers as numbers."""
    return sorted(
        (each.first, each.second or "", float(each.label) if each.label and "." in each.label else str(each.label))
        for each in examples
    )


@pytest.mark.parametrize(("task", "config"), TASKS)
def test_a_data_set_says_what_its_files_say(task: GlueName, config: str, folder: pathlib.Path) -> None:
    for split in ("train", "test"):
        name = "msr_train.tsv" if (task, split) == ("MRPC", "train") else f"{split}.tsv"
        file = folder / task.removesuffix("-m") / name
        if not file.is_file():
            continue
        expected = Glue(task=task).read(file)
        parts = "train+validation" if name == "msr_train.tsv" else split
        found = Glue(task=task).read(pathlib.Path(f"tfds:spanjax_glue/{config}@{parts}"))
        assert expected and not found.problems and not expected.problems
        assert in_order(found) == in_order(expected)
        assert (split == "train") == all(each.label is not None for each in found)


def test_splits_of_mnli(folder: pathlib.Path) -> None:
    for half, first in (("matched", "a b"), ("mismatched", "a c")):
        found = Glue(task="MNLI-m").read(pathlib.Path(f"tfds:spanjax_glue/mnli:2.0.0@validation_{half}"))
        assert {each.name: (each.first, each.label) for each in found} == {
            "0": (first, "contradiction"), "1": ("c", "neutral"), "2": ("e", "entailment"),
        }  # fmt: skip
    parts = Glue(task="MNLI-m").read(pathlib.Path("tfds:spanjax_glue/mnli@validation_matched[1:]+train[:1]"))
    assert len(parts) == 3


def test_labels_are_in_the_order_of_tfds(tmp_path: pathlib.Path) -> None:
    """Of TFDS's own data sets: a name of theirs stands for the number that it has there, or for itself."""
    for task, config in (*TASKS, *OTHERS.items()):
        info: Any = tfds.builder(f"glue/{config}", data_dir=str(tmp_path)).info
        label = info.features["label"]
        labels = scoring.TASKS[task].labels
        if task in TFDS_LABELS:
            assert tuple(label.names) == TFDS_LABELS[task] and labels == ("0", "1")
        else:
            assert set(getattr(label, "names", ())) == set(labels)


def test_what_is_wrong_is_listed_with_its_place(folder: pathlib.Path) -> None:
    name = "tfds:spanjax_snli"
    found = Glue(task="SNLI").read(pathlib.Path(name))
    assert sorted((each.first, each.label) for each in found) == [("a", "entailment"), ("e", "contradiction")]
    places, said = zip(*(problem.split(": ", 1) for problem in found.problems), strict=True)
    assert sorted(said) == ["an empty sentence: expected text", "byte 1 of premise is not UTF-8: expected text"]
    whole = {place: record for place, record, _ in read_tfds(name, ("premise", "label"))}
    assert sorted(whole) == [f"tfds:spanjax_snli/1.1.0@train:{number}" for number in range(5)]
    assert all(whole[place] is None or whole[place] == {"premise": " ", "label": "neutral"} for place in places)
    other = Glue(task="CoLA").read(pathlib.Path("tfds:spanjax_glue/sst2"))
    assert not other and sorted(problem.split(": ", 1)[1] for problem in other.problems) == [
        f"label '{label}': expected one of 0, 1" for label in ("negative", "positive", "positive")
    ]
    with pytest.raises(
        ValueError, match=r"sst2.*@train:0: columns sentence, label, idx hold one sentence: expected both"
    ):
        Glue(task="RTE").read(pathlib.Path("tfds:spanjax_glue/sst2"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tfds:", "expected tfds:NAME"),
        ("tfds:spanjax_no_such", f"holds none.*or name the folder with {FOLDER}"),
        ("tfds:spanjax_glue/sst2@dev", r"split 'dev'.*the splits are \['test', 'train', 'validation'\]"),
        (
            "tfds:glue/rte",
            f"not prepared in .*name another folder with {FOLDER}, or prepare it with `tfds build glue/rte ",
        ),
        ("tfds:spanjax_numbers", r"the features are \['number'\]; expected some of sentence"),
    ],
)
def test_data_sets_that_are_not_there_are_problems_of_the_run(folder: pathlib.Path, name: str, message: str) -> None:
    if name.endswith("numbers"):
        SpanjaxNumbers(data_dir=os.environ[FOLDER], file_format="array_record").download_and_prepare()
    examples, problems = read_examples(Glue(task="RTE"), [name], "--train")
    assert not examples and len(problems) == 1
    with pytest.raises(ValueError, match=f"^--train: tfds:.*{message}"):
        raise ValueError(problems[0])


class SpanjaxNumbers(tfds.core.GeneratorBasedBuilder):
    """A data set without text."""

    __module__ = "spanjax_numbers"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"number": np.int64}))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[Any]:
        yield 0, {"number": 1}


def test_labels_of_a_task_of_ones_own_are_the_names(folder: pathlib.Path) -> None:
    found = Glue().read(pathlib.Path("tfds:spanjax_glue/sst2@train"))
    assert {each.first: each.label for each in found} == {
        "good cat": "positive",
        "bad dog": "negative",
        "very good": "positive",
    }
    assert not [
        each for each in Glue(numbers=True).read(pathlib.Path("tfds:spanjax_glue/stsb@test")) if each.label != "-1.0"
    ]


def test_a_run_on_a_data_set(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Opened by the command line; and reading by index loads no TensorFlow."""
    save_vocabulary(small_wordpiece(), tmp_path / "vocabulary")
    words = [
        f"--config={ROOT / 'configs/finetune/glue.py'}",
        *TINY,
        f"--objective.vocabulary={tmp_path / 'vocabulary'}",
    ]
    words += ["--train", "tfds:spanjax_glue/sst2@train", "--dev", "tfds:spanjax_glue/sst2@validation"]
    session = open_task_session(train.parse([*words, "--objective.task=SST-2", "--objective.length=32"]).run)
    assert session.about()["examples"] == {"train": 3, "dev": 1}
    assert all("from objective." in message for message in session.messages), "none is about the examples"
    assert session.dev and session.dev.examples == [Sentences("0", "bad", None, "0")]
    code = (
        "import pathlib, sys; from spanjax.tasks.glue import Glue; assert 'tensorflow_datasets' not in sys.modules;"
        "print(len(Glue(task='SST-2').read(pathlib.Path('tfds:spanjax_glue/sst2'))), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["3", "False"]


def test_the_suite_takes_what_is_prepared(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tasks without files those with a training and a validation split; a file comes before a data set."""
    monkeypatch.setattr(tuned, "TFDS_PREFIX", "tfds:spanjax_")
    tasks = {
        name: tuned.glue_task(
            name, name.removesuffix("-m"), config, *(("MNLI-m", "MNLI-mm", "AX") if config == "mnli" else ())
        )
        for name, config in TASKS
    }
    found, missing = tuned.existing(tasks, tmp_path)
    assert [*found] == ["CoLA", "SST-2", "MRPC", "MNLI-m"] and missing == ["QQP", "STS-B", "QNLI", "RTE", "WNLI"]
    splits = {column: names for column, names in found["MNLI-m"].dev.items()}
    assert splits == {
        "MNLI-m": ("tfds:spanjax_glue/mnli@validation_matched",),
        "MNLI-mm": ("tfds:spanjax_glue/mnli@validation_mismatched",),
    }
    assert found["SST-2"].train == ("tfds:spanjax_glue/sst2@train",)
    # each column reads its own split
    columns: tuple[GlueName, ...] = ("MNLI-m", "MNLI-mm")
    firsts = [read_examples(Glue(task=column).reader(""), splits[column], "dev")[0][0].first for column in columns]
    assert firsts == ["a b", "a c"]
    file = tmp_path / "glue/SST-2/dev.tsv"
    file.parent.mkdir(parents=True)
    file.write_text(FILES["SST-2/dev.tsv"])
    assert tuned.existing(tasks, tmp_path)[0]["SST-2"].dev == {"SST-2": (str(file),)}
