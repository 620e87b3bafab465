"""modeling_spanbert.py: losses, gradients and fills as spanjax computes them, the head in its file, errors."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.convert import main as convert
from spanjax.convert.export import write_folder
from spanjax.convert.options import ToTorch
from spanjax.data.vocab.loading import WordPieceVocabulary
from spanjax.inference.fill_mask import Filler
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary, canonical
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, equal_weights, module_params
from spanjax.sharding import map_named
from spanjax.torch_format.configs import REMOTE_CODE, remote_config
from spanjax.torch_format.families import BERT, ROBERTA
from spanjax.torch_format.folder import EXTRA_HEADS
from spanjax.training.state import abstract_module
from tests.made import synthetic_batch, tiny_encoder
from tests.torch_format.references import REASON
from tests.torch_format.test_losses import compared

torch: Any = pytest.importorskip("torch", reason=REASON)
transformers: Any = pytest.importorskip("transformers", reason=REASON)

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + number) for number in range(26))]
OFFSETS = 2
TERMS = (MaskedTokens(), SpanBoundary(position_size=4, max_offset=OFFSETS))
PAIRS = (*TERMS, SentencePair("nsp"))
LOCAL = {"layers": 4, "local_window": 3, "global_every": 3, "local_rope_theta": 50.0}
MODERN = {"types": 0, "norm_first": True, "rope_theta": 1e4, "gated_mlp": True, "biases": False, "norm_epsilon": 1e-5}


def made(terms: Any = TERMS, **settings: Any) -> Model:
    """Random weights, large enough that every part of them decides the scores."""
    encoder, random = tiny_encoder(vocab_size=len(PIECES), **settings), np.random.default_rng(0)
    shapes = abstract_module(MaskedPrediction(terms=terms), encoder)[1]
    params = map_named(lambda _, leaf: random.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    vocabulary = WordPieceVocabulary(PIECES, lower_case=False)
    return Model(encoder, canonical(params), vocabulary, pathlib.Path("made"))


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers copies the module of a folder before it imports it: not into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return exported(made(), tmp_path_factory.mktemp("spanbert"))


def exported(model: Model, folder: pathlib.Path) -> pathlib.Path:
    write_folder(model, folder, ToTorch(source="", output=str(folder)))
    return folder


def loaded(folder: pathlib.Path, **settings: Any) -> Any:
    return transformers.AutoModelForPreTraining.from_pretrained(folder, trust_remote_code=True, **settings)


def inputs(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """A batch of ours as the class reads it: attention inside of blocks, labels, spans that have a boundary loss."""
    segments_BL = batch["segments_BL"]
    labels_BL = np.full(segments_BL.shape, -100)
    spans: list[set[tuple[int, int]]] = [set() for _ in labels_BL]
    for row, slot in zip(*np.nonzero(batch["slot_weight_BK"]), strict=True):
        labels_BL[row, batch["slot_position_BK"][row, slot]] = batch["slot_target_BK"][row, slot]
        if batch["slot_boundary_weight_BK"][row, slot]:
            spans[row].add((batch["slot_left_BK"][row, slot] + 1, batch["slot_right_BK"][row, slot] - 1))
    spans_BS2 = np.array([sorted(each) + [(-1, -1)] * (4 - len(each)) for each in spans])
    arrays = {
        "input_ids": batch["tokens_BL"],
        "position_ids": batch["positions_BL"],
        "token_type_ids": batch["types_BL"],
        "labels": labels_BL,
        "spans": spans_BS2,
    }
    mask = segments_BL[:, None, :, None] == segments_BL[:, None, None, :]
    return {"attention_mask": torch.from_numpy(mask), **{n: torch.from_numpy(a).long() for n, a in arrays.items()}}


def batch_of(model: Model) -> dict[str, np.ndarray]:
    """Rows of two blocks; offsets beyond the table, and the spans of one row, have no boundary loss."""
    batch = synthetic_batch(3, 48, 16, model.encoder.vocab_size, seed=4)
    batch["slot_boundary_weight_BK"] *= batch["slot_offset_BK"] < OFFSETS
    batch["slot_boundary_weight_BK"][1, batch["slot_left_BK"][1] < 8] = 0
    for name in ("left", "right", "offset"):  # 0 where there is no boundary loss
        batch[f"slot_{name}_BK"] *= batch["slot_boundary_weight_BK"].astype(np.int32)
    batch["pair_position_BP"][:, 1] = batch["segments_BL"].argmax(axis=1)
    batch["pair_label_BP"][0, 0] = batch["pair_label_BP"][2, 0] = 1
    batch["pair_weight_BP"][:, 0] = 1
    return batch


@pytest.mark.parametrize(
    ("terms", "settings"),
    [(TERMS, {"activation": "gelu_tanh"}), (PAIRS, {}), (TERMS, MODERN), (TERMS, {**MODERN, **LOCAL})],
    ids=["two_heads", "pairs", "modern", "local"],
)
def test_losses_and_gradients_are_ours(terms: Any, settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    source = made(terms, **settings)
    batch = batch_of(source)
    theirs = loaded(exported(source, tmp_path)).eval()
    labels = torch.from_numpy(batch["pair_label_BP"][:, 0]).long()
    given_there = inputs(batch)
    if "rope_theta" in settings:
        del given_there["token_type_ids"]  # ModernBERT has no table of types
    if window := settings.get("local_window"):
        with pytest.raises(ValueError, match=r"attention_mask has the shape \(3, 1, 48, 48\): expected .* a dict"):
            theirs(**given_there)
        mask, place = given_there["attention_mask"], torch.arange(48)
        near = (place[:, None] - place).abs() <= window
        given_there["attention_mask"] = {"full_attention": mask, "sliding_attention": mask & near}
    output = theirs(**given_there, **({"next_sentence_label": labels} if terms is PAIRS else {}))
    objective, given = source.objective(), {name: jnp.asarray(array) for name, array in batch.items()}
    assert objective.loss_weights().keys() == {f"{term.name}/loss" for term in terms}
    structure, abstract = abstract_module(objective, source.encoder)
    params = module_params(source, abstract)
    with jax.default_matmul_precision("highest"):
        means = objective.measure(nnx.merge(structure, jax.tree.map(jnp.asarray, params)), given, None)
    for name, loss in (("mlm", output.mlm_loss), ("sbo", output.sbo_loss), ("nsp", output.pair_loss)):
        if loss is not None:
            total, count = means[f"{name}/loss"]
            assert float(loss.detach()) == pytest.approx(float(total / count), rel=1e-5)
    boundaries = int((batch["slot_boundary_weight_BK"] > 0).sum())
    assert output.sbo_logits.shape == (boundaries, len(PIECES)) and boundaries < batch["slot_weight_BK"].sum()

    def summed(params: Any) -> jax.Array:
        found = objective.measure(nnx.merge(structure, params), given, None)
        return jnp.sum(jnp.stack([found[name].total / found[name].count for name in objective.loss_weights()]))

    compared(theirs, output.loss, source, summed, params)


def test_runs_and_spans_by_a_plain_loop() -> None:
    from spanjax.torch_format.modeling_spanbert import covering, runs

    masked_BL = np.random.default_rng(0).random((20, 12)) < 0.5
    expected = np.full((*masked_BL.shape, 2), -1)
    spans = []
    for row, places in enumerate(masked_BL.tolist()):
        spans.append([])
        for place, is_masked in enumerate(places):
            if is_masked and not (place and places[place - 1]):
                end = place
                while end + 1 < len(places) and places[end + 1]:
                    end += 1
                spans[row].append((place, end))
                expected[row, place : end + 1] = place, end
    np.testing.assert_array_equal(runs(torch.from_numpy(masked_BL)).numpy(), expected)
    padded = torch.tensor([each + [(-1, -1)] * (8 - len(each)) for each in spans])
    np.testing.assert_array_equal(covering(padded, masked_BL.shape[1]).numpy(), expected)


def test_runs_of_labels_are_the_spans_by_default(folder: pathlib.Path) -> None:
    theirs = loaded(folder).requires_grad_(False)
    ids = torch.tensor([[2, 4, 4, 7, 4, 9, 3], [2, 5, 4, 6, 8, 3, 0]])
    labels = torch.tensor([[-100, 6, 7, -100, 9, -100, -100], [-100, -100, 6, -100, -100, -100, -100]])
    spans = torch.tensor([[[1, 2], [4, 4]], [[2, 2], [-1, -1]]])
    one, other = theirs(ids, labels=labels), theirs(ids, labels=labels, spans=spans)
    assert torch.equal(one.loss, other.loss) and one.sbo_logits.shape == (4, len(PIECES))
    assert torch.equal(one.loss, one.mlm_loss + one.sbo_loss)
    assert theirs(ids).loss is None and theirs(ids).sbo_logits is None
    wider = theirs(ids, labels=labels, spans=torch.tensor([[[1, 4]], [[2, 4]]]))
    assert wider.sbo_logits.shape[0] == 3, "neither positions without a label nor offsets beyond the table"
    at_edges = theirs(ids, labels=torch.full_like(ids, 5))
    assert float(at_edges.sbo_loss) == 0 and at_edges.sbo_logits.shape[0] == 0, "no span has two neighbours"
    assert torch.equal(theirs(ids, labels=labels, return_dict=False)[2], one.sbo_loss)


@pytest.fixture(scope="module")
def modern_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return exported(made(**MODERN), tmp_path_factory.mktemp("modern"))


@pytest.mark.parametrize(
    ("head", "folder_name"),
    [("mlm", "folder"), ("sbo", "folder"), ("both", "folder"), ("both", "modern_folder")],
)
def test_spans_are_filled_as_by_the_filler(head: str, folder_name: str, request: pytest.FixtureRequest) -> None:
    folder: pathlib.Path = request.getfixturevalue(folder_name)
    text = "a b [MASK] [MASK] c [MASK] d"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = loaded(folder).train()
    fills = theirs.fill_spans(tokenizer, text, head=head, top=4)
    assert theirs.training and len(fills) == 2
    for fill, span in zip(fills, Filler(load_model(folder)).spans(text, top=4), strict=True):
        own = span.fills[head]
        assert (fill["start"], fill["text"]) == (span.position, own.text)
        assert fill["log_probability"] == pytest.approx(own.log_probability, abs=1e-4)
        for one, other in zip(fill["candidates"], own.candidates, strict=True):
            assert [token for token, _ in one] == [token for token, _ in other]
            np.testing.assert_allclose([chance for _, chance in one], [chance for _, chance in other], rtol=1e-4)


def test_wrong_fills_are_refused(folder: pathlib.Path) -> None:
    tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(folder), loaded(folder)
    for text, settings, words in (
        ("a [MASK]", {"head": "nsp"}, "head is 'nsp': expected 'mlm', 'sbo' or 'both'"),
        ("a b", {}, r"the text 'a b' has no \[MASK\]: write one"),
        ("a [MASK] [MASK] [MASK] b", {}, "a span of 3 tokens: the span boundary head fills at most 2, use head='mlm'"),
    ):
        with pytest.raises(ValueError, match=words):
            theirs.fill_spans(tokenizer, text, **settings)
    assert len(theirs.fill_spans(tokenizer, "a [MASK] [MASK] [MASK] b", head="mlm")[0]["candidates"]) == 3


@pytest.mark.parametrize(
    ("terms", "settings"), [(TERMS, {}), (PAIRS, {}), (TERMS, MODERN)], ids=["two_heads", "pairs", "modern"]
)
def test_a_saved_model_is_the_same_and_comes_back(terms: Any, settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "first").mkdir()
    first = exported(made(terms, **settings), tmp_path / "first")
    before = loaded(first)
    before.save_pretrained(tmp_path / "again")
    assert {EXTRA_HEADS, REMOTE_CODE} <= {path.name for path in (tmp_path / "again").iterdir()}
    assert (tmp_path / "again" / REMOTE_CODE).read_bytes() == (first / REMOTE_CODE).read_bytes()
    after = loaded(tmp_path / "again").state_dict()
    assert before.state_dict().keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.state_dict().items())
    for name in ("first", "again"):
        assert convert(["from-torch", str(tmp_path / name), str(tmp_path / f"{name}_back")]) == 0
        back = load_model(tmp_path / f"{name}_back")
        # the first layer of a modern encoder has no norm before its attention: its entry of the stack is read by nobody
        unused = ["encoder/layers/attention_norm/scale"] if settings else []
        assert "sbo" in back.parts and equal_weights(made(terms, **settings), back) == unused


def test_weights_in_another_type_and_a_larger_vocabulary(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    half = loaded(folder, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    theirs = loaded(folder)
    bias = theirs.cls.pair_target_predictions.bias.detach().clone()
    theirs.resize_token_embeddings(len(PIECES) + 3, mean_resizing=False)
    grown = theirs.cls.pair_target_predictions.bias
    assert torch.equal(grown[: len(PIECES)], bias) and grown.shape == (len(PIECES) + 3,)
    ids = torch.tensor([[2, 4, 3]])
    assert theirs(ids, labels=torch.tensor([[-100, len(PIECES) + 1, -100]])).sbo_logits.shape[1] == len(PIECES) + 3
    theirs.save_pretrained(tmp_path)
    assert load_model(tmp_path).encoder.vocab_size == len(PIECES) + 3
    np.testing.assert_array_equal(load_model(tmp_path).params["sbo"]["bias"][: len(PIECES)], bias.numpy())


def test_a_folder_without_the_head_is_an_error(tmp_path: pathlib.Path) -> None:
    (exported(made(), tmp_path) / EXTRA_HEADS).unlink()
    with pytest.raises(OSError, match=EXTRA_HEADS):
        loaded(tmp_path)


def test_only_models_with_both_heads_and_names_of_bert_get_the_class(tmp_path: pathlib.Path) -> None:
    params = made().params
    assert remote_config(params, BERT)["spanbert"] == {
        "max_offset": OFFSETS, "position_size": 4, "pooler": False, "pair": False}  # fmt: skip
    assert remote_config(made(PAIRS).params, BERT)["spanbert"]["pair"] is True
    assert remote_config(params, ROBERTA) == {}
    for part in ("mlm", "sbo"):
        assert remote_config({name: leaf for name, leaf in params.items() if name != part}, BERT) == {}
    alone = dataclasses.replace(made(), params={name: leaf for name, leaf in params.items() if name != "sbo"})
    exported(alone, tmp_path)
    assert not (tmp_path / REMOTE_CODE).exists() and "auto_map" not in (tmp_path / "config.json").read_text()
