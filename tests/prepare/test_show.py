"""prepare show: what is printed is what training sees, to the word; colours, pairs, tags; what is refused."""

import itertools
import pathlib
import re
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from spanjax.data.feed.batch import Batch, FeedSpec
from spanjax.data.feed.feeds import numpy_feed
from spanjax.data.feed.masking import TaggedSpans
from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.inspect.as_text import original_tokens
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.prepare import main as prepare
from spanjax.prepare.reading import MASKINGS, PAIRINGS

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = {ord(small): str(number) for number, small in enumerate("₀₁₂₃₄₅₆₇₈₉")}
SPAN = re.compile("«(.*?) → (.*?)»")


class Shown(NamedTuple):
    """A line of output, parsed back."""

    text: str  # without marks, before masking
    spans: list[tuple[str, list[str], list[int | None]]]  # original words, pieces seen, offsets
    boundaries: list[str]


def parsed(line: str) -> Shown:
    spans = []
    for words, seen in SPAN.findall(line):
        pieces = [re.fullmatch("(.*?)([₀-₉]*)", piece) for piece in seen.split(" ")]
        found = [(each[1], int(each[2].translate(DIGITS)) if each[2] else None) for each in pieces if each]
        spans.append((words, [piece for piece, _ in found], [offset for _, offset in found]))
    boundaries = re.findall(r"\|(.*?)\|", SPAN.sub("", line))
    whole = re.sub(r"\|\[(CLS|SEP)\]\|", "", SPAN.sub(r"\1", line))
    return Shown(re.sub(r"[|⟨⟩⟦⟧▁]", "", whole).strip(), spans, boundaries)


def shown(capsys: pytest.CaptureFixture[str], *arguments: Any) -> list[tuple[str, list[str]]]:
    """Every block's heading with its lines."""
    capsys.readouterr()
    assert prepare(["show", *map(str, arguments)]) == 0, capsys.readouterr().err
    _, *blocks = capsys.readouterr().out.strip("\n").split("\n\n")
    return [(lines[0], lines[1:]) for lines in (block.split("\n") for block in blocks)]


def feed(rows: Rows, spec: FeedSpec) -> Batch:
    """The first rows as held-out evaluation reads them: stored order, epoch 0."""
    return next(iter(numpy_feed(rows, spec, held_out=True)))


def blocks_of(batch: Batch) -> list[tuple[int, int]]:
    """Row and number of every block."""
    most = np.asarray(batch["segments_BL"]).max(axis=1)
    return [(row, segment) for row, blocks in enumerate(most) for segment in range(1, blocks + 1)]


def check_block(line: str, rows: Rows, batch: Batch, row: int, places: np.ndarray) -> None:
    """The line says of these places what the batch says."""
    vocabulary, found = rows.vocabulary, parsed(line)
    original, seen = original_tokens(batch, row), batch["tokens_BL"][row]
    text = [place for place in places if original[place] not in vocabulary.specials[2:]]
    assert found.text == vocabulary.decode(original[text])
    used = batch["slot_weight_BK"][row] > 0
    slots = [slot for slot in np.flatnonzero(used) if batch["slot_position_BK"][row, slot] in places]
    position = batch["slot_position_BK"][row]
    first = [slot for slot in slots if slot == slots[0] or position[slot] != position[slot - 1] + 1]
    assert len(found.spans) == len(first)
    for (words, pieces, offsets), begin, end in zip(found.spans, first, [*first[1:], slots[-1] + 1], strict=True):
        of = np.arange(begin, end)
        assert words == vocabulary.decode(original[position[of]])
        assert pieces == [vocabulary.pieces[number] for number in seen[position[of]]]
        bounded = batch["slot_boundary_weight_BK"][row, of] > 0
        expected = [
            int(each) if has else None for each, has in zip(batch["slot_offset_BK"][row, of], bounded, strict=True)
        ]
        assert offsets == expected
    bounded = np.flatnonzero(batch["slot_boundary_weight_BK"][row])
    sides = {int(batch[name][row, slot]) for name in ("slot_left_BK", "slot_right_BK") for slot in bounded}
    assert len(found.boundaries) == len({side for side in sides if side in places})


@pytest.mark.parametrize("name", [name for name in MASKINGS if name != "tagged"])
def test_shown_words_are_those_of_the_batch(
    name: str, rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = open_rows(rows_folder / "train")
    batch = feed(rows, FeedSpec(0, 4, *MASKINGS[name]))
    blocks = shown(capsys, rows_folder, "--count", 4, "--masking", name)
    for (heading, lines), (row, segment) in zip(blocks, blocks_of(batch), strict=True):
        assert heading.startswith(f"row {row}, block {segment} of ") and len(lines) == 1
        places = np.flatnonzero(batch["segments_BL"][row] == segment)
        check_block(lines[0], rows, batch, row, places)
        text = int((batch["segments_BL"][row] == segment).sum()) - 2
        count = sum(len(pieces) for _, pieces, _ in parsed(lines[0]).spans)
        assert f": {text} tokens, {count} masked ({100 * count / text:.1f} %)" in heading


@pytest.mark.parametrize("name", ["next-sentence", "sentence-order"])
def test_pairs_are_shown_as_two_segments_with_their_label(
    name: str, rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = open_rows(rows_folder / "train")
    batch = feed(rows, FeedSpec(0, 12, pairing=PAIRINGS[name]))
    blocks, labels = shown(capsys, rows_folder, "--count", 12, "--pairing", name), set()
    for (heading, lines), (row, segment) in zip(blocks, blocks_of(batch), strict=True):
        label = int(batch["pair_label_BP"][row, segment - 1])
        labels.add(heading.partition("; ")[2])
        assert [line[:3] for line in lines] == ["A  ", "B  "] and f"label {label}: " in heading
        for second, line in enumerate(lines):
            here = (batch["segments_BL"][row] == segment) & (batch["types_BL"][row] == second)
            check_block(line[3:], rows, batch, row, np.flatnonzero(here))
    told = {
        "next-sentence": "nsp label 1: B is from elsewhere",
        "sentence-order": "sop label 1: the segments are swapped",
    }
    assert labels == {told[name], f"{told[name][:3]} label 0: B follows A"}


def test_foreign_segments_of_one_sentence_blocks_are_told(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *"abcdefgh"]))
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(each) for each in itertools.permutations("abcdefgh", 4)))
    line = ["--input", tmp_path / "text.txt", "--vocab", tmp_path / "vocab.txt", "--length", 32, "--workers", 1]
    assert prepare([*map(str, line), "--output", str(tmp_path / "rows")]) == 0
    headings = [heading for heading, _ in shown(capsys, tmp_path / "rows", "--pairing", "sentence-order")]
    assert headings and all(heading.endswith("sop label 1: B is from elsewhere") for heading in headings)


def test_whole_rows_keep_their_inner_separators(rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = open_rows(rows_folder / "train")
    several = int(np.argmax(rows.fetch(np.arange(len(rows))).segments_BL.max(axis=1)))
    texts = int(rows.fetch(np.array([several])).segments_BL.max())
    [(heading, [line])] = shown(capsys, rows_folder, "--count", 1, "--first", several, "--pairing", "full-sentences")
    assert texts > 1 and f"row {several}, {texts} texts as one sequence" in heading
    inner = line.removesuffix("|[SEP]|")
    assert inner.count("[SEP]") == texts - 1


def test_tags_are_bracketed(tagged_rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = open_rows(tagged_rows_folder / "train")
    both = shown(capsys, tagged_rows_folder, "--count", 4)
    one = shown(capsys, tagged_rows_folder, "--count", 4, "--masking", "tagged", "--masking.tag", "noun_phrases")
    batch = feed(rows, FeedSpec(0, 4, TaggedSpans(tag="noun_phrases")))
    lines = [line for _, lines in one for line in lines]
    for line, (row, segment) in zip(lines, blocks_of(batch), strict=True):
        places = np.flatnonzero(batch["segments_BL"][row] == segment)
        check_block(re.sub("[⟨⟩]", "", line), rows, batch, row, places)
    phrases = [re.sub(r"[|«]| → .*?»", "", each) for line in lines for each in re.findall("⟨(.*?)⟩", line)]
    assert phrases and all(phrase.startswith("the ") for phrase in phrases), phrases
    text = "".join(line for _, lines in both for line in lines)
    assert "⟨" in text and "⟦the " in text and text.count("⟨") == text.count("⟩") and text.count("⟦") == text.count("⟧")


def test_seed_epoch_and_settings_change_the_masks(
    rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [rows_folder / "validation", "--count", 1]
    plain = shown(capsys, *line)
    assert shown(capsys, rows_folder / "validation", "--count", 1) == plain
    for more in (["--seed", 1], ["--epoch", 1], ["--masking.rate", 0.3], ["--boundaries.max-offset", 1]):
        changed = shown(capsys, *line, *more)
        assert changed != plain and parsed(changed[0][1][0]).text == parsed(plain[0][1][0]).text
    schedule = ["--masking.schedule", 0, 0.05, 100, 0.5]
    few, some, many = (shown(capsys, *line, *schedule, "--step", step)[0][0] for step in (0, 50, 100))
    assert " masked (5." in few and " masked (2" in some and " masked (50." in many


def test_masking_of_a_config(rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", ROOT / "configs" / "pretrain" / "spanbert_base_as_released.py"]
    released = shown(capsys, rows_folder, "--masking", "as-released")
    assert shown(capsys, rows_folder, *config) == released
    changed = shown(capsys, rows_folder, *config, "--masking.rate", 0.4)
    assert changed == shown(capsys, rows_folder, "--masking", "as-released", "--masking.rate", 0.4) != released
    assert shown(capsys, rows_folder, *config, "--masking", "tokens") == shown(
        capsys, rows_folder, "--masking", "tokens"
    )


def test_released_code_has_no_special_token_as_a_boundary(
    rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, some in (("geometric", True), ("as-released", False)):
        blocks = shown(capsys, rows_folder, "--count", 60, "--masking", name)
        assert any("|[CLS]|" in line or "|[SEP]|" in line for _, lines in blocks for line in lines) == some


def test_colours_change_no_word(rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = shown(capsys, rows_folder)
    assert shown(capsys, rows_folder, "--color", "never") == plain and "\x1b" not in str(plain)
    assert prepare(["show", str(rows_folder), "--color", "always"]) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[1;31m[MASK]" in coloured
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert bare.split("\n\n")[1:] == ["\n".join([heading, *lines]) for heading, lines in plain[:-1]] + [
        "\n".join([plain[-1][0], *plain[-1][1], ""])
    ]


def test_everything_wrong_is_told_at_once(rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = len(open_rows(rows_folder / "train"))
    capsys.readouterr()
    line = ["show", str(rows_folder), "--masking", "tagged", "--count", str(rows + 1), "--seed", "-1", "--epoch", "-2"]
    assert prepare(line) == 2
    told = capsys.readouterr().err
    for words in ("seed is -1", "--epoch is -2", f"--count {rows + 1}: there are {rows:,} rows"):
        assert words in told, words
    assert prepare(["show", str(rows_folder), "--masking", "tagged", "--first", str(rows)]) == 2
    told = capsys.readouterr().err
    assert "the tags 'entities', the rows have none" in told and f"--first {rows}: expected 0 to {rows - 1:,}" in told
    assert prepare(["show", str(rows_folder / "absent"), "--count", "0"]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert prepare(["show", str(rows_folder), "--config", "absent.py"]) == 2
    assert "--config absent.py: no such file" in capsys.readouterr().err


def test_show_imports_no_large_libraries(rows_folder: pathlib.Path) -> None:
    code = (
        "import sys; from spanjax.prepare import main; main(sys.argv[1:]);"
        "sys.exit(bool({'jax', 'tensorflow', 'seqio', 'matplotlib'} & {*sys.modules}))"
    )
    for command in ("show", "stats"):
        line = [sys.executable, "-c", code, command, str(rows_folder)]
        assert subprocess.run(line, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0, command
