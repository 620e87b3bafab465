"""The rules of pairing written plainly, one pair at a time: what the vectorised code has to equal bit for bit."""

import math
from typing import NamedTuple

import numpy as np

from spanjax.data.feed.hashing import Purpose, Unsigned, fold, row_keys, uniform
from spanjax.data.feed.pairing import Draw, NextSentence, SentenceOrder, TwoSegments
from spanjax.data.feed.rows import Rows


class Token(NamedTuple):
    """A text token as stored."""

    id: int
    word_start: bool
    flags: int


def draw(key: Unsigned, counter: int) -> float:
    """One uniform number."""
    return float(uniform(fold(key, counter)))


def stored_blocks(rows: Rows, row: int) -> list[list[Token]]:
    """The text of every block of a row."""
    tokens, segments, starts, flags = (array[0] for array in rows.fetch(np.array([row])))
    blocks = []
    for number in range(1, int(segments.max()) + 1):
        places = np.flatnonzero(segments == number)[1:-1]
        blocks.append([Token(int(tokens[p]), bool(starts[p]), int(flags[p])) for p in places])
    return blocks


def sentences_of(text: list[Token]) -> list[list[Token]]:
    """A block cut where sentences begin."""
    found: list[list[Token]] = []
    for place, token in enumerate(text):
        if place == 0 or token.flags & 1:
            found.append([])
        found[-1].append(token)
    return found


def truncate(a: list[Token], b: list[Token], most: int, key: Unsigned) -> None:
    """BERT's truncate_seq_pair."""
    turn = 0
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        if draw(key, turn) < 0.5:
            del longer[0]
        else:
            longer.pop()
        turn += 1


def foreign(rows: Rows, document: int, target: int, key: Unsigned) -> list[Token]:
    """Text of another document."""
    row = number = 0
    for turn in range(10):
        row = math.floor(draw(fold(key, Draw.ROW), turn) * len(rows))
        blocks = stored_blocks(rows, row)
        number = 1 + math.floor(draw(fold(key, Draw.BLOCK), turn) * len(blocks))
        if int(rows.block_documents(np.array([row]), np.array([number]))[0]) != document:
            break
    sentences = sentences_of(stored_blocks(rows, row)[number - 1])
    b: list[Token] = []
    for sentence in sentences[math.floor(draw(key, Draw.SENTENCE) * len(sentences)) :]:
        b += sentence
        if len(b) >= target:
            break
    return b


def pair_of(
    pairing: TwoSegments, rows: Rows, row: int, number: int, key: Unsigned
) -> tuple[list[Token], list[Token], int]:
    """A, B and label of one block of at least 3 tokens."""
    text = stored_blocks(rows, row)[number - 1]
    target, u = len(text), draw(key, Draw.CUT)
    if draw(key, Draw.SHORT) < pairing.short:
        target = 2 + math.floor(draw(key, Draw.TARGET) * (target - 2))
    chunk: list[list[Token]] = []
    for sentence in sentences_of(text):
        chunk.append(sentence)
        if sum(map(len, chunk)) >= target:
            break
    alone = len(chunk) == 1
    a = sum(chunk[: 1 + math.floor(u * (len(chunk) - 1))], [])
    b = sum(chunk, [])[len(a) :]
    if len(a) == len(text):
        cuts = [place for place in range(1, len(text)) if text[place].word_start] or list(range(1, len(text)))
        a = text[: cuts[math.floor(u * len(cuts))]]
    first = draw(key, Draw.LABEL)
    swapped = isinstance(pairing, SentenceOrder) and not alone and first < pairing.swap
    if alone or (isinstance(pairing, NextSentence) and first < pairing.random):
        document = int(rows.block_documents(np.array([row]), np.array([number]))[0])
        b = foreign(rows, document, target - len(a), key)
        label = 1
    else:
        label = int(swapped)
    a, b = (list(b), list(a)) if swapped else (list(a), list(b))
    truncate(a, b, len(text) - 1, fold(key, Draw.REMOVAL))
    return a, b, label


def repaired(segment: list[Token]) -> list[Token]:
    """The first token begins a word, and the rest of a tag span that lost its beginning begins there."""
    if not segment:
        return segment
    first = segment[0]
    flags = first.flags
    for layer in range(3):
        if (flags >> (1 + 2 * layer)) & 3 == 2:
            flags ^= 3 << (1 + 2 * layer)
    return [Token(first.id, True, flags), *segment[1:]]


def plain_examples(pairing: TwoSegments, rows: Rows, row: int, epoch: int, seed: int, pairs: int) -> list[np.ndarray]:
    """The fields of `Examples` of one row, in their order."""
    specials, length = rows.vocabulary.specials, rows.length
    tokens, segments, types = np.full(length, specials.pad), np.zeros(length), np.zeros(length)
    starts, flags = np.zeros(length, bool), np.zeros(length)
    position, label, weight = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
    row_key = row_keys(seed, Purpose.PAIR, np.array([epoch]), np.array([row]))[0]
    place = 0
    for number, text in enumerate(stored_blocks(rows, row), start=1):
        cls, sep = Token(specials.cls, False, 0), Token(specials.sep, False, 0)
        if len(text) < 3:
            line, kinds = [cls, *repaired(text), sep], [0] * (len(text) + 2)
        else:
            a, b, label[number - 1] = pair_of(pairing, rows, row, number, fold(row_key, number))
            position[number - 1], weight[number - 1] = place, 1
            line = [cls, *repaired(a), sep, *repaired(b), sep]
            kinds = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        for offset, (token, kind) in enumerate(zip(line, kinds, strict=True)):
            tokens[place + offset], starts[place + offset], flags[place + offset] = token
            segments[place + offset], types[place + offset] = number, kind
        place += len(text) + 2
    return [tokens, segments, starts, flags, types, position, label, weight]
