"""Random models of transformers, small, saved as folders with a vocabulary: the other side of every comparison."""

import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax.data.vocab.loading import WordPieceVocabulary
from spanjax.torch_format.families import FAMILIES, LIKE_ROBERTA
from spanjax.torch_format.task_tables import CLASSES, class_name

REASON = "compares with torch and transformers: pip install torch transformers (the extra `verify`)"
SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("the", "river", "cat", "sat", "on", "mat", "model", "masked", "span")


def vocabulary(pad_last: bool = False) -> WordPieceVocabulary:
    """A cased WordPiece vocabulary of single letters and a few words; `pad_last` moves [PAD] to id 1, as RoBERTa has it."""
    specials = ["[UNK]", "[PAD]"] if pad_last else ["[PAD]", "[UNK]"]
    capitals = LETTERS.upper() + "0123456789.,;!?'()-"
    pieces = [*specials, "[CLS]", "[SEP]", "[MASK]", *LETTERS, *capitals, *WORDS]
    return WordPieceVocabulary([*pieces, *(f"##{letter}" for letter in LETTERS), "##ing", "##ed"], lower_case=False)


def reference(kind: str, **changes: Any) -> Any:
    """A model with random weights, biases and norms among them: "bert", "bert_pairs", "bert_encoder", "roberta", "albert",
    "electra", "electra_detector" (also as wide as its embeddings), "modernbert" with all layers global, "modernbert_local",
    "modernbert_one" with a single layer, "xlnet", "deberta-v2" with the settings of DeBERTa-v3, "deberta-v2_own" with
    projections of its own for distances,
    "deberta-v2_encoder", "xlm-roberta", "camembert", "distilbert", and fine-tuned ones of every family: "bert_sequence",
    "bert_token", "bert_question"."""
    torch = pytest.importorskip("torch", reason=REASON)
    transformers = pytest.importorskip("transformers", reason=REASON)
    size = vocabulary().size
    family = kind.split("_")[0]
    settings = SIZES | {"vocab_size": size, "max_position_embeddings": 64, "num_hidden_layers": 3}
    classes: dict[str, Any] = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "bert_pairs": (transformers.BertConfig, transformers.BertForPreTraining),
        "bert_encoder": (transformers.BertConfig, transformers.BertModel),
        "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
        "albert": (transformers.AlbertConfig, transformers.AlbertForMaskedLM),
        "albert_pairs": (transformers.AlbertConfig, transformers.AlbertForPreTraining),
        "electra": (transformers.ElectraConfig, transformers.ElectraForMaskedLM),
        "electra_detector": (transformers.ElectraConfig, transformers.ElectraForPreTraining),
        "electra_detector_wide": (transformers.ElectraConfig, transformers.ElectraForPreTraining),
        "modernbert": (transformers.ModernBertConfig, transformers.ModernBertForMaskedLM),
        "modernbert_local": (transformers.ModernBertConfig, transformers.ModernBertForMaskedLM),
        "modernbert_one": (transformers.ModernBertConfig, transformers.ModernBertForMaskedLM),
        "xlnet": (transformers.XLNetConfig, transformers.XLNetLMHeadModel),
        "deberta-v2": (transformers.DebertaV2Config, transformers.DebertaV2ForMaskedLM),
        "deberta-v2_own": (transformers.DebertaV2Config, transformers.DebertaV2ForMaskedLM),
        "deberta-v2_encoder": (transformers.DebertaV2Config, transformers.DebertaV2Model),
        "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForMaskedLM),
        "camembert": (transformers.CamembertConfig, transformers.CamembertForMaskedLM),
        "distilbert": (transformers.DistilBertConfig, transformers.DistilBertForMaskedLM),
        "distilbert_encoder": (transformers.DistilBertConfig, transformers.DistilBertModel),
    }
    if family in LIKE_ROBERTA:
        settings |= {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    if family == "distilbert":
        settings = {"vocab_size": size, "dim": 48, "n_layers": 3, "n_heads": 3, "hidden_dim": 64, "pad_token_id": 0}
        settings |= {"max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0}
        settings |= {"qa_dropout": 0.0, "seq_classif_dropout": 0.0}
    if family == "albert":
        settings |= {"num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 32}
    if family == "electra":
        settings |= {"embedding_size": 48 if kind.endswith("wide") else 32}
    if family == "modernbert":
        kinds = ("full_attention", "sliding_attention")
        settings = {name: value for name, value in settings.items() if "dropout_prob" not in name}
        settings |= {"layer_types": [kinds[0]] * 3, "pad_token_id": 0}
        settings |= {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 20_000.0} for kind in kinds}}
        settings |= {f"{role}_token_id": 2 for role in ("bos", "cls", "eos", "sep")}
    if kind == "modernbert_one":
        settings |= {"num_hidden_layers": 1, "layer_types": [kinds[0]]}
    if kind == "modernbert_local":
        # one group of three layers and a global one behind it; windows of four positions on each side
        settings |= {
            "num_hidden_layers": 4,
            "layer_types": [kinds[0], kinds[1], kinds[1], kinds[0]],
            "local_attention": 8,
        }
        bases = {kinds[0]: 20_000.0, kinds[1]: 500.0}
        settings |= {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": bases[kind]} for kind in kinds}}
    if family == "xlnet":
        settings = {"vocab_size": size, "d_model": 48, "n_layer": 3, "n_head": 3, "d_inner": 64, "dropout": 0.0}
        settings |= {"pad_token_id": 0, "mem_len": None, "summary_type": "first", "summary_last_dropout": 0.0}
    if family == "deberta-v2":
        # rows of 17 tokens reach buckets that several distances share, and distances beyond the farthest
        settings |= {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
        settings |= {
            "max_relative_positions": 12,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        }
    if kind == "deberta-v2_own":
        settings |= {"position_buckets": -1, "norm_rel_ebd": "none", "share_att_key": False}
        settings |= {"type_vocab_size": 2, "embedding_size": 32}
    for tuned in CLASSES:
        if kind == f"{family}_{tuned}":
            classes[kind] = (classes[family][0], getattr(transformers, class_name(FAMILIES[family], tuned)))
    config, model = classes[kind]
    torch.manual_seed(0)
    made = model(config(**(settings | changes)))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.2).add_(1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0)
    return made.eval()


def saved(kind: str, folder: pathlib.Path, **changes: Any) -> Any:
    """`reference`, saved as transformers saves it, with a vocab.txt; returns the model."""
    import json

    made = reference(kind, **changes)
    made.save_pretrained(folder)
    pieces = vocabulary(kind.split("_")[0] in LIKE_ROBERTA).pieces
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": False, "tokenizer_class": "BertTokenizer"})
    )
    return made


def tensors(model: Any) -> dict[str, np.ndarray]:
    """The state dict as NumPy arrays."""
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
