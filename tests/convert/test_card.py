"""The model card's front matter is YAML and its text Markdown, whatever names and licences say."""

import ast
import pathlib

import pytest
import yaml

from spanjax.convert import main as convert

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
    assert found == {"library_name": "transformers", "pipeline_tag": "fill-mask", "license": given["license"],
                     "language": given["language"], "tags": ["spanjax", "spanbert"]}  # fmt: skip
    assert "<script" not in body and "<img" not in body and "</table" not in body and "\x1b" not in card
    title, code = body.splitlines()[1], [line for line in body.splitlines() if "from_pretrained(" in line]
    assert title.startswith("# ") and len(code) == 2
    for line in code:
        assert ast.literal_eval(line.partition("from_pretrained(")[2].removesuffix(")")) == given["name"]
