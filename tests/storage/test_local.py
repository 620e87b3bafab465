"""Files and folders appear whole; what was there comes back where the new one fails; modes are those of the umask."""

import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from spanjax.storage.local import (
    copy_files,
    found_again,
    irregular_problem,
    make_readable,
    swap_in,
    user_cache,
    whole_file,
    write_whole,
)


@pytest.fixture
def private() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    write_whole(tmp_path / "file", "old ä")
    with pytest.raises(RuntimeError), whole_file(tmp_path / "file") as file:
        file.write(b"half")
        file.flush()
        assert (tmp_path / "file").read_text() == "old ä"
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old ä"
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_text() == "new"


def folders(root: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    for name in ("new", "out"):
        (root / name).mkdir()
        (root / name / "content").write_text(name)
    return root / "new", root / "out", root / "old"


def test_a_folder_takes_the_place_of_another(tmp_path: pathlib.Path) -> None:
    new, out, old = folders(tmp_path)
    swap_in(new, out, old)
    assert (out / "content").read_text() == "new" and (old / "content").read_text() == "out" and not new.exists()


def test_the_old_folder_comes_back_where_the_rename_fails(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, out, old = folders(tmp_path)
    rename = os.rename

    def full(source: Any, target: Any) -> None:
        if source == new:
            raise OSError("full")
        rename(source, target)

    monkeypatch.setattr("spanjax.storage.local.os.rename", full)
    with pytest.raises(OSError, match="full"):
        swap_in(new, out, old)
    assert (out / "content").read_text() == "out" and not old.exists()


@pytest.mark.usefixtures("private")
def test_the_umask_is_kept(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    write_whole(folder / "inner" / "file", b"x")
    make_readable(folder)
    assert mode(folder) == 0o700 and mode(folder / "inner" / "file") == 0o600
    os.umask(0o022)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    (other / "file").chmod(0o600)
    make_readable(other)
    assert mode(other / "file") == 0o644


def test_pipes_and_folders_are_no_files(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    assert "pipe is a pipe, expected a file" in irregular_problem(tmp_path / "pipe")
    assert "is a folder, expected a file" in irregular_problem(tmp_path)
    assert "a device" in irregular_problem(pathlib.Path("/dev/null"))
    for path in (tmp_path / "pipe", tmp_path, pathlib.Path("/dev/null")):
        with pytest.raises(OSError, match="expected a file"):
            write_whole(path, b"x")
    assert irregular_problem(tmp_path / "file") == irregular_problem(tmp_path / "none") == ""


def test_the_cache_of_a_user() -> None:
    assert user_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == pathlib.Path("/x/spanjax")
    for ignored in ("", "relative"):
        assert user_cache({"XDG_CACHE_HOME": ignored, "HOME": "/h"}) == pathlib.Path("/h/.cache/spanjax")
    assert user_cache({"HOME": "elsewhere"}) is None and user_cache({}) is None


def test_a_stored_path_is_that_of_the_first_folder_that_has_it(tmp_path: pathlib.Path) -> None:
    for name in ("one/a", "two/a", "two/b"):
        (tmp_path / name).mkdir(parents=True)
    bases = [tmp_path / "one", str(tmp_path / "two")]
    assert found_again("a", bases) == str(tmp_path / "one" / "a") and found_again("b", bases) == str(
        tmp_path / "two" / "b"
    )
    assert found_again(str(tmp_path / "two" / "a"), bases) == str(tmp_path / "two" / "a")
    for name in ("", "c", "gs://bucket/a", "tfds:glue/sst2"):
        assert found_again(name, bases) == name


def test_a_copy_holds_files_and_folders_alone(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "file").write_bytes(b"content")
    copy_files(source, tmp_path / "target")
    assert (tmp_path / "target" / "inner" / "file").read_bytes() == b"content"
    (source / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="neither a file nor a folder"):
        copy_files(source, tmp_path / "again")
