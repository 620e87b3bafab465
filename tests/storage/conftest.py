"""Stores for tests: memory of this process, moto's S3 and a stand-in for Google Cloud Storage, with short waits."""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spanjax.storage import objects
from tests.storage.servers import BUCKET, MISSING, Faults, serving

SCHEMES = ("memory", "s3", "gs")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait for milliseconds and end within seconds."""
    monkeypatch.setattr(objects, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(objects, "RETRY_SECONDS", 20.0)
    monkeypatch.setattr(objects, "REQUEST_SECONDS", 10.0)


@pytest.fixture
def user_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A cache folder of the user for this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "spanjax"


@pytest.fixture
def faults() -> Faults:
    """Faults of the proxy in front of the server: none until a test plans some."""
    return Faults()


def opened(scheme: str, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> contextlib.AbstractContextManager[str]:
    """Opens the address of an empty folder of a scheme; servers stand behind the proxy."""

    @contextlib.contextmanager
    def open_address() -> Iterator[str]:
        if scheme == "memory":
            MemoryFileSystem.store.clear()
            yield f"memory://{BUCKET}/folder"
            MemoryFileSystem.store.clear()
            return
        if MISSING:
            pytest.skip(f"{', '.join(MISSING)} is not installed: pip install -r requirements-dev.txt")
        with serving(scheme, faults) as variables:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            yield f"{scheme}://{BUCKET}/folder"

    return open_address()


@pytest.fixture(params=SCHEMES)
def address(request: pytest.FixtureRequest, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty folder, in every scheme."""
    with opened(request.param, faults, monkeypatch) as found:
        yield found


@pytest.fixture(params=SCHEMES[1:])
def served(request: pytest.FixtureRequest, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty folder of a real server behind the proxy."""
    with opened(request.param, faults, monkeypatch) as found:
        yield found


@pytest.fixture
def memory(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty folder in memory, for commands that run in this process."""
    with opened("memory", faults, monkeypatch) as found:
        yield found
