"""Writes a model as an ONNX graph that onnxruntime runs without jax, torch or transformers, and an int8 version of it.

The folder holds model.onnx, config.json, the tokenizer's files, a model card and conversion.json. Inputs are those of
AutoTokenizer (input_ids, attention_mask and, if the model has several types, token_type_ids), int64 [rows, positions] of any
size.
"""

import pathlib
import time

from spanjax.cli import Progress, exit_code, parse_options, visible_name
from spanjax.convert.options import ToOnnx
from spanjax.storage.remote_outputs import on_local_files


def to_onnx(options: ToOnnx) -> int:
    """Exports and returns the exit code."""
    # these import jax, onnx and onnxruntime, which --help does not need
    from spanjax.convert.compare import SENTENCES, print_differences
    from spanjax.convert.onnx_export import GRAPH, INT8, compare_graph, int8_loss, of_task, save
    from spanjax.pretrained.load import load_model
    from spanjax.run_format import load_code

    began, output = time.perf_counter(), pathlib.Path(options.output)
    load_code(options.code)
    with Progress(f"loading {options.source}"):
        model = of_task(load_model(options.source), options.task)
    with Progress(f"writing {output}"):
        report = save(model, options)
    for line in report["notes"]:
        print(visible_name(line))
    sizes = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in report["bytes"].items())
    print(
        f"{model.source} (step {model.step:,}) -> {output}: {sizes}; {', '.join(report['inputs'])} -> "
        f"{', '.join(report['outputs'])}, {time.perf_counter() - began:.1f} s"
    )
    if model.vocabulary is None:
        print(
            "no vocabulary came with the weights, so there are no tokenizer files: copy them from where the weights are from"
        )
    if options.int8:
        loss = ", ".join(f"{name} {value:.4g}" for name, value in int8_loss(model, output).items())
        print(f"{INT8} next to {GRAPH}, {report['outputs'][0]} of {len(SENTENCES)} sentences: {loss}")
    if not options.verify:
        return 0
    with Progress("comparing the graph with spanjax"):
        found = compare_graph(model, output)
    return print_differences(found)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        ToOnnx,
        args=arguments,
        prog="python -m spanjax.convert to-onnx",
        description=__doc__,
        elsewhere=("name", "license"),
        stores=("source", "output"),
    )
    return exit_code(
        "to-onnx",
        lambda: on_local_files(to_onnx, options, ["source"], ["output"]),
        cannot=f"cannot export {options.source}",
        stopped=f"stopped; {options.output} is as it was",
    )
