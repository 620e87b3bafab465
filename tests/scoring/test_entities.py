"""Entities: round trips of every tagging scheme, broken sequences against a stream of tags, the counts of CoNLL-2003."""

import collections
import gzip
import pathlib
import random

import pytest

from spanjax.scoring import counts, entities
from spanjax.scoring.entities import Entity

KINDS = ("PER", "LOC", "B-X")
# pairs of prefixes, the word before and this word, between which an entity begins or ends whatever the types
BEGIN = {*("BB", "IB", "OB", "EB", "SB"), *("BS", "IS", "OS", "ES", "SS"), *("OI", "EI", "SI", "OE", "EE", "SE")}
END = {*("BB", "BS", "BO"), *("IB", "IS", "IO"), *("EB", "EI", "EE", "ES", "EO"), *("SB", "SI", "SE", "SS", "SO")}


def encode(found: list[Entity], words: int, scheme: str) -> list[str]:
    """Tags of entities in one of four schemes."""
    tags = ["O"] * words
    for kind, start, end in found:
        tags[start:end] = [f"I-{kind}"] * (end - start)
        beside = any(other == kind and stop == start for other, _, stop in found)
        if scheme in ("IOB2", "BIOES") or (scheme == "IOB1" and beside):
            tags[start] = f"B-{kind}"
        if scheme in ("BIOES", "IOE2"):
            tags[end - 1] = f"E-{kind}"
        if scheme == "BIOES" and end - start == 1:
            tags[start] = f"S-{kind}"
    return tags


def made_entities(draw: random.Random, words: int) -> list[Entity]:
    """Entities of a sentence, some side by side."""
    found, place = [], draw.randint(0, 2)
    while place < words:
        end = min(words, place + draw.randint(1, 3))
        found.append((draw.choice(KINDS), place, end))
        place = end + draw.choice([0, 0, 1, 2])
    return found


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOE2", "BIOES"])
def test_round_trip(scheme: str) -> None:
    draw = random.Random(scheme)
    for _ in range(2_000):
        words = draw.randint(0, 12)
        found = made_entities(draw, words)
        assert entities.spans(encode(found, words, scheme)) == found


def begins(last: str, tag: str) -> bool:
    """Whether an entity begins at this tag."""
    pair = last[0] + tag[0]
    return pair in BEGIN or (tag != "O" and last[1:] != tag[1:])


def ends(last: str, tag: str) -> bool:
    """Whether an entity of the tag before ends here."""
    pair = last[0] + tag[0]
    return pair in END or (last != "O" and last[1:] != tag[1:])


def stream(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, collections.Counter[str]]:
    """Counts by type from one pass over both streams, which remembers only whether both are inside an equal entity."""
    tallies = {name: collections.Counter() for name in ("correct", "predicted", "gold")}
    pairs = [pair for a, b in zip(gold, predicted, strict=True) for pair in (*zip(a, b, strict=True), ("O", "O"))]
    last, last_predicted, same = "O", "O", False
    for tag, guess in pairs:
        if same and (ends(last, tag) or ends(last_predicted, guess)):
            tallies["correct"][last[2:]] += ends(last, tag) and ends(last_predicted, guess)
            same = False
        tallies["gold"][tag[2:]] += begins(last, tag)
        tallies["predicted"][guess[2:]] += begins(last_predicted, guess)
        if begins(last, tag) and begins(last_predicted, guess) and tag[2:] == guess[2:]:
            same = True
        elif begins(last, tag) or begins(last_predicted, guess):
            same = False
        last, last_predicted = tag, guess
    return tallies


@pytest.mark.parametrize("prefixes", ["BI", "IE", "BIES"])
def test_random_tags(prefixes: str) -> None:
    """Any sequence, most of them broken."""
    draw = random.Random(prefixes)
    tags = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in KINDS[:2])]
    for _ in range(3_000):
        gold = [draw.choices(tags, k=draw.randint(0, 7)) for _ in range(draw.randint(0, 4))]
        predicted = [[tag if draw.random() < 0.7 else draw.choice(tags) for tag in one] for one in gold]
        found, tallies = entities.score(gold, predicted), stream(gold, predicted)
        for kind, one in found.types.items():
            assert {name: getattr(one, name) for name in tallies} == {name: tallies[name][kind] for name in tallies}
        for name, by_kind in tallies.items():
            assert getattr(found.micro, name) == sum(by_kind.values())
        one, (correct, guessed, golds) = (
            found.micro,
            (tallies[name].total() for name in ("correct", "predicted", "gold")),
        )
        assert (one.precision, one.recall) == (100 * correct / max(guessed, 1), 100 * correct / max(golds, 1))
        assert one.f1 == pytest.approx(200 * correct / max(guessed + golds, 1), rel=1e-14)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("O I-PER I-PER", [("PER", 1, 3)]),
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("S-PER S-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-PER O", [("PER", 0, 2)]),
        ("E-PER I-PER E-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER E-PER B-PER", [("PER", 0, 2), ("PER", 2, 3)]),
    ],
)
def test_broken_sequences(tags: str, wanted: list[Entity]) -> None:
    assert entities.spans(tags.split()) == wanted


def test_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG"]]
    found = entities.score(gold, [["I-PER", "I-PER", "O", "B-ORG"], ["O"]])
    assert (found.micro.precision, found.micro.recall, found.micro.f1) == (50.0, 100 / 3, pytest.approx(40.0))
    assert found.types["ORG"] == counts.score(0, 1, 1) and found.types["LOC"].recall == 0.0
    assert found.tag_accuracy == 40.0


# Tjong Kim Sang and De Meulder 2003, table 2: LOC, MISC, ORG, PER
PUBLISHED = {"train": (7140, 3438, 6321, 6600), "valid": (1837, 922, 1341, 1842), "test": (1668, 702, 1661, 1617)}


@pytest.mark.parametrize("part", PUBLISHED)
def test_conll_2003(part: str, shared_data: pathlib.Path) -> None:
    """The published numbers of entities, in IOB1 as stored and in the other schemes."""
    text = gzip.decompress((shared_data / "ner/conll2003" / f"eng.{part}.gz").read_bytes()).decode()
    gold = [[line.split()[-1] for line in block.splitlines()] for block in text.split("\n\n") if block.strip()]
    for scheme in ("IOB1", "IOB2", "BIOES"):
        given = [encode(entities.spans(tags), len(tags), scheme) for tags in gold]
        found = entities.score(gold, given)
        assert tuple(found.types[kind].gold for kind in ("LOC", "MISC", "ORG", "PER")) == PUBLISHED[part]
        assert found.micro.f1 == 100.0
        if scheme == "IOB1":  # two sentences of the training set have a B- that IOB1 does not ask for
            assert sum(a != b for a, b in zip(gold, given, strict=True)) == (2 if part == "train" else 0)


def test_all_problems_at_once() -> None:
    with pytest.raises(
        ValueError,
        match="(?s)2 gold sentences and 1 pred.*(from 0).*: 0;.*gold tags: X;.*predicted tags: B-, PER;",
    ):
        entities.score([["O", "X"], ["O"]], [["B-", "PER", "O"]])
    with pytest.raises(ValueError, match="1 unknown tags: L-PER; expected O"):
        entities.spans(["L-PER"])
