"""Writes a model as a folder that transformers loads, or in the layout of the original SpanBERT archive with heads.

The folder holds config.json, the weights (tied ones once, in the original layout under every name; without the rows that only
pad the vocabulary), the tokenizer's files, a model card filled from the run, the heads that transformers has no class for in
sbo_head.safetensors, modeling_spanbert.py with a class for them, and conversion.json.
"""

import pathlib
import time

from spanjax.cli import Progress, exit_code, parse_options, visible_name
from spanjax.convert.options import ToTorch
from spanjax.storage.remote_outputs import on_local_files


def to_torch(options: ToTorch) -> int:
    """Converts and returns the exit code."""
    # these import jax, which --help does not need
    from spanjax.convert.compare import compare, print_differences
    from spanjax.convert.export import exportable, save
    from spanjax.pretrained.load import load_model
    from spanjax.run_format import load_code

    began, output = time.perf_counter(), pathlib.Path(options.output)
    load_code(options.code)
    with Progress(f"loading {options.source}"):
        model = exportable(load_model(options.source))
    for line in model.notes:
        print(visible_name(line))
    with Progress(f"writing {output}"):
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
    if not options.verify:
        return 0
    with Progress("comparing both models"):
        found = compare(model, output)
    return print_differences(found)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        ToTorch,
        args=arguments,
        prog="python -m spanjax.convert to-torch",
        description=__doc__,
        elsewhere=("name", "license", "base_model"),
        stores=("source", "output"),
    )
    return exit_code(
        "to-torch",
        lambda: on_local_files(to_torch, options, ["source"], ["output"]),
        cannot=f"cannot convert {options.source}",
        stopped=f"stopped; {options.output} is as it was",
    )
