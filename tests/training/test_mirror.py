"""A run whose work directory is in a bucket: what is committed, what a resumed run takes up, and what another run cannot do."""

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator

import jax
import numpy as np
import pytest
import tensorstore
from fsspec.implementations.memory import MemoryFileSystem

from spanjax.storage import lease as leases
from spanjax.storage.commits import FencedError
from spanjax.storage.lease import HeldError
from spanjax.storage.objects import StorageError
from spanjax.training import mirror as mirrors
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.checkpoint_files import (
    CheckpointError,
    SaveError,
    is_index,
    merge_indexes,
    name_in_merged,
    write_evaluation,
)
from spanjax.training.mirror import Mirror
from spanjax.training.state import TrainState
from spanjax.training.workdir import find_workdir, open_workdir
from tests.training.test_checkpoint import abstract, state

ADDRESS = "memory://bucket/run"
RUN = {"kind": "pretraining", "steps": 100}


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that are taken over within a second."""
    monkeypatch.setattr(leases, "VALID_SECONDS", 0.4)
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(leases, "WATCH_SECONDS", 0.02)


@pytest.fixture(autouse=True)
def store() -> Iterator[dict]:
    """Objects in memory, none before and after; path -> object."""
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem.store
    MemoryFileSystem.store.clear()


@contextlib.contextmanager
def opened(cache: pathlib.Path, keep: int = 3, release: bool = True) -> Iterator[tuple[Mirror, Checkpoints]]:
    """The run opened on a machine with this cache; without `release` as if its process were killed at the end."""
    with contextlib.ExitStack() as resources:
        folder, mirror, _ = find_workdir(ADDRESS, str(cache))
        assert mirror is not None
        open_workdir(folder, RUN, resources, mirror)
        checkpoints = Checkpoints(folder, keep, mirror)
        yield mirror, checkpoints
        if release:
            checkpoints.close()
        else:
            # a killed process releases its locks and writes nothing more
            mirror.lease._ended.set()
            mirror._ended.set()


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(state(step, 2), step, {"note": step}, None)
    checkpoints.finish()


def restored(checkpoints: Checkpoints) -> TrainState | None:
    return checkpoints.restore_newest(abstract(state(0, 2)))


def equal(one: TrainState, other: TrainState) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def names(store: dict, below: str = "checkpoints") -> set[str]:
    prefix = f"/bucket/run/{below}/"
    return {path.removeprefix(prefix).split("/")[0] for path in store if path.startswith(prefix)}


def files_of(store: dict, commit: str) -> list[str]:
    return sorted(path for path in store if path.startswith(f"/bucket/run/checkpoints/{commit}/"))


def test_a_run_resumes_on_another_machine(tmp_path: pathlib.Path, store: dict) -> None:
    with opened(tmp_path / "one") as (mirror, checkpoints):
        assert restored(checkpoints) is None
        save(checkpoints, 1, 2)
        (mirror.folder / "metrics.jsonl").write_text('{"step": 2}\n')
        (mirror.folder / "tensorboard").mkdir()
        (mirror.folder / "tensorboard" / "events").write_bytes(b"curve")
        write_evaluation(mirror.folder / "checkpoints" / "2", {"score": 1.0})
    assert {"/bucket/run/run.json", "/bucket/run/metrics.jsonl", "/bucket/run/tensorboard/events"} <= store.keys()
    assert find_workdir(ADDRESS, str(tmp_path / "two"))[2]
    with opened(tmp_path / "two") as (mirror, checkpoints):
        found = restored(checkpoints)
        assert found is not None and equal(found, state(2, 2))
        assert (mirror.folder / "metrics.jsonl").read_text() == '{"step": 2}\n'
        assert (mirror.folder / "tensorboard" / "events").read_bytes() == b"curve"
        assert checkpoints.meta(2) == {"note": 2, "score": 1.0}
        save(checkpoints, 3)
    assert names(store) == {"1-1", "2-1", "3-2"}


def test_files_of_this_machine_are_not_fetched_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (mirror, checkpoints):
        save(checkpoints, 1)
    fetched, download = list[str](), type(mirror.store).download

    def counted(self, place, *arguments, **options):
        fetched.append(place.name)
        return download(self, place, *arguments, **options)

    monkeypatch.setattr(type(mirror.store), "download", counted)
    with opened(tmp_path) as (_, checkpoints):
        found = restored(checkpoints)
    assert found is not None and equal(found, state(1, 2))
    assert set(fetched) == {"run.json"}
    # a local file that was damaged since is no copy of the committed one
    data = max((mirror.folder / "checkpoints" / "1" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with opened(tmp_path) as (_, checkpoints):
        found = restored(checkpoints)
    assert found is not None and equal(found, state(1, 2)) and data.name in fetched


def test_a_local_checkpoint_that_was_never_committed_is_not_resumed_from(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path, release=False) as (mirror, checkpoints):
        save(checkpoints, 1)
        checkpoints.mirror = None  # the process is killed before the upload
        checkpoints.save(state(2, 2), 2, {}, None)
        checkpoints.finish()
        assert (mirror.folder / "checkpoints" / "2").is_dir()
    with opened(tmp_path) as (mirror, checkpoints):
        found = restored(checkpoints)
        assert found is not None and int(found.step) == 1
        assert [path.name for path in (mirror.folder / "checkpoints").iterdir()] == ["1"]
        assert not (mirror.folder / "checkpoints.old").exists()
        save(checkpoints, 2)


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "no list of files"])
def test_a_damaged_newest_one_is_passed_over(
    tmp_path: pathlib.Path, store: dict, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "one") as (_, checkpoints):
        save(checkpoints, 1, 2)
    path = max(files_of(store, "2-1"), key=lambda each: len(store[each].getbuffer()))
    content = bytearray(store[path].getbuffer())
    if damage == "missing":
        del store[path]
    elif damage == "cut":
        MemoryFileSystem().pipe_file(path, bytes(content[:-1]))
    elif damage == "changed":
        content[len(content) // 2] ^= 1
        MemoryFileSystem().pipe_file(path, bytes(content))
    else:
        MemoryFileSystem().pipe_file("/bucket/run/commits/2-1.json", b"{")
    with opened(tmp_path / "two") as (mirror, checkpoints):
        found = restored(checkpoints)
        assert found is not None and equal(found, state(1, 2))
        assert "checkpoint 2 is damaged" in caplog.text and "the one before is used" in caplog.text
        assert mirror.commits.head.damaged == ("2-1",)
        save(checkpoints, 2)
    assert sorted(mirror.commits.read().steps) == [1, 2] and {"2-1", "2-2"} <= names(store)


def test_nothing_starts_again_when_all_are_damaged(tmp_path: pathlib.Path, store: dict) -> None:
    with opened(tmp_path / "one") as (_, checkpoints):
        save(checkpoints, 1)
    del store[files_of(store, "1-1")[0]]
    with opened(tmp_path / "two") as (mirror, checkpoints):
        with pytest.raises(CheckpointError, match="all are damaged"):
            restored(checkpoints)
        assert mirror.steps() == [1]


def test_a_bucket_that_does_not_answer_is_no_damage(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "one") as (_, checkpoints):
        save(checkpoints, 1, 2)
    with opened(tmp_path / "two") as (mirror, checkpoints):

        def down(*_: object, **__: object) -> None:
            raise StorageError("no answer for 300 s")

        with monkeypatch.context() as patch:
            patch.setattr(type(mirror.store), "download", down)
            with pytest.raises(StorageError, match="no answer"):
                restored(checkpoints)
        assert mirror.steps() == [1, 2]
        found = restored(checkpoints)
        assert found is not None and int(found.step) == 2


def test_an_upload_that_fails_is_a_failed_save(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, store: dict
) -> None:
    with opened(tmp_path) as (mirror, checkpoints):
        save(checkpoints, 1)
        upload = type(mirror.store).upload

        def refused(self, file, place):
            if "d" in place.key.split("/"):
                raise StorageError("403: no access")
            return upload(self, file, place)

        with monkeypatch.context() as patch:
            patch.setattr(type(mirror.store), "upload", refused)
            with pytest.raises(SaveError, match=f"step 2 could not be written to {ADDRESS}: 403: no access"):
                save(checkpoints, 2)
        assert mirror.steps() == [1] and not (mirror.folder / "checkpoints" / "2").exists()
        save(checkpoints, 2)
        assert mirror.steps() == [1, 2]


def test_the_newest_and_the_best_stay_in_the_bucket_over_a_resume(tmp_path: pathlib.Path, store: dict) -> None:
    def evaluated(checkpoints: Checkpoints, step: int, loss: float) -> None:
        checkpoints.save(state(step, 2), step, {"eval_history": [[step, loss]]}, loss)
        checkpoints.finish()

    with opened(tmp_path / "one", keep=1) as (_, checkpoints):
        for step, loss in ((1, 2.0), (2, 1.0), (3, 3.0)):
            evaluated(checkpoints, step, loss)
        assert (
            names(store)
            == {"2-1", "3-1"}
            == {name.removesuffix(".json") for name in names(store, "commits") - {"HEAD"}}
        )
    with opened(tmp_path / "two", keep=1) as (_, checkpoints):
        assert restored(checkpoints) is not None
        evaluated(checkpoints, 4, 1.5)
    assert names(store) == {"2-1", "4-2"}


def test_of_two_runs_the_later_commits_and_the_earlier_ends(tmp_path: pathlib.Path, store: dict) -> None:
    with contextlib.ExitStack() as stack:
        one, sleeping = stack.enter_context(opened(tmp_path / "one", release=False))
        save(sleeping, 1)
        # it sleeps: nothing renews its lease, and it knows nothing of that
        one.lease._ended.set()
        one.lease._thread.join()
        one.lease._ended.clear()
        two, awake = stack.enter_context(opened(tmp_path / "two"))
        assert restored(awake) is not None
        save(awake, 2)
        (two.folder / "metrics.jsonl").write_text('{"step": 2}\n')
        two.send_files()
        before = {
            path: bytes(file.getbuffer())
            for path, file in store.items()
            if not path.endswith("run.lock") and "2-1" not in path
        }
        (one.folder / "metrics.jsonl").write_text('{"step": 1}\n')
        with pytest.raises(FencedError, match="was taken over by another run, host"):
            save(sleeping, 2)
        one.send_files()
        with pytest.raises(FencedError):
            sleeping.check_lease()
        after = {
            path: bytes(file.getbuffer())
            for path, file in store.items()
            if not path.endswith("run.lock") and "2-1" not in path
        }
        assert after == before
        save(awake, 3)
        assert {step: each.commit for step, each in two.commits.read().steps.items()} == {1: "1-1", 2: "2-2", 3: "3-2"}
        assert "2-1" not in names(store)


def test_a_run_at_work_is_refused_and_left_alone(tmp_path: pathlib.Path, store: dict) -> None:
    with opened(tmp_path / "one") as (_, checkpoints):
        save(checkpoints, 1)
        with pytest.raises(HeldError, match=f"--workdir {ADDRESS} is in use by another run"), opened(tmp_path / "two"):
            pass
        save(checkpoints, 2)
    assert names(store) == {"1-1", "2-1"}


def test_small_files_are_sent_when_they_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as (mirror, _):
        sent, write = list[str](), type(mirror.store).write

        def counted(self, place, data, **options):
            sent.append(place.name)
            return write(self, place, data, **options)

        monkeypatch.setattr(type(mirror.store), "write", counted)
        (mirror.folder / "metrics.jsonl").write_text("1\n")
        (mirror.folder / ".metrics.jsonl.temporary").write_text("1\n")
        mirror.send_files()
        mirror.send_files()
        assert sent == ["metrics.jsonl"]

        def down(*_: object, **__: object) -> None:
            raise StorageError("no answer")

        (mirror.folder / "metrics.jsonl").write_text("1\n2\n")
        monkeypatch.setattr(type(mirror.store), "write", down)
        with caplog.at_level(logging.WARNING):
            mirror.send_files()
            mirror.send_files()
        assert caplog.text.count("could not be uploaded") == 1
        monkeypatch.setattr(type(mirror.store), "write", write)
        # another run that slept has written there; what this one has is newer
        mirror.store.write(mirror.place / "metrics.jsonl", b"0\n")
        mirror.send_files()
        assert mirror.store.read(mirror.place / "metrics.jsonl")[0] == b"1\n2\n"


def test_looking_takes_and_changes_nothing(tmp_path: pathlib.Path, store: dict) -> None:
    assert find_workdir(ADDRESS, str(tmp_path))[2] is False
    assert not store
    assert find_workdir(str(tmp_path / "x"), "")[1] is None and find_workdir("./gs:/x", "")[1] is None
    with pytest.raises(StorageError, match="expected memory://BUCKET/NAME"):
        find_workdir("memory://", "")


def test_a_machine_without_a_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME to a folder with space"):
        Mirror(ADDRESS)


def test_indexes_of_processes_become_one(tmp_path: pathlib.Path) -> None:
    """Of each process only the index is here, as it refers to the arrays by name."""
    for process in (0, 1):
        folder = tmp_path / "disk" / f"process_{process}"
        child = folder / f"ocdbt.process_{process}"
        context = tensorstore.Context()
        opened = [
            tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{each}/"}, context=context).result()
            for each in (child, folder)
        ]
        if process == 0:
            opened[0].write("a/.zarray", b"{}").result()
        opened[0].write(f"a/{process}", bytes([process]) * 5000).result()
        opened[0].experimental_copy_range_to(opened[1]).result()
        target = tmp_path / "work" / "state" / f"process_{process}"
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("ocdbt.*"))
    for path in merge_indexes(tmp_path / "work"):
        target = tmp_path / "disk" / path.relative_to(tmp_path / "work" / "state")
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    merged = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{tmp_path / 'disk'}/"}).result()
    assert merged.read("a/1").result().value == bytes([1]) * 5000
    assert sorted(merged.list().result()) == [b"a/.zarray", b"a/0", b"a/1"]


def test_an_array_that_nobody_wrote_is_no_checkpoint(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "state" / "process_0"
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
    store.write("a/.zarray", b"{}").result()
    with pytest.raises(OSError, match="no process has written \\['a'\\] whole"):
        merge_indexes(tmp_path)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("meta/metadata", "meta/metadata", None),
        ("state/_METADATA", "state/_METADATA", None),
        ("state/d/ab", "state/process_0/d/ab", "state/process_1/d/ab"),
        ("state/manifest.ocdbt", "state/process_0/manifest.ocdbt", "state/process_1/manifest.ocdbt"),
        ("state/ocdbt.process_1/d/x", "state/process_0/ocdbt.process_1/d/x", "state/process_1/ocdbt.process_1/d/x"),
    ],
)
def test_names_in_the_checkpoint_of_all(name: str, first: str, second: str | None) -> None:
    assert name_in_merged(name, 0, 1) == name
    assert (name_in_merged(name, 0, 2), name_in_merged(name, 1, 2)) == (first, second)
    assert is_index(first) == (name in ("state/d/ab", "state/manifest.ocdbt"))


def test_processes_of_a_machine_fetch_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "one") as (_, checkpoints):
        save(checkpoints, 1)
    first, second = Mirror(ADDRESS, str(tmp_path / "two")), Mirror(ADDRESS, str(tmp_path / "two"))
    second.folder = second.host / "process_1"
    for each in (first, second):
        each.commits.read()
        each.folder.mkdir(parents=True)
    assert first.fetch(1) is None
    monkeypatch.setattr(type(first.store), "download", lambda *_, **__: pytest.fail("fetched twice"))
    assert second.fetch(1) is None
    one, two = (each.folder / "checkpoints" / "1" / "meta" / "metadata" for each in (first, second))
    assert os.stat(one).st_ino == os.stat(two).st_ino


def test_the_mirror_sends_regularly(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, store: dict) -> None:
    monkeypatch.setattr(mirrors, "MIRROR_SECONDS", 0.02)
    with opened(tmp_path) as (mirror, _):
        (mirror.folder / "metrics.jsonl").write_text("1\n")
        for _ in range(200):
            if "/bucket/run/metrics.jsonl" in store:
                break
            mirror._ended.wait(0.02)
    assert "/bucket/run/metrics.jsonl" in store
