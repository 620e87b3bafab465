"""WordPiece as compiled loops: text is cut into words, known words are looked up, new ones of ASCII letters and digits are split.

All other new words are only collected: `known_words` has `tokenizers` encode them, once each. Every look-up compares the
characters, not the hash alone, so that a collision costs time and nothing else.

Shapes: C characters of the texts, N texts, P words of the texts, X new words among them that are not ASCII, K words of a
table, T tokens.
"""

from typing import NamedTuple

import numpy as np

from spanjax.data.compiled import compiled

BLANK = np.uint32(32)
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a, a character at a time
_FOLDED = np.uint64(29)
_ZERO, _NINE, _LOWER_A, _LOWER_Z = np.uint32(48), np.uint32(57), np.uint32(97), np.uint32(122)
_UPPER_A, _UPPER_Z, _CASE, _ASCII = np.uint32(65), np.uint32(90), np.uint32(32), np.uint32(128)


class Table(NamedTuple):
    """Words with numbers 0, 1, ...: open addressing, a power of two of slots, of which at most half are taken."""

    slot_S: np.ndarray  # int32, the number of a word, -1 where there is none
    hash_K: np.ndarray  # uint64
    end_K: np.ndarray  # int64 [K + 1], where the characters of the words before end
    chars: np.ndarray  # uint32, of all words
    used: np.ndarray  # int64 [1], the number of words


class Pieces(NamedTuple):
    """A vocabulary as the loops read it: its pieces of ASCII letters and digits."""

    first: Table  # pieces that begin a word
    first_id_K: np.ndarray  # int32
    inner: Table  # pieces behind "##"
    inner_id_K: np.ndarray
    mark_id: np.ndarray  # int32 [128], the id of every ASCII character as a word
    longest: int  # characters of any of them
    unknown: int  # id
    most: int  # characters of a word that is not unknown
    lower: bool


class Encoded(NamedTuple):
    """The ids of the words of a table."""

    start_K: np.ndarray  # int64
    size_K: np.ndarray  # int32, -1 while `tokenizers` has not encoded the word
    ids: np.ndarray  # int32, of all words
    used: np.ndarray  # int64 [1], the number of ids


@compiled
def fold(hashed, char):  # noqa: ANN001, ANN201
    """The hash of a word and one more character."""
    return (hashed ^ np.uint64(char)) * _PRIME


@compiled
def find(table, chars, start, end, hashed):  # noqa: ANN001, ANN201
    """The slot of the word chars[start:end]: where its number stands, or would stand."""
    last = table.slot_S.size - 1
    slot = np.int64((hashed ^ (hashed >> _FOLDED)) & np.uint64(last))
    while True:
        number = table.slot_S[slot]
        if number < 0:
            return slot
        if table.hash_K[number] == hashed:
            first = table.end_K[number]
            same = table.end_K[number + 1] - first == end - start
            place = 0
            while same and place < end - start:
                same = table.chars[first + place] == chars[start + place]
                place += 1
            if same:
                return slot
        slot = (slot + 1) & last


@compiled
def add(table, slot, chars, start, end, hashed):  # noqa: ANN001, ANN201
    """Puts a word into its slot; returns its number. The caller has made sure that there is room."""
    number = table.used[0]
    table.used[0] = number + 1
    table.slot_S[slot] = number
    table.hash_K[number] = hashed
    first = table.end_K[number]
    for place in range(end - start):
        table.chars[first + place] = chars[start + place]
    table.end_K[number + 1] = first + end - start
    return number


@compiled
def add_all(table, chars, end_K):  # noqa: ANN001, ANN201
    """Fills an empty table with the words that end at these characters, all different."""
    start = 0
    for end in end_K:
        hashed = _BASIS
        for place in range(start, end):
            hashed = fold(hashed, chars[place])
        add(table, find(table, chars, start, end, hashed), chars, start, end, hashed)
        start = end


@compiled
def _plain(char):  # noqa: ANN001, ANN202
    """True for an ASCII letter or digit."""
    lower = char | _CASE
    return (char >= _ZERO and char <= _NINE) or (lower >= _LOWER_A and lower <= _LOWER_Z)


@compiled
def _split_plain(pieces, word, ids, first):  # noqa: ANN001, ANN202
    """Writes the ids of a word of ASCII letters and digits to ids[first:], the longest piece first; returns their number."""
    size = word.size
    if size > pieces.most:
        ids[first] = pieces.unknown
        return 1
    if pieces.lower:
        for place in range(size):
            if word[place] >= _UPPER_A and word[place] <= _UPPER_Z:
                word[place] |= _CASE
    count = start = 0
    while start < size:
        found, behind, hashed = -1, start, _BASIS
        # prefixes from the short to the long, as each one's hash continues that of the one before
        for end in range(start + 1, min(size, start + pieces.longest) + 1):
            hashed = fold(hashed, word[end - 1])
            if start == 0:
                number = pieces.first.slot_S[find(pieces.first, word, start, end, hashed)]
                known = pieces.first_id_K[number] if number >= 0 else -1
            else:
                number = pieces.inner.slot_S[find(pieces.inner, word, start, end, hashed)]
                known = pieces.inner_id_K[number] if number >= 0 else -1
            if known >= 0:
                found, behind = known, end
        if found < 0:
            ids[first] = pieces.unknown
            return 1
        ids[first + count] = found
        count += 1
        start = behind
    return count


@compiled
def find_words(chars_C, end_N, table, encoded, pieces):  # noqa: ANN001, ANN201
    """Cuts texts, which blanks separate, into words, and adds the new ones to `table`.

    Returns the words [P]: a number in the table, or -1 - id of a mark; how many words [N] there are up to the end of each
    text; and start and end of the characters of the new words that `tokenizers` must encode [X, 2], in the order of their
    numbers.
    """
    word_P = np.empty(chars_C.size, np.int32)
    words_N = np.empty(end_N.size, np.int64)
    waiting = np.empty((chars_C.size // 2 + 1, 2), np.int64)
    count = left = place = 0
    for text in range(end_N.size):
        stop = end_N[text]
        while place < stop:
            char = chars_C[place]
            if char == BLANK:
                place += 1
                continue
            if char > BLANK and char < _ASCII - np.uint32(1) and not _plain(char):
                # BERT makes a word of every ASCII mark, so that cutting there changes nothing
                word_P[count] = -1 - pieces.mark_id[char]
                count += 1
                place += 1
                continue
            start, hashed, plain = place, _BASIS, True
            while place < stop:
                char = chars_C[place]
                if not _plain(char):
                    if char >= BLANK and char < _ASCII - np.uint32(1):
                        break
                    plain = False
                hashed = fold(hashed, char)
                place += 1
            slot = find(table, chars_C, start, place, hashed)
            number = table.slot_S[slot]
            if number < 0:
                number = add(table, slot, chars_C, start, place, hashed)
                if plain:
                    begin = encoded.used[0]
                    size = _split_plain(pieces, chars_C[start:place].copy(), encoded.ids, begin)
                    encoded.start_K[number], encoded.size_K[number] = begin, size
                    encoded.used[0] = begin + size
                else:
                    encoded.size_K[number] = -1
                    waiting[left, 0], waiting[left, 1] = start, place
                    left += 1
            word_P[count] = number
            count += 1
        place = stop + 1
        words_N[text] = count
    return word_P[:count], words_N, waiting[:left]


@compiled
def join_ids(word_P, words_N, encoded):  # noqa: ANN001, ANN201
    """The ids of all words, one after the other [T], and how many there are up to the end of each text [N]."""
    total = 0
    for word in word_P:
        total += 1 if word < 0 else encoded.size_K[word]
    ids_T = np.empty(total, np.int32)
    tokens_N = np.empty(words_N.size, np.int64)
    count = place = 0
    for text in range(words_N.size):
        while place < words_N[text]:
            word = word_P[place]
            if word < 0:
                ids_T[count] = -1 - word
                count += 1
            else:
                first = encoded.start_K[word]
                for each in range(encoded.size_K[word]):
                    ids_T[count] = encoded.ids[first + each]
                    count += 1
            place += 1
        tokens_N[text] = count
    return ids_T, tokens_N
