"""Orders of ids of SentencePiece models: those of XLM-R and CamemBERT, by the files beside a .model file."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import sentencepiece

from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.loading import load_vocabulary, save_vocabulary, vocabulary_from_files, with_unused_ids
from spanjax.data.vocab.metaspace import MetaspaceVocabulary
from spanjax.data.vocab.parity import reference
from spanjax.data.vocab.sentencepiece import SentencePieceVocabulary
from tests.data.vocab.sentencepiece_files import SCRIPTS, TRAINING, model_file, tokenizer_json
from tests.data.vocab.test_metaspace import generated

CLASSES = {
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizerFast",
    "deberta-v2": "DebertaV2Tokenizer",
}


def folder(
    path: pathlib.Path, kind: str, tokenizer: dict[str, Any] | None, config: dict[str, Any] | None
) -> pathlib.Path:
    """A folder with the .model file under its usual name, and what lies beside it."""
    path.mkdir()
    name = "spm.model" if kind == "deberta-v2" else "sentencepiece.bpe.model"
    (path / name).write_bytes(model_file(kind))
    for file, content in (("tokenizer_config.json", tokenizer), ("config.json", config)):
        if content is not None:
            (path / file).write_text(json.dumps(content))
    return path


def fairseq_ids(processor: sentencepiece.SentencePieceProcessor, kind: str, text: str) -> list[int]:
    """Ids by the rule of fairseq: one or four behind those of the file, its unknown piece 3."""
    found = processor.encode(text)
    shift = {"xlm-roberta": 1, "camembert": 4, "deberta-v2": 0}[kind]
    return found if not shift else [number + shift if number else 3 for number in found]


@pytest.mark.parametrize("kind", CLASSES)
def test_ids_are_those_of_the_family(kind: str, tmp_path: pathlib.Path) -> None:
    by_class = load_vocabulary(folder(tmp_path / "class", kind, {"tokenizer_class": CLASSES[kind]}, None))
    generic = {"tokenizer_class": "PreTrainedTokenizerFast"}
    by_type = load_vocabulary(folder(tmp_path / "type", kind, generic, {"model_type": kind}))
    assert by_class.fingerprint == by_type.fingerprint
    theirs = MetaspaceVocabulary(tokenizer_json(kind))
    assert (by_class.pieces, by_class.specials, by_class.separators) == (
        theirs.pieces,
        theirs.specials,
        theirs.separators,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_file(kind))
    texts = [clean(text) for text in [*SCRIPTS, *TRAINING[:50], *generated(500), ""]]
    for text, ids in zip(texts, by_class.encode(texts), strict=True):
        assert ids.dtype == np.int32 and ids.tolist() == fairseq_ids(processor, kind, text), text
        np.testing.assert_array_equal(by_class.encode_with_starts([text])[0][0], ids)
    assert reference(by_class, tmp_path / "class").encode(texts) == [ids.tolist() for ids in by_class.encode(texts)]
    text = "the old sailor mended"
    assert by_class.decode(by_class.encode([text])[0]) == text
    assert by_class.word_starts[by_class.encode([text])[0]].sum() == 4


def test_layouts_are_saved(tmp_path: pathlib.Path) -> None:
    vocabulary = SentencePieceVocabulary(model_file("camembert"), layout="camembert")
    save_vocabulary(vocabulary, tmp_path)
    assert load_vocabulary(tmp_path).fingerprint == vocabulary.fingerprint
    plain = SentencePieceVocabulary(model_file("camembert"))
    assert plain.files()["vocabulary.json"] == b'{"kind": "sentencepiece"}', "as earlier versions wrote it"
    with pytest.raises(ValueError, match="layout is 'mbart': expected one of xlm-roberta, camembert"):
        vocabulary_from_files(
            {
                "vocabulary.json": b'{"kind": "sentencepiece", "layout": "mbart"}',
                "sentencepiece.model": vocabulary.model,
            }
        )


def test_faults_of_the_files_beside_a_model_are_named(tmp_path: pathlib.Path) -> None:
    for number, (kind, tokenizer, config, words) in enumerate(
        (
            (
                "camembert",
                None,
                None,
                "expected a tokenizer_config.json .* XLMRobertaTokenizer, CamembertTokenizer.* neither",
            ),
            ("camembert", {"tokenizer_class": "MBartTokenizer"}, {"model_type": "mbart"}, "found MBartTokenizer"),
            (
                "deberta-v2",
                {"do_lower_case": True},
                {"model_type": "deberta-v2"},
                "do_lower_case is true: expected false",
            ),
        )
    ):
        with pytest.raises(ValueError, match=words):
            load_vocabulary(folder(tmp_path / str(number), kind, tokenizer, config))
    (tmp_path / "1" / "tokenizer.json").write_bytes(tokenizer_json("camembert"))
    assert load_vocabulary(tmp_path / "1").kind == "metaspace", "that file alone names the ids"
    damaged = folder(tmp_path / "damaged", "camembert", None, None)
    (damaged / "config.json").write_text("[")
    with pytest.raises(ValueError, match="config.json: no JSON object"):
        load_vocabulary(damaged)
    with pytest.raises(ValueError, match=r"first pieces are \[PAD\], \[CLS\], \[SEP\]: expected <unk>, <s>, </s>"):
        SentencePieceVocabulary(model_file("deberta-v2"), layout="xlm-roberta")


def test_graph_gives_the_ids_of_the_layout() -> None:
    tf: Any = pytest.importorskip(
        "tensorflow", reason="the graph of seqio: pip install tensorflow tensorflow-text seqio"
    )
    from spanjax.data.vocab.seqio import encode_in_graph, seqio_vocabulary

    vocabulary = SentencePieceVocabulary(model_file("xlm-roberta"), layout="xlm-roberta")
    texts = [clean(text) for text in [*SCRIPTS, "", *TRAINING[:20]]]
    for ours, graph in zip(vocabulary.encode(texts), encode_in_graph(vocabulary, texts), strict=True):
        np.testing.assert_array_equal(ours, graph)
    one = seqio_vocabulary(vocabulary).encode_tf(tf.constant(texts[0]))
    np.testing.assert_array_equal(one, vocabulary.encode(texts[:1])[0])
    with pytest.raises(
        ValueError, match="the SentencePiece model of a tokenizer.json is not encoded in TensorFlow graphs"
    ):
        encode_in_graph(MetaspaceVocabulary(tokenizer_json("xlm-roberta")), texts)


@pytest.mark.parametrize("kind", ["deberta-v2", "camembert"])
def test_rows_of_weights_that_no_piece_has_are_unused(kind: str, tmp_path: pathlib.Path) -> None:
    layout = "" if kind == "deberta-v2" else kind
    for vocabulary in (
        SentencePieceVocabulary(model_file(kind), layout=layout),
        MetaspaceVocabulary(tokenizer_json(kind)),
    ):
        longer = with_unused_ids(vocabulary, vocabulary.size + 2)
        assert (longer.size, longer.unused, longer.specials) == (vocabulary.size + 2, 2, vocabulary.specials)
        assert longer.pieces == (*vocabulary.pieces, *(f"[unused{vocabulary.size + n}]" for n in (0, 1)))
        np.testing.assert_array_equal(longer.encode(["the old"])[0], vocabulary.encode(["the old"])[0])
        again = vocabulary_from_files(longer.files())
        assert (again.fingerprint, again.unused) == (longer.fingerprint, 2)
        assert with_unused_ids(vocabulary, vocabulary.size + 4) is vocabulary, "more than one of a hundred"
        assert with_unused_ids(vocabulary, vocabulary.size - 1) is vocabulary
