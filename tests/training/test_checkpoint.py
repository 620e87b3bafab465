"""The last N and the best are kept; what is restored is what was saved, on any mesh; failed and damaged saves do not count."""

import collections
import json
import logging
import math
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.sharding import MeshConfig, make_mesh, parameter_shardings, replicated
from spanjax.training import checkpoint_files as saved
from spanjax.training.checkpoint import Checkpoints, read_weights
from spanjax.training.checkpoint_files import (
    CHECKSUMS,
    CheckpointError,
    SaveError,
    best_step,
    damage,
    no_room,
    reason_of,
    stored_losses,
    whole_step,
)
from spanjax.training.eval_history import KEY
from spanjax.training.state import TrainState
from tests.disk import files_of_at_most, no_more_open_files
from tests.running import ROOT


def state(step: int, devices: int) -> TrainState:
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    params = {"table": {"embedding": jnp.arange(32.0).reshape(8, 4) + step}, "norm": {"scale": jnp.ones(3) * step}}
    params = jax.device_put(params, parameter_shardings(params, mesh))
    count = jax.device_put(jnp.int32(step), replicated(mesh))
    zero = jax.device_put(jnp.int32(0), replicated(mesh))
    return TrainState(count, params, {"count": count}, zero, zero)


def abstract(like: TrainState) -> TrainState:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_last_and_best_are_kept(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5), (6, 2.0)):
        checkpoints.save(state(step, 2), step, {"note": step}, loss)
    checkpoints.close()
    assert sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()) == [2, 5, 6]
    step, params, meta = read_weights(tmp_path / "checkpoints" / "6")
    assert (step, meta) == (6, {"note": 6}) and whole_step(tmp_path) == (6, [])
    np.testing.assert_array_equal(params["table"]["embedding"], state(6, 1).params["table"]["embedding"])
    assert (tmp_path / "checkpoints" / "6" / CHECKSUMS).exists() and damage(tmp_path / "checkpoints" / "6") is None


def judged(workdir: pathlib.Path, losses: dict[int, float | None], keep: int = 1) -> None:
    """Checkpoints of these steps, saved by one run, with the evaluations up to each in its meta, as the loop writes them."""
    checkpoints = Checkpoints(workdir, keep)
    before = list(stored_losses(workdir).items())
    for step, loss in losses.items():
        before += [(step, loss)] if loss is not None else []
        checkpoints.save(state(step, 1), step, {KEY: before}, loss)
    checkpoints.close()


def test_the_best_is_kept_when_a_run_goes_on(tmp_path: pathlib.Path) -> None:
    judged(tmp_path, {1: 3.0, 2: 1.0, 3: 2.0})
    judged(tmp_path, {4: 1.0, 5: None, 6: 2.5})
    assert names(tmp_path) == ["2", "6"] and stored_losses(tmp_path) == {2: 1.0, 6: 2.5}
    judged(tmp_path, {7: math.nan, 8: 0.5, 9: 0.7})
    assert names(tmp_path) == ["8", "9"] and best_step(tmp_path) == (8, [])


def test_the_best_whole_step(tmp_path: pathlib.Path) -> None:
    """Least loss, then the next; a damaged one is passed over and said; without evaluations the newest is taken."""
    judged(tmp_path, {1: 3.0, 2: 1.0, 3: 2.0, 4: None}, keep=4)
    assert best_step(tmp_path) == (2, []) and whole_step(tmp_path) == (4, [])
    (tmp_path / "checkpoints" / "2" / "meta" / "metadata").write_text("[")
    step, said = best_step(tmp_path)
    assert step == 3 and len(said) == 1 and "checkpoint 2 is damaged" in said[0]
    for number in (1, 3):
        (tmp_path / "checkpoints" / str(number) / "meta" / "metadata").unlink()
    assert best_step(tmp_path)[0] == 4
    (tmp_path / "checkpoints" / "4" / "meta" / "metadata").write_text('{"judged": 7}')
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        best_step(tmp_path)
    judged(tmp_path / "never", {1: None, 2: None}, keep=2)
    assert best_step(tmp_path / "never") == (2, [])


@pytest.mark.parametrize("devices", [1, 4])
def test_restored_onto_another_mesh(tmp_path: pathlib.Path, devices: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(7, 2), 7, {}, None)
    checkpoints.close()
    target = state(0, devices)
    restored = Checkpoints(tmp_path, keep=1).restore_newest(abstract(target))
    assert restored is not None and int(restored.step) == 7
    for expected, got, like in zip(*(jax.tree.leaves(s) for s in (state(7, 1), restored, target)), strict=True):
        np.testing.assert_array_equal(expected, got)
        assert got.sharding == like.sharding


def test_half_written_checkpoint_is_ignored(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(state(1, 1), 1, {}, None)
    checkpoints.close()
    (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp-123").mkdir()
    again = Checkpoints(tmp_path, keep=2)
    restored = again.restore_newest(abstract(state(0, 1)))
    assert again.steps() == [1] and restored is not None and int(restored.step) == 1
    assert names(tmp_path) == ["1"]


def test_nothing_there_is_none(tmp_path: pathlib.Path) -> None:
    assert Checkpoints(tmp_path, keep=1).restore_newest(abstract(state(0, 1))) is None


def test_damage_names_the_files(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(1, 1), 1, {}, None)
    checkpoints.close()
    folder = tmp_path / "checkpoints" / "1"
    (folder / "meta" / "metadata").write_text('{"other": 1}')
    assert "meta/metadata" in (damage(folder) or "")


def test_arrays_that_changed_are_found_beside_the_restore(tmp_path: pathlib.Path) -> None:
    """TensorStore reads a changed number of an array as it is; the checksum is compared meanwhile."""
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2):
            params = {"kernel": jnp.full((512, 1024), float(step))}
            checkpoints.save(TrainState(jnp.int32(step), params, {}, jnp.int32(3), jnp.int32(2)), step, {}, None)
        checkpoints.finish()
        like = abstract(
            checkpoints._restore(2, abstract(TrainState(jnp.int32(0), params, {}, jnp.int32(0), jnp.int32(0))))
        )
        (file,) = [each for each in (tmp_path / "checkpoints" / "2").rglob("d/*") if each.stat().st_size > saved.LARGE]
        with file.open("r+b") as opened:
            opened.seek(saved.LARGE)
            opened.write(np.float32(7.0).tobytes())
        assert 7.0 in np.asarray(checkpoints._restore(2, like).params["kernel"])
        restored = checkpoints.restore_newest(like)
        assert restored is not None and int(restored.step) == 1 and np.all(np.asarray(restored.params["kernel"]) == 1)
    assert names(tmp_path) == ["1", "2.damaged"]


class Processes:
    """Threads that `checkpoint_files` takes for processes."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch):
        self.count, self.own, self.barrier = count, threading.local(), threading.Barrier(count, timeout=20)
        self.texts = [""] * count
        monkeypatch.setattr(saved.jax, "process_index", lambda: self.own.index)
        monkeypatch.setattr(saved.jax, "process_count", lambda: count)
        monkeypatch.setattr(saved, "all_gather_text", self.gather)

    def gather(self, name: str, text: str) -> list[str]:
        self.texts[self.own.index] = text
        self.barrier.wait()
        return self.texts

    def run(self, work: Callable[[int], object]) -> list[object]:
        def one(index: int) -> object:
            self.own.index = index
            try:
                return work(index)
            except OSError as error:
                return error

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, range(self.count)))


def files_of(folder: pathlib.Path, *sizes: int) -> pathlib.Path:
    for number, size in enumerate(sizes):
        path = folder / "state" / "d" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    (folder / "meta").mkdir()
    (folder / "meta" / "metadata").write_text("{}")
    return folder


def test_processes_read_shares_of_a_shared_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = files_of(tmp_path, *range(100, 3000, 100))
    saved.write_checksums(folder)
    alone = json.loads((folder / CHECKSUMS).read_text())
    (folder / CHECKSUMS).unlink()
    processes, read, original = Processes(3, monkeypatch), collections.defaultdict(set), saved.sized_crc

    def noted(path: pathlib.Path, to_disk: bool = False) -> list[int]:
        read[processes.own.index].add(path)
        return original(path, to_disk)

    monkeypatch.setattr(saved, "sized_crc", noted)
    assert processes.run(lambda _: saved.write_shared_checksums(folder)) == [None] * 3
    assert json.loads((folder / CHECKSUMS).read_text()) == alone
    assert sum(map(len, read.values())) == len(alone) == len(set().union(*read.values()))
    sizes = [sum(path.stat().st_size for path in each) for each in read.values()]
    assert max(sizes) - min(sizes) <= 3000
    (folder / "state" / "d" / "7").write_bytes(b"other")
    found = processes.run(lambda _: damage(folder, saved.own_share))
    assert sorted(map(str, found)) == ["None", "None", "missing files [], changed files ['state/d/7']"]


def test_where_a_process_failed_no_list_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, full = files_of(tmp_path, 10, 20), OSError(28, "No space left on device")
    found = Processes(2, monkeypatch).run(lambda index: saved.write_shared_checksums(folder, full if index else None))
    assert found == [None, full] and not (folder / CHECKSUMS).exists()


def large(step: int) -> TrainState:
    params = {"kernel": jax.random.normal(jax.random.key(step), (256, 256))}
    return TrainState(jnp.int32(step), params, {}, jnp.int32(3), jnp.int32(2))


# TensorStore calls back into an event loop of Orbax that the error has closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_fails_the_save_and_leaves_nothing(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(large(1), 1, {}, None)
    checkpoints.finish()
    with pytest.raises(SaveError) as failed, files_of_at_most(20_000):
        checkpoints.save(large(2), 2, {}, None)
        assert checkpoints.pending()
        checkpoints.finish()
    assert failed.value.what.endswith("checkpoints: File too large")
    assert failed.value.newest == "the newest good one is that of step 1"
    assert "it continues from step 1" in str(failed.value)
    assert checkpoints.steps() == [1] and not checkpoints.pending()
    time.sleep(0.5)  # TensorStore's other writes of that save come to their end, and may have made its folder anew
    checkpoints.save(large(3), 3, {}, None)
    checkpoints.close()
    assert names(tmp_path) == ["1", "3"]
    restored = Checkpoints(tmp_path, keep=2).restore_newest(abstract(large(0)))
    assert restored is not None and (int(restored.step), int(restored.skipped)) == (3, 3)
    assert not [record for record in caplog.records if record.levelno > logging.WARNING], "one line, said by the loop"


def test_a_save_fails_as_a_save_where_no_file_can_be_opened(tmp_path: pathlib.Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(state(1, 2), 1, {}, None)
        checkpoints.finish()
        with no_more_open_files(), pytest.raises(SaveError, match="Too many open files"):
            checkpoints.save(state(2, 2), 2, {}, None)
            checkpoints.finish()
        checkpoints.save(state(3, 2), 3, {}, None)
        checkpoints.finish()
        assert checkpoints.steps() == [1, 3]


def test_the_system_says_why_a_write_failed() -> None:
    """TensorStore gives the error number before or behind its own description of the array."""
    number, described = "[os_error_code='28']", "[tensorstore_spec='{path: true}']"
    for parts in ((number, described), (described, number)):
        assert reason_of(ValueError(f"Error writing: Failed to write 9 bytes {' '.join(parts)}")) == os.strerror(28)
    assert reason_of(ValueError("another one\nwith more lines")) == "another one"


def test_what_is_not_read_back_as_it_was_written_is_a_failed_save(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, fsync = Checkpoints(tmp_path, keep=2), saved.os.fsync
    checkpoints.save(state(1, 1), 1, {}, None)
    checkpoints.finish()

    def lossy(descriptor: int) -> None:
        fsync(descriptor)
        if (file := os.readlink(f"/proc/self/fd/{descriptor}")).endswith("2/meta/metadata"):
            pathlib.Path(file).write_text("")

    with monkeypatch.context() as patch:
        patch.setattr(saved.os, "fsync", lossy)
        checkpoints.save(state(2, 1), 2, {"some": "thing"}, None)
        with pytest.raises(SaveError, match="what was read back is not what was written .*meta/metadata"):
            checkpoints.finish()
    assert names(tmp_path) == ["1"]
    checkpoints.close()


def test_damaged_ones_are_set_aside_when_there_is_a_whole_one(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(state(step, 1), step, {}, None)
    checkpoints.close()
    for step in (2, 3):
        (tmp_path / "checkpoints" / str(step) / "meta" / "metadata").write_text('{"other": 1}')
    again = Checkpoints(tmp_path, keep=3)
    restored = again.restore_newest(abstract(state(0, 1)))
    assert restored is not None and int(restored.step) == 1 and again.steps() == [1]
    assert names(tmp_path) == ["1", "2.damaged", "3.damaged"]
    said = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    assert len(said) == 2 and said[0].startswith(
        "checkpoint 3 is damaged (missing files [], changed files ['meta/metadata'])"
    )
    again.save(state(2, 1), 2, {}, None)
    again.close()
    (tmp_path / "checkpoints" / "1" / "meta" / "metadata").write_text('{"other": 1}')
    for file in (tmp_path / "checkpoints" / "2" / "state").rglob("d/*"):
        file.write_bytes(b"")
    for _ in range(2):  # no run starts again from step 0 because another one has looked
        with pytest.raises(CheckpointError, match=r"none of the checkpoints \[1, 2\]"):
            Checkpoints(tmp_path, keep=3).restore_newest(abstract(state(0, 1)))


@pytest.mark.parametrize("content", [None, "[" * 100_000, "[1]"])
def test_one_without_checksums_is_taken_last(
    content: str | None, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The save was killed before its checksums, somebody removed them, or they are damaged."""
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        checkpoints.save(state(step, 1), step, {}, None)
    checkpoints.close()
    for step in (2, 1):
        file = tmp_path / "checkpoints" / str(step) / CHECKSUMS
        file.unlink() if content is None or step == 1 else file.write_text(content)
        restored = Checkpoints(tmp_path, keep=3).restore_newest(abstract(state(0, 1)))
        assert restored is not None and int(restored.step) == 1
    assert names(tmp_path) == ["1", "2.damaged"]
    said = [record.getMessage() for record in caplog.records if "checkpoint" in record.getMessage()]
    assert len(said) == 2 and CHECKSUMS in said[0] and "renamed 2.damaged" in said[0]
    assert said[1].startswith(f"checkpoint 1 is without {CHECKSUMS}") and "it was not checked" in said[1]


def test_a_checkpoint_from_before_the_counters_is_restored(tmp_path: pathlib.Path) -> None:
    class Older(NamedTuple):
        step: Any
        params: Any
        opt_state: Any

    saved = state(5, 2)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(Older(*saved[:3]), 5, {}, None)  # pyright: ignore[reportArgumentType]
    checkpoints.close()
    like = state(0, 4)
    restored = Checkpoints(tmp_path, keep=1).restore_newest(abstract(like))
    assert restored is not None and int(restored.step) == 5
    assert (int(restored.skipped), int(restored.skipped_in_a_row)) == (0, 0)
    assert restored.skipped.sharding == like.skipped.sharding
    np.testing.assert_array_equal(restored.params["table"]["embedding"], saved.params["table"]["embedding"])


def test_room_is_looked_for_before_a_save(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": np.zeros((1000, 1000), np.float32), "b": np.zeros(4, np.int32)}
    assert no_room(tmp_path, state) is None and not any(tmp_path.iterdir())
    monkeypatch.setattr(saved.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=3_999_999))
    assert str(no_room(tmp_path, state)) == "4.0 MB are free, up to 4.0 MB are needed"
    monkeypatch.undo()
    assert isinstance(no_room(tmp_path / "absent", state), FileNotFoundError)
    with files_of_at_most(100):
        assert isinstance(no_room(tmp_path, state), OSError)
    assert not any(tmp_path.iterdir())


def test_evaluations_are_stored_with_their_checkpoint_when_it_is_complete(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, loss in ((1, 1.0), (2, 3.0), (3, 2.0)):
        checkpoints.save(state(step, 1), step, {"note": step, KEY: [[0, 9.0]]}, None)
        checkpoints.add_evaluation(step, {KEY: [[step, loss]], "evaluated": {"loss": loss}}, loss)
    checkpoints.close()
    assert names(tmp_path) == ["1", "3"], "the best by what came after its save, and the newest"
    folder = tmp_path / "checkpoints" / "1"
    assert read_weights(folder)[2] == {"note": 1, KEY: [[1, 1.0]], "evaluated": {"loss": 1.0}}
    assert damage(folder) is None and best_step(tmp_path) == (1, []) and stored_losses(tmp_path) == {1: 1.0, 3: 2.0}
    (folder / "evaluation.json").write_text('{"judged": [[1')
    assert damage(folder) is None and read_weights(folder)[2] == {"note": 1, KEY: [[0, 9.0]]}


def test_after_an_error_they_are_closed_and_the_error_stays(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="of the loop"), Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(state(1, 1), 1, {}, None)
        raise RuntimeError("of the loop")
    assert checkpoints.closed and not checkpoints.pending() and whole_step(tmp_path) == (1, [])


def test_a_damaged_checkpoint_is_one_message_without_tracebacks(
    run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Orbax leaves reads behind when it gives up; Python would print a traceback for most of them."""
    shutil.copytree(run_folder / "checkpoints" / "2", tmp_path / "2")
    (tmp_path / "2" / CHECKSUMS).unlink()
    # all files of data: which of them holds the parameters is Orbax's affair
    data = [path for path in (tmp_path / "2" / "state").rglob("d/*") if path.is_file()]
    assert data
    for path in data:
        path.write_bytes(b"")
    code = f"""
import pathlib, gc
from spanjax.training.checkpoint import read_weights
from spanjax.training.checkpoint_files import CheckpointError
for _ in range(4):
    try:
        read_weights(pathlib.Path({str(tmp_path / "2")!r}))
    except CheckpointError as error:
        print("refused")
gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, 4 * "refused\n", "")
