"""Access to an object store, tried right by right with an object of its own."""

import contextlib
import uuid
from collections.abc import Callable

from spanjax.doctor.checks import Finding
from spanjax.storage.objects import ABSENT, ConditionFailedError, Place, StorageError, Store, open_store

NEEDED = {
    "list": "rows, models and listings of outputs",
    "write": "outputs and training runs",
    "condition": "work directories of training runs, which need conditional writes",
    "read": "rows, models and training runs",
    "delete": "replacing outputs and removing old checkpoints",
}
"""Right -> what it is for."""


def check_storage(address: str) -> list[Finding]:
    """Lists the folder at an address, writes a probe object on a condition, reads it back and deletes it.

    Returns one finding for each of `NEEDED`, a failure with what is missing; one for all if there is no such address.
    """
    try:
        place = Place.parse(address)
        store = open_store(place)
    except Exception as error:  # also of the packages of the scheme, which may not even import
        return [Finding(f"storage {address}", "fail", str(error))]
    return _Probe(store, place).findings()


class _Probe:
    def __init__(self, store: Store, place: Place):
        self._store, self._place = store, place
        self._object = place / f"spanjax-doctor-{uuid.uuid4().hex}"
        self._content = uuid.uuid4().hex.encode()

    def findings(self) -> list[Finding]:
        """Tries everything, in the order in which each needs what was before it."""
        written = self._try("write", lambda: self._store.write(self._object, self._content, only_if=ABSENT))
        steps = [self._try("list", lambda: self._store.list(self._place)), written]
        if written.status == "ok":
            steps += [self._try("condition", self._refused), self._try("read", self._same)]
            steps += [self._try("delete", lambda: self._store.delete([self._object]))]
        else:
            skipped = "not tried, as no object could be written"
            steps += [Finding(self._name(right), "note", skipped) for right in ("condition", "read", "delete")]
        return steps

    def _refused(self) -> None:
        with contextlib.suppress(ConditionFailedError):
            self._store.write(self._object, b"again", only_if=ABSENT)
            raise StorageError(
                f"{self._place}: a write on the condition that no object is there replaced one: the service ignores conditions;"
                " keep work directories of training runs elsewhere"
            )

    def _same(self) -> None:
        if self._store.read(self._object)[0] != self._content:
            raise StorageError(f"{self._place}: what was read back is not what was written: report it to the service")

    def _name(self, right: str) -> str:
        return f"storage {right}"

    def _try(self, right: str, act: Callable[[], object]) -> Finding:
        try:
            act()
        except StorageError as error:
            return Finding(self._name(right), "fail", f"{error} ({right} is needed for {NEEDED[right]})")
        return Finding(self._name(right), "ok", "")
