"""spanbert-mini as it ships: its folder, its card, what it fills in, and the same outputs from transformers."""

import dataclasses
import json
import re

import pytest

import spanjax
from spanjax.convert.compare import compare
from spanjax.inference.fill_mask import Filler
from spanjax.nn.config import Architecture
from spanjax.pretrained.load import load_model
from spanjax.pretrained.packaged import packaged_folder, packaged_models
from spanjax.run import load
from tests.running import ROOT

PACKAGE = ROOT / "models" / "spanbert_mini"
FOLDER = PACKAGE / "spanbert_mini" / "model"
MOST_BYTES = 30_000_000


@pytest.fixture(scope="module")
def filler() -> Filler:
    return Filler(load_model(FOLDER))


@pytest.mark.unit
def test_it_is_small_and_its_card_is_complete() -> None:
    """The card repeats figures of conversion.json and of the preset."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
    card, conversion = (PACKAGE / "README.md").read_text(), json.loads((FOLDER / "conversion.json").read_text())
    assert "@@" not in card and f"{conversion['parameters']:,}" in card
    assert f"{load(str(ROOT / 'configs/pretrain/mini.py')).steps:,} steps" in card
    manifest = re.search(r"[0-9a-f]{64}", card)
    assert manifest and "CC BY-SA 3.0" in card


@pytest.mark.unit
def test_its_class_for_transformers_is_the_one_of_spanjax() -> None:
    """The folder holds a copy of the module, as every export does; the card has the command that writes the folder again."""
    name = "modeling_spanbert.py"
    assert (FOLDER / name).read_bytes() == (ROOT / "spanjax" / "torch_format" / name).read_bytes()


def test_it_is_that_of_the_preset(filler: Filler) -> None:
    found, preset = filler.model.encoder, load(str(ROOT / "configs/pretrain/mini.py")).encoder
    different = {
        field.name: (getattr(found, field.name), getattr(preset, field.name))
        for field in dataclasses.fields(Architecture)
        if getattr(found, field.name) != getattr(preset, field.name)
    }
    assert different == {"vocab_size": (8000, 0)}
    assert {"encoder", "mlm", "sbo"} <= filler.model.parts


def test_installed_it_is_found_by_name() -> None:
    if "spanbert-mini" not in packaged_models():
        pytest.skip("spanbert-mini is not installed: make install")
    folder = packaged_folder("spanbert-mini")
    assert folder and (folder / "model.safetensors").read_bytes() == (FOLDER / "model.safetensors").read_bytes()
    assert spanjax.load("spanbert-mini").encode(["a text", "another"]).shape == (2, 256)


def test_transformers_computes_the_same(filler: Filler) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    by, found = compare(filler.model, FOLDER)
    assert "by transformers" in by
    # of eight sentences, two may have a tie that tokenizers breaks the other way
    assert {line.what: line.largest for line in found if line.largest > (2 if "tokenizer" in line.what else 1e-4)} == {}
