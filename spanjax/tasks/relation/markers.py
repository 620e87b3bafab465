"""Marker pieces for the two entities of a sentence: their ids, their positions, and the cut of long context around them.

Shapes: V ids, T pieces of a sentence, A of them next to which context is kept.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from spanjax.data.ngrams.span_layout import Sentence
from spanjax.data.vocab.base import Vocabulary

Marking = Literal["types", "markers", "typed_markers", "none"]
ROLES = ("SUBJ", "OBJ")
UNUSED = re.compile(r"\[unused\d+\]")
UNTYPED = re.compile(r"-.*", re.DOTALL)


class Part(NamedTuple):
    """A marker, or words between two places at which an entity begins or ends."""

    marker: str
    """Name of the marker; empty for words."""
    text: str
    entity: bool
    """True for the words of an entity."""


def marker_name(role: str, kind: str = "", end: bool = False) -> str:
    """`[SUBJ-PERSON]`, and `[/SUBJ-PERSON]` after an entity; `[SUBJ]` where the type is unknown or not used."""
    return f"[{'/' * end}{role}{'-' * bool(kind)}{kind}]"


def marker_names(marking: Marking, kinds: Sequence[tuple[str, str]]) -> list[str]:
    """Every marker that a marking needs for these (subject type, object type), sorted; those without a type are among them."""
    if marking == "none":
        return []
    typed = {(role, kind) for pair in kinds for role, kind in zip(ROLES, pair, strict=True)}
    known = {(role, "") for role in ROLES} | (typed if marking != "markers" else set())
    ends = (False,) if marking == "types" else (False, True)
    return sorted(marker_name(role, kind, end) for role, kind in known for end in ends)


def marker_ids(vocabulary: Vocabulary, count: int) -> list[int]:
    """Ids for `count` markers: those of `[unusedN]` in the order of ids, then those of the rarest pieces: the last ids that are
    not specials, from the end. ValueError where the vocabulary has too few."""
    unused = [number for number, piece in enumerate(vocabulary.pieces) if UNUSED.fullmatch(piece)]
    taken = {*unused, *vocabulary.specials}
    rarest = (number for number in reversed(range(vocabulary.size)) if number not in taken)
    found = list(itertools.islice(itertools.chain(unused, rarest), count))
    if len(found) < count:
        raise ValueError(
            f"the vocabulary has {vocabulary.size} pieces, {len(found)} of them for markers: expected at least {count};"
            " take a larger vocabulary, or objective.marking markers or none"
        )
    return found


def parts(words: Sequence[str], spans: Sequence[tuple[int, int]], kinds: Sequence[str], marking: Marking) -> list[Part]:
    """The words with markers between them. `spans` are (first word, word after the last) of subject and object, not empty,
    which may overlap; `kinds` their types.

    At one place, markers that end an entity come first; the entity that ends last opens first, the last one opened closes first.
    """
    cuts = sorted({0, len(words), *itertools.chain.from_iterable(spans)})
    found: list[Part] = []
    for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
        found += [Part(name, "", False) for name in _markers_at(start, spans, kinds, marking)]
        inside = any(first <= start < last for first, last in spans)
        if stop is not None and not (inside and marking == "types"):
            found.append(Part("", " ".join(words[start:stop]), inside))
    return found


def _markers_at(place: int, spans: Sequence[tuple[int, int]], kinds: Sequence[str], marking: Marking) -> list[str]:
    if marking == "none":
        return []
    typed = kinds if marking != "markers" else ("",) * len(spans)
    all_three = list(zip(ROLES, spans, typed, strict=True))
    longest_first = sorted(all_three, key=lambda each: -each[1][1])
    opened = [marker_name(role, kind) for role, (first, _), kind in longest_first if first == place]
    if marking == "types":
        return opened
    last_begun_first = sorted(reversed(all_three), key=lambda each: -each[1][0])
    return [marker_name(role, kind, True) for role, (_, last), kind in last_begun_first if last == place] + opened


def ids_of_text(vocabulary: Vocabulary, markers: Sequence[int]) -> np.ndarray:
    """int32[V]: the id that each id becomes in text: itself, or [UNK] for a marker's."""
    text_V = np.arange(vocabulary.size, dtype=np.int32)
    text_V[list(markers)] = vocabulary.specials.unk
    return text_V


def placed(
    found: Sequence[Part], encoded: Sequence[np.ndarray], ids: Mapping[str, int], text_V: np.ndarray, room: int
) -> np.ndarray:
    """Ids of the parts, int32[T], at most `room`. `encoded` are those of the parts with text, in order; `text_V` maps
    each (`ids_of_text`).

    A marker that `ids` lacks becomes that of its role without a type. If there are too many pieces, all markers are kept, then
    the first pieces of the entities, then context by its distance to the nearest of these, on either side.
    """
    texts = iter(encoded)
    tokens: list[np.ndarray] = []
    ranks: list[np.ndarray] = []  # 0 for markers, 1, 2, ... inside of an entity, -1 outside
    for part in found:
        if part.marker:
            untyped = UNTYPED.sub("]", part.marker)
            tokens.append(np.array([ids[part.marker if part.marker in ids else untyped]], np.int32))
            ranks.append(np.zeros(1, np.int64))
        else:
            text = next(texts)
            tokens.append(text_V[text])
            ranks.append(np.arange(1, len(text) + 1) if part.entity else np.full(len(text), -1))
    tokens_T = np.concatenate([np.zeros(0, np.int32), *tokens])
    return tokens_T if len(tokens_T) <= room else tokens_T[_nearest(np.concatenate(ranks), room)]


def placed_with_spans(
    found: Sequence[Part], encoded: Sequence[Sentence], ids: Mapping[str, int], text_V: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of `placed`, and int32[T]: 1, 2, ... the span of every piece; a marker is a span of its own."""
    # `placed` runs on numbers instead of ids (from 0 for pieces, negative for markers): the same cut then yields both arrays
    sizes = [len(each.ids_T) for each in encoded]
    ends = np.cumsum([0, *sizes])
    names = {name: -1 - place for place, name in enumerate(ids)}
    numbers = [np.arange(end - size, end) for size, end in zip(sizes, ends[1:], strict=True)]
    number_T = placed(found, numbers, names, np.arange(ends[-1]), room)
    all_ids = np.concatenate(
        [np.zeros(0, np.int32), *(text_V[each.ids_T] for each in encoded), list(ids.values())[::-1]]
    )
    part = np.repeat(np.arange(len(sizes)), sizes)
    span = np.concatenate([np.zeros(0, np.int32), *(each.span_T for each in encoded)])
    text_T = number_T >= 0
    place_T = np.where(text_T, number_T, 0)
    keys = np.stack([part[place_T], span[place_T]]) if len(span) else np.zeros((2, len(number_T)), np.int64)
    keys = np.where(text_T, keys, np.stack([np.full(len(number_T), -1), np.arange(len(number_T))]))
    begins_T = np.ones(len(number_T), bool)
    begins_T[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return all_ids[number_T].astype(np.int32), np.cumsum(begins_T).astype(np.int32)


def _nearest(rank_T: np.ndarray, room: int) -> np.ndarray:
    """The places that are kept, in order."""
    place_T = np.arange(len(rank_T))
    anchor_A = np.flatnonzero(rank_T >= 0) if (rank_T >= 0).any() else np.zeros(1, np.int64)
    distance_T = np.abs(place_T[:, None] - anchor_A[None]).min(axis=1)
    cost_T = np.where(rank_T >= 0, rank_T, len(rank_T) + distance_T)
    return np.sort(np.argsort(cost_T, kind="stable")[:room])
