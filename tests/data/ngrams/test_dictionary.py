"""Words, the file of a dictionary, and look-up."""

import io
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.ngrams.dictionary import (
    Ngram,
    NgramDictionary,
    NgramSettings,
    find_words,
    is_punctuation,
    read_ngrams,
    split_words,
    write_ngrams,
)
from spanjax.data.sources.cleaning import clean

pytestmark = pytest.mark.unit

APART, ATTACHED = NgramSettings(), NgramSettings(punctuation="attached")


def write(path: pathlib.Path, ngrams: list[Ngram], rules: NgramSettings = APART) -> pathlib.Path:
    with open(path, "wb") as file:
        write_ngrams(file, rules, ngrams)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. Army's (well-known) 1,000 men.", "the u.s . army's ( well-known ) 1,000 men ."),
        ("“Don’t!” — he said...", "“ don’t ! ” — he said . . ."),
        ("a  b\tc $5 C++ @-@", "a b c $ 5 c + + @ - @"),
        ("हिन्दी। Straße", "हिन्दी । straße"),
    ],
)
def test_words_and_their_places(text: str, words: str) -> None:
    assert split_words(text, APART) == words.split()
    assert split_words(text, ATTACHED) == text.lower().split()
    cased = find_words(text, NgramSettings(lower_case=False))
    for word, start in zip(cased.words, cased.start_W.tolist(), strict=True):
        assert text[start : start + len(word)] == word


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters() | st.sampled_from("ΑΣß İ.'“( "), max_size=30), st.sampled_from([APART, ATTACHED]))
def test_both_ways_to_words_agree(text: str, rules: NgramSettings) -> None:
    text = clean(text)
    found = find_words(text, rules)
    assert found.words == split_words(text, rules)
    assert found.start_W.dtype == np.int32 and (np.diff(found.start_W) > 0).all()
    assert "".join("".join(split_words(text, rules)).split()) == "".join(text.lower().split())


def test_punctuation_is_a_word_of_marks_alone() -> None:
    assert [word for word in ("...", "–", "$", "a.", "<unk>", "@-@", "5") if is_punctuation(word)] == [
        "...",
        "–",
        "$",
        "@-@",
    ]


WORD = st.sampled_from("abcd")
NGRAMS = st.sets(st.lists(WORD, min_size=2, max_size=5).map(tuple), max_size=30)


@settings(max_examples=150, deadline=None)
@given(NGRAMS, st.lists(WORD | st.just("z"), max_size=20))
def test_matches_are_those_of_a_set(ngrams: set[tuple[str, ...]], words: list[str]) -> None:
    dictionary = NgramDictionary(sorted(ngrams), APART)
    matched_WN = dictionary.matches([word.upper() for word in words])
    expected = [
        [n == 1 or (len(words) - place >= n and tuple(words[place : place + n]) in ngrams) for n in range(1, 6)]
        for place in range(len(words))
    ]
    assert matched_WN.tolist() == expected and matched_WN.shape == (len(words), 5)
    assert len(dictionary) == len(ngrams) and all(ngram in dictionary for ngram in ngrams)
    for ngram in ngrams:
        assert (ngram[:-1] in dictionary) == (ngram[:-1] in ngrams)


def test_case_counts_where_the_settings_say_so() -> None:
    cased = NgramDictionary([("New", "York")], NgramSettings(lower_case=False))
    assert ("New", "York") in cased and ("new", "york") not in cased
    assert ("NEW", "York") in NgramDictionary([("new", "york")], APART)


def test_file_is_read_as_written_and_smaller_sizes_are_its_first_lines(tmp_path: pathlib.Path) -> None:
    rules = NgramSettings(most_words=3, more_than=1, lower_case=False, punctuation="attached")
    ngrams = [Ngram(("a", "b"), 9), Ngram(("#", "n-grams", "x"), 5), Ngram(("ß", "b"), 2)]
    path = write(tmp_path / "d.txt", ngrams, rules)
    assert path.read_text("utf-8").splitlines()[1] == "a b\t9"
    dictionary = read_ngrams(path)
    assert dictionary.settings == rules and len(dictionary) == 3
    assert all(ngram.words in dictionary for ngram in ngrams)
    smaller = read_ngrams(path, most=2)
    assert [ngram.words in smaller for ngram in ngrams] == [True, True, False]


def test_everything_wrong_with_a_file_is_told_at_once(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "d.txt", [Ngram(("a", "b"), 1)])
    with open(path, "ab") as file:
        file.write(b"a b\t2\nc d 3\nc\t4\nc  d\t5\n")
    with pytest.raises(ValueError) as error:
        read_ngrams(path)
    told = str(error.value)
    parts = ("d.txt:3: this n-gram stands", "d.txt:4: 'c d 3'", "d.txt:5: 1 word(s), expected 2 to 5", "d.txt:6: 'c  d")
    assert all(part in told for part in parts), told
    with open(path, "ab") as file:
        file.write(b"x y\t1 \xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_ngrams(path)
    with pytest.raises(ValueError, match="no such file; expected what"):
        read_ngrams(tmp_path / "absent")


@pytest.mark.parametrize(
    "header",
    ["a b\t3", "# n-grams [", "# n-grams {}", "# n-grams []", '# n-grams {"version": 2}'],
)
def test_a_wrong_first_line_is_told(header: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "d.txt").write_text(header + "\na b\t3\n")
    with pytest.raises(ValueError, match=r"d\.txt:1: expected `# n-grams \{settings\}` of version 1"):
        read_ngrams(tmp_path / "d.txt")


def test_settings_of_a_header_are_checked(tmp_path: pathlib.Path) -> None:
    file = io.BytesIO()
    write_ngrams(file, NgramSettings(most_words=1), [])
    (tmp_path / "d.txt").write_bytes(file.getvalue())
    with pytest.raises(ValueError, match="most_words is 1: expected at least 2 and at most 16"):
        read_ngrams(tmp_path / "d.txt")
    (tmp_path / "d.txt").write_bytes(file.getvalue().replace(b'"lower_case": true', b'"lower_case": 1'))
    with pytest.raises(ValueError, match="wrong values of"):
        read_ngrams(tmp_path / "d.txt")
