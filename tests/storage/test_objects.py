"""Object stores: reading, conditional writes, large files, retries of every fault, and messages for permanent ones."""

import collections
import concurrent.futures
import logging
import os
import pathlib
from collections.abc import Callable

import pytest

from spanjax.storage import objects
from spanjax.storage.checksums import file_checksum
from spanjax.storage.objects import (
    ABSENT,
    ConditionFailedError,
    MissingObjectError,
    Place,
    StorageError,
    is_remote,
    open_store,
)
from tests.storage.servers import Fault, Faults, serving, web_page


def test_what_an_address_is() -> None:
    assert is_remote("gs://bucket/x") and is_remote("memory://bucket") and is_remote(pathlib.Path("s3://bucket/x"))
    assert not is_remote("runs/x") and not is_remote("c://x") and not is_remote("s3:/bucket/x")


def test_the_parts_of_a_place() -> None:
    place = Place.parse("s3://bucket/a//b/")
    assert str(place) == "s3://bucket/a/b" and place.name == "b" and str(place.parent) == "s3://bucket/a"
    assert str(place / "c/d") == "s3://bucket/a/b/c/d" and place / "" == place
    assert str(place.parent.parent) == "s3://bucket" and place.parent.parent.parent.name == "bucket"
    assert Place.parse(pathlib.Path("gcs://bucket/x")) == Place("gs", "bucket", "x")


@pytest.mark.parametrize("wrong", ["runs/x", "ftp://host/x", "s3://", "s3:///x", "gs://bucket/../x"])
def test_an_address_that_is_none(wrong: str) -> None:
    with pytest.raises(StorageError, match="expected"):
        Place.parse(wrong)


def test_objects_are_read_written_listed_and_deleted(address: str) -> None:
    place = Place.parse(address)
    store = open_store(place)
    assert store.list(place) == [] and store.read_version(place / "a") is None
    with pytest.raises(MissingObjectError, match="no such object"):
        store.read(place / "a")
    version = store.write(place / "a b/ü?.txt", b"one")
    store.write(place / "b", b"")
    assert store.read(place / "a b/ü?.txt") == (b"one", version)
    assert store.read_version(place / "a b/ü?.txt") == version and store.read(place / "b")[0] == b""
    assert [(each.name, each.size) for each in store.list(place)] == [("a b/ü?.txt", 3), ("b", 0)]
    assert store.list(place)[0].version == version
    assert store.list(place / "a") == [], "a prefix is no folder"
    store.delete([place / "a b/ü?.txt", place / "gone"])
    assert [each.name for each in store.list(place)] == ["b"]


def test_a_condition_decides_who_writes(address: str) -> None:
    place = Place.parse(address) / "lock"
    store = open_store(place)
    first = store.write(place, b"first", only_if=ABSENT)
    with pytest.raises(ConditionFailedError):
        store.write(place, b"again", only_if=ABSENT)
    second = store.write(place, b"second", only_if=first)
    with pytest.raises(ConditionFailedError):
        store.write(place, b"late", only_if=first)
    with pytest.raises(ConditionFailedError):
        store.write(place.parent / "other", b"x", only_if=second)
    assert store.read(place) == (b"second", second)


def test_of_many_writers_one_wins(address: str) -> None:
    place = Place.parse(address) / "lock"
    store = open_store(place)

    def write(number: int) -> int:
        try:
            store.write(place, b"%d" % number, only_if=ABSENT)
            return 1
        except ConditionFailedError:
            return 0

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1


@pytest.mark.parametrize("kind", ["sha256", "md5", "crc32", "crc32c"])
def test_a_download_compares_the_checksum(memory: str, kind: str, tmp_path: pathlib.Path) -> None:
    place = Place.parse(memory) / "x"
    store = open_store(place)
    (tmp_path / "x").write_bytes(b"content")
    store.upload(tmp_path / "x", place)
    checksum = file_checksum(tmp_path / "x", kind)
    store.download(place, tmp_path / "y", 7, checksum)
    assert (tmp_path / "y").read_bytes() == b"content"
    with pytest.raises(StorageError, match="damaged"):
        store.download(place, tmp_path / "z", 7, checksum[:-1] + ("0" if checksum[-1] != "0" else "1"))
    with pytest.raises(StorageError, match="it has 7 bytes, expected 8"):
        store.download(place, tmp_path / "z", 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"], "nothing is left of a failed download"


def large_file(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file of several parts and ranges; parts of S3 have at least 5 MiB."""
    monkeypatch.setattr(objects, "PART", 5 * 2**20)
    monkeypatch.setattr(objects, "RANGE", 2**20)
    file = folder / "large"
    file.write_bytes(os.urandom(11 * 2**20 + 17))
    return file


def test_a_large_file_comes_back_whole(
    address: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, faults: Faults
) -> None:
    file, place = large_file(tmp_path, monkeypatch), Place.parse(address) / "large"
    version = open_store(place).upload(file, place)
    counted: list[int] = []
    found = open_store(place).download(place, tmp_path / "copy", file.stat().st_size, progress=counted.append)
    assert found == version and sum(counted) == file.stat().st_size
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    if place.scheme != "memory":
        assert faults.requests["GET"] >= 12, "it came in ranges"


def test_ranges_of_two_versions_are_never_mixed(
    served: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, place = large_file(tmp_path, monkeypatch), Place.parse(served) / "large"
    store = open_store(place)
    version = store.upload(file, place)
    file.write_bytes(os.urandom(file.stat().st_size))
    store.upload(file, place)
    with pytest.raises(StorageError, match="replaced while it was read"):
        store.download(place, tmp_path / "copy", file.stat().st_size, version=version)
    assert not (tmp_path / "copy").exists()


ACTIONS: dict[str, tuple[str, Callable[[objects.Store, Place, pathlib.Path], object]]] = {
    "read": ("GET", lambda store, place, folder: store.read(place / "old")),
    "write": ("", lambda store, place, folder: store.write(place / "new", b"x")),
    "list": ("GET", lambda store, place, folder: store.list(place)),
    "delete": ("", lambda store, place, folder: store.delete([place / "new2", place / "old2"])),
    "download": ("GET", lambda store, place, folder: store.download(place / "old", folder / "copy")),
}


@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.DELAY], ids=lambda each: each.name)
def test_every_fault_is_retried(
    served: str, faults: Faults, fault: Fault, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place.parse(served)
    store = open_store(place)
    store.write(place / "old", b"content")
    for name, (method, act) in ACTIONS.items():
        store.write(place / "old", b"content")
        before, caplog_before = faults.counts[fault], len(caplog.records)
        faults.plan(fault, fault, method=method)
        with caplog.at_level(logging.WARNING):
            act(store, place, tmp_path)
        assert faults.counts[fault] == before + 2, (name, fault)
        lines = [record.getMessage() for record in caplog.records[caplog_before:]]
        # the HTTP client repeats some requests itself after a reset
        assert len(lines) <= 1 and all("tries" in line for line in lines), lines
    assert store.read(place / "new")[0] == b"x" and (tmp_path / "copy").read_bytes() == b"content"


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.HALF, Fault.TRUNCATED, Fault.RESET], ids=lambda each: each.name)
def test_a_conditional_write_whose_answer_is_lost_has_won(served: str, faults: Faults, fault: Fault) -> None:
    place = Place.parse(served) / "lock"
    store = open_store(place)
    store.list(place)
    faults.plan(fault, fault)
    version = store.write(place, b"mine", only_if=ABSENT)
    faults.plan(fault, fault)
    version = store.write(place, b"mine", only_if=version)
    assert store.read(place) == (b"mine", version)
    with pytest.raises(ConditionFailedError):
        store.write(place, b"mine", only_if=ABSENT)


@pytest.mark.slow
def test_large_files_survive_random_faults(
    served: str, faults: Faults, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, place = large_file(tmp_path, monkeypatch), Place.parse(served) / "large"
    faults.rate, faults.delay = 0.3, 0.05
    for number in range(6):
        file.write_bytes(os.urandom(11 * 2**20 + number))
        version = open_store(place).upload(file, place)
        found = open_store(place).download(
            place, tmp_path / "copy", file.stat().st_size, file_checksum(file, "crc32c"), version=version
        )
        assert found == version
    assert sum(faults.counts.values()) > 20 and len(faults.counts) > 5, faults.counts


def test_retries_end(served: str, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "RETRY_SECONDS", 0.3)
    place = Place.parse(served)
    open_store(place).list(place)
    faults.rate, faults.kinds, faults.consecutive = 1.0, (Fault.UNAVAILABLE,), 10**6
    with pytest.raises(StorageError, match=r"failed \d+ times in .* s, .*503.*run the same command again"):
        open_store(place).read(place / "x")


@pytest.mark.parametrize("method", ["list", "read", "write"])
def test_a_missing_bucket_is_no_missing_object(served: str, method: str, faults: Faults) -> None:
    place = Place.parse(served.replace("bucket/", "elsewhere/"))
    acts = {"list": (), "read": (), "write": (b"x",)}
    with pytest.raises(StorageError, match="no bucket 'elsewhere': check its name") as caught:
        getattr(open_store(place), method)(place / "x", *acts[method])
    assert not isinstance(caught.value, MissingObjectError)
    assert sum(faults.requests.values()) <= 2, "it is not retried"


def test_denied_access_names_the_rights(served: str, faults: Faults) -> None:
    place = Place.parse(served)
    open_store(place).list(place)
    before = sum(faults.requests.values())
    faults.deny = frozenset({"PUT", "POST"})
    with pytest.raises(StorageError, match="access is denied .*give these credentials the rights to list, read, write"):
        open_store(place).write(place / "x", b"x")
    assert sum(faults.requests.values()) == before, "it is not retried"


@pytest.mark.parametrize(
    ("scheme", "variable", "value"),
    [("s3", "AWS_ENDPOINT_URL", "http://127.0.0.1:9"), ("gs", "STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")],
)
def test_an_endpoint_that_nobody_serves(
    scheme: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"s3": "s3fs", "gs": "gcsfs"}[scheme])
    monkeypatch.setattr(objects, "UNREACHED_SECONDS", 0.2)
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    place = Place.parse(f"{scheme}://bucket/x")
    with pytest.raises(StorageError, match=f"check the network and {variable}"):
        open_store(place).list(place)


@pytest.mark.parametrize(
    ("scheme", "variable"), [("s3", "AWS_ENDPOINT_URL"), ("gs", "STORAGE_EMULATOR_HOST")], ids=["s3", "gs"]
)
def test_another_service_at_the_endpoint(scheme: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "RETRY_SECONDS", 0.2)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with web_page() as page:
        monkeypatch.setenv(variable, page)
        place = Place.parse(f"{scheme}://bucket/x")
        with pytest.raises(StorageError, match=f"Welcome.*check .*{variable}|not one of S3.*{variable}"):
            open_store(place).list(place)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    with serving("s3") as variables:
        monkeypatch.setenv("AWS_ENDPOINT_URL", variables["AWS_ENDPOINT_URL"])
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        place = Place.parse("s3://bucket/x")
        with pytest.raises(StorageError, match="no credentials .*set AWS_ACCESS_KEY_ID"):
            open_store(place).list(place)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> object:
        raise ModuleNotFoundError("No module named 's3fs'", name="s3fs")

    monkeypatch.setattr(objects.importlib, "import_module", without)
    monkeypatch.setattr(objects, "_stores", {})
    with pytest.raises(StorageError, match=r"needs the package s3fs: pip install 'spanjax\[s3\]'"):
        open_store(Place.parse("s3://bucket/x"))


def test_pages_of_a_listing(served: str) -> None:
    from tests.storage import servers

    if not served.startswith("gs"):
        pytest.skip("moto has pages of 1000")
    with servers.google_storage(page=3) as (host, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", host)
        place = Place.parse(served)
        for number in range(8):
            open_store(place).write(place / f"{number}", b"")
        assert [each.name for each in open_store(place).list(place)] == [str(number) for number in range(8)]


def test_planned_faults_are_counted() -> None:
    faults = Faults(seed=1, rate=0.5)
    found = collections.Counter(faults.next("GET", f"/{number}") for number in range(400))
    assert 150 < 400 - found[None] < 250 and sum(faults.counts.values()) == 400 - found[None]
    again = Faults(seed=1, rate=0.5)
    assert collections.Counter(again.next("GET", f"/{number}") for number in range(400)) == found
