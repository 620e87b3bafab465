"""Errors of object stores."""


class StorageError(ValueError):
    """A bucket or object that cannot be used; the message names the address, the expectation and the remedy."""


class MissingObjectError(StorageError):
    """No object is at this address; its bucket exists."""


class DamagedError(StorageError):
    """The content of an object has another checksum than expected."""


class ConditionFailedError(StorageError):
    """A conditional write found an object where none was expected, or another version; nothing was written."""


class TransientError(Exception):
    """A failed request that may succeed when it is repeated; the message is the reason."""
