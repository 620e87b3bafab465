"""A command replaces only what it wrote itself: everything else is there afterwards, byte for byte."""

import os
import pathlib

import pytest

from spanjax.storage.outputs import (
    files_below,
    files_problem,
    is_taken,
    output_files,
    output_folder,
    place_problem,
    replace_problem,
)

pytestmark = pytest.mark.unit

OWN = ("a", "sub/b")


def written(folder: pathlib.Path) -> set[str]:
    """The files of a folder that this test "writes", marked by the file `a`."""
    return set(OWN) if (folder / "a").is_file() else set()


def make(folder: pathlib.Path, names: tuple[str, ...] = OWN) -> pathlib.Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")
    return folder


def write(folder: pathlib.Path, overwrite: bool = True, reads: tuple[object, ...] = ()) -> None:
    with output_folder(folder, overwrite, written, [str(each) for each in reads]) as work:
        make(work)
        (work / "a").write_text("new")


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_appears_and_an_own_one_is_replaced_when_asked(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "deep" / "out", overwrite=False)
    with pytest.raises(ValueError, match="out exists already: choose another folder, or replace it with --overwrite"):
        write(tmp_path / "deep" / "out", overwrite=False)
    (tmp_path / "deep" / "out" / "a").write_text("changed")
    write(tmp_path / "deep" / "out")
    assert names(tmp_path / "deep") == ["out"] and (tmp_path / "deep" / "out" / "a").read_text() == "new"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", overwrite=False)
    assert names(tmp_path / "empty") == ["a", "sub"]


@pytest.mark.parametrize("more", ["precious.txt", "sub/precious.txt", ".hidden", "other/deep/x"])
def test_what_others_wrote_stays(more: str, tmp_path: pathlib.Path) -> None:
    out = make(tmp_path / "out", (*OWN, more))
    before = files_below(out)
    with pytest.raises(ValueError, match=f"holds files that this command did not write .*{more}.*: move them away"):
        write(out)
    assert files_below(out) == before and (out / more).read_text() == "old" and names(tmp_path) == ["out"]


def test_a_folder_of_something_else_stays(tmp_path: pathlib.Path) -> None:
    out = make(tmp_path / "out", ("sub/b",))
    with pytest.raises(ValueError, match="did not write"):
        write(out)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="file is no folder"):
        write(file)
    assert file.read_text() == "mine" and files_below(out) == {"sub/b"}


def test_links_are_no_own_files_and_are_never_replaced(tmp_path: pathlib.Path) -> None:
    mine = make(tmp_path / "mine", ("precious",))
    out = make(tmp_path / "out", ("a",))
    (out / "sub").symlink_to(mine)
    with pytest.raises(ValueError, match="did not write .*sub"):
        write(out)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(ValueError, match="link is a link"):
        write(tmp_path / "link")
    assert (mine / "precious").read_text() == "old" and (out / "sub").is_symlink()


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "run.lock"])
def test_no_command_replaces_a_training_run(name: str, tmp_path: pathlib.Path) -> None:
    out = make(tmp_path / "out", (*OWN, name))
    with pytest.raises(ValueError, match=f"out is a training run \\({name}\\)"):
        write(out)
    assert (out / name).read_text() == "old"


def test_what_is_read_is_not_replaced(tmp_path: pathlib.Path) -> None:
    out, link = make(tmp_path / "out"), tmp_path / "link"
    link.symlink_to(out)
    for source in (out, out / "a", out / "sub", link, link / "a", tmp_path):
        with pytest.raises(ValueError, match="read: name another|which is read, and is there already"):
            write(out, reads=(source,))
        assert (out / "a").read_text() == "old"
    write(tmp_path / "out" / "inside", reads=(out,))  # nothing is lost there
    assert (out / "inside" / "a").read_text() == "new"
    write(make(tmp_path / "next"), reads=(out, tmp_path / "gone"))


def test_the_current_folder_and_the_home_stay(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, home = make(tmp_path / "here" / "deep"), make(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for each, what in ((".", "the current folder"), ("..", "the current folder"), (str(here), "the current folder"),
                       (str(home), "the home folder"), ("/", "the current folder")):  # fmt: skip
        assert what in place_problem(pathlib.Path(each))
        with pytest.raises(ValueError, match="is or holds"):
            write(pathlib.Path(each))
    assert files_below(here) == files_below(home) == set(OWN)


def test_the_old_folder_stays_where_the_new_one_fails(tmp_path: pathlib.Path) -> None:
    out = make(tmp_path / "out")
    with pytest.raises(RuntimeError), output_folder(out, True, written) as work:
        (work / "a").write_text("new")
        raise RuntimeError
    assert (out / "a").read_text() == "old" and names(tmp_path) == ["out"]


def test_what_came_meanwhile_stays(tmp_path: pathlib.Path) -> None:
    out = make(tmp_path / "out")
    with pytest.raises(ValueError, match="precious"), output_folder(out, True, written) as work:
        make(work)
        (out / "precious").write_text("mine")
    with pytest.raises(ValueError, match="exists already"), output_folder(tmp_path / "new", False, written) as work:
        make(work)
        make(tmp_path / "new", ("precious",))
    assert (out / "precious").read_text() == "mine" and names(tmp_path / "new") == ["precious"]
    assert names(tmp_path) == ["new", "out"]


def test_a_marker_that_cannot_be_read_marks_nothing(tmp_path: pathlib.Path) -> None:
    out = make(tmp_path / "out")
    for error in (OSError, ValueError, TypeError, KeyError, UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")):

        def damaged(_: pathlib.Path, error: type[Exception] | Exception = error) -> set[str]:
            raise error

        assert "did not write" in replace_problem(out, True, damaged)
    assert is_taken(out) and not is_taken(tmp_path / "none")


def test_nothing_can_be_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file is a file, expected a folder"):
        write(tmp_path / "file" / "out")
    with pytest.raises(ValueError, match="/proc/nowhere/out cannot be written"):
        write(pathlib.Path("/proc/nowhere/out"))
    assert os.listdir(tmp_path) == ["file"]


def test_files_of_a_folder_are_replaced_when_asked_and_all_at_the_end(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out"
    assert not files_problem(folder, False)
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "notes").write_text("mine")
    assert "holds files" in files_problem(folder, False) and not files_problem(folder, True)
    with output_files(folder) as work:
        (work / "a").write_text("new")
        assert (folder / "a").read_text() == "old"
    with pytest.raises(KeyboardInterrupt), output_files(folder) as work:
        (work / "a").write_text("half")
        raise KeyboardInterrupt
    assert {each.name: each.read_text() for each in folder.iterdir()} == {"a": "new", "notes": "mine"}


def test_a_file_that_cannot_be_written_takes_no_other_along(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path}/b: not written"), output_files(tmp_path) as work:
        (work / "a").write_text("new")
        raise ValueError(f"{work}/b: not written")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
