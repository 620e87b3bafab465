"""Writes the folder of `convert to-torch` and of `save_torch`.

The folder holds config.json, the weights (tied ones once, in the original layout under every name; without the rows that only
pad the vocabulary), the tokenizer's files, a model card filled from the run, the heads that transformers has no class for in
sbo_head.safetensors, modeling_spanbert.py with a class for them, and conversion.json.
"""

import dataclasses
import importlib.resources
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from spanjax import __version__
from spanjax.convert.card import SENTENCES, model_card
from spanjax.convert.options import ToTorch
from spanjax.pretrained.electra import FOLDER, PART, generator_of, without_generator
from spanjax.pretrained.model import Model, vocabulary_of
from spanjax.run_format import inferred_settings
from spanjax.storage.outputs import output_folder
from spanjax.torch_format.configs import REMOTE_CODE, config_to_hf, remote_config
from spanjax.torch_format.families import Family, family_of
from spanjax.torch_format.folder import (
    CONFIGS,
    EXTRA_HEADS,
    WEIGHTS,
    cast,
    original_names,
    read_json,
    write_safetensors,
)
from spanjax.torch_format.pickles import write_torch_file
from spanjax.torch_format.sentence_modules import SENTENCE_FILES, sentence_files, write_sentence_files
from spanjax.torch_format.tables import tensors_to_hf
from spanjax.torch_format.task_configs import task_to_hf
from spanjax.torch_format.task_tables import with_heads, without_own_parts, without_unknown
from spanjax.torch_format.tokenizer_files import FILES, tokenizer_files

CARD, REPORT = "README.md", "conversion.json"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def with_tied_tables(written: dict[str, np.ndarray], family: Family) -> dict[str, np.ndarray]:
    """Adds the decoder table of each head to the tensors of the original layout: the token table under another name, which the
    original's strict loading requires."""
    tables = {name: other for name, other in family.tied.items() if name.endswith(".decoder.weight")}
    heads = [name for name in tables if original_names(name.removesuffix("decoder.weight") + "bias") in written]
    return written | {original_names(name): written[original_names(tables[name])] for name in heads}


def write_folder(model: Model, folder: pathlib.Path, options: ToTorch) -> dict[str, Any]:
    """Writes everything into an empty folder; returns conversion.json. ValueError for a model that cannot be written so.

    A generator next to the encoder becomes a model of its own in the folder `generator`.
    """
    if PART in model.params:
        (folder / FOLDER).mkdir()
        write_folder(generator_of(model), folder / FOLDER, dataclasses.replace(options, sentence_transformers=False))
        model = without_generator(model)
    if options.sentence_transformers:
        if options.format == "fairseq":
            raise ValueError("--sentence-transformers: transformers reads no --format fairseq: use --format hf")
        vocabulary_of(model)
        write_sentence_files(folder, sentence_files(model.pooling, model.encoder.hidden_size, model.encoder.positions))
    family, dtype = model.family, DTYPES[options.dtype]
    specials = model.vocabulary.specials if model.vocabulary else None
    task = {**(model.task or {}), **inferred_settings(model.task, model.scores)}
    tuned = task_to_hf(task, model.kind, model.params, model.encoder, model.model_type) if model.kind else None
    config = config_to_hf(model.encoder, specials, model.parts, options.dtype, tuned, model.model_type)
    tensors = tensors_to_hf(model.params, model.encoder, with_heads(family, model.kind, model.parts))
    if options.format == "fairseq":
        if model.kind:
            raise ValueError(
                "--format fairseq: the original SpanBERT layout has no heads of fine-tuning: use --format hf"
            )
        if family.model_type != "bert":
            raise ValueError(
                f"--format fairseq: the original SpanBERT layout has no {family.model_type}: use --format hf"
            )
        written = with_tied_tables(cast(tensors, dtype, original_names), family)
        write_torch_file(folder / "model.pt", written)
        (folder / "bert_config.json").write_text(json.dumps(config, indent=2) + "\n")
    else:
        written = cast(tensors, dtype)
        # transformers has no class with parameters of these names
        extra = "cls.pair_target_predictions." if family.model_type in ("bert", "deberta-v2") else "cls."
        own = {name: array for name, array in written.items() if not name.startswith(extra)}
        if options.format == "hf":
            write_safetensors(folder / "model.safetensors", own, model.step)
        else:
            write_torch_file(folder / "pytorch_model.bin", own)
        if heads := {name: array for name, array in written.items() if name not in own}:
            write_safetensors(folder / EXTRA_HEADS, heads, model.step)
        if remote := {} if model.kind else remote_config(model.params, family):
            code = importlib.resources.files("spanjax.torch_format") / REMOTE_CODE
            (folder / REMOTE_CODE).write_bytes(code.read_bytes())
            config |= remote
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if model.vocabulary:
        types = model.encoder.types if "epochs" in task else 0  # fine-tuned here, on pairs as tasks make them
        files = tokenizer_files(model.vocabulary, family.model_type, model.encoder.positions, types)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    name = options.name or pathlib.Path(options.output).name
    library = SENTENCES if options.sentence_transformers else "transformers"
    card = model_card(model, name, options.license, options.language, options.base_model, library)
    (folder / CARD).write_text(card)
    report = _report(model, options, written)
    (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n")
    return report


def written_files(folder: pathlib.Path) -> set[str]:
    """Names of the files that this command writes into a folder like this, see `spanjax.storage.outputs.Written`."""
    found = set[str]()
    for inner in (pathlib.Path(), pathlib.Path(FOLDER)):
        if (folder / inner / REPORT).is_file() and {"spanjax", "tensors"} <= {*read_json(folder / inner / REPORT)}:
            names = (*WEIGHTS, *CONFIGS, EXTRA_HEADS, REMOTE_CODE, *FILES, *SENTENCE_FILES, CARD, REPORT)
            found |= {str(inner / name) for name in names}
    return found


def _report(model: Model, options: ToTorch, written: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        "spanjax": __version__,
        "source": model.name,
        "step": model.step,
        "format": options.format,
        "dtype": options.dtype,
        "parameters": sum({id(array): array.size for array in written.values()}.values()),  # tied ones once
        "tensors": {name: list(array.shape) for name, array in written.items()},
        "heads": sorted(model.parts - {"encoder"}),
        "tokenizer": None if model.vocabulary is None else model.vocabulary.fingerprint,
        "notes": list(model.notes),
    }


def exportable(model: Model) -> Model:
    """Returns the model without parts that PyTorch weights have no names for; its notes name them."""
    if model.task is not None and model.kind is None:
        # the names of a task's own parts must not decide the family
        family = family_of(model.encoder, model.parts & {"pooler"})
        params, left_out = without_own_parts(model.params, family, model.task)
        model = dataclasses.replace(model, params=params, notes=(*model.notes, *left_out))
    params, left_out = without_unknown(model.params, kept=(PART,))
    # what is compared afterwards are the heads that were written: its own objective may need others
    return dataclasses.replace(model, params=params, notes=(*model.notes, *left_out), trained=None)


def save(model: Model, options: ToTorch) -> dict[str, Any]:
    """Writes an `exportable` model into the folder of the options; returns conversion.json.

    ValueError, and nothing is written, for a model that cannot be written so and a folder that may not be replaced.
    """
    with output_folder(pathlib.Path(options.output), options.overwrite, written_files, [options.source]) as work:
        return write_folder(model, work, options)
