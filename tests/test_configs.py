"""Every file under configs/ loads, says what it is, takes an override, and trains, saves and resumes when shrunk."""

import ast
import dataclasses
import pathlib
from typing import Any

import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.objectives.causal_lm import CausalPrediction
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import equal_weights
from spanjax.run import Run, load
from spanjax.sharding import named_leaves
from spanjax.training.state import abstract_module
from tests.running import ROOT, records, shrunk

FAST = ("spanbert_base_as_released",)
CONFIGS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "configs").glob("*/*.py"))
PRETRAINING = [path for path in CONFIGS if "/finetune/" not in path]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_there_are_the_promised_configs() -> None:
    names = {pathlib.Path(path).stem for path in CONFIGS}
    assert names >= {"demo", "tiny", "small", "spanbert_base", "spanbert_large", "spanbert_base_as_released"}


@pytest.mark.parametrize("config", CONFIGS)
def test_config_is_a_lab_note_without_problems(config: str) -> None:
    note = ast.get_docstring(ast.parse((ROOT / config).read_text()))
    assert note and f"--config {config}" in note and "Expect" in note, "docstring needs its command and what to expect"
    run = load(config)
    assert isinstance(run, Run) and run.problems() == []


@pytest.mark.parametrize("config", CONFIGS)
def test_help_and_one_override(config: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        train.parse([f"--config={config}", "--help"])
    assert stop.value.code == 0 and "--optimizer.learning-rate" in capsys.readouterr().out
    assert train.parse([f"--config={config}", "--optimizer.learning-rate=0.25"]).run.optimizer.learning_rate == 0.25


def pulses() -> list[Any]:
    """Every config of pretraining; those that differ most are fast tests."""
    slow = [path for path in PRETRAINING if pathlib.Path(path).stem not in FAST]
    return [pytest.param(path, marks=pytest.mark.slow if path in slow else ()) for path in PRETRAINING]


@pytest.mark.parametrize("config", pulses())
def test_pulse(
    config: str, tagged_rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    feed = "tf" if config.endswith("as_released.py") else "numpy"
    offset = min(1, load(config).encoder.position_offset)  # where [PAD] is piece 0, as transformers counts from it
    settings = (f"--data.feed={feed}", f"--encoder.position-offset={offset}")
    arguments = shrunk(config, tagged_rows_folder, tmp_path / "run", 2, *settings)
    if load(config).init_from:  # a preset that continues: from two steps of the same model
        assert train.main([*arguments, "--init-from=", f"--workdir={tmp_path / 'before'}"]) == 0
        arguments.append(f"--init-from={tmp_path / 'before'}")
        capsys.readouterr()
    names = [name.split("/")[0] for name in load(config).objective.loss_weights()]
    assert train.main(arguments) == 0
    said = capsys.readouterr().out
    assert all(f"held-out {name} loss" in said for name in names)
    filling = isinstance(load(config).objective, CausalPrediction) or f"by {names[0]}" in said
    assert filling, "a span is filled by an objective that can"
    assert all(set(records(tmp_path / "run", f"train/{name}/loss")) == {1, 2} for name in names)
    assert train.main(arguments) == 0
    assert "from step 2" in capsys.readouterr().out
    if "sweeps" in config:
        return  # a comparison may have a base that transformers has no class for
    if "ablations" in config and "two_sequences" not in config:
        return  # the arms differ in what they read, not in what they are: one with a pair head is converted
    assert convert(["to-torch", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    assert convert(["from-torch", str(tmp_path / "hf"), str(tmp_path / "back")]) == 0
    assert equal_weights(load_model(tmp_path / "run"), load_model(tmp_path / "back")) == []


def test_as_released_differs_from_the_paper_in_the_numbered_settings() -> None:
    paper, released = (load(f"configs/pretrain/spanbert_base{suffix}.py") for suffix in ("", "_as_released"))
    changed = {f.name for f in dataclasses.fields(Run) if getattr(paper, f.name) != getattr(released, f.name)}
    assert changed == {"objective", "data", "optimizer", "steps", "batch_size"}
    assert paper.optimizer.weight_decay == 0.1 and released.optimizer.weight_decay == 0.01
    assert (paper.steps, paper.batch_size, paper.optimizer.learning_rate) == (2_400_000, 256, 1e-4)
    assert (released.steps, released.batch_size, released.optimizer.learning_rate) == (300_000, 2_048, 5e-4)


SHORT = {
    "bert_base": 0.1,
    "bert_large": 0.1,
    **{f"albert_{size}": 0.1 for size in ("base", "large", "xlarge", "xxlarge")},
}
FROM_START = (*SHORT, "ernie_base", "electra_small", "electra_base", "electra_large", "electra_spans")


def test_short_pairs_decay_and_its_start_are_the_published_ones() -> None:
    """One pair of ten is short in BERT and ALBERT, none in SpanBERT's own runs; their rates and ELECTRA's decay from step 0."""
    runs: dict[str, Any] = {pathlib.Path(path).stem: load(path) for path in PRETRAINING}
    short = {name: run.objective.pairing.short for name, run in runs.items() if hasattr(run.objective.pairing, "short")}
    assert {name: value for name, value in short.items() if value} == SHORT and short["table7_two_sequences"] == 0
    for name in FROM_START:
        assert runs[name].optimizer.decay_from == "start", name
    for name in ("roberta_base", "roberta_large"):
        assert runs[name].optimizer.no_decay == () and runs[name].optimizer.decay_from == "warmup", name


UNCORRECTED = ("bert", "albert", "electra", "xlnet")


@pytest.mark.parametrize("path", PRETRAINING)
def test_bias_correction_is_that_of_the_released_code(path: str) -> None:
    name = pathlib.Path(path).stem
    assert load(path).optimizer.bias_correction == (name.split("_")[0] not in UNCORRECTED)


def test_the_biases_of_xlnets_scores_decay_and_no_others() -> None:
    """Its released optimizer names the three; embeddings of types and the start of the query stream decay like all else."""
    for size in ("small", "base", "large"):
        run = load(f"configs/pretrain/xlnet_{size}.py")
        _, abstract = abstract_module(run.objective, dataclasses.replace(run.encoder, vocab_size=32_000))
        decayed = named_leaves(run.optimizer.decayed(abstract))
        exempt = [name for name, decays in decayed.items() if not decays]
        biases = {name.rsplit("/", 1)[1] for name, decays in decayed.items() if decays and name.endswith("bias")}
        assert biases == {"content_bias", "distance_bias", "type_bias"}, size
        assert exempt and all(name.endswith("/bias") or "norm" in name.rsplit("/", 2)[1] for name in exempt), exempt


def test_the_arms_of_detection_differ_in_spans_and_their_boundary_objective() -> None:
    tokens, spans = runs = [load(f"configs/ablations/objective_electra{end}.py") for end in ("", "_spans")]
    assert {f.name for f in dataclasses.fields(Run) if getattr(tokens, f.name) != getattr(spans, f.name)} == {
        "objective"
    }
    objectives: list[Any] = [run.objective for run in runs]
    one, two = map(dataclasses.asdict, objectives)
    assert {name for name in one if one[name] != two[name]} == {"masking", "boundary"}
    seen = [{name: each["masking"]["replacement"][name] for name in ("mask", "random")} for each in (one, two)]
    assert seen[0] == seen[1] == {"mask": 0.85, "random": 0.0}
