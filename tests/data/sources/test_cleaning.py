"""Cleaning: what it removes and keeps, that it is done once, and where spans go."""

import collections
import itertools
import pathlib
import sys
import unicodedata
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spanjax.data.sources.cleaning import Cleaning, Normalization, clean
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import NO_SPANS, SourceSettings

FORMS: tuple[Normalization, ...] = ("none", "nfc", "nfkc")
NAMES: dict[str, Literal["NFC", "NFKC"]] = {"nfc": "NFC", "nfkc": "NFKC"}
ZWNJ, ZWJ = "\u200c", "\u200d"
PERSIAN, SINHALA, MALAYALAM = f"می{ZWNJ}خواهم", f"ශ්{ZWJ}රී", f"അവന്{ZWJ}"
HARD = st.text(
    st.one_of(
        st.sampled_from("ae\u0301\u0327\u093c\u0915\u094d\u0628\u06cc \n\t\r\u2028\u00a0\u200b\ufeff\ue000\ud800\ufdfa\ufe70"),
        st.sampled_from([ZWNJ, ZWJ, "\u1100", "\u1161", "\u11a8", "\uac00", "\uff76", "\uff9e", "\u2126", "\u0958", "ﬁ"]),
        st.characters(),
    )
)  # fmt: skip


def test_every_character_that_is_removed_or_replaced() -> None:
    assert clean("a\u200bb\ufeff\u00a0c\x07d\ud800e\ue000\u2028f\u3000g\tz\n\u00ad") == "ab c de\nf g\tz\n"
    assert clean("plain ASCII\n\ttext") == "plain ASCII\n\ttext" and clean("é e\u0301") == "é e\u0301"
    for code in range(sys.maxunicode + 1):
        category, letter = unicodedata.category(chr(code)), chr(code)
        if category == "Cn":
            continue
        if category in ("Cf", "Cs", "Co"):
            expected = ""
        elif category in ("Zl", "Zp"):
            expected = "\n"
        else:
            expected = " " if category in ("Cc", "Zs") and letter not in "\n\t" else letter
        assert clean(letter) == expected, hex(code)


@pytest.mark.parametrize("form", ["nfc", "nfkc"])
def test_no_normal_form_brings_back_what_was_removed(form: Normalization) -> None:
    for code in itertools.chain(range(0xD800), range(0xE000, 0x32000)):
        letter = Cleaning(form)(chr(code))
        assert letter == unicodedata.normalize(NAMES[form], clean(chr(code))) == clean(letter), hex(code)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PERSIAN, PERSIAN),
        (SINHALA, SINHALA),
        (MALAYALAM + " " + MALAYALAM, MALAYALAM + " " + MALAYALAM),
        (f"م{ZWNJ}{ZWNJ}{ZWJ}ی", f"م{ZWNJ}ی"),
        (f"م{ZWNJ}\u200bی", f"م{ZWNJ}ی"),
        (f"م{ZWNJ} ی{ZWNJ}", "م ی"),
        (f"{ZWNJ}م{ZWJ}a{ZWNJ}ب", f"م{ZWJ}aب"),
        (f"Auf{ZWNJ}lage a{ZWJ}b", "Auflage ab"),
        ("\U0001f469\u200d\U0001f467", "\U0001f469\U0001f467"),
        (f"١{ZWNJ}٢ ।{ZWJ}", "١٢ ।"),
    ],
)
def test_joiners_stay_where_words_are_spelt_with_them(text: str, expected: str) -> None:
    assert clean(text) == expected and clean(expected) == expected
    assert Cleaning(keep_joiners=False)(text) == expected.replace(ZWNJ, "").replace(ZWJ, "")


def test_wordpiece_ids_do_not_depend_on_joiners() -> None:
    from tokenizers import normalizers

    normalizer = normalizers.BertNormalizer(lowercase=False)
    without = Cleaning(keep_joiners=False)
    for text in (PERSIAN, SINHALA, MALAYALAM):
        assert normalizer.normalize_str(clean(text)) == normalizer.normalize_str(without(text))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [True, False])
@given(text=HARD)
@example(text="\u092c\u0301\u093c\u200d")  # a normal form puts the accent last, and the joiner does not follow a letter
@example(text="\u0915\u0301\u093c\u200d\u0327")  # and then the cedilla comes before the accent
@example(text="\u0628\u200c\ufe70")
@example(text="e\u200b\u0301")
def test_what_is_clean_stays_as_it_is(form: Normalization, keep: bool, text: str) -> None:
    cleaning = Cleaning(form, keep)
    once = cleaning(text)
    assert cleaning(once) == once
    assert form == "none" or unicodedata.is_normalized(NAMES[form], once)


@pytest.mark.parametrize("form", FORMS)
@given(text=HARD, data=st.data())
def test_spans_move_along(form: Normalization, text: str, data: st.DataObject) -> None:
    cleaning = Cleaning(form)
    ends = st.integers(0, len(text))
    pairs = data.draw(st.lists(st.tuples(ends, ends).map(sorted).filter(lambda pair: pair[0] < pair[1])))
    spans = {"one": tuple((start, end) for start, end in pairs), "all": ((0, len(text)),) if text else ()}
    cleaned, moved = cleaning.with_spans(text, spans)
    assert cleaned == cleaning(text) and list(moved) == ["one", "all"]
    assert moved["all"] == (((0, len(cleaned)),) if cleaned else ())
    if form == "none" and ZWNJ not in text and ZWJ not in text:  # every character is cleaned on its own
        parts = [(len(cleaning(text[:start])), len(cleaning(text[start:end]))) for start, end in spans["one"]]
        assert moved["one"] == tuple((before, before + length) for before, length in parts if length)
    assert all(0 <= start < end <= len(cleaned) for start, end in moved["one"])


@pytest.mark.parametrize(
    ("form", "text", "span", "expected"),
    [
        ("none", "\ufeffTom\u200b\u00a0Fox \ue000", "Tom\u200b\u00a0Fox", "Tom Fox"),
        ("none", f"x {PERSIAN}\u200b y", PERSIAN, PERSIAN),
        ("none", "a \u200b b", "\u200b", None),
        ("none", f"م{ZWNJ}{ZWNJ}ی", f"م{ZWNJ}", f"م{ZWNJ}"),
        ("nfc", "e\u0301 Cafe\u0301s x", "Cafe\u0301s", "Cafés"),
        ("nfc", "e\u0301 Cafe\u0301s x", "Cafe", "Café"),
        ("nfc", "e\u0301 Cafe\u0301s x", "\u0301s", "s"),
        ("nfc", "e\u0301 Cafe\u0301s x", "\u0301 ", " "),
        ("nfkc", "… ﬁne \uff76\uff9e x", "ﬁne", "fine"),
        ("nfkc", "… ﬁne \uff76\uff9e x", "\uff76\uff9e", "ガ"),
        ("nfkc", "\u1100\u1161\u11a8 x", "\u1100\u1161\u11a8", "각"),
        ("nfc", "\u1100\u1161\u11a8 x", "\u1100", "각"),
        ("nfc", "\u09c7\u09be x", "\u09c7", "\u09cb"),
    ],
)
def test_spans_hold_the_same_words(form: Normalization, text: str, span: str, expected: str | None) -> None:
    start = text.index(span)
    cleaned, moved = Cleaning(form).with_spans(text, {"a": [(start, start + len(span))]})
    assert cleaned == Cleaning(form)(text)
    assert [cleaned[start:end] for start, end in moved["a"]] == ([] if expected is None else [expected])


def test_no_spans_cost_nothing() -> None:
    assert Cleaning("nfc").with_spans("e\u0301\u200b", {}) == ("é", NO_SPANS)


@pytest.mark.parametrize("form", FORMS)
def test_spans_of_real_words_hold_these_words(shared_data: pathlib.Path, form: Normalization) -> None:
    cleaning = Cleaning(form)
    source = open_sources([str(shared_data / "wiki" / "validation.jsonl.gz")], SourceSettings())
    for document in itertools.islice(source.documents(collections.Counter()), 40):
        text = "\u200b".join(document.text.replace(" ", "\u00a0 \u00ad"))[:20_000]
        words = [(place, place + 9) for place in range(0, len(text) - 9, 31)]
        cleaned, moved = cleaning.with_spans(text, {"words": words})
        assert [cleaned[start:end] for start, end in moved["words"]] == [
            word for start, end in words if (word := cleaning(text[start:end]))
        ]
