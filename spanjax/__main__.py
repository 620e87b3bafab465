"""Entry point of the command `spanjax` and of `python -m spanjax`: the first word is the module that runs."""

import sys

from spanjax.cli import dispatch

DOC = """spanjax COMMAND ...: pretrains, fine-tunes, uses and converts span-based text encoders.

`spanjax COMMAND --help` documents a command; `spanjax train --list` names the presets for its --config. The same commands run as
`python -m spanjax.COMMAND`.
"""
COMMANDS = {
    "prepare": "text -> rows of tokens on disk; vocabularies; figures of rows",
    "train": "pretrains or fine-tunes the run of a config, or resumes it",
    "evaluate": "scores a fine-tuned model on files; compares encoders by a suite of tasks",
    "score": "scores predictions of any system, with intervals and tests of differences",
    "predict": "fills masks, answers, classifies, finds entities and coreference chains",
    "serve": "a page on this machine that shows what a model fills in, tags, answers or links",
    "convert": "to and from PyTorch and Hugging Face; inspects and verifies weights",
    "report": "one page of curves, examples and comparisons of runs",
    "plan": "compiles a step for devices that are not here: memory, traffic, modelled time",
    "doctor": "checks this machine and its packages",
    "launch": "starts the processes of a run here, or writes files for SLURM, Kubernetes and TPU pods",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the first word names; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        from spanjax import __version__

        print(f"spanjax {__version__}")
        return 0
    code = dispatch("spanjax", DOC, COMMANDS, words)
    if words[:1] == ["train"]:
        from spanjax.train import end

        end(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
