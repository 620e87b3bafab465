"""The paper's numbers, and runs in its tables: which cell, which row, what is left out."""

import pathlib

import pytest

from configs.ablations.base import RUN as BASE
from spanjax.pages.document import plain
from spanjax.report import paper
from spanjax.report.runs import grouped, read_run
from spanjax.report.tables import ARMS, arm_of, filled, score_blocks, tuned_models
from spanjax.run import load
from spanjax.run_format import describe
from tests.report.made_runs import cola, made_run
from tests.running import ROOT

pytestmark = pytest.mark.unit


def text_rows(table: object) -> dict[str, list[str]]:
    """name -> cells of a table."""
    rows = getattr(table, "rows")  # noqa: B009
    return {plain(row[0]): [plain(cell) for cell in row[1:]] for row in rows}


def test_rows_are_as_wide_as_their_tables() -> None:
    for table in paper.TABLES:
        assert {len(values) for values in table.rows.values()} == {len(table.columns)}
        assert set(table.arms.values()) <= set(table.rows)
    assert [table.source for table in paper.TABLES] == [f"Table {number}" for number in range(1, 8)]


def test_averages_come_out() -> None:
    """Sums that the paper gives beside their parts: a number typed wrongly breaks one."""
    for values in paper.MRQA.rows.values():
        known = [value for value in values if value is not None]
        assert sum(known[:-1]) / 5 == pytest.approx(known[-1], abs=0.0601)  # 77.24 is printed as 77.3
    for name, values in paper.COREFERENCE.rows.items():
        known = [value for value in values if value is not None]
        assert sum(known[2:9:3]) / 3 == pytest.approx(known[-1], abs=0.1)
        for start in (0, 3, 6):
            p, r, f = known[start : start + 3]
            printed = 0.5 if (name, start) == ("Our BERT", 6) else 0.11  # 73.9 is printed for 75.0 and 71.9
            assert 2 * p * r / (p + r) == pytest.approx(f, abs=printed)
    for values in paper.GLUE.rows.values():
        cola_, sst, mrpc, mrpc_, sts, sts_, qqp, qqp_, m, mm, qnli, rte, mean = (value or 0 for value in values)
        halves = ((mrpc + mrpc_) / 2, (sts + sts_) / 2, (qqp + qqp_) / 2, (m + mm) / 2)
        assert (cola_ + sst + sum(halves) + qnli + rte + 65.1) / 9 == pytest.approx(mean, abs=0.06)
    assert paper.OBJECTIVES.rows["Span masking (2seq) + NSP"] == paper.MASKING.rows["Geometric spans"]
    for values in paper.RELATIONS.rows.values():
        p, r, f = values
        assert p is None or r is None or 2 * p * r / (p + r) == pytest.approx(f, abs=0.11)
    assert paper.SQUAD.rows["SpanBERT"] == (88.8, 94.6, 85.7, 88.7)
    assert paper.RELATIONS.rows["SpanBERT"][2] == 70.8


def test_a_model_has_one_row_with_the_best_setting(tmp_path: pathlib.Path) -> None:
    runs = cola(tmp_path, "low", [50.0, 52.0], init_from="models/mine", batch_size=16)
    runs += cola(tmp_path, "high", [60.0, 62.0, 64.0], init_from="models/mine")
    runs += cola(tmp_path, "yours", [61.5], init_from="models/yours")
    runs += cola(tmp_path, "elsewhere", [99.0], init_from="models/yours", objective={"dev": ["easy.tsv"]})
    table = filled(paper.GLUE, tuned_models(grouped(runs)))
    assert table is not None
    rows = text_rows(table)
    assert rows["mine"] == ["62.0 ± 2.0 (3)", *["–"] * 12]
    assert rows["yours"][0] == "61.5 (1)"
    assert rows["SpanBERT (paper)"][:2] == ["64.3", "94.8"]
    words = "\n".join(plain(getattr(block, "words", "")) for block in score_blocks(grouped(runs)))
    assert "CoLA on dev.tsv, the best of up to 2 settings" in words
    assert "No run fills a cell of Table 1, Table 2, Table 3, Table 4, Table 6, Table 7" in words
    assert "test set" in words and "dev files" in words


@pytest.mark.parametrize(
    ("objective", "task"),
    [
        ({"task": "MNLI-mm"}, "MNLI-mm"),
        ({"task": "own"}, "own sentences"),
        ({"class": "Questions", "version": "2.0"}, "SQuAD 2.0"),
        ({"class": "Questions", "version": "1.1"}, "SQuAD 1.1"),
        ({"class": "Questions", "version": "mrqa", "dev": ["x/NewsQA-dev.jsonl.gz"]}, "NewsQA"),
        ({"class": "Questions", "version": "mrqa", "dev": ["NaturalQuestionsShort-dev.jsonl.gz"]}, "Natural Questions"),
        ({"class": "Questions", "version": "mrqa", "dev": ["TriviaQA-web.jsonl", "HotpotQA.jsonl"]}, "MRQA"),
        ({"class": "Relation", "scheme": "tacred"}, "TACRED"),
        ({"class": "Relation", "scheme": "semeval"}, "SemEval-2010"),
        ({"class": "Entities"}, "Entities"),
    ],
)
def test_tasks_are_recognised(objective: dict, task: str, tmp_path: pathlib.Path) -> None:
    path = made_run(tmp_path / "run")
    run = read_run(path)
    settings = dict(run.settings["objective"])
    if "class" in objective:
        settings = {"train": [], "dev": []}
    run.settings["objective"].clear()  # pyright: ignore
    run.settings["objective"].update(settings | objective)  # pyright: ignore
    assert run.row.name == task


def test_every_ablation_is_recognised_by_settings_and_by_name() -> None:
    files = sorted((ROOT / "configs/ablations").glob("table*.py"))
    assert len(files) == 8
    for file in files:
        arm = "table6_geometric_spans" if file.stem == "table7_two_sequences" else file.stem
        assert arm_of(describe(load(str(file))), "") == arm
        assert arm_of(None, f"runs/ablations/{file.stem}/run") == arm
    assert arm_of(describe(BASE), "") == "table6_geometric_spans"
    assert arm_of(None, "runs/mine") == "" and set(ARMS) == set(paper.MASKING.arms) | set(paper.OBJECTIVES.arms)


def test_ablations_have_the_row_of_their_pretraining(tmp_path: pathlib.Path) -> None:
    scores = [{"accuracy": 90.0, "mean": 90.0}]
    origin = "runs/table7_single_sequence_sbo"
    qnli = read_run(made_run(tmp_path / "qnli", scores, objective={"task": "QNLI"}, init_from=origin))
    models = tuned_models(grouped([qnli]))
    assert filled(paper.MASKING, models) is None
    table = filled(paper.OBJECTIVES, models)
    assert table is not None
    names = list(text_rows(table))
    place = names.index("Span masking (1seq) + SBO: table7_single_sequence_sbo")
    assert names[place - 1] == "Span masking (1seq) + SBO (paper)"
    assert text_rows(table)[names[place]] == ["–", "–", "–", "–", "–", "90.0 (1)", "–"]


def test_the_average_needs_every_task(tmp_path: pathlib.Path) -> None:
    names = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI")
    values = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 90.0, 10.0, 30.0)
    runs = [
        read_run(made_run(tmp_path / name, [{"mean": v, "accuracy": v}], objective={"task": name}, init_from="m"))
        for name, v in zip(names, values, strict=True)
    ]
    means = {}
    for count in (9, 10):
        table = filled(paper.GLUE, tuned_models(grouped(runs[:count])))
        assert table is not None
        means[count] = text_rows(table)["m"][-1]
    assert means == {9: "–", 10: f"{(10 + 20 + 30 + 40 + 50 + 70 + 90 + 10 + 30) / 9:.1f}"}
