"""The one import of numba: loops become machine code that runs without the interpreter's lock and is kept on disk.

Importing this module needs numba, which is part of the extra `train`. numba notices a change of a function's own file alone, so
a compiled function calls only compiled functions of its own file.
"""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """`function` as machine code that runs without the interpreter's lock."""
    try:
        # numba names its cache by function and line, and fails on one that names a class which was renamed: when a named tuple
        # among the arguments is renamed, the functions of its file must begin on other lines
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the file's folder nor the user's cache folder can be written
        return numba.njit(nogil=True)(function)
