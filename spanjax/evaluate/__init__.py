"""python -m spanjax.evaluate: scores of fine-tuned models, and a suite of tasks that compares encoders.

Commands: run and suite; `python -m spanjax.evaluate COMMAND --help` documents each. Without a command, as in
`python -m spanjax.evaluate MODEL --data FILE`, it is `run`.

Exit codes: 0 done, 2 wrong input, 4 some parts of a suite failed, 130 stopped by Ctrl-C.
"""

import sys

from spanjax.cli import dispatch

COMMANDS = {
    "run": "predictions of a fine-tuned model on files, and their official scores",
    "suite": "one protocol for encoders: probes, similarity, minimal pairs, fills; fine-tuning on GLUE and span tasks",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the first word names, else `run`; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = not words or words[0] in ("-h", "--help", *COMMANDS)
    if words[:1] == ["run"] and len(words) > 1 and words[1].startswith("-") and words[1] not in ("-h", "--help"):
        named = False  # no model follows: it is one in the folder "run", as before there were commands
    return dispatch(__name__, __doc__, COMMANDS, words if named else ["run", *words])
