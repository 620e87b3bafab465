"""Unfinished work: it becomes the folder when it is whole, else it waits for the next process with the same plan."""

import multiprocessing
import os
import pathlib
from typing import Any

import pytest

from spanjax.data.shards.staging import unfinished_folder, unfinished_path

PLAN = {"settings": {"length": 8}, "input": ["a", "b"]}


def work(
    folder: pathlib.Path, plan: dict[str, Any] = PLAN, *, fail: bool = False, overwrite: bool = False
) -> list[str]:
    """One piece of work; returns what was there before."""
    with unfinished_folder(folder, plan, overwrite, lambda _: {"part0", "part1"}) as found:
        before = sorted(path.name for path in found.result.iterdir())
        assert found.continued == bool(before)
        (found.result / f"part{len(before)}").write_text(str(plan))
        found.worthless = False
        if fail:
            raise RuntimeError("failed")
    return before


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_finished_appears_and_nothing_else_stays(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    assert work(tmp_path / "out") == [] and names(tmp_path) == ["out"] and names(tmp_path / "out") == ["part0"]


def test_what_others_were_still_writing_is_left_out(tmp_path: pathlib.Path) -> None:
    with unfinished_folder(tmp_path / "out", PLAN) as found:
        (found.result / "part").write_text("whole")
        (found.result / ".part.123").write_text("half, of a worker that died")
    assert names(tmp_path / "out") == ["part"]


def test_what_failed_stays_and_is_continued(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        work(tmp_path / "out", fail=True)
    assert "the same command continues" in caught.value.__notes__[0] and names(tmp_path) == [".out.unfinished"]
    (tmp_path / ".out.unfinished" / "result" / ".part0.123").write_text("half")  # killed while it wrote
    assert work(tmp_path / "out") == ["part0"] and names(tmp_path / "out") == ["part0", "part1"]


def test_what_failed_before_anything_was_finished_goes(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError) as caught, unfinished_folder(tmp_path / "out", PLAN):
        raise RuntimeError
    assert names(tmp_path) == [] and not hasattr(caught.value, "__notes__")


def test_another_plan_is_refused_with_the_differences(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError):
        work(tmp_path / "out", fail=True)
    other = {"settings": {"length": 16, "tags": ("x",)}, "input": ["b", "c"]}
    with pytest.raises(ValueError) as caught:
        work(tmp_path / "out", other)
    for line in ("settings.length: 8 there, 16 now", "input: a there, not now", "input: c now", "--overwrite"):
        assert line in str(caught.value)
    with pytest.raises(ValueError, match="input: in another order"):
        work(tmp_path / "out", {**PLAN, "input": ["b", "a"]})
    assert work(tmp_path / "out", other, overwrite=True) == [] and names(tmp_path) == ["out"]


def test_existing_folders_are_replaced_only_when_asked(tmp_path: pathlib.Path) -> None:
    work(tmp_path / "out")
    with pytest.raises(ValueError, match="exists already"):
        work(tmp_path / "out")
    with pytest.raises(RuntimeError):
        work(tmp_path / "out", fail=True, overwrite=True)
    assert names(tmp_path / "out") == ["part0"]  # the old one, until the new one is whole
    assert work(tmp_path / "out", overwrite=True) == ["part0"] and names(tmp_path / "out") == ["part0", "part1"]
    assert names(tmp_path) == ["out"]


def test_death_between_the_two_renames_is_mended(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work(tmp_path / "out")
    with monkeypatch.context() as patch:
        renames, rename = [], os.rename

        def die(*names: Any) -> None:
            renames.append(names)
            if len(renames) >= 2:  # nothing is put back by a process that is dead
                raise KeyboardInterrupt
            rename(*names)

        patch.setattr("spanjax.storage.local.os.rename", die)
        with pytest.raises(KeyboardInterrupt):
            work(tmp_path / "out", overwrite=True)
    assert names(tmp_path) == [".out.unfinished"]
    with pytest.raises(ValueError, match="settings.length: 8 there, 16 now"):
        work(tmp_path / "out", {"settings": {"length": 16}})
    assert names(tmp_path / "out") == ["part0"]  # the old one is back
    with pytest.raises(ValueError, match="exists already"):
        work(tmp_path / "out")
    assert work(tmp_path / "out", overwrite=True) == ["part0"] and names(tmp_path) == ["out"]


def test_what_others_wrote_is_not_replaced(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    for each in ((tmp_path / "out"), tmp_path):
        with pytest.raises(ValueError, match="did not write|is read"), unfinished_folder(each, PLAN, True):
            pass
    with pytest.raises(ValueError, match="holds .*precious, which is read"):
        reads = [str(tmp_path / "out" / "precious")]
        with unfinished_folder(tmp_path / "out", PLAN, True, lambda _: {"precious"}, reads):
            pass
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "precious").read_text() == "mine"


def test_what_came_into_the_folder_meanwhile_stays(tmp_path: pathlib.Path) -> None:
    work(tmp_path / "out")
    with (
        pytest.raises(ValueError, match="precious"),
        unfinished_folder(tmp_path / "out", PLAN, True, lambda _: {"part0"}),
    ):
        (tmp_path / "out" / "precious").write_text("mine")
    assert (tmp_path / "out" / "precious").read_text() == "mine"


def test_death_after_the_rename_leaves_no_work_to_continue(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError):
        work(tmp_path / "out", fail=True)
    (unfinished_path(tmp_path / "out") / "result").rename(tmp_path / "out")
    assert work(tmp_path / "out", overwrite=True) == [] and names(tmp_path) == ["out"]


def _try(folder: pathlib.Path, told: Any) -> None:
    try:
        work(folder)
        told.put("")
    except ValueError as error:
        told.put(str(error))


def test_two_processes_do_not_meet(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    with unfinished_folder(tmp_path / "out", PLAN):
        other = context.Process(target=_try, args=(tmp_path / "out", told))
        other.start()
        assert "another process is writing" in told.get(timeout=120)
        other.join()
    assert names(tmp_path / "out") == []
