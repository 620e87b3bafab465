"""CoNLL-U files of CorefUD, read and written as udapi reads them."""

import dataclasses
import pathlib
from typing import Any

import pytest

from spanjax.tasks.coref import Coref
from spanjax.tasks.coref.answers import CorefPrediction
from spanjax.tasks.coref.conllu import read_conllu, write_conllu
from spanjax.tasks.coref.documents import Clusters, CorefDocument, head_of, sorted_clusters
from spanjax.tasks.coref.files import read_documents
from tests.tasks.coref_made import made_document

WORDS = ("red", "Anna", "sat", ".", "é", "日本", "ab-c", "(3", "-", "_", "#end", "|")
SAMPLE = """\
# newdoc id = news/one
# global.Entity = eid-etype-head-other
# sent_id = 1
# text = The old cat of Anna's sat down
1	The	_	_	_	_	3	det	_	Entity=(e1-animal-3-
2	old	_	_	_	_	3	amod	_	_
3	cat	_	_	_	_	6	nsubj	_	_
4	of	_	_	_	_	5	case	_	_
5-6	Anna's	_	_	_	_	_	_	_	SpaceAfter=No
5	Anna	_	_	_	_	3	nmod	_	SpaceAfter=No|Entity=(e2-person-1-)e1)
6	's	_	_	_	_	0	root	_	_

# sent_id = 2
1	Sat	_	_	_	_	0	root	_	_
1.1	_	_	_	_	_	_	_	1:nsubj	Entity=(e1-animal-1-)
2	it	_	_	_	_	1	nsubj	_	Entity=(e1-animal-1-)
3	took	_	_	_	_	1	dep	_	Entity=(e3[1/2]-event-1-)
4	now	_	_	_	_	3	advmod	_	Entity=(e4-time-1-
5	off	_	_	_	_	3	part	_	Entity=(e3[2/2]-event-1-)e4)
6	her	_	_	_	_	1	obj	_	Entity=(e2-person-1-)

# newdoc id = two
# sent_id = 3
1	It	_	_	_	_	0	root	_	Entity=(e9-x-1-)

"""


def by_udapi(path: pathlib.Path) -> dict[str, tuple[set[frozenset[tuple[int, ...]]], dict[tuple[int, ...], int]]]:
    """(clusters of mentions, each the numbers of its words; the head of every mention) by document, as udapi reads them."""
    document = pytest.importorskip("udapi.core.document").Document()
    document.from_conllu_string(path.read_text(encoding="utf-8"))
    place: dict[Any, int] = {}
    names: dict[Any, str] = {}
    name, count = "", 0
    for tree in document.trees:
        if tree.newdoc:
            name, count = str(tree.newdoc), 0
        for node in tree.descendants:
            place[node], names[node], count = count, name, count + 1
    found: dict[str, Any] = {each: (set(), {}) for each in names.values()}
    for entity in document.coref_entities:
        mentions, own = set(), ""
        for mention in entity.mentions:
            words = tuple(place[node] for node in mention.words if node in place)
            if words:
                own = names[mention.words[-1] if mention.words[-1] in names else mention.words[0]]
                mentions.add(words)
                found[own][1][words] = place[mention.head]
        if mentions:
            found[own][0].add(frozenset(mentions))
    return found


def spelt_out(document: CorefDocument, clusters: Clusters) -> set[frozenset[tuple[int, ...]]]:
    """Clusters of mentions, each the numbers of its words."""
    return {frozenset(tuple(range(a, b + 1)) for a, b in cluster) for cluster in clusters}


def test_a_file_as_udapi_reads_it(tmp_path):
    path = tmp_path / "sample.conllu"
    path.write_text(SAMPLE, encoding="utf-8")
    examples = read_documents(path)
    assert not examples.problems
    one, two = examples
    assert (one.name, one.genre, two.name) == ("news/one", "news", "two")
    assert one.sentences == (("The", "old", "cat", "of", "Anna", "'s"), ("Sat", "it", "took", "now", "off", "her"))
    assert one.clusters == (((0, 4), (7, 7)), ((4, 4), (11, 11)), ((8, 8),), ((9, 10),))
    assert one.governors == (2, 2, 5, 4, 2, -1, -1, 6, 6, 8, 8, 6)
    assert examples.notes == [
        f"{path}: skipped 1 mentions of empty nodes; shortened 1 with gaps to the words around the head"
    ]
    for document, (clusters, heads) in zip(examples, by_udapi(path).values(), strict=True):
        whole = {frozenset(mention for mention in each if mention != (8, 10)) for each in clusters}
        ours = spelt_out(document, document.clusters or ())
        assert {each for each in whole if each} == {frozenset(m for m in each if m != (8,)) for each in ours} - {
            frozenset()
        }
        assert all(head_of(document, (m[0], m[-1])) == head for m, head in heads.items() if m != (8, 10))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_is_what_udapi_reads(seed, tmp_path):
    document = dataclasses.replace(made_document(seed, vocabulary=WORDS), name=f"nw/{seed}", part=0, genre="nw")
    if seed % 2:  # a chain for a tree: every word governs the next one of its sentence
        starts = {sum(map(len, document.sentences[:n])) for n in range(len(document.sentences))}
        count = len(document.speakers)
        document = dataclasses.replace(
            document, governors=tuple(-1 if place in starts else place - 1 for place in range(count))
        )
    sentence = [number for number, words in enumerate(document.sentences) for _ in words]
    inside = [[m for m in cluster if sentence[m[0]] == sentence[m[1]]] for cluster in document.clusters or ()]
    clusters = sorted_clusters(inside)
    path = write_conllu(
        tmp_path / "made.conllu", [document, dataclasses.replace(document, name="b")], [document.clusters or ()] * 2
    )
    again = read_conllu(path)
    assert not again.problems and [each.name for each in again] == [f"nw/{seed}", "b"]
    known = by_udapi(path)
    for each in again:
        assert each.sentences == document.sentences
        assert each.clusters == clusters, "mentions across a sentence end are dropped"
        expected, heads = known[each.name]
        assert spelt_out(each, each.clusters or ()) == expected
        for words, head in heads.items():
            first, last = words[0], words[-1]
            assert head_of(each, (first, last)) == head == head_of(document, (first, last))


def test_heads_without_annotation_are_those_of_the_tree_or_the_last_words():
    document = CorefDocument("a", 0, (tuple("abcde"),), ("",) * 5, governors=(2, 2, 4, 2, -1))
    assert [head_of(document, mention) for mention in [(0, 2), (0, 1), (3, 4), (1, 3)]] == [2, 0, 4, 2]
    assert head_of(dataclasses.replace(document, governors=()), (0, 2)) == 2
    assert head_of(dataclasses.replace(document, heads={(0, 2): 1}), (0, 2)) == 1


def test_scores_by_heads_and_the_file_of_the_scorer(tmp_path):
    path = tmp_path / "sample.conllu"
    path.write_text(SAMPLE, encoding="utf-8")
    examples = read_documents(path)
    found = [CorefPrediction((((2, 2), (7, 7)), ((3, 4), (11, 11))), {}), CorefPrediction((), {})]
    spans, heads = Coref(singletons="drop"), Coref(singletons="drop", scored="heads")
    counted = spans.counted(examples)
    assert spans.scores(counted, found)["f1"] < 50
    assert heads.scores(counted, found)["f1"] == pytest.approx(100)
    assert spans.scores(counted, found)["muc_f1"] == 0
    files = heads.write(tmp_path, counted, found)
    assert tmp_path / "predictions.conllu" in files
    assert [each.clusters for each in read_conllu(tmp_path / "predictions.conllu")] == [found[0].clusters, ()]


RICH = """\
# newdoc id = rich/one
# global.Entity = eid-etype-head-minspan-infstat
# sent_id = 1
1-2\tAnna's\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tAnna\t_\tX\t_\tA=b\t3\tnmod\t3:nmod\tAlign=1|Bridge=e1<e2|Entity=(e1-person-1-1-new)|Gloss=x
2\t's\t_\t_\t_\t_\t1\tcase\t_\tGloss=Entity=y
2.1\t_\t_\t_\t_\t_\t_\t_\t3:dep\tEntity=(e5-x-1--)|Zero=1
3\tcat\t_\t_\t_\t_\t4\tnsubj\t4:nsubj\tEntity=(e2[1/2]-animal-1--
4\tsat\t_\t_\t_\t_\t0\troot\t0:root\tEntity=e2[1/2])
5\tdown\t_\t_\t_\t_\t4\tadvmod\t_\t_
6\tthere\t_\t_\t_\t_\t4\tadvmod\t_\tEntity=(e2[2/2]-animal-1--)

# a comment
# newdoc id = rich/two
# sent_id = 2
1\tIt\t_\t_\t_\t_\t2\tnsubj\t_\tEntity=(e7[1/3]-x-1--)
1.1\t_\t_\t_\t_\t_\t_\t_\t2:dep\t_
2\tsat\t_\t_\t_\t_\t0\troot\t_\t_
3\tdown\t_\t_\t_\t_\t2\tadvmod\t_\tSpaceAfter=No"""


def without_entities(text: str) -> list[str]:
    """The lines without the keys that name entities in their last column."""
    rows = [line.split("\t") for line in text.split("\n")]
    for columns in rows:
        if len(columns) == 10:
            misc, end = columns[9].rstrip("\r"), columns[9][len(columns[9].rstrip("\r")) :]
            kept = [each for each in misc.split("|") if not each.startswith(("Entity=", "Bridge=")) and each != "_"]
            columns[9] = "|".join(kept) + end
    return ["\t".join(columns) for columns in rows]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_clusters_are_written_into_the_lines_that_were_read(end, tmp_path):
    path = tmp_path / "rich.conllu"
    path.write_bytes(RICH.replace("\n", end).encode())
    examples = read_documents(path)
    assert not examples.problems and len(examples) == 2
    assert [each.clusters for each in examples] == [(((0, 0),), ((2, 3),)), (((0, 0),),)]
    assert examples.notes == [
        f"{path}: skipped 1 mentions of empty nodes; shortened 1 with gaps to the words around the head",
        f"{path}: 1 mentions lack some of their parts, as [2/2]: read the other parts",
    ]
    clusters: list[Clusters] = [(((0, 2), (4, 4)), ((3, 5),)), (((0, 1), (2, 2)),)]
    made = write_conllu(tmp_path / "made.conllu", examples, clusters)
    text = made.read_bytes().decode()
    assert without_entities(text) == without_entities(path.read_bytes().decode())
    assert "Align=1|Entity=(e1--4--|Gloss=x" in text, "the head is the fourth node, the third word"
    assert f"Gloss=Entity=y{end}" in text and f"Zero=1{end}" in text, "and no other key changes"
    again = read_documents(made)
    assert not again.problems and not again.notes
    assert [each.clusters for each in again] == clusters
    assert [each.sentences for each in again] == [each.sentences for each in examples]
    assert again[0].heads[(0, 2)] == 2
    # a file behind another whose last line has no end
    both = read_documents(write_conllu(tmp_path / "both.conllu", [*examples, *examples], clusters * 2))
    assert [each.clusters for each in both] == clusters * 2
    for document, (expected, heads) in zip(again, by_udapi(made).values(), strict=True):
        assert {frozenset(cluster) for cluster in expected} == spelt_out(document, document.clusters or ())
        assert all(head_of(document, (words[0], words[-1])) == head for words, head in heads.items())


def test_predictions_of_a_task_keep_the_file(tmp_path):
    path = tmp_path / "rich.conllu"
    path.write_text(RICH, encoding="utf-8")
    found = [CorefPrediction((), {}), CorefPrediction((((0, 0), (2, 2)),), {})]
    Coref().write(tmp_path, [dataclasses.replace(each, clusters=None) for each in read_documents(path)], found)
    text = (tmp_path / "predictions.conllu").read_text(encoding="utf-8")
    assert without_entities(text) == without_entities(RICH)
    assert text.count("Entity=(e1--1--)") == 2 and text.count("Entity=") == 3


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Entity=(e9-x-1-)", "Entity=(e9-x-1-", "40: (e9 does not close: expected e9) in its document"),
        ("Entity=(e9-x-1-)", "Entity=e9)", "24: e9) closes a mention that was not begun: expected (e9 before"),
        ("Entity=(e9-x-1-)", "Entity=e9", "24: Entity=e9: expected brackets such as (e1-person-1-, e1) or (e1--1-)"),
        ("1\tIt\t_\t_", "1\tIt\t_", "24: 9 columns: expected 10 of CoNLL-U, not "),
    ],
)
def test_bad_lines_cost_their_document(old, new, problem, tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text(SAMPLE.replace(old, new), encoding="utf-8")
    examples = read_documents(path)
    assert [each.name for each in examples] == ["news/one"]
    line = problem.replace("40:", "24:")
    assert len(examples.problems) == 1 and examples.problems[0].startswith(f"{path}:{line}")
