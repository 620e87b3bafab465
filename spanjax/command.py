"""What every command line does with errors: one message on stderr, an exit code, no traceback for wrong input."""

import sys
from collections.abc import Callable

WRONG_INPUT, INTERRUPTED = 2, 130


def exit_code(command: str, work: Callable[[], object], *, cannot: str, stopped: str = "stopped") -> int:
    """What `work` returns where that is a number, else 0; 2 for ValueError and OSError, 130 for Ctrl-C.

    They are told on stderr, with the notes of the exception.
    `cannot` says what a ValueError prevented ("cannot read these rows"), `stopped` what a Ctrl-C leaves behind.
    """
    try:
        found = work()
        return found if isinstance(found, int) else 0
    except ValueError as error:
        told, code, cause = f"{cannot}:\n{error}", WRONG_INPUT, error
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        told, code, cause = f"{error.strerror or error}{where}", WRONG_INPUT, error
    except KeyboardInterrupt as error:
        told, code, cause = stopped, INTERRUPTED, error
    notes = [f"  {note}" for note in getattr(cause, "__notes__", ())]
    print(f"{command}: {told}", *notes, sep="\n", file=sys.stderr)
    return code
