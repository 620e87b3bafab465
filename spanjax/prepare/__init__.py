"""python -m spanjax.prepare: text to vocabularies and packed rows, and looks at both.

Commands: rows (also without the word), vocab, check-vocab, show, stats. `python -m spanjax.prepare COMMAND --help` documents
each. Exit codes: 0 done, 1 a check found differences, 2 wrong input, 130 stopped by Ctrl-C.
"""

import importlib
import sys

COMMANDS = {
    "rows": "tokenizes documents and packs them into rows, ready for training",
    "vocab": "trains a vocabulary from a corpus",
    "check-vocab": "compares our ids with Hugging Face tokenizers on a corpus; fertility and unknown rate",
    "show": "prints rows in words with their masked spans",
    "stats": "draws lengths, fill and masked spans beside the paper's figure",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the first word names, `rows` where there is none; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print((__doc__ or "") + "\n" + "\n".join(f"  {name:13s}{what}" for name, what in COMMANDS.items()))
        return 0 if words else 2
    command = words.pop(0) if not words[0].startswith("-") else "rows"
    if command not in COMMANDS:
        print(f"prepare: no command {command!r}: expected one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"spanjax.prepare.{command.replace('-', '_')}").main(words)
