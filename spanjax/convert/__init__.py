"""python -m spanjax.convert: converts weights to PyTorch and Hugging Face and back and to ONNX, compares and inspects them.

Commands: to-torch, from-torch, to-onnx, verify, inspect, push; `python -m spanjax.convert COMMAND --help` documents each. They
need one device, no TensorFlow, and no torch: only `verify` uses torch and transformers, where they are installed, and only
`to-onnx` the extra `onnx`. Exit codes: 0 done, 1 a comparison found differences, 2 wrong input, 130 stopped by Ctrl-C.
"""

from spanjax.cli import dispatch

TOLERANCE = 1e-4
"""Largest difference of two models that counts as equal."""

COMMANDS = {
    "to-torch": "writes a folder that transformers loads, or SpanBERT's original layout",
    "from-torch": "reads PyTorch weights into a checkpoint to train from",
    "to-onnx": "writes a graph for onnxruntime, in int8 too",
    "verify": "compares two models layer by layer on sentences",
    "inspect": "lists names, shapes, types and settings of any of them",
    "push": "uploads a folder that to-torch wrote to the Hugging Face Hub",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the first word names; returns the exit code."""
    return dispatch(__name__, __doc__, COMMANDS, arguments)
