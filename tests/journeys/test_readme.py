"""The commands of the README and of two how-to guides in their order, from the installed wheel, on small inputs."""

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
    r"train --config spanbert_base": SMALL + " --encoder.positions 512",
    r"train .* --optimizer\.schedule": "--optimizer.warmup-steps 1",
    r"train .* --optimizer\.schedule\.decay-from": "--optimizer.schedule.decay-from 2 --steps 4",
    r"train --config continue_spanbert": "--batch-size 4 --steps 2 --feed numpy",
    r"train --config squad2": "--batch-size 4 --objective.epochs 1 --objective.length 96",
    r"prepare --input .* --train-vocab": "--train-vocab 300",
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
    """The files that the pages name: text, weights with their vocabulary, questions."""
    (folder / "text").mkdir()
    texts = documents("numpy", 60)
    with gzip.open(folder / "text" / "0.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    for name in ("spanbert-base-cased", "bert-base-cased"):
        shutil.copytree(weights, folder / name)
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


@pytest.mark.parametrize(
    ("page", "least"), [("README.md", 5), ("docs/howto/pretrain.md", 7), ("docs/howto/continue_pretraining.md", 4)]
)
def test_every_command(journey: Journey, weights: pathlib.Path, page: str, least: int) -> None:
    """Each runs after those above it; then the programs in Python."""
    text = (ROOT / page).read_text()
    write_inputs(journey.folder, weights)
    done = 0
    for command in commands(text):
        if any(re.search(pattern, command) for pattern in NOT_RUN):
            continue
        if "--init-from runs/mine" in command and not (journey.folder / "runs/mine").exists():
            # the page begins after pretraining
            journey(f"spanjax train --config spanbert_base --rows rows --workdir runs/mine {SMALL}")
        if workdir := re.search(r"train .*--workdir (\S+)", command):
            shutil.rmtree(journey.folder / workdir[1], ignore_errors=True)  # alternatives of a page share a folder
        more = " ".join(flags for pattern, flags in SMALLER.items() if re.search(pattern, command))
        journey(f"{command} {more}")
        done += 1
    assert done >= least
    # a guide's programs are configs and fragments
    for number, program in enumerate(blocks(text, "python") if page == "README.md" else ()):
        (journey.folder / f"{number}.py").write_text(program)
        journey(f"python {number}.py")
