"""Sentences: where they end, in many scripts, and where they are in the text."""

import collections
import hashlib
import pathlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data import sources
from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import SourceSettings
from spanjax.data.sources.sentences import ABBREVIATIONS, sentence_spans, sentences, spans_of_texts

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? four", ["One.", "Two!", "Three? four"]),
        ("Dr. Smith met J. Doe, e.g. Tom. He left.", ["Dr. Smith met J. Doe, e.g. Tom.", "He left."]),
        ('He said "Hi." Then (it ended.) 3 came.', ['He said "Hi."', "Then (it ended.)", "3 came."]),
        ("no stop\nhere\n\n", ["no stop", "here"]),
        ("B\n. B", ["B", ".", "B"]),
        ("version 3.5 is out... Wait", ["version 3.5 is out...", "Wait"]),
        ("Он ушёл. Она тоже.", ["Он ушёл.", "Она тоже."]),
        ("  ", []),
        ("我来了。你呢？「好。」走", ["我来了。", "你呢？", "「好。」", "走"]),
        ("今日は。元気！？はい｡", ["今日は。", "元気！？", "はい｡"]),
        ("今日は晴れ\n明日は雨", ["今日は晴れ", "明日は雨"]),
        ("هل جاء أحمد؟ نعم. ذهب!", ["هل جاء أحمد؟", "نعم.", "ذهب!"]),
        ("بلغ 3.5 مليون، تقريبا", ["بلغ 3.5 مليون، تقريبا"]),
        ("وہ آیا۔ میں گیا۔", ["وہ آیا۔", "میں گیا۔"]),
        ("वह आया। मैं गया।क्या? हाँ॥", ["वह आया।", "मैं गया।", "क्या?", "हाँ॥"]),
        ("ภาษาไทยไม่มี จุดจบประโยค เลย", ["ภาษาไทยไม่มี จุดจบประโยค เลย"]),
        ("Նա եկավ։ Ես գնացի։", ["Նա եկավ։", "Ես գնացի։"]),
        ("ሰላም። ደህና፧", ["ሰላም።", "ደህና፧"]),
        ("x" * 100_000, ["x" * 100_000]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(clean(text)) == expected


@given(st.text(st.sampled_from("aB1 .!?…。؟।\n\t\u3000\x85\"')」é")))
def test_spans_are_in_order_without_blanks_and_cover_every_word(text: str) -> None:
    spans = sentence_spans(text)
    assert [text[start:end] for start, end in spans] == sentences(text)
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    places = [place for span in spans for place in span]
    assert places == sorted(places)
    covered = {place for start, end in spans for place in range(start, end)}
    assert all(letter.isspace() for place, letter in enumerate(text) if place not in covered)


@given(st.lists(st.text(st.sampled_from("aB. 。!")), max_size=5))
def test_lines_are_split_on_their_own(lines: list[str]) -> None:
    assert sentences("\n".join(lines)) == [sentence for line in lines for sentence in sentences(line)]


LETTERS = "aB1 .!?…。؟।\n\t\u3000\x85\"')」éK\u212aİǅ_.drDr\U0001f600\ud800"


@given(st.lists(st.text(st.sampled_from(LETTERS) | st.characters()), max_size=4))
def test_the_compiled_loop_has_the_same_rules(texts: list[str]) -> None:
    """Behind texts so long that the loop runs: abbreviations, initials, quotes and letters of any script."""
    many = [
        *texts,
        *(f"{word}. {word.capitalize()} {text}" for text in texts for word in ("dr", "i.e", "u.\u212a", "x")),
    ]
    expected = [sentence_spans(text) for text in many]
    assert spans_of_texts([*many, "x" * 100_000])[:-1] == expected


@pytest.mark.parametrize("mark", [*"abcdefghijklmnopqrstuvwxyz", "", "ſ", "K", "_", "é"])
def test_the_compiled_loop_knows_every_abbreviation(mark: str) -> None:
    words = {mark + word for word in ABBREVIATIONS} | {mark}
    text = " ".join(
        f"{word}. And {word.upper()}. {word}! No. {word}.. Or {word}!. And {word}..! So" for word in sorted(words)
    )
    assert spans_of_texts([text, "x" * 100_000])[0] == sentence_spans(text)


def test_without_numba_the_plain_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sources, "sentence_kernels", raising=False)  # the package keeps what was imported
    monkeypatch.setitem(sys.modules, "spanjax.data.sources.sentence_kernels", None)
    assert spans_of_texts(["One. Two", "x" * 100_000]) == [[(0, 4), (5, 8)], [(0, 100_000)]]


def test_sentences_of_real_text_are_those_of_the_first_version(shared_data: pathlib.Path) -> None:
    """Hash and count are of version 0.1.0's sentences of the same files."""
    digest, count, texts = hashlib.sha256(), 0, []
    names = [str(shared_data / name) for name in ("wiki/validation.jsonl.gz", "wikipedia/validation.jsonl.xz")]
    for document in open_sources(names, SourceSettings()).documents(collections.Counter()):
        texts.append(clean(document.text))
        found = sentences(texts[-1])
        count += len(found)
        digest.update("\n".join(found).encode() + b"\n\n")
    assert (count, digest.hexdigest()) == (20_011, "f9a4603fdb691a73075f42d29b3f5157aef163c56febcf7d8a476d6ef116533a")
    assert spans_of_texts(texts) == [sentence_spans(text) for text in texts]
