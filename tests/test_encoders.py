"""Sizes in configs/ have as many parameters as the published models."""

import dataclasses
import re
from typing import Any

import pytest

from spanjax.run import load
from spanjax.torch_format.families import FAMILIES
from spanjax.training.state import abstract_module, count_parameters
from tests.running import ROOT
from tests.torch_format.references import REASON

BERT = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}
ALBERT = BERT | {"xlarge": (2048, 24, 16, 8192), "xxlarge": (4096, 12, 64, 16_384)}
ELECTRA = BERT | {"small": (256, 12, 4, 1024)}
PUBLISHED = [
    *(("bert", size, "BertForPreTraining", 30_522, values) for size, values in BERT.items()),
    *(("roberta", size, "RobertaForMaskedLM", 50_265, values) for size, values in BERT.items()),
    *(("albert", size, "AlbertForPreTraining", 30_000, values) for size, values in ALBERT.items()),
    *(("electra", size, "ElectraForPreTraining", 30_522, values) for size, values in ELECTRA.items()),
    *(("xlnet", size, "XLNetLMHeadModel", 32_000, values) for size, values in BERT.items()),
    ("deberta-v2", "base", "DebertaV2ForMaskedLM", 128_100, BERT["base"]),
]
STATED = {  # millions, in the papers; ALBERT's xxlarge has 235M there and 223M in the published weights
    ("bert", "base"): 110,
    ("bert", "large"): 340,
    ("roberta", "base"): 125,
    ("roberta", "large"): 355,
    ("albert", "base"): 12,
    ("albert", "large"): 18,
    ("albert", "xlarge"): 60,
    ("electra", "small"): 14,
    ("electra", "base"): 110,
    ("electra", "large"): 335,
    ("deberta-v2", "base"): 184,  # 86 in the layers and 98 in the tokens
}


@pytest.mark.parametrize(("family", "size", "name", "vocabulary", "sizes"), PUBLISHED)
def test_parameter_counts_are_those_of_the_published_models(
    family: str, size: str, name: str, vocabulary: int, sizes: tuple[int, int, int, int]
) -> None:
    torch = pytest.importorskip("torch", reason=REASON)
    transformers = pytest.importorskip("transformers", reason=REASON)
    path = f"configs/pretrain/{family.removesuffix('-v2')}_{size}.py"
    run = load(str(ROOT / path))
    encoder = dataclasses.replace(run.encoder, vocab_size=vocabulary)
    params = abstract_module(run.objective, encoder)[1]
    published = {part: value for part, value in params.items() if part not in ("generator", "sbo")}
    count = count_parameters(published, encoder)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        **dict(zip(names, sizes, strict=True)),
    }
    if family == "roberta":
        settings |= {"max_position_embeddings": 514, "type_vocab_size": 1}
    if family == "electra":
        settings |= {"embedding_size": 128 if size == "small" else sizes[0]}
    if family == "xlnet":
        names = ("d_model", "n_layer", "n_head", "d_inner")
        settings = {"vocab_size": vocabulary, **dict(zip(names, sizes, strict=True))}
    if family == "deberta-v2":
        settings |= {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
        settings |= {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    config = getattr(transformers, f"{FAMILIES[family].class_prefix}Config")(**settings)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    assert count == sum(parameter.numel() for parameter in model.parameters())
    told = re.search(r"Expect: ([\d,]+) parameters", (ROOT / path).read_text())
    assert told and int(told[1].replace(",", "")) == count
    if (family, size) in STATED:
        assert count / 1e6 == pytest.approx(STATED[family, size], rel=0.035)
