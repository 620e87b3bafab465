"""prepare stats: every figure against a plain loop over the same batches; files; what is refused."""

import collections
import json
import pathlib
import re
import shutil
import struct
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.batch import Batch, FeedSpec
from spanjax.data.feed.feeds import numpy_feed
from spanjax.data.feed.masking import GeometricSpans, Ngrams, TaggedSpans
from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.inspect.as_text import original_tokens
from spanjax.data.shards.packing import SENTENCE_START, layer_tags
from spanjax.prepare import main as prepare
from spanjax.prepare.reading import MASKINGS, PAIRINGS
from spanjax.prepare.stats_tables import bar

ROOT = pathlib.Path(__file__).parents[2]


def figures(folder: pathlib.Path, tmp_path: pathlib.Path, *arguments: Any) -> dict[str, Any]:
    """What --json writes; as a rule of all rows."""
    file = tmp_path / "figures.json"
    assert prepare(["stats", str(folder), "--rows", "0", "--json", str(file), *map(str, arguments)]) == 0
    return json.loads(file.read_text())


def whole(rows: Rows, masking: str, pairing: str = "single") -> Batch:
    """All rows in one batch, as held-out evaluation reads them."""
    spec = FeedSpec(0, len(rows), *MASKINGS[masking], pairing=PAIRINGS[pairing])
    return next(iter(numpy_feed(rows, spec, held_out=True)))


def spans_of(batch: Batch, row: int) -> list[list[int]]:
    """The masked positions of a row, run by run."""
    spans: list[list[int]] = []
    for slot in np.flatnonzero(batch["slot_weight_BK"][row]):
        position = int(batch["slot_position_BK"][row, slot])
        if spans and spans[-1][-1] == position - 1:
            spans[-1].append(position)
        else:
            spans.append([position])
    return spans


def plain_figures(rows: Rows, batch: Batch, max_offset: int) -> dict[str, Any]:
    """The figures of single blocks, position by position."""
    specials, stored = rows.vocabulary.specials, rows.fetch(np.arange(len(rows)))
    counts: collections.Counter[str] = collections.Counter()
    words, tokens = collections.Counter(), collections.Counter()
    for row in range(len(rows)):
        original, seen = original_tokens(batch, row).tolist(), np.asarray(batch["tokens_BL"][row]).tolist()
        counts["text"] += sum(number not in specials[2:] and number != specials.pad for number in original)
        for span in spans_of(batch, row):
            starts = [
                place for place in span if stored.word_starts_BL[row, place] or original[place - 1] == specials.cls
            ]
            words[len(starts) + (span[0] not in starts)] += 1
            tokens[len(span)] += 1
            counts["edge"] += original[span[0] - 1] == specials.cls or original[span[-1] + 1] == specials.sep
            for offset, place in enumerate(span):
                kind = (
                    "mask" if seen[place] == specials.mask else "kept" if seen[place] == original[place] else "random"
                )
                counts[kind] += 1
                counts["first " + kind] += offset == 0
                counts["beyond"] += offset >= max_offset
    masked, spans = sum(size * count for size, count in tokens.items()), sum(tokens.values())
    return {
        "rows": len(rows),
        "text_tokens": counts["text"],
        "masked_tokens": masked,
        "masked_share": masked / counts["text"],
        "spans": spans,
        "spans_per_row": spans / len(rows),
        "tokens_per_span": masked / spans,
        "words_per_span": sum(size * count for size, count in words.items()) / spans,
        "span_words": [words[size] for size in range(max(words) + 1)],
        "span_tokens": [tokens[size] for size in range(max(tokens) + 1)],
        "seen_tokens": {kind: counts[kind] / masked for kind in ("mask", "random", "kept")},
        "seen_spans": {kind: counts[f"first {kind}"] / spans for kind in ("mask", "random", "kept")},
        "edge_share": counts["edge"] / spans,
        "beyond_share": counts["beyond"] / masked,
        "boundary_share": float(np.sum(batch["slot_boundary_weight_BK"]) / np.sum(batch["slot_weight_BK"])),
        "slots": batch["slot_weight_BK"].shape[1],
        "slots_used": masked / batch["slot_weight_BK"].size,
        "most_slots_used": int(batch["slot_weight_BK"].sum(axis=1).max()),
        "offsets": [sum(n for size, n in tokens.items() if size > offset) for offset in range(max(tokens))],
    }


@pytest.mark.parametrize("name", ["geometric", "tokens", "as-released"])
def test_masking_figures_are_those_of_a_plain_loop(
    name: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = rows_folder / ("train" if name == "geometric" else "validation")  # train is read in several parts
    rows, boundaries = open_rows(folder), MASKINGS[name][1]
    found = figures(folder, tmp_path, "--masking", name)["masking"]
    expected = plain_figures(rows, whole(rows, name), boundaries.max_offset)
    for key, value in expected.items():
        assert found[key] == pytest.approx(value), key
    assert found["every_token"] == (name == "tokens") and 0.9 < found["masked_share"] / found["budget_share"] <= 1
    assert found["beyond_share"] > 0 if name == "as-released" else found["boundary_share"] <= 1


def test_totals_and_lengths_are_those_of_the_rows(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = figures(rows_folder, tmp_path)
    rows = open_rows(rows_folder / "train")
    stored = rows.fetch(np.arange(len(rows)))
    assert found["measured"] == "train" and list(found["totals"]) == ["train", "validation"]
    for split in ("train", "validation"):
        manifest, totals = open_rows(rows_folder / split).manifest, found["totals"][split]
        assert totals["tokens_per_word"] == manifest.text_tokens / manifest.words
        assert (totals["documents"], totals["rows"], totals["fill"]) == (
            manifest.documents,
            manifest.rows,
            manifest.fill,
        )
        assert totals["blocks_per_row"] == manifest.blocks / manifest.rows and totals["unknown_share"] == 0
    blocks, documents = [], collections.Counter()
    for row in range(len(rows)):
        for segment in range(1, stored.segments_BL[row].max() + 1):
            blocks.append(int((stored.segments_BL[row] == segment).sum()) - 2)
            documents[int(rows.block_documents(np.array([row]), np.array([segment]))[0])] += blocks[-1]
    used = (stored.segments_BL > 0).sum(axis=1).tolist()
    for name, lengths in (("blocks", blocks), ("rows", used), ("documents", [*documents.values()])):
        told = found["lengths"][name]
        assert (told["count"], told["mean"]) == (len(lengths), pytest.approx(np.mean(lengths))), name
        assert told["quantiles"][::2] == [min(lengths), np.median(lengths), max(lengths)], name
        bins = list(zip(told["edges"], told["edges"][1:], strict=False))
        assert told["counts"] == [sum(low < length <= high for length in lengths) for low, high in bins], name
        assert sum(told["counts"]) == len(lengths)


def test_a_sample_is_of_so_many_rows_and_is_the_same_again(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    some = figures(rows_folder, tmp_path, "--rows", 60)
    assert some["masking"]["rows"] == 60 and some["lengths"]["documents"]["count"] == 60
    assert some["lengths"]["rows"]["count"] == len(open_rows(rows_folder / "train"))
    assert figures(rows_folder, tmp_path, "--rows", 60) == some
    assert figures(rows_folder, tmp_path, "--rows", 60, "--seed", 1)["lengths"] != some["lengths"]


def test_proposed_lengths_are_the_closed_form(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    settings = ["--masking.p", 0.3, "--masking.max-words", 4]
    found = figures(rows_folder, tmp_path, "--rows", 9, *settings)
    weights = np.array([0.3 * 0.7**n for n in range(4)])
    assert found["masking"]["proposed_words"] == pytest.approx([0, *(weights / weights.sum())])
    assert found["settings"]["masking"] | {"p": 0.3, "class": "GeometricSpans"} == found["settings"]["masking"]
    ngrams = figures(rows_folder, tmp_path, "--rows", 9, "--masking", "ngrams")["masking"]
    assert ngrams["proposed_words"] == pytest.approx([0, *Ngrams().length_distribution()])
    assert not ngrams["proposed_drawn"]


def test_tags_are_masked_more_often_by_the_masking_that_reads_them(
    tagged_rows_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    line = ["--masking", "tagged", "--masking.tag", "noun_phrases"]
    found = figures(tagged_rows_folder / "validation", tmp_path, *line)["masking"]
    rows = open_rows(tagged_rows_folder / "validation")
    spec = FeedSpec(0, len(rows), TaggedSpans(tag="noun_phrases"))
    batch, stored = next(iter(numpy_feed(rows, spec, held_out=True))), rows.fetch(np.arange(len(rows)))
    masked = [(row, place) for row in range(len(rows)) for span in spans_of(batch, row) for place in span]
    text = (stored.segments_BL > 0) & ~np.isin(stored.tokens_BL, rows.vocabulary.specials[2:])
    for layer, name in enumerate(rows.manifest.tags):
        inside = layer_tags(stored.flags_BL, layer) > 0
        assert found["tags"][name]["masked"] == pytest.approx(np.mean([inside[place] for place in masked])), name
        assert found["tags"][name]["text"] == pytest.approx(inside[text].mean()), name
    assert found["tags"]["noun_phrases"]["masked"] > 2 * found["tags"]["noun_phrases"]["text"]
    alone = figures(tagged_rows_folder, tmp_path, *line, "--masking.share", 1)["masking"]["proposed_words"]
    assert found["proposed_drawn"] and len(alone) == 4 and alone[2] + alone[3] > 0.9  # "the word" and "the word word"
    half = figures(tagged_rows_folder, tmp_path, *line)["masking"]["proposed_words"]
    assert half[2] + half[3] == pytest.approx((alone[2] + alone[3]) / 2, abs=0.02)


@pytest.mark.parametrize("name", ["next-sentence", "sentence-order"])
def test_pair_figures_are_those_of_a_plain_loop(name: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rows = open_rows(rows_folder / "validation")
    batch, stored = whole(rows, "geometric", name), rows.fetch(np.arange(len(rows)))
    found = figures(rows_folder / "validation", tmp_path, "--pairing", name)["pairs"]
    pairs, labels, foreign, a_tokens, b_tokens, kept = 0, 0, 0, 0, 0, 0
    for row in range(len(rows)):
        original = original_tokens(batch, row)
        text = ~np.isin(original, [rows.vocabulary.specials.cls, rows.vocabulary.specials.sep])
        for number in range(1, stored.segments_BL[row].max() + 1):
            here = text & (np.asarray(batch["segments_BL"][row]) == number)
            label, paired = batch["pair_label_BP"][row, number - 1], batch["pair_weight_BP"][row, number - 1]
            first, second = (int((here & (batch["types_BL"][row] == kind)).sum()) for kind in (0, 1))
            pairs, labels = pairs + int(paired), labels + int(label)
            a_tokens, b_tokens = a_tokens + first, b_tokens + second
            sentences = (stored.flags_BL[row] & SENTENCE_START)[stored.segments_BL[row] == number][2:].sum() + 1
            elsewhere = bool(label) and (name == "next-sentence" or sentences == 1)
            foreign += elsewhere
            kept += first if elsewhere else first + second
    assert (found["label"], found["pairs"]) == ("nsp" if name == "next-sentence" else "sop", pairs)
    assert found["label_share"] == pytest.approx(labels / pairs) and 0.3 < found["label_share"] < 0.7
    assert (found["first_tokens"], found["second_tokens"]) == (
        pytest.approx(a_tokens / pairs),
        pytest.approx(b_tokens / pairs),
    )
    assert found["kept_text"] == pytest.approx(kept / rows.manifest.text_tokens)
    assert found["foreign_share"] == pytest.approx(foreign / pairs) and found["unpaired_blocks"] == 0
    assert (found["foreign_text"] > 0.1) == (name == "next-sentence")


def test_single_sequences_have_no_pairs(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert figures(rows_folder, tmp_path, "--rows", 9)["pairs"] is None
    assert figures(rows_folder, tmp_path, "--rows", 9, "--pairing", "full-sentences")["pairs"] is None


def test_terminal_shows_both_distributions(rows_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert prepare(["stats", str(rows_folder), "--rows", "200"]) == 0
    plain = capsys.readouterr().out
    assert "proposed = the paper's Figure 2, mean 3.80" in plain and "measured, merged, mean" in plain
    paper = 100 * GeometricSpans().length_distribution()
    for words in range(1, 11):
        line = next(line for line in plain.splitlines() if re.match(rf" +{words}  ", line))
        assert f"{paper[words - 1]:.1f} %" in line
    assert "\x1b" not in plain and "WARNING" not in plain
    assert prepare(["stats", str(rows_folder), "--rows", "200", "--color", "always"]) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured and re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert prepare(["stats", str(rows_folder), "--rows", "50", "--masking", "whole-words"]) == 0
    told = capsys.readouterr().out
    assert "proposed, mean 1.00" in told and "the paper's Figure 2, mean 3.80" in told


def test_words_too_long_for_the_budget_are_told(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"]))
    (tmp_path / "text.txt").write_text("\n\n".join(["aaaaaaaaaaaaaaa aaaaaaaaaaaaa"] * 30))
    line = ["--input", tmp_path / "text.txt", "--vocab", tmp_path / "vocab.txt", "--length", 32, "--workers", 1]
    assert prepare([*map(str, line), "--output", str(tmp_path / "rows")]) == 0
    assert prepare(["stats", str(tmp_path / "rows")]) == 0
    told = capsys.readouterr().out
    assert "WARNING" in told and "--masking.cut exact" in told
    assert prepare(["stats", str(tmp_path / "rows"), "--masking.cut", "exact"]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_picture_is_a_png_of_sensible_size(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "stats.png"
    for masking in ("geometric", "tokens"):
        line = ["stats", str(rows_folder), "--rows", "50", "--masking", masking, "--png", str(file)]
        assert prepare(line) == 0
        content = file.read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and 1000 < width < 2000 and 800 < height < 2000
        assert 30_000 < len(content) < 500_000
        file.unlink()


def test_bars() -> None:
    assert [bar(share, 4) for share in (0, 0.001, 0.5, 1)] == ["", "▏", "██", "████"]
    assert bar(0.53, 4) == "██▏"


def test_everything_wrong_is_told_at_once(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    absent = tmp_path / "absent"
    line = ["--rows", "-1", "--png", "a.pdf", "--json", str(absent / "a.json"), "--masking", "tagged", "--step", "-1"]
    assert prepare(["stats", str(rows_folder), *line]) == 2
    told = capsys.readouterr().err
    for words in (
        "--rows -1",
        "a.pdf: expected a file that ends in .png",
        "absent/a.json: no such folder",
        "--step is -1",
    ):
        assert words in told, words
    assert "the tags 'entities', the rows have none" in told and "Traceback" not in told
    assert prepare(["stats", str(absent)]) == 2 and "no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        prepare(["stats", str(rows_folder), "--masking.p", "2"])
    assert stopped.value.code == 2 and "p is 2.0: expected more than 0" in capsys.readouterr().err


def random_blocks(file: pathlib.Path) -> None:
    np.save(file, np.random.default_rng(0).integers(0, 256, len(np.load(file))).astype(np.uint8))


def random_bytes(file: pathlib.Path) -> None:
    file.write_bytes(np.random.default_rng(0).integers(0, 256, file.stat().st_size).astype(np.uint8).tobytes())


def all_ones(file: pathlib.Path) -> None:
    file.write_bytes(b"\xff" * file.stat().st_size)


def long_header(file: pathlib.Path) -> None:
    with open(file, "wb") as made:
        np.lib.format.write_array_header_1_0(made, {"descr": "<u2", "fortran_order": False, "shape": (10**12,)})


def no_first_special(file: pathlib.Path) -> None:
    """A bit of the first token of every row, [CLS]: only masking notices, which names no file, and the checksum."""
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    content.reshape(-1, 128 * 4)[:, 0] ^= 64
    file.write_bytes(content.tobytes())


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rows-00000.bin", random_bytes),
        ("rows-00000.bin", all_ones),
        ("rows-00000.bin", no_first_special),
        ("blocks.npy", random_blocks),
        ("lengths.npy", long_header),
        ("documents.npy", random_bytes),
        ("unigram.npy", random_bytes),
    ],
)
@pytest.mark.parametrize(
    "command", [["stats"], ["show", "--pairing", "next-sentence", "--count", "40"]], ids=["stats", "show"]
)
def test_damaged_files_are_named(
    command: list[str],
    name: str,
    damage: Any,
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = pathlib.Path(shutil.copytree(rows_folder / "train", tmp_path / "rows"))
    file = rows / (next(rows.glob("rows-*.bin")).name if name.endswith(".bin") else name)
    damage(file)
    assert prepare([command[0], str(rows), *command[1:]]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith(f"{command[0]}: cannot read these rows:\n{file} is damaged (") and "copy the rows again" in said
    )
    assert said.count("\n") == 2
