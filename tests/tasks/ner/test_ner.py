"""Named entities: files of columns, schemes, first pieces and windows, entity F1 against sets, conlleval's file."""

import json
import pathlib
import random

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from spanjax import train
from spanjax.data.vocab.base import Vocabulary
from spanjax.data.vocab.loading import ByteBpeVocabulary, load_vocabulary
from spanjax.data.vocab.training import train_byte_bpe
from spanjax.nn.config import EncoderConfig
from spanjax.predict import main as predict
from spanjax.scoring.entities import Entity, spans
from spanjax.tasks.ner import Ner, windows, word_pieces
from spanjax.tasks.ner.files import Scheme, Tagged, retagged, tags_of
from spanjax.tasks.rows import TaskRows
from spanjax.training.checkpoint_files import stored_meta, whole_step
from tests.made import made_sentences, tiny_encoder
from tests.running import ROOT, records
from tests.tasks.small_vocabulary import WORDS, fit_arguments, small_wordpiece

KINDS = ("PER", "LOC", "creative-work")
NO_PIECES = "\u200b"  # a zero-width space
FIT = Ner(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
WORD = st.sampled_from([*WORDS, NO_PIECES, "abcde", "x" * 30, "ab-c"])
SENTENCE = st.lists(st.tuples(WORD, st.sampled_from(FIT.labels)), min_size=1, max_size=20)
SENTENCES = st.lists(SENTENCE, min_size=1, max_size=5)


def tagged(sentence: list[tuple[str, str]]) -> Tagged:
    words, tags = zip(*sentence, strict=True)
    return Tagged(words, tags)


def written(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "words.conll"
    path.write_text(text, encoding="utf-8")
    return path


IOB1 = """-DOCSTART- -X- O O

Anna NNP I-PER
Bonn NNP I-LOC
Bonn NNP B-LOC
IBM  NNP I-LOC
 \t
-DOCSTART- -X- O O
. . O"""


def test_columns_and_schemes(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, IOB1)
    words = [("Anna", "Bonn", "Bonn", "IBM"), (".",)]
    assert Ner().read(path) == [
        Tagged(words[0], ("B-PER", "B-LOC", "B-LOC", "I-LOC")),
        Tagged(words[1], ("O",)),
    ]
    assert Ner(scheme="bioes").read(path)[0].tags == ("S-PER", "S-LOC", "B-LOC", "E-LOC")
    tabs = written(tmp_path, "O\ten:New York\nB-X\ten:b\n\nU-X\ten:c\nB-X\ten:d\nL-X\te\n")
    found = Ner(word_column=1, tag_column=0, word_prefix="en:").read(tabs)
    assert found == [Tagged(("New York", "b"), ("O", "B-X")), Tagged(("c", "d", "e"), ("B-X", "B-X", "I-X"))]
    bare = Ner().read(written(tmp_path, "a\nb\n\nc\n"))
    assert bare == [Tagged(("a", "b"), None), Tagged(("c",), None)] and bare.problems == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b", "1 column: expected word in column 0 and tag in column -1"),
        ("b X-PER", "tag 'X-PER': expected O, or B-, I-, E- or S- and a type"),
        ("b B-", "tag 'B-': expected"),
        ("b PER", "tag 'PER': expected"),
        ("\tO", "no word: expected one before the first tab"),
    ],
)
def test_a_bad_line_takes_its_sentence_along(line: str, said: str, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, f"a O\n\na O\n{line}\nc O\n\nd O\n")
    found = Ner().read(path)
    assert found == [Tagged(("a",), ("O",)), Tagged(("d",), ("O",))]
    assert len(found.problems) == 1 and found.problems[0].startswith(f"{path}:4: {said}")


def test_a_file_that_begins_without_a_tag_has_none(tmp_path: pathlib.Path) -> None:
    """Tags below a first line without one are not dropped in silence."""
    found = Ner().read(written(tmp_path, "Header\n\na B-PER\n\nc\n"))
    assert [each.words for each in found] == [("Header",), ("c",)] and not any(map(Ner().is_labelled, found))
    assert len(found.problems) == 1 and ":3: 2 columns: expected one, as in the first line" in found.problems[0]


@st.composite
def entities(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities of a sentence, side by side at times, and its words."""
    count, place, found = draw(st.integers(1, 15)), 0, []
    while place < count:
        size, gap = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        if place + size <= count:
            found.append((draw(st.sampled_from(KINDS)), place, place + size))
        place += size + gap
    return found, count


@given(entities())
def test_schemes_hold_the_same_entities(given_one: tuple[list[Entity], int]) -> None:
    found, count = given_one
    schemes: tuple[Scheme, Scheme] = ("iob2", "bioes")
    both = {scheme: tags_of(found, count, scheme) for scheme in schemes}
    for scheme, tags in both.items():
        assert spans(tags) == found
        assert all(retagged(tags, other) == both[other] for other in schemes)
        assert {tag[0] for tag in tags} <= {*("OBI" if scheme == "iob2" else "OBIES")}
    for kind, first, last in found:
        assert both["bioes"][first] == f"{'B' if last - first > 1 else 'S'}-{kind}"
        assert both["bioes"][last - 1] == f"{'E' if last - first > 1 else 'S'}-{kind}"
        assert [tag[0] for tag in both["iob2"][first:last]] == ["B", *"I" * (last - first - 1)]
        bilou = tuple({"E": "L", "S": "U"}.get(tag[0], tag[0]) + tag[1:] for tag in both["bioes"])
        assert retagged(bilou, "bioes") == both["bioes"]


@given(SENTENCES, st.integers(8, 24))
def test_every_word_gets_one_tag_at_its_first_piece(sentences: list[list[tuple[str, str]]], length: int) -> None:
    vocabulary, task = small_wordpiece(), Ner(labels=FIT.labels, length=length)
    examples = [tagged(sentence) for sentence in sentences]
    rows = list(task.rows(examples, vocabulary))
    assert [row.example for row in rows] == sorted(row.example for row in rows)
    for number, example in enumerate(examples):
        own = [row for row in rows if row.example == number]
        assert own and all(len(row.tokens_T) <= length for row in own)
        seen = []
        for row in own:
            tokens, fields = row.tokens_T.tolist(), row.fields
            assert (tokens[0], tokens[-1]) == (vocabulary.specials.cls, vocabulary.specials.sep)
            firsts = np.flatnonzero(fields["word_BL"]).tolist()
            assert np.flatnonzero(fields["tag_weight_BL"]).tolist() == firsts
            assert not firsts or firsts[0] == 1
            assert firsts or len(tokens) == 2
            for place, end in zip(firsts, [*firsts[1:], len(tokens) - 1], strict=bool(firsts)):
                word = int(fields["word_BL"][place]) - 1
                pieces = vocabulary.encode([example.words[word]])[0].tolist()
                assert tokens[place:end] == pieces[: length - 2]
                assert task.labels[fields["tag_BL"][place]] == (example.tags or ())[word]
                seen.append(word)
        assert seen == [place for place, word in enumerate(example.words) if word != NO_PIECES]
        if len(own) > 1:  # no row could have taken the next word too
            sizes = [len(row.tokens_T) - 2 for row in own]
            heads = [int(np.flatnonzero(np.append(row.fields["word_BL"][2:], 1))[0]) + 1 for row in own]
            assert all(size + head > length - 2 for size, head in zip(sizes, heads[1:], strict=False))


@given(SENTENCES, st.integers(8, 24))
def test_predictions_come_back_to_their_words(sentences: list[list[tuple[str, str]]], length: int) -> None:
    """The best label of every first piece is its word's; what stands at other places is noise."""
    vocabulary, task = small_wordpiece(), Ner(labels=FIT.labels, length=length)
    examples = [tagged(sentence) for sentence in sentences]
    rows = list(task.rows(examples, vocabulary))
    noise = np.random.default_rng(length)
    outputs = []
    for row in rows:
        logits_LC = noise.normal(size=(len(row.tokens_T), len(task.labels)))
        for place in np.flatnonzero(row.fields["word_BL"]):
            logits_LC[place, row.fields["tag_BL"][place]] = 10
        outputs.append({"logits_BLC": logits_LC})
    found = task.predictions(examples, rows, outputs)
    for example, tags in zip(examples, found, strict=True):
        wanted = zip(example.words, example.tags or (), strict=True)
        assert tags == tuple("O" if word == NO_PIECES else tag for word, tag in wanted)


def test_windows() -> None:
    def lengths(pieces: list[int], room: int) -> list[list[tuple[int, int]]]:
        return [[(place, len(each)) for place, each in one] for one in windows([np.arange(n) for n in pieces], room)]

    assert lengths([2, 2, 2], 4) == [[(0, 2), (1, 2)], [(2, 2)]]
    assert lengths([0, 9, 0, 1, 4], 4) == [[(1, 4)], [(3, 1)], [(4, 4)]]
    assert lengths([0, 0], 4) == lengths([], 4) == [[]]


def vocabularies(shared_data: pathlib.Path) -> list[Vocabulary]:
    files = ("bert-base-cased-vocab.txt", "sentencepiece-test.model")
    own = [load_vocabulary(shared_data / "vocab" / name) for name in files]
    return [*own, ByteBpeVocabulary(train_byte_bpe(made_sentences(300, seed=1), 400))]


def test_words_are_encoded_as_after_a_blank(shared_data: pathlib.Path) -> None:
    """Pieces of a word on its own are those that it has in a sentence of words with blanks between them."""
    words = ["so", "the", "man", "of", "The", "something", "in"]
    for vocabulary in vocabularies(shared_data):
        found = word_pieces(words, vocabulary)
        inside, starts = vocabulary.encode_with_starts([" ".join(words)])[0]
        first = 0
        for word in words:
            own = inside[(starts >= first) & (starts < first + len(word))]
            assert found[word].tolist() == own.tolist(), (vocabulary.kind, word)
            first += len(word) + 1
        assert not len(word_pieces([NO_PIECES], vocabulary)[NO_PIECES]), vocabulary.kind


def test_labels() -> None:
    examples = [Tagged(("a", "b"), ("B-LOC", "O")), Tagged(("a",), ("B-creative-work",)), Tagged(("a",), None)]
    vocabulary = small_wordpiece()
    task = Ner().with_training_labels(examples, vocabulary)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-creative-work", "I-creative-work")
    assert (
        task
        == Ner().with_training_labels(examples[::-1], vocabulary)
        == task.with_training_labels([Tagged(("a",), ("B-X",))], vocabulary)
    )
    own = [Tagged(("a",), ("S-LOC",))]
    assert Ner(scheme="bioes").with_training_labels(own, vocabulary).labels == ("O", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    row = next(task.rows([Tagged(("a", "b"), ("B-NEW", "B-LOC"))], vocabulary))
    assert row.fields["tag_weight_BL"].tolist() == [0, 0, 1, 0] and row.fields["word_BL"].tolist() == [0, 1, 2, 0]
    with pytest.raises(ValueError, match="no training example has tags"):
        Ner().with_training_labels([Tagged(("a",), None)], vocabulary)
    with pytest.raises(ValueError, match="1 sentences have no tags"):
        task.scores([Tagged(("a",), None)], [("O",)])


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            Ner(labels=("O", "E-PER")),
            "has 'E-PER': expected O, or one of B, I with - and a type, as objective.scheme is iob2",
        ),
        (Ner(labels=("B-PER", "I-PER")), "expected O and each tag once"),
        (Ner(labels=("O", "B-PER", "B-PER")), "expected O and each tag once"),
        (Ner(word_column=1, tag_column=1), "expected two columns"),
    ],
)
def test_settings_that_cannot_be(task: Ner, said: str) -> None:
    assert said in "; ".join(task.problems(EncoderConfig()))
    assert Ner(scheme="bioes", labels=("O", "E-PER")).problems(EncoderConfig()) == []


def test_only_first_pieces_are_in_the_loss() -> None:
    vocabulary = small_wordpiece()
    encoder = tiny_encoder(vocab_size=vocabulary.size, layers=1, intermediate_size=16, positions=32)
    module = FIT.build(encoder, nnx.Rngs(0))
    example = Tagged(("abc", "Anna", "ab-c"), ("B-PER", "I-PER", "O"))
    packed = TaskRows(FIT.rows([example, example], vocabulary), 0, FIT.lengths)
    batch = jax.tree.map(jax.numpy.asarray, packed.batch(np.array([0, -1]), np.arange(2), 16))
    measure = jax.jit(lambda batch: FIT.measure(module, batch, None))
    found, logits_BLC = measure(batch), np.asarray(FIT.outputs(module, batch)["logits_BLC"], np.float64)
    firsts, tags = [1, 4, 5], [1, 2, 0]  # [CLS] a ##b ##c Anna a b ...
    shares = np.exp(logits_BLC[0, firsts]) / np.exp(logits_BLC[0, firsts]).sum(axis=-1, keepdims=True)
    wanted = -np.log(shares[np.arange(3), tags]).sum()
    assert float(found["task/loss"].total) == pytest.approx(wanted, rel=1e-5)
    assert float(found["task/loss"].count) == float(FIT.counts(batch)["task/loss"]) == 3
    right = (logits_BLC[0, firsts].argmax(axis=-1) == tags).sum()
    assert float(found["task/accuracy"].total) == right and float(found["task/accuracy"].count) == 3
    other = {**batch, "tag_BL": jax.numpy.where(batch["tag_weight_BL"] > 0, batch["tag_BL"], 3)}
    assert float(measure(other)["task/loss"].total) == pytest.approx(wanted, rel=1e-5)


def entity_set(sentences: list[list[str]]) -> set[tuple[int, str, int, int]]:
    """Entities as conlleval finds them in IOB tags: a run of one type that is cut before every B-."""
    found = set()
    for number, tags in enumerate(sentences):
        place = 0
        while place < len(tags):
            kind, end = tags[place][2:], place + 1
            while kind and end < len(tags) and tags[end] == f"I-{kind}":
                end += 1
            if kind:
                found.add((number, kind, place, end))
            place = end
    return found


def test_f1_against_sets_of_entities(tmp_path: pathlib.Path) -> None:
    """300 random cases, broken sequences among them, and once more from the file that was written."""
    draw = random.Random(1)
    for _ in range(300):
        gold = [[draw.choice(FIT.labels) for _ in range(draw.randint(1, 9))] for _ in range(draw.randint(1, 5))]
        guess = [[tag if draw.random() < 0.6 else draw.choice(FIT.labels) for tag in tags] for tags in gold]
        examples = [Tagged(tuple("w" for _ in tags), tuple(tags)) for tags in gold]
        found = FIT.scores(examples, guess)
        one, other = entity_set(gold), entity_set(guess)
        assert found["f1"] == pytest.approx(200 * len(one & other) / max(1, len(one) + len(other)))
        assert found["precision"] == pytest.approx(100 * len(one & other) / max(1, len(other)))
        assert found["recall"] == pytest.approx(100 * len(one & other) / max(1, len(one)))
        persons = [{each for each in those if each[1] == "PER"} for those in (one, other)]
        if persons[0] or persons[1]:
            wanted = 200 * len(persons[0] & persons[1]) / (len(persons[0]) + len(persons[1]))
            assert found["f1_PER"] == pytest.approx(wanted)
        blocks = FIT.write(tmp_path, examples, guess)[0].read_text().split("\n\n")[:-1]
        columns = [list(zip(*(line.split(" ") for line in block.split("\n")), strict=True)) for block in blocks]
        assert entity_set([list(each[1]) for each in columns]) == one
        assert entity_set([list(each[2]) for each in columns]) == other


def test_types_in_other_letters_have_names_of_their_own() -> None:
    examples = [Tagged(("a", "b", "c"), ("B-人名", "B-地名", "B-PER"))]
    found = Ner(labels=("O", "B-人名", "B-地名", "B-PER")).scores(examples, [("B-人名", "O", "B-PER")])
    assert sorted(value for name, value in found.items() if name.startswith("f1_")) == [0, 100, 100]


def test_file_of_predictions(tmp_path: pathlib.Path) -> None:
    examples = [Tagged(("New York", "a"), ("S-LOC", "O")), Tagged(("b",), ("S-PER",))]
    task = Ner(scheme="bioes")
    assert task.write(tmp_path, examples, [("B-LOC", "E-LOC"), ("O",)])[0].read_text() == (
        "New_York B-LOC B-LOC\na O I-LOC\n\nb B-PER O\n\n"
    )
    bare = [Tagged(("a", "b"), None)]
    assert task.write(tmp_path, bare, [("B-LOC", "E-LOC")])[0].read_text() == "a B-LOC\nb I-LOC\n\n"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["bioes", pytest.param("iob2", marks=pytest.mark.slow)])
def test_a_tiny_model_learns_sixteen_sentences(
    scheme: Scheme, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """One is cut into windows, words of several pieces and of none are among them."""
    monkeypatch.chdir(ROOT)
    draw = random.Random(4)
    kinds, sentences = {"Bonn": "B-LOC", "Anna": "B-PER", "abc": "B-PER"}, []
    for number in range(16):
        words = draw.choices([*WORDS, "abc", NO_PIECES], k=60 if number == 0 else 24)
        sentences.append("".join(f"{word} X {kinds.get(word, 'O')}\n" for word in words))
    path = written(tmp_path, "\n".join(sentences))
    arguments = [*fit_arguments("configs/finetune/conll2003.py", path, tmp_path), f"--objective.scheme={scheme}"]
    assert train.main(arguments) == 0
    assert max(records(tmp_path / "run", "eval/score/f1").values()) == 100.0
    stored = stored_meta(tmp_path / "run", whole_step(tmp_path / "run")[0])["run"]["objective"]
    task = Ner(scheme=scheme)
    assert stored["labels"] == list(task.with_training_labels(task.read(path), small_wordpiece()).labels)

    capsys.readouterr()
    text = " ".join(task.read(path)[0].words)
    assert predict(["ner", str(tmp_path / "run"), "--text", text, ""]) == 4
    said, empty = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    wanted = spans(task.read(path)[0].tags or ())
    assert [(each["type"], each["first"], each["first"] + len(each["words"])) for each in said["prediction"]] == wanted
    assert all(text[each["start"] : each["end"]] == " ".join(each["words"]) for each in said["prediction"])
    assert "`text`, a sentence" in empty["error"]


@pytest.mark.parametrize(
    ("name", "prefix", "sentences", "words", "counts"),
    [
        ("conll2003/eng.train.gz", "", 14_041, 203_621, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
        ("conll2003/eng.test.gz", "", 3_453, 46_435, {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}),
        ("wikiann-en/dev.gz", "en:", 10_000, 80_536, {"LOC": 4834, "ORG": 4677, "PER": 4635}),
        ("wnut17/dev.conll.gz", "", 1_009, 15_733, {"person": 470, "creative-work": 105}),  # one of them begins with I-
        ("wnut17/train.conll.gz", "", 3_394, 62_730, {"person": 660, "location": 548}),
    ],
)
def test_real_files(
    name: str, prefix: str, sentences: int, words: int, counts: dict[str, int], shared_data: pathlib.Path
) -> None:
    task = Ner(word_prefix=prefix)
    examples = task.read(shared_data / "ner" / name)
    assert examples.problems == [] and len(examples) == sentences
    assert sum(len(each.words) for each in examples) == words
    begun = [tag[2:] for each in examples for tag in each.tags if tag[0] == "B"]
    assert {kind: begun.count(kind) for kind in counts} == counts
    some = examples[:300]
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    task = Ner(word_prefix=prefix, length=24).with_training_labels(examples, vocabulary)
    rows = list(task.rows(some, vocabulary))
    perfect = [{"logits_BLC": np.eye(len(task.labels))[row.fields["tag_BL"]]} for row in rows]
    assert len(rows) > 300 and task.scores(some, task.predictions(some, rows, perfect))["f1"] == 100.0


def test_a_word_of_ones_own_without_pieces_is_outside() -> None:
    asked = {"words": ["\U0001f600", "\u0645\u0631\u062d\u0628\u0627", NO_PIECES]}
    example, problem = FIT.example(asked, 0)
    assert example is not None and example == Tagged(tuple(asked["words"]), None) and not problem
    rows = list(FIT.rows([example], small_wordpiece()))
    scores = [{"logits_BLC": np.tile([0.0, 1.0, 0.0, 0.0, 0.0], (len(row.tokens_T), 1))} for row in rows]
    assert FIT.predictions([example], rows, scores) == [("B-PER", "B-PER", "O")]
    for words, said in (
        (["Anna", " "], "`words` has ' ' at 1: expected words, none of them empty"),
        (["Anna", 3], "`words` has 3 at 1: expected words, none of them empty"),
        ([], "`words` is []: expected `words`, a list of words, or `text`, a sentence"),
        ("Anna", "`words` is 'Anna': expected `words`, a list of words"),
    ):
        assert said in FIT.example({"words": words}, 0)[1]
    assert "fields sentence: expected `words`" in FIT.example({"sentence": "Anna"}, 0)[1]
    assert "`text` is ' ': expected" in FIT.example({"text": " "}, 0)[1]
