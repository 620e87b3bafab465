"""Compares two models on sentences in float32: the largest difference of every layer, of both heads' scores, of tokenizer ids.

Either side may be a run directory, a checkpoint or a folder of PyTorch weights; transformers, if installed, computes a
Hugging Face folder. Exit code 1 if a difference is above the tolerance.
"""

import dataclasses
import math
import pathlib
from typing import Annotated

import tyro

from spanjax.cli import Code, Progress, exit_code, parse_options
from spanjax.convert import TOLERANCE
from spanjax.storage.remote_outputs import on_local_files


@dataclasses.dataclass(frozen=True)
class Verify:
    """The two models and the settings of their comparison."""

    one: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ONE")]
    """A model; computed by spanjax."""
    other: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OTHER")]
    """Another; computed by transformers where it is a Hugging Face folder and transformers is installed."""
    text: str | None = None
    """A file of sentences, one a line; by default eight sentences of several kinds."""
    tolerance: float = TOLERANCE
    """Largest absolute difference that counts as equal."""
    code: Code = ()


def verify(options: Verify) -> int:
    """Compares and returns the exit code."""
    # these import jax, which --help does not need
    from spanjax.convert.compare import SENTENCES, compare, print_differences
    from spanjax.pretrained.load import load_model
    from spanjax.run_format import load_code
    from spanjax.torch_format.folder import is_weights

    sentences = SENTENCES
    if not 0 <= options.tolerance < math.inf:
        raise ValueError(f"--tolerance is {options.tolerance}: expected a finite number, 0 or more")
    if options.text:
        try:
            lines = pathlib.Path(options.text).read_text("utf-8").splitlines()
        except FileNotFoundError:
            raise ValueError(f"--text {options.text}: no such file; give a file of sentences, one a line") from None
        except UnicodeDecodeError as error:
            raise ValueError(
                f"--text {options.text}: byte {error.start + 1} is not UTF-8; convert the file (iconv -t UTF-8)"
            ) from None
        sentences = tuple(line.strip() for line in lines if line.strip())
        if not sentences:
            raise ValueError(f"--text {options.text}: no sentences; expected one a line")
    load_code(options.code)
    one, other = options.one, options.other
    if is_weights(pathlib.Path(one)) and not is_weights(pathlib.Path(other)):
        one, other = other, one
    with Progress("comparing both models"):
        found = compare(load_model(one), pathlib.Path(other), sentences)
    return print_differences(found, options.tolerance)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    inputs = ("one", "other", "text")
    program = "python -m spanjax.convert verify"
    options = parse_options(Verify, args=arguments, prog=program, description=__doc__, stores=inputs)
    return exit_code(
        "verify",
        lambda: on_local_files(verify, options, inputs),
        cannot=f"cannot compare {options.one} and {options.other}",
    )
