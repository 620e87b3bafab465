"""The vocab command: files, figures, the command that follows, and what it refuses."""

import json
import pathlib

import pytest
import tokenizers
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from spanjax.cli import Progress
from spanjax.data.vocab.loading import WordPieceVocabulary, load_vocabulary
from spanjax.prepare import main
from spanjax.prepare.options import counted
from tests.made import made_sentences

FILES = {
    "wordpiece": {"vocabulary.json", "vocab.txt", "tokenizer.json"},
    "sentencepiece": {"vocabulary.json", "sentencepiece.model"},
    "byte-bpe": {"vocabulary.json", "tokenizer.json"},
}
SENTENCE = "The mayor of the town sold some warm bread near the bridge."


def run(corpus: pathlib.Path, output: pathlib.Path, kind: str, *arguments: str, size: int = 400) -> int:
    own = ["vocab", "--input", str(corpus), "--kind", kind, "--output", str(output)]
    return main([*own, "--size", str(150 if kind == "sentencepiece" else size), *arguments])


@pytest.mark.parametrize("kind", FILES)
def test_folder_holds_what_we_and_others_read(
    kind: str, corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(corpus_file, tmp_path / "v", kind) == 0
    assert {path.name for path in (tmp_path / "v").iterdir()} == FILES[kind]
    vocabulary = load_vocabulary(tmp_path / "v")
    assert vocabulary.kind == kind and vocabulary.size == (150 if kind == "sentencepiece" else 400)
    [ids] = vocabulary.encode([SENTENCE])
    if kind != "sentencepiece":
        plain = tokenizers.Tokenizer.from_file(str(tmp_path / "v" / "tokenizer.json"))
        assert plain.encode(SENTENCE, add_special_tokens=False).ids == ids.tolist()
        assert load_vocabulary(tmp_path / "v" / "tokenizer.json").fingerprint == vocabulary.fingerprint
        around = plain.encode(SENTENCE).ids
        assert [around[0], around[-1]] == [vocabulary.specials.cls, vocabulary.specials.sep]
    out = capsys.readouterr().out
    assert "held back" in out and "pieces per word" in out and "characters per piece" in out and "kept whole" in out
    assert f"python -m spanjax.prepare rows --input {corpus_file} --vocab {tmp_path / 'v'} --output rows" in out


def test_lower_case_is_kept_and_one_file_is_written(
    corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(corpus_file, tmp_path / "v.txt", "wordpiece", "--lower-case", size=200) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["v.txt"]
    assert "--lower-case True" in capsys.readouterr().out
    vocabulary = load_vocabulary(tmp_path / "v.txt")
    assert isinstance(vocabulary, WordPieceVocabulary) and vocabulary.lower_case
    plain = BertWordPieceTokenizer(str(tmp_path / "v.txt"), lowercase=True)
    assert plain.encode(SENTENCE, add_special_tokens=False).ids == vocabulary.encode([SENTENCE])[0].tolist()
    assert run(corpus_file, tmp_path / "u", "wordpiece", "--lower-case", size=200) == 0
    assert json.loads((tmp_path / "u" / "tokenizer.json").read_text())["normalizer"]["lowercase"] is True
    assert load_vocabulary(tmp_path / "u").pieces == vocabulary.pieces


def test_held_back_sentences_are_not_learnt(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["Zebra Σ." if n % 50 == 0 else sentence for n, sentence in enumerate(made_sentences(200), start=1)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    assert run(tmp_path / "text.txt", tmp_path / "v.txt", "wordpiece", size=100) == 0
    assert "Σ" not in "".join(load_vocabulary(tmp_path / "v.txt").pieces)
    out = capsys.readouterr().out
    assert "fit to 4 sentences held back" in out and "Zebra" in out and "Σ  U+03A3" in out


def test_an_existing_vocabulary_is_replaced_only_when_asked(
    corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "readme").write_text("x")  # a folder with other files is no obstacle
    assert run(corpus_file, tmp_path, "wordpiece") == 0
    before = load_vocabulary(tmp_path).fingerprint
    assert run(corpus_file, tmp_path, "sentencepiece") == 2
    assert "exists already" in capsys.readouterr().err and load_vocabulary(tmp_path).fingerprint == before
    assert run(corpus_file, tmp_path, "sentencepiece", "--overwrite") == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES["sentencepiece"] | {"readme"}


def test_what_is_no_vocabulary_of_this_command_stays(
    corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert run(corpus_file, tmp_path / "notes.txt", "wordpiece", "--overwrite") == 2
    assert "is no vocabulary" in capsys.readouterr().err and (tmp_path / "notes.txt").read_text() == "mine"
    text = tmp_path / "corpus.txt"
    text.write_bytes(corpus_file.read_bytes())
    assert run(text, text, "wordpiece", "--overwrite") == 2 and "is read" in capsys.readouterr().err
    assert text.read_bytes() == corpus_file.read_bytes()
    theirs = tmp_path / "model"
    theirs.mkdir()
    for name in ("vocab.txt", "tokenizer.json", "config.json"):
        (theirs / name).write_text("theirs")
    assert run(corpus_file, theirs, "sentencepiece", "--overwrite") == 2
    assert "did not write (config.json is in it)" in capsys.readouterr().err
    (theirs / "config.json").unlink()
    assert run(corpus_file, theirs, "sentencepiece", "--overwrite") == 2
    assert "its vocabulary.json is missing" in capsys.readouterr().err
    assert {path.read_text() for path in theirs.iterdir()} == {"theirs"}


def test_everything_wrong_is_told_at_once(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        "--lower-case",
        "--character-coverage",
        "0.5",
        "--sentences",
        "0",
        "--byte-fallback",
        "--min-frequency",
        "0",
    ]
    assert run(tmp_path / "absent", tmp_path / "v.txt", "byte-bpe", *wrong, size=5) == 2
    told = capsys.readouterr().err
    parts = [
        "--size is 5",
        "--lower-case is for",
        "0.5: expected",
        "is not for byte-bpe",
        "--sentences is 0",
        "--byte-fallback is",
    ]
    assert all(part in told for part in [*parts, "ends in .json", "absent: no such file", "--min-frequency is 0"]), told
    assert not list(tmp_path.iterdir())


def test_a_size_that_the_text_cannot_fill_leaves_nothing(
    corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(corpus_file, tmp_path / "v", "wordpiece", size=90_000) == 2
    assert "the text yields only" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_sentences_are_counted_while_they_are_read() -> None:
    progress, seen = Progress("training"), set[str]()
    for number, sentence in enumerate(counted(map(str, range(2500)), progress)):
        assert sentence == str(number)
        seen.add(progress.text)
    assert seen == {"", "1,000 sentences read", "2,000 sentences read"}
    assert progress.text == "learning from 2,500 sentences"


def test_settings_reach_the_training(corpus_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    plain, other = tmp_path / "a.model", tmp_path / "b.model"
    assert (
        run(corpus_file, plain, "sentencepiece") == run(corpus_file, other, "sentencepiece", "--sentences", "300") == 0
    )
    assert plain.read_bytes() != other.read_bytes()
    for argument in (["--no-split-by-whitespace"], ["--character-coverage", "0.99"], ["--max-documents", "100"]):
        assert run(corpus_file, other, "sentencepiece", "--overwrite", *argument) == 0
        assert plain.read_bytes() != other.read_bytes()
    assert run(corpus_file, other, "sentencepiece", "--overwrite") == 0 and plain.read_bytes() == other.read_bytes()
