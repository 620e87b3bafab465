"""Vectors of texts: equal to transformers and to one text at a time, whatever the batch; few programs; spans; wrong input."""

import dataclasses
import functools
import pathlib
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.convert.export import exportable, save
from spanjax.convert.options import ToTorch
from spanjax.inference.encode import TextEncoder, bucket
from spanjax.nn.config import EncoderConfig
from spanjax.nn.encoder import Encoder
from spanjax.pretrained.model import Model
from tests.made import tiny_encoder
from tests.tasks.small_vocabulary import small_wordpiece
from tests.torch_format.references import REASON

TEXTS = [
    "Anna works for IBM .",
    "the cat",
    "Bonn",
    "",
    "a longer text : the red dog sat at the blue cat in Bonn , and Anna ( born in Bonn ) lives there for good",
    "zero\u200bwidth  and\ttabs",
]
VOCABULARY = small_wordpiece()
CONFIG = tiny_encoder(vocab_size=VOCABULARY.size, initializer_std=0.3)


@pytest.fixture(scope="module")
def model() -> Model:
    return model_of(CONFIG)


@pytest.fixture(scope="module")
def encoder(model: Model) -> TextEncoder:
    return TextEncoder(model)


@functools.cache
def module_of(config: EncoderConfig) -> Encoder:
    """The encoder with large weights, so that vectors of different texts differ."""
    return Encoder(config, nnx.Rngs(0))


def model_of(config: EncoderConfig) -> Model:
    params = nnx.to_pure_dict(nnx.split(module_of(config))[1])
    return Model(config, {"encoder": jax.tree.map(np.asarray, params)}, VOCABULARY, pathlib.Path("made"))


@functools.cache
def plain(config: EncoderConfig, text: str) -> np.ndarray:
    """Hidden states of one text alone, without padding."""
    pieces = VOCABULARY.encode([text.replace("\u200b", "")])[0].tolist()
    ids = np.array([[VOCABULARY.specials.cls, *pieces, VOCABULARY.specials.sep]], np.int32)
    ones, positions = np.ones_like(ids), np.arange(ids.size, dtype=np.int32)[None]
    tokens, segments, places, types = map(jnp.asarray, (ids, ones, positions, 0 * ids))
    return np.asarray(module_of(config)(tokens, segments, places, types))[0]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.unit
def test_lengths_are_rounded_to_few() -> None:
    sizes = [bucket(length, 512) for length in range(1, 513)]
    assert sorted({*sizes}) == [16, *(factor * size for size in (4, 8, 16, 32, 64) for factor in (5, 6, 7, 8))]
    assert all(size >= length for length, size in enumerate(sizes, start=1)) and sizes == sorted(sizes)
    assert bucket(65, 70) == 70 and bucket(3, 10) == 10


def test_one_text_at_a_time_gives_the_same(encoder: TextEncoder) -> None:
    tokens = encoder.encode(TEXTS, "none", batch_size=4)
    means, firsts = encoder.encode(TEXTS), encoder.encode(TEXTS, "cls", batch_size=5)
    assert means.dtype == np.float32 and means.shape == firsts.shape == (len(TEXTS), 16)
    for number, text in enumerate(TEXTS):
        expected = plain(CONFIG, text)
        close(tokens[number].vectors_TD, expected)
        close(means[number], expected.mean(axis=0))
        close(firsts[number], expected[0])
    assert np.abs(means[0] - means[1]).max() > 0.1, "texts that differ have vectors that differ"


def test_batches_and_order_change_nothing(encoder: TextEncoder) -> None:
    texts = [" ".join(["the cat"] * count) for count in (1, 2, 9, 3, 1, 7, 12, 5, 2)] + TEXTS
    expected = encoder.encode(texts)
    order = random.Random(1).sample(range(len(texts)), len(texts))
    for size in (1, 4):
        close(encoder.encode([texts[number] for number in order], batch_size=size), expected[order])


def test_a_program_is_compiled_once_for_a_bucket(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    original = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, *rest: traced.append(rest[0].shape) or original(self, *rest))
    encoder = TextEncoder(model)
    texts = [" ".join(["cat"] * count) for count in range(1, 31)]  # 3 to 32 tokens, in 5 buckets
    for seed in range(3):
        encoder.encode(random.Random(seed).sample(texts, len(texts)), batch_size=4)
    assert traced == [(4, 32), (4, 28), (4, 24), (4, 20), (4, 16), (2, 16)], "two texts are left for the last batch"
    assert encoder.programs == {("mean", None, *shape) for shape in traced}
    for count in (3, 5):
        encoder.encode(texts[:count], batch_size=4)
    assert traced[6:] == [(1, 16)], "three texts have the program of four rows, the fifth text one of its own"


def test_offsets_are_those_of_the_text_before_cleaning(encoder: TextEncoder) -> None:
    text = "Anna  works\u200b for IBMs"
    found = encoder.encode([text], "none")[0]
    assert found.tokens[0] == "[CLS]" and found.tokens[-1] == "[SEP]" and len(found.tokens) == len(found.vectors_TD)
    assert found.offsets_T2[[0, -1]].tolist() == [[0, 0], [0, 0]]
    parts = [text[start:end] for start, end in found.offsets_T2[1:-1]]
    assert parts == [token.removeprefix("##") for token in found.tokens[1:-1]]


def test_spans_are_means_or_ends_of_their_tokens(encoder: TextEncoder) -> None:
    texts = [TEXTS[0], TEXTS[4], "the cat"]
    of_dog = (TEXTS[4].index("the red dog"), TEXTS[4].index(" sat"))
    spans = [[(0, 4), (0, 14), (15, 18)], [of_dog], []]
    means, ends = encoder.encode(texts, spans=spans), encoder.encode(texts, "endpoints", spans=spans, batch_size=2)
    assert [each.shape for each in means] == [(3, 16), (1, 16), (0, 16)]
    assert [each.shape for each in ends] == [(3, 32), (1, 32), (0, 32)]
    for text, wanted, mean_SD, ends_SD in zip(texts, spans, means, ends, strict=True):
        whole = plain(CONFIG, text)
        for (start, end), mean_D, both_D in zip(wanted, mean_SD, ends_SD, strict=True):
            before = len(VOCABULARY.encode([text[:start]])[0])
            inside = whole[1 + before : 1 + before + len(VOCABULARY.encode([text[start:end]])[0])]
            close(mean_D, inside.mean(axis=0))
            close(both_D, np.concatenate([inside[0], inside[-1]]))
    (part,) = encoder.encode(["the cat"], spans=[[(5, 6)]])[0]
    close(part, plain(CONFIG, "the cat")[2])  # a part of a token stands for the token


def test_truncation_is_asked_for(encoder: TextEncoder) -> None:
    long = " ".join(["cat"] * 100)
    (cut,) = encoder.encode([long], "none", truncate=True)
    close(cut.vectors_TD, plain(CONFIG, " ".join(["cat"] * 62)))
    assert len(cut.offsets_T2) == len(cut.tokens) == 64 and cut.offsets_T2[-2].tolist() == [244, 247]
    with pytest.raises(ValueError) as error:
        encoder.encode(["cat", *[long] * 10])
    assert str(error.value).splitlines() == [
        *(f"the text at index {number} has 102 tokens" for number in range(1, 9)),
        "and 2 more texts are too long",
        "the model reads at most 64: shorten them, or give truncate=True",
    ]
    with pytest.raises(ValueError, match=r"span \(396, 399\) of the text at index 0 has no token"):
        encoder.encode([long], spans=[[(0, 3), (396, 399)]], truncate=True)


def test_wrong_arguments_are_listed(model: Model, encoder: TextEncoder) -> None:
    call: Any = encoder.encode
    for arguments, settings, message in (
        (
            (["a"],),
            {"layers": []},
            "layers is []: expected numbers from 0, the embeddings, to 2, the last layer, or -3 to -1",
        ),
        ((["a"],), {"layers": [0, 3]}, "layers is [0, 3]: expected numbers from 0"),
        ((["a"],), {"layers": 1}, "layers is 1: expected numbers"),
        (("a text",), {}, "texts is 'a text', one text: expected a list, write [text]"),
        ((["a", 3],), {"batch_size": 0}, "texts[1] is 3: expected a text\nbatch_size is 0: expected at least 1"),
        ((["a"], "max"), {}, "pooling is 'max': expected one of mean, cls, none without spans"),
        ((["a"], "cls"), {"spans": []}, "expected one of mean, endpoints with spans\nspans has 0 items for 1 texts"),
        ((["a b"],), {"spans": [[(1, 2), (-1, 1), (2, 9)]]}, "span (1, 2) of the text at index 0 has no token"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(*arguments, **settings)
    assert encoder.encode([]).shape == (0, 16) and encoder.encode([], "none") == []
    with pytest.raises(ValueError, match="came without a vocabulary"):
        TextEncoder(dataclasses.replace(model, vocabulary=None))


def test_vectors_are_those_of_transformers(model: Model, encoder: TextEncoder, tmp_path: pathlib.Path) -> None:
    """AutoModel on the exported folder: one padded batch with an attention mask."""
    torch: Any = pytest.importorskip("torch", reason=REASON)
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    save(exportable(model), ToTorch("made", str(tmp_path / "hf")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    peer = transformers.AutoModel.from_pretrained(tmp_path / "hf", add_pooling_layer=False).eval()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_offsets_mapping=True)
    offsets, mask = inputs.pop("offset_mapping").numpy(), inputs["attention_mask"].numpy()
    with torch.no_grad():
        hidden_BLD = peer(**inputs).last_hidden_state.numpy()
    found = encoder.encode(TEXTS, "none")
    for number, each in enumerate(found):
        used = int(mask[number].sum())
        assert len(each.vectors_TD) == used
        np.testing.assert_array_equal(each.offsets_T2, offsets[number, :used])
        close(each.vectors_TD, hidden_BLD[number, :used])
    close(encoder.encode(TEXTS, "cls"), hidden_BLD[:, 0])
    mean_BD = (hidden_BLD * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    close(encoder.encode(TEXTS), mean_BD)


def test_layers_are_the_hidden_states_of_transformers(
    model: Model, encoder: TextEncoder, tmp_path: pathlib.Path
) -> None:
    torch: Any = pytest.importorskip("torch", reason=REASON)
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    save(exportable(model), ToTorch("made", str(tmp_path / "hf")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    peer = transformers.AutoModel.from_pretrained(tmp_path / "hf", add_pooling_layer=False).eval()
    layers, spans = [-1, 0, 1], [[(0, 4)], [(4, 7)], [(0, 4), (0, 2)]]
    texts = TEXTS[:3]
    tokens = encoder.encode(texts, "none", layers=layers, batch_size=2)
    means, firsts = encoder.encode(texts, layers=layers), encoder.encode(texts, "cls", layers=layers)
    of_spans = encoder.encode(texts, "endpoints", spans=spans, layers=layers)
    for number, text in enumerate(texts):
        with torch.no_grad():
            states = peer(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        assert len(states) == CONFIG.layers + 1
        for place, layer in enumerate(layers):
            expected = states[layer][0].numpy()
            close(tokens[place][number].vectors_TD, expected)
            close(means[place][number], expected.mean(axis=0))
            close(firsts[place][number], expected[0])
            (whole,) = encoder.encode([text], "endpoints", spans=[spans[number]], layers=[layer])[0]
            close(of_spans[place][number], whole)
    close(means[0], encoder.encode(texts))
    assert np.abs(means[1] - means[2]).max() > 0.1, "layers differ"
    assert [each.shape for each in encoder.encode([], layers=layers)] == [(0, 16)] * 3


@pytest.mark.parametrize("settings", [{"rope_theta": 100.0, "norm_first": True}, {"relative_attention": True}])
def test_other_architectures(settings: dict[str, Any]) -> None:
    """Rows that only pad a batch, and padding, do no harm there either."""
    config = dataclasses.replace(CONFIG, **settings)
    means = TextEncoder(model_of(config)).encode(TEXTS[:3])
    close(means, np.stack([plain(config, text).mean(axis=0) for text in TEXTS[:3]]))
