"""Tables of GAP as documents, decisions from clusters, and the file of the official scorer."""

import dataclasses

import pytest

from spanjax.tasks.coref import Coref
from spanjax.tasks.coref.answers import CorefPrediction
from spanjax.tasks.coref.documents import CorefDocument
from spanjax.tasks.coref.files import read_documents
from spanjax.tasks.coref.gap import COLUMNS, decision, names

pytest.importorskip("spacy", reason="spaCy is not installed (spanjax[spacy])")
TEXT = "Ida Jones wrote to Eva. She said that Mr. Eva Smith left."
ROW = ["t-1", TEXT, "She", "24", "Ida Jones", "0", "TRUE", "Eva", "19", "FALSE", "http://x"]


def table(path, *rows) -> None:
    """Writes a table of GAP."""
    lines = [[*COLUMNS, "URL"], *rows]
    path.write_text("".join("\t".join(row) + "\n" for row in lines), encoding="utf-8")


def changed(**cells: str) -> list[str]:
    """The row with other cells, `A_coref` for A-coref."""
    new = {name.replace("_", "-"): value for name, value in cells.items()}
    return [new.get(name, cell) for name, cell in zip([*COLUMNS, "URL"], ROW, strict=True)]


def test_a_document_brings_the_pronoun_and_two_names(tmp_path):
    table(tmp_path / "gap.tsv", ROW, changed(ID="t-2", A_coref="FALSE"), changed(ID="t-3", B_coref="true"))
    examples = read_documents(tmp_path / "gap.tsv")
    assert not examples.problems and [each.name for each in examples] == ["t-1", "t-2", "t-3"]
    one = examples[0]
    assert one.mentions == ((6, 6), (0, 1), (4, 4)) and one.clusters == (((0, 1), (6, 6)),)
    assert [decision(each, each.clusters or ()) for each in examples] == [(True, False), (False, False), (True, True)]


def test_all_of_gap_is_read(shared_data):
    for name, count in (("development", 2000), ("validation", 454)):
        examples = read_documents(shared_data / f"coref/gap/gap-{name}.tsv.gz")
        assert len(examples) == count and not examples.problems
        for each in examples:
            assert each.mentions and len(each.mentions) == 3 and each.mentions[0][0] == each.mentions[0][1]
    task = Coref(scored="gap")
    found = task.scores(examples, [CorefPrediction(each.clusters or (), {}) for each in examples])
    assert found["f1"] == 100 and found["bias"] == 1
    assert task.scores(examples, [CorefPrediction((), {}) for _ in examples])["f1"] == 0


@pytest.mark.parametrize(
    ("mention", "same"), [((0, 1), True), ((0, 0), True), ((1, 1), True), ((0, 2), False), ((8, 9), False)]
)
def test_mentions_that_name_a_name(mention, same):
    words = TEXT.replace(".", " .").split()
    assert names(mention, (0, 1), words) is same


def test_capitalised_words_around_a_name_are_of_it():
    words = ["then", "Mr.", "Eva", "Smith", "of", "Rome", "left"]
    assert names((1, 3), (2, 3), words) and names((1, 3), (2, 2), words)
    assert not names((1, 5), (2, 3), words) and not names((0, 3), (2, 3), words)


def test_the_official_file(tmp_path):
    table(tmp_path / "gap.tsv", ROW)
    examples = read_documents(tmp_path / "gap.tsv")
    task = Coref(scored="gap")
    answers = [CorefPrediction((((4, 4), (6, 6)),), {})]
    assert tmp_path / "gap.tsv" in task.write(tmp_path, examples, answers)
    assert (tmp_path / "gap.tsv").read_text() == "t-1\tFALSE\tTRUE\n"
    assert task.scores(examples, answers)["f1"] == 0
    plain = CorefDocument("plain", 0, (("a",),), ("",), ())
    with pytest.raises(ValueError, match="plain has no pronoun with two names: score GAP on tables of GAP"):
        decision(plain, ())
    with pytest.raises(ValueError, match="score GAP on tables of GAP"):
        task.scores([dataclasses.replace(plain, clusters=(((0, 0),),))], [CorefPrediction((), {})])


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (
            {"Pronoun": "It"},
            "`Pronoun` is 'It' at 24, which the text lacks there; `Pronoun` is 'It': expected one of she",
        ),
        ({"A_offset": "x"}, "`A` is 'Ida Jones' at x, which the text lacks there"),
        ({"B_coref": "yes"}, "`B-coref` is 'yes': expected TRUE or FALSE"),
        ({"URL": "a\tb"}, "12 columns: expected 11, as in the first line"),
    ],
)
def test_bad_rows(cells, problem, tmp_path):
    table(tmp_path / "gap.tsv", changed(**cells))
    (found,) = read_documents(tmp_path / "gap.tsv").problems
    assert found.startswith(f"{tmp_path / 'gap.tsv'}:2: {problem}")


def test_a_table_of_another_kind(tmp_path):
    (tmp_path / "other.tsv").write_text("sentence\tlabel\nx\t1\n")
    (problem,) = read_documents(tmp_path / "other.tsv").problems
    assert "no column ID, Text, Pronoun" in problem and problem.endswith("expected the columns of GAP")
