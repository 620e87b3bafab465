"""Named entities: precision, recall and F1 of whole entities, as conlleval (Tjong Kim Sang, CoNLL-2000 to 2003).

One rule reads IOB1, IOB2, IOE and BIOES. An entity begins at B- and S-, after an E- or S-, after O, and where the type
changes; it continues otherwise. So nothing is repaired or thrown away: `O I-PER`, `B-PER I-LOC` and an entity without its E-
all count. On IOB1, IOB2 and IOE tags this is conlleval.pl. That script does not know S-, joins `S-X S-X`, and begins no
entity at a B- after an E- of its type; here both are two entities, as in its BIOES descendants.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from spanjax.scoring import counts
from spanjax.scoring.checks import counted, raise_problems, unequal_lengths
from spanjax.scoring.counts import Score

Entity = tuple[str, int, int]


@dataclasses.dataclass(frozen=True)
class Entities:
    """Scores of all entities together (micro) and of each type, by name; percent of tags that are equal, O included."""

    micro: Score
    types: Mapping[str, Score]
    tag_accuracy: float


def _parts(tag: str) -> tuple[str, str]:
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def _known(tag: object) -> bool:
    if not isinstance(tag, str):
        return False
    prefix, kind = _parts(tag)
    return tag == "O" or (prefix in ("B", "I", "E", "S") and bool(kind))


def _tag_problems(sentences: Sequence[Sequence[str]], which: str) -> list[str]:
    wrong = list(dict.fromkeys(tag for tags in sentences for tag in tags if not _known(tag)))
    return counted(wrong, f"unknown {which}tags", "expected O, or B-, I-, E- or S- and a type")


def _spans(tags: Sequence[str]) -> list[Entity]:
    found: list[Entity] = []
    last, last_kind = "O", ""
    for place, tag in enumerate(tags):
        prefix, kind = _parts(tag)
        if prefix != "O":
            if prefix in ("B", "S") or last in ("O", "E", "S") or kind != last_kind:
                found.append((kind, place, place + 1))
            else:
                found[-1] = (kind, found[-1][1], place + 1)
        last, last_kind = prefix, kind
    return found


def spans(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence as (type, first word, word after the last), in order; ValueError on unknown tags."""
    raise_problems("the entities of a sentence", _tag_problems([tags], ""))
    return _spans(tags)


def score(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Entities:
    """Scores of tag sequences, one gold and one predicted sequence a sentence, in order.

    An entity is right where type, first and last word are. The two may be in different tagging schemes; `tag_accuracy` is then
    of little use.
    """
    problems = unequal_lengths(gold, predicted, "sentences")
    uneven = [place for place, (a, b) in enumerate(zip(gold, predicted, strict=False)) if len(a) != len(b)]
    problems += counted(uneven, "sentences (from 0) have another number of predicted tags", "expected one tag a word")
    raise_problems("entity scores", problems + _tag_problems(gold, "gold ") + _tag_problems(predicted, "predicted "))
    pairs = list(zip(gold, predicted, strict=True))
    equal = sum(a == b for tags, others in pairs for a, b in zip(tags, others, strict=True))
    words = sum(map(len, gold))
    found = score_sets([_spans(tags) for tags in gold], [_spans(tags) for tags in predicted])
    return dataclasses.replace(found, tag_accuracy=100.0 * equal / words if words else 0.0)


def score_sets(gold: Sequence[Iterable[Entity]], predicted: Sequence[Iterable[Entity]]) -> Entities:
    """Scores of entities that may be nested or overlap, by sentence; without `tag_accuracy`, which is 0.

    An entity counts once; it is right where type, first and last word are.
    """
    raise_problems("entity scores", unequal_lengths(gold, predicted, "sentences"))
    correct, guesses, golds = collections.Counter(), collections.Counter(), collections.Counter()
    for entities, predicted_entities in zip(map(set, gold), map(set, predicted), strict=True):
        golds.update(kind for kind, _, _ in entities)
        guesses.update(kind for kind, _, _ in predicted_entities)
        correct.update(kind for kind, _, _ in entities & predicted_entities)
    types = {
        kind: counts.score(correct[kind], guesses[kind], golds[kind]) for kind in sorted(golds.keys() | guesses.keys())
    }
    return Entities(counts.score(correct.total(), guesses.total(), golds.total()), types, 0.0)
