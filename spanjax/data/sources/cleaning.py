"""The one place where text is changed before it is split into sentences and tokens. Every rule, in this order:

1. Line and paragraph separators (U+2028, U+2029) become newlines.
2. Control characters other than newline and tab, and every space that is not U+0020 (U+00A0, say), become a space.
3. Format characters (zero-width spaces, byte order marks, soft hyphens, marks of direction), lone surrogates and private-use
   characters are removed; joiners are not, see 4.
4. The zero-width non-joiner U+200C stays between two letters, and the joiner U+200D after a letter, of scripts that spell
   with them: Arabic and its like, the Indic scripts, Myanmar, Khmer, Mongolian, ... (Persian writes suffixes after a
   non-joiner, Sinhala and Malayalam letters are made with joiners.) Of several in a row one stays. All others (inside of
   emoji, between Latin letters) are removed, and with `keep_joiners=False` these too.
5. Unicode normalisation, if requested: NFC, or NFKC, which also turns full-width forms, ligatures and the like into
   plain letters.

Cleaning a text that is clean changes nothing. Letters are never changed without 5: no case, no accents, no quotes.

For English and other Latin text rules 1 to 4 leave what BERT's own cleaning leaves, so that ids are those of the published
vocabularies. The joiners of rule 4 are the exception. BERT's WordPiece removes them itself, so that its ids are the same
either way; tf_text's normaliser puts a blank in their place, which is why `vocab.seqio` removes them first; SentencePiece
and byte-level vocabularies see them, as they do in raw text. NFC and NFKC change the ids of text that was not normalised: a
vocabulary should see the policy it was trained with.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from spanjax.data.sources.documents import NO_SPANS, Spans

Normalization = Literal["none", "nfc", "nfkc"]
_JOINER_BLOCKS = (  # scripts that write with joiners; presentation forms are not letters that join
    *((0x0600, 0x08FF), (0x0900, 0x0DFF), (0x1000, 0x109F), (0x1780, 0x18AF), (0x1A20, 0x1AAF), (0x1B00, 0x1C4F)),
    *((0x1CD0, 0x1CFF), (0xA800, 0xA8FF), (0xA930, 0xA9FF), (0xAA00, 0xAADF), (0xAAE0, 0xAAFF), (0xABC0, 0xABFF)),
    *((0x10A00, 0x10AFF), (0x10D00, 0x10FFF), (0x11000, 0x11FFF), (0x1E900, 0x1E95F)),
)
_Positions = Sequence[int]


def code_ranges(codes: Iterable[int]) -> list[list[int]]:
    """First and last of every run of consecutive codes, which rise."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def _class(codes: Iterable[int]) -> str:
    """The inside of a character class of a regular expression."""
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in code_ranges(codes))


@dataclasses.dataclass(frozen=True)
class _Marks:
    newlines: re.Pattern[str]
    spaces: re.Pattern[str]
    removed: re.Pattern[str]
    joiners: re.Pattern[str]  # groups: the joiner that stays of a run


@functools.cache
def _marks() -> _Marks:
    kinds: dict[str, list[int]] = {}
    for code in itertools.chain(range(0xD800), range(0xF900, 0x20000), range(0xE0000, 0xE1000)):  # the others have none
        kinds.setdefault(unicodedata.category(chr(code)), []).append(code)
    formats = [code for code in kinds["Cf"] if code not in (0x200C, 0x200D)]
    blanks = [code for code in kinds["Cc"] + kinds["Zs"] if chr(code) not in "\n\t "]
    letters = _class(
        [
            code
            for first, last in _JOINER_BLOCKS
            for code in range(first, last + 1)
            if unicodedata.category(chr(code))[0] in "LM"
        ]
    )
    return _Marks(
        re.compile(f"[{_class(kinds['Zl'] + kinds['Zp'])}]"),
        re.compile(f"[{_class(blanks)}]"),
        re.compile(f"[{_class(formats)}\ud800-\uf8ff\U000f0000-\U0010ffff]"),
        re.compile(
            rf"(?<=[{letters}])(\u200c)[\u200c\u200d]*(?=[{letters}])"
            rf"|(?<=[{letters}])\u200c*(\u200d)[\u200c\u200d]*|[\u200c\u200d]+"
        ),
    )


@functools.cache
def _starts(form: Literal["NFC", "NFKC"]) -> re.Pattern[str]:
    """Pattern of characters before which text can be cut and normalised in two parts: they join with nothing before them."""
    seconds = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # of Hangul syllables
    for code in range(0xC0, 0x20000):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(int(parts[1], 16))
    decomposed: Literal["NFD", "NFKD"] = "NFD" if form == "NFC" else "NFKD"
    joining = []
    for code in range(0x300, 0x20000):
        first = unicodedata.normalize(decomposed, chr(code))[0]
        if unicodedata.combining(first) or ord(first) in seconds:
            joining.append(code)
    return re.compile(f"[^{_class(joining)}]")


def _replaced(text: str, pattern: re.Pattern[str], at: _Positions) -> tuple[str, _Positions]:
    """Reduces every match to its groups; positions, which are in order, move along."""
    if not at:
        return pattern.sub(lambda found: "".join(filter(None, found.groups())), text), at
    pieces, moved, end, length = [], [], 0, 0
    waiting = iter(at)
    place = next(waiting, None)
    for found in pattern.finditer(text):
        kept = "".join(filter(None, found.groups()))
        while place is not None and place < found.end():
            moved.append(length + min(place, found.start()) - end + min(max(place - found.start(), 0), len(kept)))
            place = next(waiting, None)
        pieces += (text[end : found.start()], kept)
        length += found.start() - end + len(kept)
        end = found.end()
    while place is not None:
        moved.append(length + place - end)
        place = next(waiting, None)
    return "".join([*pieces, text[end:]]), moved


def _normalized(text: str, form: Literal["NFC", "NFKC"], at: _Positions) -> tuple[str, _Positions]:
    """Normalises; a position inside characters that become one letter moves behind it."""
    if not at:
        return unicodedata.normalize(form, text), at
    starts = _starts(form)
    found = [starts.search(text, place) for place in at]
    cuts = [start.start() if start else len(text) for start in found]
    pieces, moved, last, length = [], [], 0, 0
    for cut in cuts:
        pieces.append(unicodedata.normalize(form, text[last:cut]))
        length += len(pieces[-1])
        moved.append(length)
        last = cut
    return "".join([*pieces, unicodedata.normalize(form, text[last:])]), moved


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """The rules of this module, as a function of texts."""

    normalization: Normalization = "none"
    """Unicode normalisation: none, nfc or nfkc."""
    keep_joiners: bool = True
    """Keep zero-width joiners and non-joiners in scripts that spell with them."""

    def __call__(self, text: str) -> str:
        """The clean text."""
        return self._clean(text, ())[0]

    def with_spans(self, text: str, spans: Mapping[str, Sequence[tuple[int, int]]]) -> tuple[str, Spans]:
        """The clean text, and spans of `text` as spans of it; a span that becomes empty is dropped."""
        at = sorted({place for layer in spans.values() for span in layer for place in span})
        cleaned, moved = self._clean(text, at)
        if not spans:
            return cleaned, NO_SPANS
        place = dict(zip(at, moved, strict=True))
        return cleaned, {
            name: tuple((place[start], place[end]) for start, end in layer if place[start] < place[end])
            for name, layer in spans.items()
        }

    def _clean(self, text: str, at: _Positions) -> tuple[str, _Positions]:
        """The clean text, and the places in it of positions of the text, which are in order."""
        if not text.replace("\n", "").replace("\t", "").isprintable():  # what rules 1 to 4 change is not printable
            marks = _marks()
            text, at = _replaced(marks.spaces.sub(" ", marks.newlines.sub("\n", text)), marks.removed, at)
            text, at = self._joined(text, at)
        if self.normalization != "none":
            form = "NFC" if self.normalization == "nfc" else "NFKC"
            while not unicodedata.is_normalized(form, text):  # once; again where that took a joiner's letter away
                text, at = _normalized(text, form, at)
                text, at = self._joined(text, at)
        return text, at

    def _joined(self, text: str, at: _Positions) -> tuple[str, _Positions]:
        if "\u200c" not in text and "\u200d" not in text:
            return text, at
        return _replaced(text, _marks().joiners if self.keep_joiners else re.compile("[\u200c\u200d]"), at)


clean = Cleaning()
"""The text as every tokenizer here reads it, without Unicode normalisation."""
