"""`convert push` against a Hub on this machine: what is created, uploaded and committed, and what is printed when it refuses."""

import json
import logging
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from spanjax.convert import main
from tests.convert.hub_server import OWNER, SIGNATURE, TOKEN, Hub, running_hub

NAME = f"{OWNER}/spans"
# huggingface_hub 2.4 passes the file of a PUT under the older name of that argument
pytestmark = pytest.mark.filterwarnings(r"ignore:Use 'content=<\.\.\.>':DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[Hub]:
    """A Hub on this machine, and a user with the right token."""
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # large files as LFS, by HTTP
        yield hub
    close_session()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A small folder as `to-torch` writes them: text, weights, a folder in it, and a file that is hidden."""
    folder = tmp_path / "exported"
    (folder / "generator").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "secret").write_text("mine")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "generator" / "config.json").write_text("{}")
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# Spans\n")
    safetensors.numpy.save_file({"weight": np.arange(6, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """What must be on the Hub afterwards."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def pushed(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    """What the command prints; nothing of it is secret."""
    assert main(["push", *map(str, words)]) == code, capsys.readouterr()
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err and SIGNATURE not in said.out + said.err
    return said.err if code else said.out


def test_create_upload_commit(hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The repository is made, one commit holds every file with its bytes, and the URL is printed."""
    printed = pushed(capsys, folder, NAME, "--message", "First weights")
    assert hub.branches[NAME, "main"] == contents(folder) and not hub.private[NAME]
    assert hub.commits == [
        {"repository": NAME, "branch": "main", "message": "First weights", "paths": sorted(contents(folder))}
    ]
    assert "4 files uploaded, 0 unchanged" in printed and printed.endswith(f"{hub.url}/{NAME}\n")


def test_a_second_push_sends_what_changed(hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file of each kind of storage; then nothing, and no commit; a file that only the Hub has stays."""
    pushed(capsys, folder, NAME)
    safetensors.numpy.save_file({"weight": np.ones(6, np.float32)}, folder / "model.safetensors")
    hub.requests.clear()
    assert "1 file uploaded, 3 unchanged" in pushed(capsys, folder, NAME)
    assert hub.commits[-1]["paths"] == ["model.safetensors"]
    assert sum(each.startswith("PUT") for each in hub.requests) == 1
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# Other\n")
    hub.requests.clear()
    pushed(capsys, folder, NAME)
    assert hub.commits[-1]["paths"] == ["README.md"] and not any(each.startswith("PUT") for each in hub.requests)
    assert hub.branches[NAME, "main"] == contents(folder)
    assert "nothing to upload: all 4 files" in pushed(capsys, folder, NAME) and len(hub.commits) == 3
    (folder / "generator" / "config.json").unlink()
    pushed(capsys, folder, NAME)
    assert "generator/config.json" in hub.branches[NAME, "main"]


def test_private_and_branch(hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A private repository with a branch; one that is public is not taken for it, and gets nothing."""
    printed = pushed(capsys, folder, NAME, "--private", "--revision", "step/2000")
    assert hub.private[NAME] and hub.branches[NAME, "step/2000"] == contents(folder) and not hub.branches[NAME, "main"]
    assert printed.endswith(f"{hub.url}/{NAME}/tree/step%2F2000\n")
    pushed(capsys, folder, NAME, "--private", "--revision", "step/2000")  # both exist
    hub.private[NAME] = False
    said = pushed(capsys, folder, NAME, "--private", code=2)
    assert "exists and is public" in said and len(hub.commits) == 1


@pytest.mark.parametrize(
    ("failing", "status", "words"),
    [
        ("/api/repos/create", 500, ("127.0.0.1 answered 500", "run the same command again later")),
        ("/commit/", 409, ("answered 409 (no, see ...)", "another change of someone/spans is in progress")),
        ("/commit/", 412, ("another commit changed", "run the same command again")),
        ("/preupload/", 404, ("someone/spans was not found", "check the owner's name")),
        ("^/lfs/", 403, ("answered 403", "the token may not write to someone/spans")),
        ("/objects/batch", 400, ("answered 400", "correct what the server names")),
    ],
)
def test_refusals_of_the_server(
    failing: str,
    status: int,
    words: tuple[str, ...],
    hub: Hub,
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line with the status, the reason without its link, and the remedy; nothing is committed."""
    hub.failing[failing] = status
    said = pushed(capsys, folder, NAME, code=2)
    assert all(word in said for word in words), said
    assert said.partition("push: ")[2].count("\n") == 2 and not hub.commits
    hub.failing.clear()
    pushed(capsys, folder, NAME)  # the same command again
    assert hub.branches[NAME, "main"] == contents(folder)


def test_retries_log_no_signed_link(hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library retries an upload after 503, and logs its URL: not while we push, and as before afterwards."""
    hub.failing_once["^/lfs/"] = 503
    logged: list[str] = []
    logger, handler = logging.getLogger("huggingface_hub"), logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        pushed(capsys, folder, NAME)
    finally:
        logger.removeHandler(handler)
    assert sum(each.startswith("PUT") for each in hub.requests) == 2 and logger.level == logging.WARNING
    assert not any(SIGNATURE in each for each in logged), logged


def test_tokens_and_owners(
    hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """401 for a wrong token, 403 for another owner; without a token nothing is asked."""
    assert "answered 403" in pushed(capsys, folder, "somebody-else/spans", code=2)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    said = pushed(capsys, folder, NAME, code=2)
    assert "answered 401" in said and "set HF_TOKEN" in said and "hf_wrong" not in said
    monkeypatch.setenv("HF_TOKEN", "")
    hub.requests.clear()
    assert "no token for the Hub: set HF_TOKEN" in pushed(capsys, folder, NAME, code=2) and not hub.requests


def test_no_server(
    hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed port."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1 cannot be reached" in pushed(capsys, folder, NAME, code=2)


def test_nothing_is_asked_for_a_folder_that_is_not_whole(
    hub: Hub, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that are cut short are found here, with a name that is none, in one message."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    said = pushed(capsys, folder, "no owner", code=2)
    assert "model.safetensors" in said and "expected OWNER/NAME" in said and not hub.requests
