"""The headline: best results in sentences, groups compared, no ranking of losses without a common scale."""

import json
import pathlib
from typing import Any

import pytest

from spanjax.objectives.electra import ReplacedDetection
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pages.document import Headline, Words, plain
from spanjax.report.headline import headline_blocks
from spanjax.report.labels import inline, labelled, rank, titled
from spanjax.report.runs import Recorded, grouped, read_run
from spanjax.run_format import describe
from tests.report.made_runs import cola, made_run

pytestmark = pytest.mark.unit


def sentences(runs: list[Recorded]) -> list[tuple[str, str]]:
    blocks = headline_blocks(grouped(runs))
    return [
        (plain(found.words), found.detail)
        for block in blocks
        if isinstance(block, Headline)
        for found in block.findings
    ]


def pretrained(path: pathlib.Path, losses: dict[str, float], objective: Any = None, **settings: Any) -> Recorded:
    """A pretraining run with one evaluation at step 1,400, whose rows are gone."""
    made_run(path, **settings)
    found = json.loads((path / "run.json").read_text()) | {"kind": "pretraining"}
    found["objective"] = describe(objective or MaskedPrediction())
    (path / "run.json").write_text(json.dumps(found))
    line = {"step": 1400, **{f"eval/{name}": value for name, value in losses.items()}}
    (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return read_run(path)


def test_the_best_of_two_groups_and_its_distance(tmp_path: pathlib.Path) -> None:
    runs = cola(tmp_path, "low", [58.0, 57.0], batch_size=16) + cola(tmp_path, "high", [61.0, 63.0, 62.5])
    ((words, detail),) = sentences(runs)
    assert words == "Best CoLA Matthews correlation 62.17 (× 100)"
    assert detail.startswith(
        "Mean of 3 seeds of high, step 10, standard deviation 1.04. Best of 2 groups: 4.67 above the next, low"
    )
    assert "(Welch's t-test: p = 0.01" in detail and detail.endswith("Dev files: dev.tsv.")


def test_the_loss_of_the_largest_weight(tmp_path: pathlib.Path) -> None:
    losses = {"loss": 10.5, "mlm/loss": 5.0644, "sbo/loss": 5.4}
    ((words, detail),) = sentences([pretrained(tmp_path / "demo" / "run", losses)])
    assert (words, detail) == ("Best held-out MLM loss 5.0644 nats", "Run demo/run, step 1,400.")
    losses = {"loss": 13.0, "mlm/loss": 3.0, "rtd/loss": 0.2}
    ((words, _),) = sentences([pretrained(tmp_path / "electra", losses, ReplacedDetection())])
    assert words == "Best held-out replaced-token detection loss 0.2000 nats"


def test_losses_without_a_common_scale_are_not_ranked(tmp_path: pathlib.Path) -> None:
    one = [pretrained(tmp_path / str(rate), {"loss": rate, "mlm/loss": rate}, batch_size=rate) for rate in (3, 4)]
    ((words, detail),) = sentences(one)
    assert words == "Best held-out MLM loss 3.0000 nats" and "total loss 1.0000 below the next, 4" in detail
    many = [pretrained(tmp_path / f"rows{n}", {"loss": n, "mlm/loss": n}, rows_fingerprint=str(n)) for n in range(1, 5)]
    ((words, detail),) = sentences(many)
    assert words == "4 kinds of pretraining with losses that are not comparable" and "the table" in detail
    assert len(sentences(many[:3])) == 3


def test_nothing_evaluated_has_no_headline(tmp_path: pathlib.Path) -> None:
    assert sentences([read_run(made_run(tmp_path / "run"))]) == []
    unknown = read_run(made_run(tmp_path / "own", [{"points": 3.0}], objective={"class": "Chess"}))
    assert sentences([unknown])[0][0] == "Best Chess points 3.00"


def test_labels() -> None:
    assert [titled(name) for name in ("mlm/accuracy", "speed/data_wait", "loss", "score/ceafe_f1", "score/HasAns_exact")] == [
        "MLM accuracy, %", "Waiting for data, % of the time", "Total loss", "CEAFe F1", "Exact match, answerable",
    ]  # fmt: skip
    assert inline("score/of_my_own") == "of my own" and inline("mine/loss") == "mine loss"
    assert [*labelled("sbo/loss")] == [Words("SBO loss", title="sbo/loss")]
    names = ["sbo/loss", "mlm/accuracy", "loss", "mlm/loss"]
    assert sorted(names, key=rank) == ["loss", "mlm/loss", "mlm/accuracy", "sbo/loss"]
