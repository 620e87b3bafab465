"""Cleaning and sentence splitting by rules; nothing here is learnt or depends on a language's word spaces."""

import functools
import itertools
import re
import unicodedata

_ABBREVIATION_WORDS = """
mr mrs ms dr prof sr jr st rev gen col lt capt sgt gov sen rep hon pres no nos vol vols fig figs eq eqs sec ch pp ed eds
vs cf al ca approx inc ltd co corp dept univ jan feb mar apr jun jul aug sep sept oct nov dec e.g i.e eg ie u.s u.k a.m
p.m viz resp
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_WORDS.split())
_CLOSING = "\"'”’»)\\]」』】）"
_OPENING = "\"'“‘«([¿¡「『【（"
_END = re.compile(rf"[.!?…]+[{_CLOSING}]*\s+|[。！？｡]+[{_CLOSING}]*\s*")
_LAST_WORD = re.compile(r"[\w.]+$")


@functools.cache
def _marks() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    kinds: dict[str, list[int]] = {}
    for code in itertools.chain(range(0xD800), range(0xF900, 0x20000), range(0xE0000, 0xE1000)):  # the others have none
        kinds.setdefault(unicodedata.category(chr(code)), []).append(code)

    def pattern(names: str, without: str = "") -> re.Pattern[str]:
        codes = sorted(code for name in names.split() for code in kinds[name] if chr(code) not in without)
        ranges: list[list[int]] = []
        for code in codes:
            if ranges and code == ranges[-1][1] + 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
        return re.compile("[" + "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges) + "]")

    removed = pattern("Cf").pattern[:-1] + "\ud800-\uf8ff\U000f0000-\U0010ffff]"  # with surrogates and private use
    return pattern("Zl Zp"), pattern("Cc Zs", "\n\t "), re.compile(removed)


def clean(text: str) -> str:
    """The text as every tokenizer here reads it; all text goes through this once, and only here is it changed.

    Line and paragraph separators become newlines. Control characters other than newline and tab, and every space that
    is not U+0020 (U+00A0, say), become a space. Format characters (zero-width spaces and joiners, byte order marks,
    soft hyphens), lone surrogates and private-use characters are removed. There is no Unicode normalisation.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    newlines, spaces, removed = _marks()
    return removed.sub("", spaces.sub(" ", newlines.sub("\n", text)))


def _splits(line: str, end: re.Match[str]) -> bool:
    following = line[end.end()] if end.end() < len(line) else ""
    if not following or end.group()[0] in "。！？｡":
        return True
    if not (
        following.isupper()
        or following.isdigit()
        or following in _OPENING
        or following.isalpha()
        and not following.islower()
    ):
        return False
    if not end.group().rstrip().endswith(".") or end.group().startswith(".."):
        return True
    word = _LAST_WORD.search(line, max(0, end.start() - 20), end.start())
    if word is None:
        return True
    last = word.group().lower()
    return last not in _ABBREVIATIONS and not (len(last) == 1 and word.group().isupper())


def sentences(text: str) -> list[str]:
    """Sentences of cleaned text, without surrounding blanks, none empty.

    A newline always ends one. Inside a line one ends after . ! ? or … (and closing quotes or brackets) before a blank
    and an uppercase letter, a letter without case, a digit or an opening quote, unless an abbreviation or an initial
    stands before the full stop; and after 。！？ anywhere.
    """
    found = []
    for line in text.split("\n"):
        start = 0
        for end in _END.finditer(line):
            if _splits(line, end):
                found.append(line[start : end.end()].strip())
                start = end.end()
        found.append(line[start:].strip())
    return [sentence for sentence in found if sentence]
