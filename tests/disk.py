"""A disk that refuses to take more, and a system that opens no more files."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process can grow over so many bytes: writes fail with EFBIG, as they do with ENOSPC on a full disk."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@contextlib.contextmanager
def no_more_open_files() -> Iterator[None]:
    """This process can open nothing: EMFILE."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
