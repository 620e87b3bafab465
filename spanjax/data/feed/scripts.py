"""Scripts that write no blanks between words: there every piece is a word of its own, for want of a better answer.

Without this a Chinese sentence would be one word for a vocabulary that knows words by the blank before them, no budget would
have room for it, and nothing would be masked.
"""

import bisect
import unicodedata

_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai and Lao, Tibetan, Myanmar, Khmer
    *((0x1950, 0x19FF), (0x1A20, 0x1AAF)),  # Tai Le, New Tai Lue, Khmer symbols; Tai Tham
    *(
        (0x2E80, 0x2FDF),
        (0x2FF0, 0x30FF),
        (0x3100, 0x312F),
        (0x31A0, 0xA4CF),
    ),  # CJK, kana, Bopomofo, Yi; no Hangul letters
    *((0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0xFE30, 0xFE4F)),  # Myanmar extended, CJK compatibility
    *((0xFF00, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF)),  # full-width forms, kana supplement, CJK extensions
)
_FIRST = [first for first, _ in _UNSPACED]
_CJK_LEAD_BYTES = range(0xE3, 0xEA)  # the first byte of U+3000 ... U+9FFF in UTF-8


def begins_unspaced(text: str) -> bool:
    """Whether the first character is of a script without blanks between words, and no mark that combines with another."""
    if not text:
        return False
    code = ord(text[0])
    place = bisect.bisect_right(_FIRST, code) - 1
    return place >= 0 and code <= _UNSPACED[place][1] and not unicodedata.category(text[0]).startswith("M")


def bytes_begin_unspaced(content: bytes) -> bool:
    """The same of the UTF-8 bytes of a piece, which may end inside a character: for part of one, whether it may be CJK."""
    text = content.decode("utf-8", "ignore")
    if content and content[0] in _CJK_LEAD_BYTES:
        return True
    return bool(content) and begins_unspaced(text) and text[0].encode() == content[: len(text[0].encode())]
