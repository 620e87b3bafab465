"""Weights of XLM-R, CamemBERT and DistilBERT are trained on, resumed, fine-tuned and written back as the class they came from."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.data.vocab.metaspace import MetaspaceVocabulary
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import equal_weights
from spanjax.torch_format.folder import read_folder
from tests.convert.continued import continuing, rows_of
from tests.data.vocab.sentencepiece_files import SCRIPTS, model_file, tokenizer_json
from tests.running import ROOT
from tests.torch_format.references import REASON, saved, tensors

TOKENIZERS = {
    "xlm-roberta": ("tokenizer.json", tokenizer_json("xlm-roberta")),
    "camembert": ("sentencepiece.bpe.model", model_file("camembert")),
}
CLASSES = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert", "distilbert": "DistilBert"}


def written(source: pathlib.Path, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The class of a folder that `to-torch` wrote and transformers verified."""
    capsys.readouterr()
    assert convert(["to-torch", str(source), str(folder), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "all within" in said and "a side has no tokenizer" not in said
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == load_model(folder).family.model_type
    return config["architectures"][0]


def weights(family: str, folder: pathlib.Path) -> Any:
    """A model of transformers, saved with the files of its own kind of tokenizer."""
    if family not in TOKENIZERS:
        return saved(family, folder)
    name, content = TOKENIZERS[family]
    theirs = saved(family, folder, vocab_size=MetaspaceVocabulary(tokenizer_json(family)).size)
    (folder / "vocab.txt").unlink()
    (folder / name).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": f"{CLASSES[family]}Tokenizer"}))
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("family", CLASSES)
def test_continue_resume_fine_tune_and_write_back(
    family: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tensors(weights(family, tmp_path / "theirs"))
    words = continuing(tmp_path / "theirs", rows_of(tmp_path), tmp_path / "run")
    assert train.main(words) == 0
    shutil.move(tmp_path / "theirs", tmp_path / "gone")
    assert train.main(words) == 0, "a run that resumes needs no weights to know its family"
    assert written(tmp_path / "run", tmp_path / "back", capsys) == f"{CLASSES[family]}ForMaskedLM"
    after = read_folder(tmp_path / "back").tensors
    moved = [float(np.abs(array - before[name]).max()) for name, array in after.items() if name in before]
    assert len(moved) > 40 and 0 < max(moved) < 0.01, "two steps from these weights"
    if family in TOKENIZERS:
        transformers: Any = pytest.importorskip("transformers", reason=REASON)
        ids = [
            transformers.AutoTokenizer.from_pretrained(each)(list(SCRIPTS[2:]))["input_ids"]
            for each in (tmp_path / "back", tmp_path / "gone")
        ]
        assert ids[0] == ids[1], "the ids of the folder that the weights came with"
    lines = [f'{{"sentence": "the {word}", "label": "{label}"}}\n' for word, label in (("cat", "no"), ("mat", "yes"))]
    (tmp_path / "train.jsonl").write_text("".join(lines * 4))
    words = [f"--config={ROOT / 'configs/finetune/glue.py'}", f"--init-from={tmp_path / 'run'}", "--batch-size=8"]
    words += [f"--train={tmp_path / 'train.jsonl'}", f"--workdir={tmp_path / 'tuned'}", "--objective.epochs=1"]
    words += ["--objective.pooler=relu"] * (family == "distilbert")
    assert train.main([*words, "--objective.length=32"]) == 0
    name = written(tmp_path / "tuned", tmp_path / "tuned-back", capsys)
    assert name == f"{CLASSES[family]}ForSequenceClassification"


def test_weights_with_more_rows_than_the_tokenizer_has_ids(tmp_path: pathlib.Path, capsys: Any) -> None:
    """As DeBERTa-v2 and v3 have: the tokenizer is kept, and so are the rows that no token has."""
    size = MetaspaceVocabulary(tokenizer_json("deberta-v2")).size
    saved("bert", tmp_path / "theirs", vocab_size=size + 2)
    (tmp_path / "theirs" / "vocab.txt").unlink()
    (tmp_path / "theirs" / "spm.model").write_bytes(model_file("deberta-v2"))
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    model = load_model(tmp_path / "theirs")
    assert model.vocabulary is not None and (model.vocabulary.size, model.vocabulary.unused) == (size + 2, 2)
    assert "the last 2 ids have no piece: unused" in model.notes
    assert written(tmp_path / "theirs", tmp_path / "back", capsys) == "BertForMaskedLM"
    after = load_model(tmp_path / "back")
    assert after.vocabulary is not None and after.vocabulary.fingerprint == model.vocabulary.fingerprint
    assert equal_weights(model, after) == [] and after.encoder.vocab_size == size + 2
