"""The commands of the README in their order, from the installed wheel, on small inputs of the names that it uses."""

import gzip
import json
import pathlib
import re
import shlex
import shutil

import pytest

from tests.journeys.conftest import Journey, documents
from tests.running import ROOT

pytestmark = pytest.mark.slow
SMALL = (
    "--encoder.hidden-size 32 --encoder.layers 2 --encoder.heads 2 --encoder.intermediate-size 64 --batch-size 4"
    " --steps 2 --feed numpy"
)
SMALLER: dict[str, str] = {
    r"train --config configs/pretrain/(spanbert_base|demo)": SMALL + " --encoder.positions 512",
    r"train --config configs/pretrain/continue_spanbert": "--batch-size 4 --steps 2 --feed numpy",
    r"train --config configs/finetune/squad2": "--batch-size 4 --objective.epochs 1 --objective.length 96",
    r"launch local": SMALL + " --encoder.positions 512 --encoder.vocab-size 0",
    r"prepare vocab": "--size 300",
}
"""Pattern of a command -> flags that make it small enough for a test; the last value of a flag wins."""
NOT_RUN: dict[str, str] = {
    r" \.\.\.": "a command with its own dots",
    r"spanjax\.plan": "needs compilers that tests/test_pods.py has",
    r"convert push": "needs a Hub: tests/convert/test_push.py",
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """Contents of the fenced blocks of a language."""
    return [body for name, body in FENCE.findall(text) if name == language]


def commands(text: str) -> list[str]:
    """Command lines of spanjax in the blocks without a language, without their comments."""
    lines = [line for body in blocks(text, "") for line in body.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if re.match(r"(python -m spanjax|spanjax )", line)]
    return [shlex.join(each) for each in words if "COMMAND" not in each]


def test_commands_of_a_page() -> None:
    """Comments and continued lines; not the output of a program, and no other program."""
    page = (
        "```\nspanjax a --b 'c d' \\\n    --e    # why\nmake x\n  python -m spanjax.y\n```\n```python\nspanjax x\n```\n"
    )
    assert commands(page) == ["spanjax a --b 'c d' --e"] and blocks(page, "python") == ["spanjax x\n"]


def write_inputs(folder: pathlib.Path, weights: pathlib.Path) -> None:
    """The files that the README names: text, weights with their vocabulary, questions, a story."""
    (folder / "text").mkdir()
    texts = documents("numpy", 60)
    with gzip.open(folder / "text" / "0.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    shutil.copytree(weights, folder / "spanbert-base-cased")
    shutil.copy(weights / "vocab.txt", folder)
    answers = [text.split()[0] for text in texts]
    questions = [
        [{"id": f"{number}", "question": "Which word is first?", "answers": [{"text": answer, "answer_start": 0}]}]
        for number, answer in enumerate(answers)
    ]
    for name, part in (("train", slice(0, 12)), ("dev", slice(12, 16))):
        passages = zip(texts[part], questions[part], strict=True)
        paragraphs = [
            {"context": text[:120], "qas": [{**qa, "is_impossible": False} for qa in qas]} for text, qas in passages
        ]
        data = {"version": "v2.0", "data": [{"title": name, "paragraphs": paragraphs}]}
        (folder / f"{name}.json").write_text(json.dumps(data))
    (folder / "story.txt").write_text("The old sailor mended the clock. He sold it.\n")
    tokens = ["The", "old", "sailor", "mended", "the", "clock", ".", "He", "sold", "it", "."]
    chains = {"document": "a", "sentences": [tokens[:7], tokens[7:]], "clusters": [[[0, 2], [7, 7]], [[4, 5], [9, 9]]]}
    (folder / "chains.jsonl").write_text((json.dumps(chains) + "\n") * 4)


def test_every_command(journey: Journey, weights: pathlib.Path) -> None:
    """Each runs after those above it; then the programs in Python."""
    text = (ROOT / "README.md").read_text()
    write_inputs(journey.folder, weights)
    done = 0
    for command in commands(text):
        if any(re.search(pattern, command) for pattern in NOT_RUN):
            continue
        if "runs/coref" in command and not (journey.folder / "runs/coref").exists():
            # the page trains on questions alone; docs/tasks_coref.md has this command
            journey(
                "spanjax train --config coref --init-from runs/mine --train chains.jsonl --dev chains.jsonl"
                " --workdir runs/coref --objective.epochs 1"
            )
        more = " ".join(flags for pattern, flags in SMALLER.items() if re.search(pattern, command))
        folders = sorted(str(each.relative_to(journey.folder)) for each in journey.folder.glob("runs/*"))
        journey(f"{command.replace(shlex.quote('runs/*'), ' '.join(folders))} {more}")
        done += 1
    assert done >= 20
    for number, program in enumerate(blocks(text, "python")):
        (journey.folder / f"{number}.py").write_text(program)
        journey(f"python {number}.py")
