"""python -m spanjax.prepare: text to vocabularies and packed rows, and looks at both.

Commands: rows (also without the word), vocab, check-vocab, show, stats, ngrams. `python -m spanjax.prepare COMMAND --help`
documents each. Exit codes: 0 done, 1 a check found differences, 2 wrong input, 130 stopped by Ctrl-C.
"""

from spanjax.cli import dispatch

COMMANDS = {
    "rows": "tokenizes documents and packs them into rows, ready for training",
    "vocab": "trains a vocabulary from a corpus",
    "check-vocab": "compares our ids with Hugging Face tokenizers on a corpus; fertility and unknown rate",
    "show": "prints rows as text with their masked spans",
    "stats": "draws lengths, fill and masked spans beside the paper's figure",
    "ngrams": "counts n-grams: the dictionary of span fine-tuning",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the first word names, `rows` without one; returns the exit code."""
    return dispatch(__name__, __doc__, COMMANDS, arguments, default="rows")
