"""The model card's front matter is YAML and its text Markdown, whatever names and licences say."""

import ast
import pathlib
import re
from typing import Any

import pytest
import yaml

from spanjax.convert import main as convert
from spanjax.convert.card import model_card
from spanjax.convert.card_sections import citations, limitations
from spanjax.pretrained.load import load_model
from spanjax.training.eval_history import stored_values
from tests.torch_format.references import REASON, saved

TRUST = ", trust_remote_code=True"
HOSTILE = {
    "license": ("mit\nextra: 1", "[x", "no", "cc-by-sa-4.0 # x", "\x1b[31m"),
    "language": ("en: [x", "- de", "multi\n---\n<script>alert(1)</script>"),
    "name": ("x\n---\n<script>alert(1)</script>", "a`b|c", '"quoted"', "</table><img src=x onerror=y>"),
}


@pytest.mark.parametrize("number", range(5))
def test_what_is_given_stays_what_it_is(number: int, run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    given = {name: values[number % len(values)] for name, values in HOSTILE.items()}
    words = [f"--{name}={value}" for name, value in given.items()]
    assert convert(["to-torch", str(run_folder), str(tmp_path / "out"), *words]) == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    opening, front, body = card.split("\n---\n")[0], *card.removeprefix("---\n").split("\n---\n", 1)
    assert opening.startswith("---\n") and "\n---\n" not in body
    found = yaml.safe_load(front)
    index = found.pop("model-index")
    assert found == {"library_name": "transformers", "pipeline_tag": "fill-mask", "license": given["license"],
                     "language": given["language"], "tags": ["spanjax", "spanbert"]}  # fmt: skip
    assert index[0]["name"] == given["name"]
    assert "<script" not in body and "<img" not in body and "</table" not in body and "\x1b" not in card
    title, code = body.splitlines()[1], [line for line in body.splitlines() if "from_pretrained(" in line]
    assert title.startswith("# ") and len(code) == 3
    for line in code:
        assert (
            ast.literal_eval(line.partition("from_pretrained(")[2].removesuffix(")").removesuffix(TRUST))
            == given["name"]
        )


def front_matter(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.removeprefix("---\n").split("\n---\n", 1)[0])


def test_metrics_are_a_model_index_of_the_hub(run_folder: pathlib.Path) -> None:
    model = load_model(run_folder)
    card = model_card(model, "mine", "mit", "en", "SpanBERT/spanbert-base-cased")
    found = front_matter(card)
    assert found["base_model"] == "SpanBERT/spanbert-base-cased"
    (entry,) = found["model-index"]
    (result,) = entry["results"]
    rows = model.meta["rows"]
    assert result["dataset"]["revision"] == rows["fingerprint"] and result["task"]["type"] == "fill-mask"
    values = {metric["name"]: metric["value"] for metric in result["metrics"]}
    assert values == pytest.approx(stored_values(model.meta)) and {"mlm/loss", "sbo/loss", "loss"} <= values.keys()
    hub = pytest.importorskip("huggingface_hub.repocard_data", reason=REASON)
    name, results = hub.model_index_to_eval_results(found["model-index"])
    assert name == "mine" and {each.metric_type for each in results} == {"loss", "accuracy"}


def test_sections_state_data_limits_and_papers(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    model = load_model(run_folder)
    rows, card = model.meta["rows"], model_card(model, "mine", "", "en")
    for title in ("Intended use", "Data", "Limitations", "Citation", "Architecture", "Results"):
        assert f"\n## {title}\n" in card, title
    assert f"| fingerprint of its manifest | `{rows['fingerprint']}` |" in card and "| folder of rows | rows |" in card
    assert "reads at most 128 tokens" in card and "trained on text in: en." in card and "at most 15 tokens" in card
    assert "masked spans" in card and "base_model" not in card, "nothing was started from other weights"
    papers = citations(model, model.meta["run"])
    assert [re.findall(r"@\w+{([\w-]+),", paper) for paper in papers] == [
        ["joshi-etal-2020-spanbert"], ["devlin-etal-2019-bert"]]  # fmt: skip
    assert "TO FILL IN" in limitations(model, {}, "")[1]
    saved("roberta", tmp_path / "theirs")
    other = load_model(tmp_path / "theirs")
    plain = model_card(other, "theirs", "", "")
    assert "model-index" not in front_matter(plain) and "trust_remote_code" not in plain and "liu-etal-2019" in plain


def test_the_start_is_named_for_its_owner_to_fill_in(run_folder: pathlib.Path) -> None:
    model = load_model(run_folder)
    model.meta["run"]["init_from"] = "/somewhere/bert\nbase"
    card = model_card(model, "mine", "mit", "en")
    assert '# base_model: TO FILL IN, training started from "bert' in card and "base_model" not in front_matter(card)
    assert model_card(model, "mine", "mit", "en", "a/b").count("base_model: a/b") == 1
