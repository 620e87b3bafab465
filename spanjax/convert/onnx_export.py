"""Writes the folder of `convert to-onnx` and of `save_onnx`: the graph, its int8 version, settings, tokenizer and card, and
compares the graph with spanjax.
"""

import contextlib
import dataclasses
import io
import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import tokenizers
from onnxruntime.quantization import QuantType, quantize_dynamic

from spanjax import __version__
from spanjax.convert import onnx_graph as names
from spanjax.convert.card import model_card
from spanjax.convert.compare import SENTENCES, Difference, Inputs, computed_here, make_inputs
from spanjax.convert.export import CARD, REPORT
from spanjax.convert.onnx_graph import onnx_model, write_onnx
from spanjax.convert.options import GraphTask, ToOnnx
from spanjax.data.vocab.base import Specials
from spanjax.data.vocab.tokenizer_json import TOKENIZER_FILE
from spanjax.pretrained.electra import filling
from spanjax.pretrained.model import Model
from spanjax.run_format import describe, inferred_settings
from spanjax.storage.outputs import output_folder
from spanjax.torch_format.configs import config_to_hf
from spanjax.torch_format.folder import read_json
from spanjax.torch_format.task_configs import default_labels, task_to_hf
from spanjax.torch_format.task_tables import OUTPUTS, PREDICTION_HEAD, RELU
from spanjax.torch_format.tokenizer_files import FILES, tokenizer_files

GRAPH, INT8 = "model.onnx", "model_int8.onnx"


def of_task(model: Model, task: GraphTask) -> Model:
    """Returns the model with only the parts that compute `task`. ValueError if it has no such head."""
    if task == "auto":
        task = "encoder" if "mlm" not in model.params else "fill-mask"
        task = ("question-answering" if model.kind == "question" else "classification") if model.kind else task
    if task == "fill-mask":
        model = filling(model)
    kept = {
        "encoder": (),
        "fill-mask": ("mlm", "sbo"),
        "classification": ("classifier", "pooler", "pre_classifier", RELU, PREDICTION_HEAD, "span_network"),
        "question-answering": ("qa", PREDICTION_HEAD, "span_network"),
    }[task]
    tuned = {"classification": ("sequence", "token"), "question-answering": ("question",)}.get(task)
    if (tuned and model.kind not in tuned) or (task == "fill-mask" and "mlm" not in model.params):
        found = ", ".join(sorted(model.parts - {"encoder"})) or "none"
        raise ValueError(f"--task {task}: {model.source} has no such head (its heads: {found}): try --task encoder")
    params = {name: part for name, part in model.params.items() if name in ("encoder", *kept)}
    # without the objective of its run, which may need heads that are left behind
    return dataclasses.replace(model, params=params, task=model.task if tuned else None, trained=None)


def written_config(model: Model) -> tuple[dict[str, Any], list[str]]:
    """Returns config.json and notes; without a model_type if transformers has no class that computes the same."""
    specials = model.vocabulary.specials if model.vocabulary else None
    task = {**(model.task or {}), **inferred_settings(model.task, model.scores)}
    try:
        tuned = task_to_hf(task, model.kind, model.params, model.encoder, model.model_type) if model.kind else None
        return config_to_hf(model.encoder, specials, model.parts, "float32", tuned, model.model_type), []
    except ValueError as error:
        # nothing loads weights by this file, so the graph is as good; programs still read the names of the classes
        found: dict[str, Any] = {"spanjax": describe(model.encoder)}
        if model.kind in ("sequence", "token"):
            count = model.params[OUTPUTS[model.kind]]["kernel"].shape[1]
            labels = [str(each) for each in task.get("labels") or ()]
            labels = labels if len(labels) == count else default_labels(count)
            found["id2label"] = {str(number): label for number, label in enumerate(labels)}
        reason = str(error).strip().removeprefix("- ").splitlines()[0]
        return found, [f"config.json names no class of transformers, which has none for this model ({reason})"]


def write_folder(model: Model, folder: pathlib.Path, options: ToOnnx) -> dict[str, Any]:
    """Writes a model `of_task` into an empty folder; returns conversion.json."""
    graph = onnx_model(model, options.sbo)
    write_onnx(graph, folder / GRAPH)
    config, notes = written_config(model)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if model.vocabulary:
        types = model.encoder.types if "epochs" in (model.task or {}) else 0
        files = tokenizer_files(model.vocabulary, model.family.model_type, model.encoder.positions, types)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    inputs, outputs = ([each.name for each in part] for part in (graph.graph.input, graph.graph.output))
    del graph  # as large as the weights
    if options.int8:
        write_int8(folder)
    folder_name = pathlib.Path(options.output).name
    name, usage = options.name or folder_name, _usage(folder_name, outputs[0])
    card = model_card(model, name, options.license, options.language, library="onnx", usage=usage)
    (folder / CARD).write_text(card)
    report = {
        "spanjax": __version__,
        "source": model.name,
        "step": model.step,
        "format": "onnx",
        "opset": names.OPSET,
        "inputs": inputs,
        "outputs": outputs,
        "bytes": {file.name: file.stat().st_size for file in sorted(folder.glob("*.onnx*"))},
        "notes": [*model.notes, *notes],
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n")
    return report


def _usage(name: str, output: str) -> list[str]:
    """Lines of the card: the graph in onnxruntime."""
    return [
        "```python",
        "import onnxruntime",
        "from transformers import AutoTokenizer",
        "",
        f"folder = {json.dumps(name)}",
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f'session = onnxruntime.InferenceSession(f"{{folder}}/{GRAPH}")',
        'rows = tokenizer(["A text."], padding=True, return_tensors="np")',
        "names = {each.name for each in session.get_inputs()}",
        f'({output},) = session.run(["{output}"], {{name: rows[name] for name in names}})',
        "```",
        "",
    ]


def write_int8(folder: pathlib.Path) -> None:
    """Quantises the graph of a folder: weights with a scale a column, activations rounded when it runs.

    Weights take 7 of the 8 bits: processors without VNNI add pairs of products in 16 bits, which 8 bits would overflow.
    """
    large = (folder / names.EXTERNAL).is_file()
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)  # it advises a preprocessing that this graph does not need
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            quantize_dynamic(
                folder / GRAPH,
                folder / INT8,
                per_channel=True,
                reduce_range=True,
                weight_type=QuantType.QInt8,
                use_external_data_format=large,
            )
    finally:
        logging.getLogger().setLevel(level)


def written_files(folder: pathlib.Path) -> set[str]:
    """Names of the files that this command writes into a folder like this, see `spanjax.storage.outputs.Written`."""
    if not (folder / REPORT).is_file() or not {"spanjax", "opset"} <= {*read_json(folder / REPORT)}:
        return set()
    return {GRAPH, names.EXTERNAL, INT8, f"{INT8}.data", "config.json", *FILES, CARD, REPORT}


def open_session(path: pathlib.Path, threads: int = 0) -> onnxruntime.InferenceSession:
    """Opens a graph on the processor; `threads` 0 takes all cores. Its threads sleep between calls."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, inputs: Inputs) -> dict[str, np.ndarray]:
    """Runs rows of `compare.make_inputs`; outputs by name."""
    given = {names.IDS: inputs.tokens_SL, names.MASK: inputs.used_SL, names.TYPES: inputs.types_SL}
    wanted = [each.name for each in session.get_inputs()]
    feeds = {name: np.asarray(given[name], np.int64) for name in wanted}
    outputs = [each.name for each in session.get_outputs()]
    return {name: np.asarray(array) for name, array in zip(outputs, session.run(outputs, feeds), strict=True)}


def with_spans(inputs: Inputs, specials: Specials) -> Inputs:
    """Masks one or two spans of every row, and gives their tokens the boundaries and offsets of the masked spans."""
    tokens_SL, left_SL, right_SL, offset_SL = (
        np.array(each) for each in (inputs.tokens_SL, inputs.left_SL, inputs.right_SL, inputs.offset_SL)
    )
    for row, size in enumerate(inputs.used_SL.sum(axis=1)):
        for start, stop in [(1, min(3, size - 1)), *([(size - 3, size - 2)] if size > 7 else [])]:
            tokens_SL[row, start:stop] = specials.mask
            left_SL[row, start:stop], right_SL[row, start:stop] = start - 1, stop
            offset_SL[row, start:stop] = np.arange(stop - start)
    return inputs._replace(tokens_SL=tokens_SL, left_SL=left_SL, right_SL=right_SL, offset_SL=offset_SL)


def rows_of(model: Model, sentences: Sequence[str] = SENTENCES) -> Inputs:
    """Rows to compare on, with masked spans for heads that fill them."""
    inputs = make_inputs(model, sentences)
    masked = model.vocabulary is not None and "mlm" in model.params
    return with_spans(inputs, model.vocabulary.specials) if masked and model.vocabulary else inputs


def compare_graph(model: Model, folder: pathlib.Path) -> tuple[str, list[Difference]]:
    """Returns who computed what, and the largest difference of every output; only positions that are defined count."""
    inputs = rows_of(model)
    found, here = run_graph(open_session(folder / GRAPH), inputs), computed_here(model, inputs, SENTENCES)
    expected: dict[str, np.ndarray | None] = {
        names.HIDDEN: here.states_NSLD[-1],
        names.LOGITS: here.mlm_SLV if here.task is None else here.task,
        names.BOUNDARIES: here.sbo_SLV,
        **{name: None if here.task is None else here.task[..., each] for each, name in enumerate(names.ANSWERS)},
    }
    lines = []
    for name, scores in found.items():
        own = expected[name]
        assert own is not None and own.shape == scores.shape, name
        where = inputs.used_SL if own.shape[:2] == inputs.used_SL.shape else np.ones(len(own), bool)
        if name == names.BOUNDARIES and model.vocabulary:
            where = inputs.tokens_SL == model.vocabulary.specials.mask
        lines.append(Difference(name, float(np.abs(own - scores)[where].max())))
    lines.append(_tokenizer_difference(model, folder))
    return f"{model.source} by spanjax, {folder / GRAPH} by onnxruntime {onnxruntime.__version__}", lines


def _tokenizer_difference(model: Model, folder: pathlib.Path) -> Difference:
    if model.vocabulary is None or not (folder / TOKENIZER_FILE).is_file():
        return Difference("tokenizer ids", 0.0, "not compared: there is no tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    ids = [each.ids for each in tokenizer.encode_batch(list(SENTENCES))]
    specials = model.vocabulary.specials
    own = [[specials.cls, *each.tolist(), specials.sep] for each in model.vocabulary.encode(list(SENTENCES))]
    return Difference(
        "tokenizer ids", float(sum(a != b for a, b in zip(own, ids, strict=True))), "sentences that differ"
    )


def int8_loss(model: Model, folder: pathlib.Path) -> Mapping[str, float]:
    """Returns how far int8 moves the first output: mean and largest difference; of vectors the mean cosine, and the share whose
    largest entry (class, token) stays the same."""
    inputs = rows_of(model)
    exact, rounded = (next(iter(run_graph(open_session(folder / file), inputs).values())) for file in (GRAPH, INT8))
    where = inputs.used_SL if exact.shape[:2] == inputs.used_SL.shape else np.ones(len(exact), bool)
    one, other = exact[where], rounded[where]
    moved = np.abs(one - other)
    found = {"mean": float(moved.mean()), "largest": float(moved.max())}
    if one.ndim > 1 and one.shape[-1] > 1:
        norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        found["cosine"] = float(((one * other).sum(axis=-1) / np.maximum(norms, 1e-30)).mean())
        found["same best"] = float((one.argmax(-1) == other.argmax(-1)).mean())
    return found


def save(model: Model, options: ToOnnx) -> dict[str, Any]:
    """Writes a model `of_task` into the folder of the options; returns conversion.json. ValueError, and nothing is written, for a
    model that has no graph and a folder that may not be replaced."""
    with output_folder(pathlib.Path(options.output), options.overwrite, written_files, [options.source]) as work:
        return write_folder(model, work, options)
