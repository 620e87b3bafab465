"""A run of ELECTRA: its generator as a model of its own, in folders of transformers and back, and what is started from it."""

import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.convert.inspect import contents
from spanjax.inference.fill_mask import Filler
from spanjax.objectives.electra import ReplacedDetection
from spanjax.pretrained.electra import generator_of, with_generator
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, equal_weights
from spanjax.sharding import named_leaves
from spanjax.torch_format.folder import read_folder
from spanjax.training.state import abstract_module
from tests.made import tiny_encoder
from tests.running import records, shrunk
from tests.torch_format.references import REASON
from tests.trained import trained

CONFIG = "configs/pretrain/electra_spans.py"
SIZES = (
    "--encoder.hidden-size=16",
    "--encoder.heads=2",
    "--encoder.embedding-size=12",
    "--objective.generator-size=0.5",
)


@pytest.fixture(scope="module")
def run(rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return trained(rows_folder, tmp_path_factory.mktemp("electra") / "run", *SIZES, config=CONFIG)


@pytest.fixture(scope="module")
def folder(run: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    written = tmp_path_factory.mktemp("electra") / "hf"
    assert convert(["to-torch", str(run), str(written)]) == 0
    return written


def test_the_generator_shares_the_embeddings_and_has_its_own_layers(run: pathlib.Path) -> None:
    model = load_model(run)
    assert model.parts == {"encoder", "rtd", "sbo", "generator"} and model.task is None
    generator = generator_of(model)
    assert generator.parts == {"encoder", "mlm"} and generator.family.model_type == "electra"
    sizes = (generator.encoder.hidden_size, generator.encoder.heads, generator.encoder.embedding_size)
    assert sizes == (8, 1, 12) and generator.encoder.layers == model.encoder.layers
    own, shared = (each.params["encoder"]["embeddings"]["token"]["embedding"] for each in (model, generator))
    assert own is shared
    with pytest.raises(ValueError, match="has no generator"):
        generator_of(generator)


def test_a_generator_of_a_modern_encoder_is_whole() -> None:
    """No tables of positions and types, and a LayerNorm behind the layers."""
    encoder = tiny_encoder(positions=512, types=0, norm_first=True, rope_theta=100.0)
    params = abstract_module(ReplacedDetection(generator_size=0.5), encoder)[1]
    generator = generator_of(Model(encoder, params, None, pathlib.Path("run")))
    wanted = abstract_module(generator.objective(), generator.encoder)[1]
    found, expected = named_leaves(generator.params), named_leaves(wanted)
    assert {name: leaf.shape for name, leaf in found.items()} == {name: leaf.shape for name, leaf in expected.items()}


def test_both_folders_are_verified_by_transformers(run: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    pytest.importorskip("transformers", reason=REASON)
    assert convert(["to-torch", str(run), str(tmp_path / "hf"), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "rtd logits" in said and "generator: mlm logits" in said and "all within 0.0001" in said


def test_what_was_written_comes_back(run: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = read_folder(folder).config
    inner = read_folder(folder / "generator").config
    assert config and inner
    assert config["architectures"] == ["ElectraForPreTraining"] and inner["architectures"] == ["ElectraForMaskedLM"]
    assert convert(["from-torch", str(folder), str(tmp_path / "back")]) == 0
    assert equal_weights(load_model(run), load_model(tmp_path / "back")) == []
    listed = contents(str(folder))
    assert listed["heads"] == ["generator", "rtd", "sbo"]
    assert {f"generator/{name}" for name in read_folder(folder / "generator").tensors} < listed["tensors"].keys()
    alone = load_model(folder / "generator")
    assert equal_weights(alone, generator_of(load_model(run))) == []


def test_a_generator_of_another_model_is_refused(
    run: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    import shutil

    from spanjax.torch_format.folder import write_safetensors

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tensors = read_folder(other / "generator").tensors
    name = "electra.embeddings.position_embeddings.weight"
    write_safetensors(other / "generator" / "model.safetensors", {**tensors, name: tensors[name] + 1}, 0)
    with pytest.raises(ValueError, match=r"not the generator of .*\n.*position/embedding differs"):
        load_model(other)
    assert with_generator(load_model(run), load_model).parts == load_model(run).parts


def test_masks_are_filled_by_the_generator(run: pathlib.Path) -> None:
    found, expected = (
        Filler(model).fill_mask("the old [MASK] sold", top=3)
        for model in (load_model(run), generator_of(load_model(run)))
    )
    assert [each.candidates for each in found] == [each.candidates for each in expected]
    assert len(found) == 1 and len(found[0].candidates) == 3


@pytest.mark.slow
def test_pretraining_goes_on_from_both_folders(
    folder: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    again = trained(rows_folder, tmp_path / "again", *SIZES, f"--init-from={folder}", config=CONFIG)
    said = capsys.readouterr().out
    assert "loaded encoder, generator, rtd, sbo" in said and "drawn fresh" not in said
    assert (again / "checkpoints" / "2").is_dir()


def test_the_encoder_starts_another_objective(
    run: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    sizes = (*SIZES[:3], f"--encoder.layers={load_model(run).encoder.layers}")
    sizes = (*sizes, "--objective.terms.1.position-size=200")
    workdir = trained(rows_folder, tmp_path / "spans", *sizes, f"--init-from={run}")
    said = capsys.readouterr().out
    assert "loaded encoder, sbo" in said and "drawn fresh: mlm" in said and "not used: generator, rtd" in said
    before, after = (load_model(each).params["encoder"]["embeddings"]["token"]["embedding"] for each in (run, workdir))
    assert np.abs(np.asarray(before) - np.asarray(after)).max() < 0.1


@pytest.mark.slow
def test_the_same_step_on_any_mesh(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Samples are of rows and steps, not of devices: losses are the same on any mesh, with microbatches and without."""
    meshes = {"devices": ("--mesh.data=4",), "replicas": ("--mesh.replica=2", "--mesh.data=2", "--microbatches=2")}
    losses = []
    for name, more in meshes.items():
        words = shrunk(CONFIG, rows_folder, tmp_path / name, 2, "--data.feed=numpy", "--batch-size=8", *SIZES, *more)
        assert train.main(words) == 0
        losses.append([records(tmp_path / name, f"train/{term}/loss")[2] for term in ("mlm", "rtd", "sbo")])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
