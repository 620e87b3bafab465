"""Data of the quick suite: no word of training is among the others, words tell no more than the constant answer, bands."""

import collections
import json
import pathlib

import numpy as np
import pytest

from spanjax.suite import probes, quick_data
from tests.suite.made_data import made_folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return made_folder(tmp_path_factory.mktemp("data"))


def test_items_are_words_of_the_texts(data: pathlib.Path) -> None:
    tags = quick_data.tags([data / "ner/conll2003/eng.train.gz"], 50)
    assert len(tags.texts) == 50 and tags.first_piece
    for item in tags.items:
        (span,) = item.spans
        word = tags.texts[item.text][slice(*span)]
        assert (word.lower(),) == item.words and span[0] > 0
    assert max(collections.Counter(item.words for item in tags.items).values()) == quick_data.OF_A_WORD
    entities = quick_data.entities([data / "ner/conll2003/eng.train.gz"], 50)
    assert {item.label for item in entities.items} == {"PER", "LOC"}
    relations = quick_data.relations([data / "relation/semeval2010_task8/TRAIN_FILE.TXT.gz"], 20)
    for item in relations.items:
        assert tuple(relations.texts[item.text][slice(*span)].lower() for span in item.spans) == item.words
    # the same texts for any most that is large enough, and a subset otherwise
    fewer = quick_data.tags([data / "ner/conll2003/eng.train.gz"], 10)
    assert {*fewer.texts} <= {*tags.texts}


def test_chunks_are_other_labels_of_the_same_words(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = data / "ner/conll2003/eng.train.gz"
    tags, chunks = (quick_data.tags([file], 50, column) for column in (1, 2))
    assert chunks.reads_as(tags) and {item.label for item in chunks.items} == {"I-NP", "I-VP", "I-PP"}
    assert not quick_data.tags([file], 49, 2).reads_as(tags)
    first, *others = tags.items
    elsewhere = first._replace(spans=((0, 1),))
    assert not tags._replace(items=[elsewhere, *others]).reads_as(tags)
    assert not tags._replace(first_piece=False).reads_as(tags)
    two = tmp_path / "two.txt"
    two.write_text("the DT\nword NN\n")
    with pytest.raises(ValueError, match="two.txt: no words with tags in column 3"):
        quick_data.tags([two], 50, 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_word_of_training_is_scored(data: pathlib.Path, seed: int) -> None:
    for read in (
        quick_data.tags([data / "ner/conll2003/eng.train.gz"], 200),
        quick_data.relations([data / "relation/semeval2010_task8/TRAIN_FILE.TXT.gz"], 200),
    ):
        parts = probes.parts_of(read, seed)
        trained, others = (
            {word for name in names for number in parts[name] for word in read.items[number].words}
            for names in (("train",), ("choose", "report"))
        )
        assert trained and others and not trained & others
        assert min(map(len, parts.values())) > 0
    assert not np.array_equal(probes.parts_of(read, seed)["report"], probes.parts_of(read, seed + 2)["report"])


def test_words_are_right_no_more_often_than_the_constant_answer() -> None:
    # 400 items of two labels; "told" says which ones words tell, far more often those of label a
    rng = np.random.default_rng(0)
    labels = ["a" if each < 0.6 else "b" for each in rng.random(400)]
    told = np.array([rng.random() < (0.9 if label == "a" else 0.5) for label in labels])
    part = np.arange(400)
    kept = probes.balanced(part, labels, told, "a", 0.4, seed=0)
    share = np.mean([labels[number] == "a" for number in kept])
    assert share == pytest.approx(0.4, abs=0.02)
    assert told[kept].mean() <= 0.45 and len(kept) > 40
    for label in "ab":
        # thinning leaves 0.4 of each label; the last step draws among them
        assert np.mean([told[number] for number in kept if labels[number] == label]) <= 0.5


def test_naive_bayes_tells_what_a_word_or_an_ending_tells() -> None:
    texts = [f"good w{n}" if n % 2 else f"bad w{n}" for n in range(80)]
    data = quick_data.ProbeData(texts, [quick_data.Item(n, (), "01"[n % 2], ()) for n in range(80)])
    told = probes.told_by_words(data, np.arange(40), np.arange(40, 80))
    assert told.all()
    endings = [f"{'xyz'[n % 3] * 2}{n}{'ung' if n % 2 else 'eln'}" for n in range(80)]
    spans = quick_data.ProbeData(
        endings, [quick_data.Item(n, ((0, len(t)),), "01"[n % 2], (t,)) for n, t in enumerate(endings)]
    )
    assert probes.told_by_words(spans, np.arange(40), np.arange(40, 80)).mean() > 0.9


def test_a_place_tells_as_a_word_does() -> None:
    """The same words in one order or the other: only the place of the item tells its label."""
    rng = np.random.default_rng(0)
    texts, items = [], []
    for number in range(120):
        name, filler = f"n{rng.integers(1000)}", f"f{rng.integers(1000)}"
        first = number % 2 == 0
        texts.append(f"{name} so {filler}" if first else f"{filler} so {name}")
        start = texts[-1].index(name)
        items.append(quick_data.Item(number, ((start, start + len(name)),), "01"[first], (name,)))
    data = quick_data.ProbeData(texts, items)
    assert probes.told_by_words(data, np.arange(80), np.arange(80, 120)).all()


def test_half_of_the_sentences_have_two_neighbours_exchanged(tmp_path: pathlib.Path) -> None:
    """The originals are found again by the words that they have; nothing else is changed."""
    rng = np.random.default_rng(0)
    written = [f"the {' '.join(f'w{chr(97 + n)}' for n in rng.integers(20, size=20))} end" for _ in range(400)]
    # words of two letters; digits, capitals and the ends are never exchanged
    written += [f"A {number} Bb Cc {number}." for number in range(5)]
    written = [text.replace("we", "We").replace("wf", "w9") for text in written]
    file = tmp_path / "text.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in written))
    data = quick_data.orders([file], 1000)
    assert len(data.texts) == len(data.items) == 400
    for text, original, item in zip(data.texts, written, data.items, strict=False):
        words, before = text.split(), original.split()
        apart = [place for place, pair in enumerate(zip(words, before, strict=True)) if pair[0] != pair[1]]
        assert item.label == ("exchanged" if apart else "written") and sorted(words) == sorted(before)
        if apart:
            first, second = apart
            assert second == first + 1 and 0 < first < len(words) - 2
            assert all(words[place].isalpha() and words[place].islower() for place in apart)
    share = np.mean([item.label == "exchanged" for item in data.items])
    assert 0.4 < share < 0.6
    # a bag of words knows nothing of it
    told = probes.told_by_words(data, np.arange(250), np.arange(250, 400))
    assert 0.3 < told.mean() < 0.95
    with pytest.raises(ValueError, match="no sentences of 8 to 25 words"):
        quick_data.orders([file], 0)


def test_passages_and_bands(data: pathlib.Path) -> None:
    found = quick_data.passages([data / "wiki/validation.jsonl.gz"], 60)
    assert {each.hidden for each in found} == {1, 2, 3} and len(found) <= 60
    for each in found:
        assert each.first > 0 and each.first + each.hidden < len(each.words)
        assert all(word.isalpha() for word in each.words[each.first : each.first + each.hidden])
    assert "top 100" in {each.band for each in found}


def test_wrong_pairs_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"sentence_good": "a b", "sentence_bad": "a b"}) + "\n")
    with pytest.raises(ValueError, match="two different"):
        quick_data.minimal_pairs([file], 5)
