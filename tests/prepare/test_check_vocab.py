"""The check-vocab command: real vocabularies agree on real text, differences are explained, exit codes."""

import json
import pathlib

import pytest

from spanjax.data.vocab.loading import ByteBpeVocabulary, WordPieceVocabulary, save_vocabulary
from spanjax.data.vocab.training import train_byte_bpe
from spanjax.prepare import main
from tests.made import made_sentences

HARD = ["a [MASK] stays text", "nul\x00only", "zero\u200bwidth no\u00a0break 漢", "naïve ﬁ Straße Σίσυφος क्\u200dष"]


@pytest.fixture
def hard(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "hard.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in HARD))
    return path


def run(corpus: pathlib.Path, vocabulary: pathlib.Path, *arguments: str) -> int:
    return main(["check-vocab", "--input", str(corpus), "--vocab", str(vocabulary), *arguments])


@pytest.mark.parametrize(
    "name", ["bert-base-cased-vocab.txt", "bert-base-uncased-vocab.txt", "sentencepiece-test.model"]
)
def test_wikipedia_has_no_differences(name: str, shared_data: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shared_data / "wiki" / "validation.jsonl.gz", shared_data / "vocab" / name, "--documents", "60") == 0
    out = capsys.readouterr().out
    same = out.partition("on raw text: ")[2].split()
    assert same[0] == same[2] and int(same[0].replace(",", "")) > 500 and "pieces per word" in out


@pytest.mark.parametrize("name", ["bert-base-cased-vocab.txt", "bert-base-uncased-vocab.txt"])
def test_differences_are_explained_and_the_graph_agrees(
    name: str, hard: pathlib.Path, shared_data: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(hard, shared_data / "vocab" / name, "--graph") == 0
    out = capsys.readouterr().out
    assert "2 of 4 sentences have the same ids" in out and "the TensorFlow graph on clean text: 4 of 4" in out
    assert "1  literal special" in out and "text    'a [MASK] stays text'" in out
    assert "1  control character U+0000" in out and r"text    'nul\x00only'" in out


def test_byte_bpe_and_its_lack_of_a_graph(
    hard: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_vocabulary(ByteBpeVocabulary(train_byte_bpe(made_sentences(100), 300)), tmp_path / "v")
    assert run(hard, tmp_path / "v", "--documents", "3") == 0
    out = capsys.readouterr().out
    assert "1  U+200B zero width space removed" in out and "1  U+00A0 no-break space" in out and "3 documents" in out
    assert "[MASK]" not in out and "unknown text" not in out  # BERT's specials are not this tokenizer's
    assert run(hard, tmp_path / "v", "--graph") == 2
    assert "nothing to compare" in capsys.readouterr().err


def test_unexplained_differences_give_code_1(
    hard: pathlib.Path,
    shared_data: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encode = WordPieceVocabulary.encode
    monkeypatch.setattr(WordPieceVocabulary, "encode", lambda self, texts: [ids[:1] for ids in encode(self, texts)])
    assert run(hard, shared_data / "vocab" / "bert-base-cased-vocab.txt") == 1
    assert "4  other (unexplained)" in capsys.readouterr().out


def test_unknown_text_is_listed(hard: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nstays\ntext\n")
    assert run(hard, tmp_path / "vocab.txt", "--documents", "2") == 0
    out = capsys.readouterr().out
    assert "       1  MASK\n" in out and "       1  [  U+005B\n" in out


def test_everything_wrong_is_told_at_once(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "absent", tmp_path / "vocab.bin", "--documents", "-1") == 2
    told = capsys.readouterr().err
    assert "--documents is -1" in told and "absent: no such file" in told and "vocab.bin: no such file" in told
