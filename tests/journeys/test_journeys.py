"""What users do, command by command, with the number of commands that each journey may take."""

import csv
import json
import math
import pathlib

import numpy as np
import pytest

from tests.journeys.conftest import Journey, documents
from tests.torch_format.references import REASON

JAPANESE = "cjkencodings/euc_jp-utf8.txt"


def write_corpus(folder: pathlib.Path) -> None:
    """Two files of real text, a blank line between documents."""
    texts = documents("numpy", 120)
    (folder / "text").mkdir()
    for number, part in enumerate((texts[:80], texts[80:])):
        (folder / "text" / f"{number}.txt").write_text("\n\n".join(part) + "\n", "utf-8")


def losses(run: pathlib.Path) -> dict[int, float]:
    """Step -> loss of a run."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {int(each["step"]): each["train/loss"] for each in records if "train/loss" in each}


@pytest.mark.parametrize("feed", ["", pytest.param("--feed tf", marks=pytest.mark.slow)])
def test_own_corpus_to_hugging_face(journey: Journey, feed: str) -> None:
    """Three commands: prepare, train, convert; transformers loads the folder and fills masks."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    write_corpus(journey.folder)
    journey("spanjax prepare --input 'text/*.txt' --train-vocab 600 --length 64 --holdout 0.1 --output rows")
    sizes = f"--steps 4 --batch-size 8 {feed or '--feed numpy'}"
    journey(f"spanjax train --config tiny --rows rows --workdir runs/mine {sizes}")
    journey("spanjax convert to-torch runs/mine MyBERT")
    assert len(journey.commands) == 3
    folder = journey.folder / "MyBERT"
    fill = transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder))
    found = fill(f"Return the {fill.tokenizer.mask_token} of an array.")
    assert len(found) == 5 and all(0 < each["score"] < 1 for each in found)
    assert all(math.isfinite(loss) for loss in losses(journey.folder / "runs/mine").values())


@pytest.mark.slow
def test_continue_from_hugging_face_weights(journey: Journey, weights: pathlib.Path) -> None:
    """Two commands, and no flag of a size: the run has the sizes of the weights and starts from them."""
    write_corpus(journey.folder)
    (journey.folder / "weights").symlink_to(weights)
    journey("spanjax prepare --input 'text/*.txt' --vocab weights/vocab.txt --length 64 --holdout 0.1 --output rows")
    printed = journey(
        "spanjax train --config continue_spanbert --init-from weights --rows rows --workdir runs/continued"
        " --steps 3 --batch-size 8 --feed numpy"
    )
    assert len(journey.commands) == 2 and not any("--encoder" in each["command"] for each in journey.commands)
    encoder = json.loads((journey.folder / "runs/continued/run.json").read_text())["encoder"]
    theirs = json.loads((weights / "config.json").read_text())
    assert (encoder["hidden_size"], encoder["layers"]) == (theirs["hidden_size"], theirs["num_hidden_layers"])
    assert "sbo" in printed and "loaded" in printed, printed


@pytest.mark.slow
def test_own_table_to_predictions(journey: Journey, weights: pathlib.Path) -> None:
    """Two commands from a CSV with columns of one's own to a label for each new text."""
    passages = [(text[:250], name) for name in ("numpy", "flax") for text in documents(name, 24)]
    with open(journey.folder / "mine.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("passage", "library"), *passages])
    with open(journey.folder / "new.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("passage",), *((text,) for text, _ in passages[::6])])
    (journey.folder / "weights").symlink_to(weights)
    journey(
        "spanjax train --config glue --init-from weights --train mine.csv --dev mine.csv --columns text=passage label=library"
        " --objective.length 64 --objective.epochs 1 --workdir runs/library"
    )
    printed = journey("spanjax predict classify runs/library --file new.csv")
    assert len(journey.commands) == 2
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert len(answers) == 8 and {each["prediction"] for each in answers} <= {"numpy", "flax"}


def test_vectors(journey: Journey, weights: pathlib.Path) -> None:
    """One command from texts to the vectors that transformers computes with the same weights."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    torch = pytest.importorskip("torch", reason=REASON)
    texts = [text[:40] for text in documents("numpy", 6)]
    (journey.folder / "texts.txt").write_text("\n".join(texts) + "\n", "utf-8")
    (journey.folder / "weights").symlink_to(weights)
    journey("spanjax predict encode weights --input texts.txt --output vectors.npy")
    assert len(journey.commands) == 1
    vectors = np.load(journey.folder / "vectors.npy")
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.AutoModel.from_pretrained(weights, add_pooling_layer=False).eval()
    with torch.no_grad():
        means = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    np.testing.assert_allclose(vectors, np.stack([each.numpy() for each in means]), atol=1e-4)


@pytest.mark.slow
def test_new_language(journey: Journey) -> None:
    """Four commands from a text in Japanese to filled spans; the vocabulary's ids are those of sentencepiece."""
    test = pytest.importorskip("test", reason="the tests of Python hold the Japanese text")
    file = pathlib.Path(test.__path__[0]) / JAPANESE
    if not file.is_file():
        pytest.skip(f"no Japanese text: this Python comes without {file}")
    (journey.folder / "ja.txt").write_text("\n\n".join(file.read_text("utf-8").split("\n")), "utf-8")
    journey("spanjax prepare --input ja.txt --train-vocab 180 --length 32 --output rows")
    printed = journey("spanjax prepare check-vocab --input ja.txt --vocab rows/train/vocabulary")
    assert "6 of 6 sentences have the same ids" in printed
    journey("spanjax train --config tiny --rows rows --workdir runs/ja --steps 3 --batch-size 4 --feed numpy")
    printed = journey("spanjax predict spans runs/ja --text '開発者は言語を開発します。' --hide 言語 --json")
    assert len(journey.commands) == 4
    (answer,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    (span,) = answer["spans"]
    assert span["truth"] == "言語" and {"mlm", "sbo", "both"} <= span["fills"].keys()
