"""Writes a model as a folder that transformers loads, or in the layout of the original SpanBERT archive with heads.

The folder holds config.json, the weights (tied ones once, in the original layout under every name; without the rows that only
pad the vocabulary), the tokenizer's files, a model card filled from the run, the heads that transformers has no class for in
sbo_head.safetensors, modeling_spanbert.py with a class for them, and conversion.json.
"""

import dataclasses
import importlib.resources
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes
import numpy as np
import tyro

from spanjax import __version__
from spanjax.cli import Code, exit_code, parse_options, visible_name
from spanjax.convert.card import model_card
from spanjax.convert.compare import compare, print_differences
from spanjax.pretrained.electra import FOLDER, PART, generator_of, without_generator
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, vocabulary_of
from spanjax.run_format import inferred_settings, load_code
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


@dataclasses.dataclass(frozen=True)
class ToTorch:
    """Source, output and format of a conversion to PyTorch."""

    source: tyro.conf.Positional[str]
    """A run directory (its newest whole checkpoint; of a fine-tuned run the best), one checkpoint, or a folder of weights."""
    output: tyro.conf.Positional[str]
    """Folder to write; a failed conversion leaves nothing there."""
    format: Literal["hf", "hf-bin", "fairseq"] = "hf"
    """hf: model.safetensors. hf-bin: pytorch_model.bin. fairseq: model.pt with the original SpanBERT names, for BERT alone."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the weights in the file."""
    verify: bool = False
    """Compare the folder with the source at once, by transformers if installed; exit code 1 above 1e-4."""
    overwrite: bool = False
    """Replace an existing folder."""
    name: str = ""
    """Name of the model in its card; by default the folder's."""
    license: str = ""
    """Licence of the weights, for the card: cc-by-sa-4.0, say."""
    language: str = ""
    """Language of the text, for the card: en, say."""
    base_model: str = ""
    """Name on the Hub of the model that training started from, for the card: SpanBERT/spanbert-base-cased, say."""
    sentence_transformers: bool = False
    """Add the files with which sentence_transformers.SentenceTransformer loads the folder and makes the vectors of `encode`."""
    code: Code = ()


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
    tuned = task_to_hf(task, model.kind, model.params, model.encoder) if model.kind else None
    config = config_to_hf(model.encoder, specials, model.parts, options.dtype, tuned)
    tensors = tensors_to_hf(model.params, model.encoder, with_heads(family, model.kind))
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
        extra = "cls.pair_target_predictions." if family.model_type == "bert" else "cls."
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
    card = model_card(model, name, options.license, options.language, options.base_model, options.sentence_transformers)
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


def to_torch(options: ToTorch) -> int:
    """Converts and returns the exit code."""
    began, output = time.perf_counter(), pathlib.Path(options.output)
    load_code(options.code)
    model = exportable(load_model(options.source))
    for line in model.notes:
        print(visible_name(line))
    report = save(model, options)
    heads = ", ".join(report["heads"]) or "none"
    print(
        f"{model.source} (step {model.step:,}) -> {output}: {len(report['tensors'])} tensors, "
        f"{report['parameters']:,} parameters, {options.dtype}, heads: {heads}, {time.perf_counter() - began:.1f} s"
    )
    if model.vocabulary is None:
        print(
            "no vocabulary came with the weights, so there are no tokenizer files: copy them from where the weights are from"
        )
    return print_differences(compare(model, output)) if options.verify else 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        ToTorch,
        args=arguments,
        prog="python -m spanjax.convert to-torch",
        description=__doc__,
        elsewhere=("name", "license", "base_model"),
    )
    return exit_code(
        "to-torch",
        lambda: to_torch(options),
        cannot=f"cannot convert {options.source}",
        stopped=f"stopped; {options.output} is as it was",
    )
