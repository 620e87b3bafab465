"""python -m benchmarks.onnx --glue FOLDER [--check] [--json FILE]: MiniLM in onnxruntime, float32 and int8, and its peers.

Peers are transformers with torch, and jax. Milliseconds a batch of the encoder for three shapes, the same weights, ids and cores
for all, contenders in turn; sizes of the files; the difference of the outputs; and the loss of int8 on real text: Spearman's
correlation on the dev pairs of STS-B, sentences as the mean of their tokens. With --fill-mask the accuracy of a pretrained run at
every seventh token of a file of text, masked; with --classifier that of a fine-tuned run on the dev sentences of SST-2.
"""

import argparse
import contextlib
import io
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks import timing
from benchmarks.made import packaged_weights

SHAPES = ((1, 32), (1, 128), (8, 128))
EXACT, INT8, TORCH, JAX = "onnxruntime", "onnxruntime, int8", "transformers + torch", "spanjax, jitted"
CALLS = {SHAPES[0]: 20, SHAPES[1]: 10, SHAPES[2]: 3}
"""Calls in one timed round."""


def contenders(source: pathlib.Path, folder: pathlib.Path, cores: int) -> dict[str, Callable[[Any, Any], Any]]:
    """Functions of ids and mask [B, L] that return the last hidden states as NumPy."""
    import numpy as np
    import torch
    import transformers

    from spanjax.convert.onnx_export import GRAPH, open_session
    from spanjax.convert.onnx_export import INT8 as FILE
    from spanjax.inference.fill_mask import compiled
    from spanjax.pretrained.load import load_model

    torch.set_num_threads(cores)
    theirs = transformers.AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    ours = compiled(load_model(source), lambda objective, module, batch: objective.hidden(module, batch, None))

    def by_torch(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            found = theirs(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
        return found.last_hidden_state.numpy()

    def by_jax(ids: Any, mask: Any) -> Any:
        used = mask.astype(np.int32)
        places = np.where(mask > 0, np.arange(ids.shape[1], dtype=np.int32), 0)
        batch = {"tokens_BL": ids.astype(np.int32), "segments_BL": used, "positions_BL": places}
        return np.asarray(ours({**batch, "types_BL": np.zeros_like(used)}))

    def by_graph(file: str) -> Callable[[Any, Any], Any]:
        session = open_session(folder / file, cores)
        return lambda ids, mask: session.run(
            None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        )[0]

    return {EXACT: by_graph(GRAPH), INT8: by_graph(FILE), TORCH: by_torch, JAX: by_jax}


def spearman(run: Callable[[Any, Any], Any], folder: pathlib.Path, glue: pathlib.Path) -> float:
    """Spearman's correlation, in percent, of the cosines of the dev pairs of STS-B with their scores."""
    import numpy as np
    import tokenizers

    from spanjax.scoring.glue import spearman as correlation

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(128)
    header, *lines = [line.split("\t") for line in (glue / "STS-B" / "dev.tsv").read_text("utf-8").splitlines()]
    first, second, score = (header.index(name) for name in ("sentence1", "sentence2", "score"))
    texts = [line[column] for column in (first, second) for line in lines]
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    vectors: Any = [None] * len(texts)
    for start in range(0, len(texts), 32):
        numbers = order[start : start + 32]
        rows = tokenizer.encode_batch([texts[number] for number in numbers])
        mask = np.array([row.attention_mask for row in rows])
        hidden = run(np.array([row.ids for row in rows]), mask)
        means = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1)[:, None]
        for number, mean in zip(numbers, means, strict=True):
            vectors[number] = mean / np.linalg.norm(mean)
    pairs = zip(vectors[: len(lines)], vectors[len(lines) :], strict=True)
    return correlation([float(one @ other) for one, other in pairs], [float(line[score]) for line in lines])


def accuracy(run: pathlib.Path, rows: Callable[[Any, int], tuple[Any, Any, Any]]) -> dict[str, Any]:
    """Accuracy of the exported model of a run, in percent, and the share of predictions that int8 does not change.

    `rows` makes (tokenizer, [MASK]) into encoded rows, positions to read [row, position] or None, and gold numbers.
    """
    import numpy as np
    import tokenizers

    from spanjax.convert import main as convert
    from spanjax.convert.onnx_export import GRAPH, open_session
    from spanjax.convert.onnx_export import INT8 as FILE

    best: dict[str, list[int]] = {EXACT: [], INT8: []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "exported"
        with contextlib.redirect_stdout(io.StringIO()):
            assert convert(["to-onnx", str(run), str(folder), "--int8"]) == 0
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(64)
        encoded, places, gold = rows(tokenizer, tokenizer.token_to_id("[MASK]") or 0)
        for contender, file in ((EXACT, GRAPH), (INT8, FILE)):
            session = open_session(folder / file)
            names = {each.name for each in session.get_inputs()}
            for row, ids in enumerate(encoded):
                feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
                scores = np.asarray(session.run(None, {each: feeds[each][None] for each in names})[0])[0]
                best[contender] += scores[places[row]].argmax(axis=-1).tolist() if places else [int(scores.argmax())]
    found = {each: 100.0 * float(np.mean(np.equal(best[each], gold))) for each in best}
    return {**found, "unchanged": 100.0 * float(np.mean(np.equal(best[EXACT], best[INT8]))), "predictions": len(gold)}


def masked_rows(text: pathlib.Path) -> Callable[[Any, int], tuple[Any, Any, Any]]:
    """Rows of the lines of a file, every seventh token masked."""
    import numpy as np

    def rows(tokenizer: Any, mask: int) -> tuple[Any, Any, Any]:
        lines = [line for line in text.read_text("utf-8").splitlines() if len(line) > 60]
        encoded, places, gold = [], [], []
        for each in tokenizer.encode_batch(lines[:1000]):
            ids = np.array(each.ids)
            place = np.arange(3, len(ids) - 1, 7)
            gold += ids[place].tolist()
            ids[place] = mask
            encoded.append(ids)
            places.append(place)
        return encoded, places, gold

    return rows


def sentence_rows(dev: pathlib.Path, labels: list[str]) -> Callable[[Any, int], tuple[Any, Any, Any]]:
    """Rows of a table of sentences and labels."""
    import numpy as np

    def rows(tokenizer: Any, mask: int) -> tuple[Any, Any, Any]:
        del mask
        lines = [line.split("\t") for line in dev.read_text("utf-8").splitlines()[1:]]
        encoded = [np.array(each.ids) for each in tokenizer.encode_batch([line[0] for line in lines])]
        return encoded, None, [labels.index(line[1]) for line in lines]

    return rows


def main() -> int:
    """Measures everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--glue", type=pathlib.Path, required=True, help="folder with STS-B/dev.tsv")
    more.add_argument("--model", type=pathlib.Path, help="folder of PyTorch weights; by default those of the package")
    more.add_argument("--fill-mask", type=pathlib.Path, help="a pretrained run; needs --text")
    more.add_argument("--text", type=pathlib.Path, help="text of the language of that run, a paragraph a line")
    more.add_argument("--classifier", type=pathlib.Path, help="a run fine-tuned on SST-2")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    # threads that wait in a loop would take the cores from the contender whose turn is next
    os.environ |= {"JAX_PLATFORMS": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}
    source = found.model or packaged_weights()

    import numpy as np

    from spanjax.convert import main as convert

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "exported"
        with contextlib.redirect_stdout(io.StringIO()):
            assert convert(["to-onnx", str(source), str(folder), "--task", "encoder", "--int8"]) == 0
        sizes = {file.name: file.stat().st_size for file in sorted(folder.glob("*.onnx"))}
        figures["bytes"] = {**sizes, "model.safetensors": (source / "model.safetensors").stat().st_size}
        runs, random, differences = contenders(source, folder, found.cores), np.random.default_rng(0), []
        for shape in SHAPES:
            ids, mask = random.integers(1000, 30_000, shape), np.ones(shape, np.int64)
            outputs = {contender: run(ids, mask) for contender, run in runs.items()}
            differences += [float(np.abs(outputs[EXACT] - outputs[peer]).max()) for peer in (TORCH, JAX)]

            def calls(run: Any, ids: Any = ids, mask: Any = mask, count: int = CALLS[shape]) -> None:
                for _ in range(count):
                    run(ids, mask)

            made = {contender: lambda run=run: calls(run) for contender, run in runs.items()}
            seconds = timing.alternating(made, found.repeats)
            figures[f"ms, {shape[0]} x {shape[1]}"] = milliseconds = {
                contender: 1e3 * statistics.median(each) / CALLS[shape] for contender, each in seconds.items()
            }
            print(shape, {contender: f"{value:.2f} ms" for contender, value in milliseconds.items()}, flush=True)
        figures["largest difference"] = max(differences)
        figures["STS-B dev, Spearman"] = {
            each: spearman(runs[each], folder, found.glue) for each in (EXACT, INT8, TORCH)
        }
    tasks: dict[str, dict[str, Any]] = {}
    if found.fill_mask:
        tasks["fill-mask"] = accuracy(found.fill_mask, masked_rows(found.text))
    if found.classifier:
        tasks["SST-2 dev"] = accuracy(found.classifier, sentence_rows(found.glue / "SST-2" / "dev.tsv", ["0", "1"]))
    figures["accuracy"] = tasks
    print(figures["bytes"], figures["STS-B dev, Spearman"], tasks)
    times = [each for key, each in figures.items() if key.startswith("ms")]
    correlations = figures["STS-B dev, Spearman"]
    targets = [
        timing.Target("largest difference of the float32 outputs", figures["largest difference"], most=1e-4),
        timing.Target(
            "slowest shape, onnxruntime over transformers", max(each[EXACT] / each[TORCH] for each in times), most=1.0
        ),
        timing.Target("slowest shape, int8 over float32", max(each[INT8] / each[EXACT] for each in times), most=0.75),
        timing.Target("size, int8 over float32", sizes["model_int8.onnx"] / sizes["model.onnx"], most=0.3),
        timing.Target("Spearman lost by int8, points", correlations[EXACT] - correlations[INT8], most=0.5),
        timing.Target(
            "Spearman, float32 and transformers apart, points",
            abs(correlations[EXACT] - correlations[TORCH]),
            most=0.01,
        ),
    ]
    targets += [
        timing.Target(f"accuracy lost by int8, points, {name}", each[EXACT] - each[INT8], most=1.0)
        for name, each in tasks.items()
    ]
    return timing.report(figures, targets, found)


if __name__ == "__main__":
    sys.exit(main())
