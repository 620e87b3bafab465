"""A task that is not spanjax's, in this file alone: evaluated, predicted, in the report, its encoder exported."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax import run_format
from spanjax.convert import main as convert
from spanjax.data.sources.tables import read_records
from spanjax.data.vocab.base import Vocabulary
from spanjax.evaluate import main as evaluate
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.heads import cross_entropy
from spanjax.nn.layer import linear
from spanjax.objectives.base import Mean
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import equal_weights, stored_vocabulary
from spanjax.report.runs import read_run
from spanjax.run import Run, describe
from spanjax.tasks.base import LOSS, Examples, ReportRow, Task
from spanjax.tasks.rows import Row
from spanjax.training.checkpoint import write_weights
from tests.tasks.small_vocabulary import small_wordpiece

ENCODER = EncoderConfig(
    vocab_size=small_wordpiece().size, hidden_size=16, layers=1, heads=2, intermediate_size=32, positions=64
)
LINES = [{"text": "red cat", "loud": "yes"}, {"text": "the dog sat", "loud": "no"}]


@dataclasses.dataclass(frozen=True)
class Loudness(Task):
    """A class for a text, from the mean of its hidden states: no class of transformers computes that."""

    length: int = 16
    answers: tuple[str, ...] = ("yes", "no")
    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {"other-way": {"answers": ("no", "yes")}}

    @property
    def metric(self) -> str:
        return "right"

    def read(self, path: pathlib.Path) -> Examples:
        return Examples([record for _, record, _ in read_records(path) if record])

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Any, str]:
        return (dict(record), "") if "text" in record else (None, f"record {number} has no text")

    def with_training_labels(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Self:
        return self

    def is_labelled(self, example: Any) -> bool:
        return "loud" in example

    def rows(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Iterator[Row]:
        for number, ids_T in enumerate(vocabulary.encode([each["text"] for each in examples])):
            label = self.answers.index(examples[number].get("loud", self.answers[0]))
            ids_T = ids_T[: self.length]
            yield Row(ids_T, np.zeros_like(ids_T), number, {"label_B": np.int32(label)})

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        module.classifier = linear(encoder.hidden_size, len(self.answers), encoder, rngs)

    def logits(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> jax.Array:
        kernel, bias = module.classifier.kernel[...], module.classifier.bias[...]
        return jnp.einsum("bd,dc->bc", self.hidden(module, batch, key).mean(axis=1), kernel) + bias[None]

    def counts(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {LOSS: jnp.sum(batch["weight_B"])}

    def measure(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> dict[str, Mean]:
        loss_B = cross_entropy(self.logits(module, batch, key), batch["label_B"])
        return {LOSS: Mean(jnp.sum(loss_B * batch["weight_B"]), jnp.sum(batch["weight_B"]))}

    def outputs(self, module: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"logits_BC": self.logits(module, batch, None)}

    def predictions(
        self, examples: Sequence[Any], rows: Sequence[Row], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> list[Any]:
        return [self.answers[int(np.argmax(each["logits_BC"]))] for each in outputs]

    def scores(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        right = [each["loud"] == predicted for each, predicted in zip(examples, predictions, strict=True)]
        return {"a_first_by_name": 0.0, "right": 100 * float(np.mean(right))}

    def write(self, folder: pathlib.Path, examples: Sequence[Any], predictions: Sequence[Any]) -> list[pathlib.Path]:
        (folder / "predictions.json").write_text(json.dumps(list(predictions)))
        return [folder / "predictions.json"]


TASK = Loudness(train=("train.jsonl",), dev=("dev.jsonl",))


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run directory of the task with random weights, and the file of its dev examples beside it."""
    params = nnx.to_pure_dict(nnx.split(TASK.build(ENCODER, nnx.Rngs(1)))[1])
    meta = {
        "kind": "task",
        "run": {"objective": describe(TASK), "encoder": describe(ENCODER)},
        "vocabulary": stored_vocabulary(small_wordpiece()),
        "report_row": TASK.report_row._asdict(),
    }
    write_weights(tmp_path / "run", jax.tree.map(np.asarray, params), meta, step=3)
    (tmp_path / "run" / "run.json").write_text(json.dumps(describe(Run(objective=TASK, encoder=ENCODER, steps=3))))
    lines = [{"step": step, "eval/score/a_first_by_name": -step, "eval/score/right": step} for step in (1, 3)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    (tmp_path / "dev.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in LINES))
    return tmp_path / "run"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class can be restored, as by --code."""
    monkeypatch.setitem(run_format.CODE, __name__, sys.modules[__name__])


def test_the_defaults_are_complete() -> None:
    assert TASK.report_row == ReportRow("Loudness", "right", "Loudness")
    assert (TASK.predict_command, TASK.hf_head, TASK.card_settings) == ("task", None, ())


def test_it_is_evaluated(run: pathlib.Path, known: None, capsys: pytest.CaptureFixture) -> None:
    scores = []
    for more in ([], ["--task=other-way"]):
        command = [str(run), "--data", str(run.parent / "dev.jsonl"), "--json", *more]
        assert evaluate([*command, f"--output={run.parent / f'out{len(more)}'}"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["scores"]["right"])
        assert (run.parent / f"out{len(more)}" / "predictions.json").is_file()
    assert sum(scores) == 100, "the answers of one are the other's"
    assert evaluate([str(run), "--data", str(run.parent / "dev.jsonl"), "--task=squad1"]) == 2
    assert "run was trained for Loudness: expected a model of Questions" in capsys.readouterr().err
    assert evaluate([str(run), "--data", str(run.parent / "dev.jsonl"), "--task=third-way"]) == 2
    assert "--task is third-way: expected one of other-way, squad1" in capsys.readouterr().err


def test_it_predicts(run: pathlib.Path, known: None, capsys: pytest.CaptureFixture) -> None:
    (run.parent / "in.jsonl").write_text('{"text": "red"}\n{"words": []}\n{"text": "blue dog"}\n')
    assert predict(["task", str(run), "--file", str(run.parent / "in.jsonl")]) == 4
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.get("prediction") in ("yes", "no") for each in said] == [True, False, True]
    assert said[1]["error"] == "record 1 has no text"
    assert predict(["classify", str(run), "--text", "red"]) == 2
    assert "was trained for Loudness: expected a model of Glue" in capsys.readouterr().err


def test_it_has_a_row_in_the_report_even_where_its_class_is_unknown(run: pathlib.Path) -> None:
    found = read_run(run)
    assert found.row == TASK.report_row and found.metric == "score/right"
    assert found.best is not None and found.best.step == 3


@pytest.mark.parametrize("restorable", [True, False])
def test_its_encoder_is_exported(
    restorable: bool, run: pathlib.Path, capsys: pytest.CaptureFixture, request: pytest.FixtureRequest
) -> None:
    if restorable:
        request.getfixturevalue("known")
    assert convert(["to-torch", str(run), str(run.parent / "hf")]) == 0
    assert "classifier skipped: transformers has no class for Loudness" in capsys.readouterr().out
    assert json.loads((run.parent / "hf" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert "train.jsonl" not in (run.parent / "hf" / "README.md").read_text()
    differing = equal_weights(load_model(run), load_model(run.parent / "hf"))
    assert {name.split("/")[0] for name in differing} == {"classifier"}
