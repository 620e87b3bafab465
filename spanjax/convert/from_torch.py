"""Reads PyTorch weights into a work directory with one checkpoint, to continue pretraining, to fine-tune, or to use.

Known: folders of Hugging Face (safetensors or .bin) with BERT, RoBERTa, ALBERT, ELECTRA, ModernBERT, XLNet or DeBERTa-v2 and -v3,
the original SpanBERT archives with and without heads. Nothing that is pickled is executed. The report explains every name, or the
conversion fails and lists both sides.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated

import tyro

from spanjax.cli import Progress, exit_code, parse_options, visible_name
from spanjax.data.vocab.loading import load_vocabulary, with_unused_ids
from spanjax.json_files import read_json
from spanjax.storage.outputs import output_folder
from spanjax.storage.remote_outputs import on_local_files

if TYPE_CHECKING:
    from spanjax.pretrained.model import Model


@dataclasses.dataclass(frozen=True)
class FromTorch:
    """Source, output and settings of a conversion from PyTorch."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """Folder with config.json and weights, or a single file of weights."""
    output: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OUTPUT")]
    """Work directory to write: train from it with --init-from, or use it with predict and convert."""
    config: str | None = None
    """A config.json, for weights that come without one."""
    vocab: str | None = None
    """The vocabulary (vocab.txt, tokenizer.json, .model or a folder), for weights that come without one."""
    lower_case: bool | None = None
    """Lower-case the text for a vocab.txt; by default as its folder says, else a guess from its tokens."""
    overwrite: bool = False
    """Replace an existing work directory."""


def report_lines(model: "Model") -> list[str]:
    """Human-readable report on every name in the file."""
    # these import jax, which --help does not need
    from spanjax.convert.card import task_words
    from spanjax.pretrained.model import KNOWN

    assert model.loaded is not None
    loaded, vocabulary = model.loaded, model.vocabulary
    possible = {entry.ours.split("/")[0] for entry in model.family.entries}
    heads = [each for objective in KNOWN for each in objective.parts.items()]
    fresh = [f"{name} ({what})" for name, what in heads if name in possible - model.parts]
    pieces = "none: give --vocab"
    if vocabulary:
        pieces = f"{vocabulary.kind}, {vocabulary.size:,} pieces, {vocabulary.casing}"
    task = [f"task      {task_words(model)}"] if model.kind else []
    return [
        *(f"note      {line}" for line in model.notes),
        *task,
        f"loaded    {len(loaded.loaded)} tensors: {', '.join(['encoder', *sorted(model.parts - {'encoder'})])}",
        f"tied      {', '.join(loaded.repeated) or 'none is repeated in the file'}",
        f"unused    {', '.join(loaded.buffers) or 'none'}" + (" (no parameters)" if loaded.buffers else ""),
        f"fresh     {', '.join(fresh) or 'none'}" + (": not in the file, drawn when training starts" if fresh else ""),
        f"tokenizer {pieces}",
    ]


def written_files(folder: pathlib.Path) -> set[str]:
    """Names of the files that this command writes into a folder like this, see `spanjax.storage.outputs.Written`."""
    from spanjax.training.checkpoint_files import CHECKSUMS, read_meta  # imports jax, which --help does not need

    step = pathlib.Path("checkpoints", "0")
    if "run" in read_meta(folder / step):  # of a training whose run.json is gone
        return set()
    return {str(step / name) for name in (CHECKSUMS, *read_json(folder / step / CHECKSUMS))}


def from_torch(options: FromTorch) -> None:
    """Converts and prints the report."""
    # these import jax, which --help does not need
    from spanjax.pretrained.load import load_model
    from spanjax.pretrained.model import model_meta
    from spanjax.training.checkpoint import write_weights

    output = pathlib.Path(options.output)
    with Progress(f"loading {options.source}"):
        model = load_model(options.source, options.config)
    if model.loaded is None:
        raise ValueError(f"{options.source} is a checkpoint of spanjax already: train from it with --init-from")
    if options.vocab:
        vocabulary = with_unused_ids(load_vocabulary(options.vocab, options.lower_case), model.encoder.vocab_size)
        if vocabulary.size != model.encoder.vocab_size:
            raise ValueError(
                f"--vocab {options.vocab} has {vocabulary.size:,} pieces, the weights {model.encoder.vocab_size:,}: "
                "give the vocabulary that the weights were trained with"
            )
        model = dataclasses.replace(model, vocabulary=vocabulary)
    reads = [each for each in (options.source, options.config, options.vocab) if each]
    with Progress(f"writing {output}"), output_folder(output, options.overwrite, written_files, reads) as work:
        write_weights(work, model.params, model_meta(model))
    print("\n".join(map(visible_name, report_lines(model))))
    print(f"{options.source} -> {output}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    inputs = ("source", "config", "vocab")
    options = parse_options(
        FromTorch,
        args=arguments,
        prog="python -m spanjax.convert from-torch",
        description=__doc__,
        stores=(*inputs, "output"),
    )
    return exit_code(
        "from-torch",
        lambda: on_local_files(from_torch, options, inputs, ["output"]),
        cannot=f"cannot convert {options.source}",
        stopped=f"stopped; {options.output} is as it was",
    )
