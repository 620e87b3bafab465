"""Recall by class and width: counted by hand, and against the scores of all mentions on real documents."""

import dataclasses
import pathlib
import random

import pytest

from spanjax.scoring import coref
from spanjax.scoring.coref import classes as coref_classes
from spanjax.scoring.coref.classes import Recall, classes, mention_class
from tests import coref_columns

pytestmark = pytest.mark.unit

TEXT = (
    "Anna Bell saw the old mayor of the town .\nShe told him that Dogs bark , and the mayor laughed .\nThe dog saw it ."
)
SENTENCES = tuple(sentence.split() for sentence in TEXT.splitlines())
ANNA, MAYOR, SHE, HIM, MAYOR_AGAIN, DOG, IT = (0, 1), (3, 8), (10, 10), (12, 12), (18, 19), (22, 23), (25, 25)
KEY = [[ANNA, SHE], [MAYOR, HIM, MAYOR_AGAIN], [DOG]]


@pytest.mark.parametrize(
    ("words", "begins", "expected"),
    [
        ("She", True, "pronoun"),
        ("her own", False, "nominal"),
        ("Anna Bell", True, "name"),
        ("The mayor", True, "nominal"),
        ("The mayor of Paris", True, "name"),
        ("the mayor", False, "nominal"),
        ("Dogs", True, "name"),
        ("my friend and I", False, "nominal"),
        ("The", False, "name"),
        ("Anna 's", True, "name"),
        ("1984", True, "nominal"),
        ("Éva", True, "name"),
    ],
)
def test_rule(words: str, begins: bool, expected: str) -> None:
    assert mention_class(words.split(), begins) == expected


def test_counts() -> None:
    # `him` follows Anna in the response: found, but its antecedent is wrong; the later mayor follows `him`, which is right
    found = classes([(SENTENCES, KEY, [[ANNA, HIM, MAYOR_AGAIN, IT], [SHE], [DOG, (9, 9)]])])
    assert found.mentions == {"pronoun": Recall(2, 2), "name": Recall(1, 1), "nominal": Recall(2, 3)}
    assert found.antecedents == {"pronoun": Recall(0, 2), "name": Recall(0, 0), "nominal": Recall(1, 1)}
    assert found.widths["1"] == Recall(2, 2)
    assert found.widths["2"] == Recall(3, 3)
    assert found.widths["5-8"] == Recall(0, 1)
    assert list(found.widths) == ["1", "2", "3-4", "5-8", "9-16", "17+"]
    assert found.mentions["nominal"].percent == pytest.approx(200 / 3)
    assert found.antecedents["name"].percent == 0


def test_settings() -> None:
    found = classes([(SENTENCES, KEY, KEY)] * 2, pronouns={"she"}, widths=(3,))
    assert found.mentions == {"pronoun": Recall(2, 2), "name": Recall(2, 2), "nominal": Recall(8, 8)}
    assert found.widths == {"1-3": Recall(10, 10), "4+": Recall(2, 2)}


def test_sentences_begin_at_the_first_word_too() -> None:
    found = classes([([["The", "dog"], ["The", "Thames"]], [[(0, 1)], [(2, 3)], [(1, 2)]], [])])
    assert [found.mentions[name].total for name in coref_classes.CLASSES] == [0, 2, 1]


def test_repeated_mentions_count_once() -> None:
    found = classes([(SENTENCES, [[ANNA, SHE], [SHE, DOG]], [[ANNA, SHE, SHE], [SHE]])])
    assert found.mentions["pronoun"] == Recall(1, 1)
    assert found.mentions["name"] == Recall(1, 1)
    # SHE is of the last key cluster, the first there: nothing is asked of it
    assert found.antecedents == {"pronoun": Recall(0, 0), "name": Recall(0, 0), "nominal": Recall(0, 1)}


def test_mentions_outside_and_words_for_sentences() -> None:
    with pytest.raises(ValueError, match=r"1 mentions of document 1 \(from 0\) end behind its 27 words: \(26, 27\)"):
        classes([(SENTENCES, KEY, []), (SENTENCES, [[(26, 27)]], [])])
    with pytest.raises(ValueError, match="document 0 .* expected a list of words for each sentence"):
        classes([(["one", "two"], [], [])])


def test_real_documents(shared_data: pathlib.Path) -> None:
    folder = shared_data / "coref/scored_documents"
    key, response = (
        coref_columns.read_documents(folder / f"ontogum-medium.{side}.conll.gz") for side in ("key", "response")
    )
    sentences = coref_columns.read_sentences(folder / "ontogum-medium.key.conll.gz")
    found = classes((sentences[name], key[name], response[name]) for name in key)
    whole = coref.score((key[name], response[name]) for name in key).mention
    for rows in (found.mentions, found.widths):
        assert sum(row.found for row in rows.values()) == whole.recall_numerator
        assert sum(row.total for row in rows.values()) == whole.recall_denominator
    assert min(row.total for row in found.mentions.values()) > 50
    perfect = classes((sentences[name], key[name], key[name]) for name in key)
    draw, nothing = random.Random(1), classes((sentences[name], key[name], []) for name in key)
    for rows in (perfect.mentions, perfect.widths, nothing.mentions, nothing.antecedents):
        assert all(
            row.found == (row.total if rows in (perfect.mentions, perfect.widths) else 0) for row in rows.values()
        )
    mixed_key, mixed_response = (
        {name: [draw.sample(cluster, len(cluster)) for cluster in side[name]] for name in key}
        for side in (key, response)
    )
    mixed = classes((sentences[name], mixed_key[name], mixed_response[name]) for name in key)
    assert dataclasses.astuple(mixed) == dataclasses.astuple(found)
    assert tuple(found.antecedents) == coref_classes.CLASSES
