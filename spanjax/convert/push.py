"""Uploads an exported folder to the Hugging Face Hub (or the server of HF_ENDPOINT) as one commit of the files that differ.

The token comes from HF_TOKEN or `hf auth login`. The repository and the branch are created where they do not exist. Nothing is
deleted on the Hub, and hidden files of the folder are not uploaded.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterator
from typing import Annotated

import huggingface_hub
import tyro
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import HFValidationError, validate_repo_id
from huggingface_hub.utils import logging as hub_logging

from spanjax import __version__
from spanjax.bounds import raise_problems
from spanjax.cli import exit_code, parse_options, visible_name
from spanjax.storage.inputs import with_local_copies
from spanjax.torch_format.folder import read_folder
from spanjax.training.redaction import redacted

MAIN = "main"
TOKEN = "set HF_TOKEN to a token with write access, or run `hf auth login`"
_TRANSPORT = ("httpx", "httpx2", "hf_xet")  # libraries that send; which one depends on the version of huggingface_hub


@dataclasses.dataclass(frozen=True)
class Push:
    """Folder, repository and commit of an upload."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """A folder that `to-torch` wrote."""
    repository: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OWNER/NAME")]
    """OWNER/NAME on the Hub; created if it does not exist."""
    private: bool = False
    """Create a private repository; refused for one that is public."""
    revision: str = MAIN
    """Branch of the commit; created if it does not exist."""
    message: str = ""
    """First line of the commit; by default the version of spanjax."""


def exported_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns name in the repository -> file, sorted. ValueError for a folder without readable weights and config.json."""
    if (folder / "checkpoints").is_dir():
        raise ValueError(
            f"{folder} is a run directory: export it first, python -m spanjax.convert to-torch {folder} OUT"
        )
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder}: {'no config.json' if folder.is_dir() else 'no such folder'}: expected a folder that"
            " `python -m spanjax.convert to-torch RUN OUT` wrote"
        )
    read_folder(folder)  # a damaged or incomplete file of weights is found here, not by those who download it
    names = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in names.items() if not any(part[0] == "." for part in name.split("/"))}


def _problems(options: Push) -> Iterator[str]:
    try:
        exported_files(pathlib.Path(options.folder))
    except ValueError as error:
        yield str(error)
    try:
        validate_repo_id(options.repository)
        fits = "/" in options.repository
    except HFValidationError:
        fits = False
    if not fits:
        yield f"{options.repository}: expected OWNER/NAME of letters, digits, '-', '_' and '.': my-name/my-spanbert, say"
    if not re.fullmatch(r"[\w.][\w./-]*", options.revision) or ".." in options.revision:
        yield f"--revision {options.revision!r}: expected the name of a branch: {MAIN}, say"
    if not huggingface_hub.get_token():
        yield f"no token for the Hub: {TOKEN}"


def _is_same(file: pathlib.Path, stored: RepoFile) -> bool:
    """Compares by the hash under which the Hub stores a file: sha256 of large files, git's sha1 of the others."""
    if file.stat().st_size != stored.size:
        return False
    if stored.lfs:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == stored.lfs.sha256
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == stored.blob_id


def upload(api: huggingface_hub.HfApi, options: Push) -> list[str]:
    """Creates what is missing, uploads the files that differ and commits them; returns the lines that report it."""
    files, name, branch = exported_files(pathlib.Path(options.folder)), options.repository, options.revision
    api.create_repo(name, private=options.private or None, exist_ok=True)
    if options.private and not api.model_info(name).private:
        raise ValueError(f"{name} exists and is public: make it private in its settings, or push without --private")
    if branch != MAIN:
        api.create_branch(name, branch=branch, exist_ok=True)
    listed = api.get_paths_info(name, list(files), revision=branch)
    stored = {each.path: each for each in listed if isinstance(each, RepoFile)}
    changed = [each for each in files if each not in stored or not _is_same(files[each], stored[each])]
    same = len(files) - len(changed)
    where = f"{api.endpoint}/{name}" + f"/tree/{urllib.parse.quote(branch, safe='')}" * (branch != MAIN)
    if not changed:
        return [f"nothing to upload: all {same} files are the same on the Hub", where]
    # one commit, so that nobody downloads the weights of one model with the settings of another
    commit = api.create_commit(
        name,
        [huggingface_hub.CommitOperationAdd(path_in_repo=each, path_or_fileobj=files[each]) for each in changed],
        commit_message=options.message or f"Upload by spanjax {__version__}",
        revision=branch,
    )
    lines = [f"{files[each].stat().st_size / 2**20:10,.2f} MiB  {visible_name(each)}" for each in changed]
    return [
        *lines,
        f"{len(changed)} file{'s' * (len(changed) > 1)} uploaded, {same} unchanged, commit {commit.oid[:12]}",
        where,
    ]


def _explained(error: BaseException, options: Push, host: str) -> str | None:
    """Returns the message for a failure of the server or of the network; None for any other error.

    Only the status and the server's reason are used: texts of requests have signed links, which must stay private.
    """
    # the library wraps a failed upload in a RuntimeError: the answer is that of a cause
    chain, each = [], error
    while each is not None:
        chain.append(each)
        each = each.__cause__ or each.__context__
    answers = (getattr(each, "response", None) for each in chain)
    answer = next((each for each in answers if getattr(each, "status_code", 0)), None)
    if answer is None:
        if any(isinstance(each, OSError) or type(each).__module__.split(".")[0] in _TRANSPORT for each in chain):
            kind = type(chain[-1]).__name__
            return f"{host} cannot be reached ({kind}): check the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        if isinstance(error, json.JSONDecodeError):
            return f"{host} does not answer as the Hub does: check HF_ENDPOINT"
        return None
    name, status = options.repository, answer.status_code
    again = "run the same command again"
    remedies = {
        401: f"the token is not accepted: {TOKEN}",
        403: f"the token may not write to {name}: check the owner's name, and that the token has write access to it",
        404: f"{name} was not found: check the owner's name, and that the token has access to it",
        409: f"another change of {name} is in progress: {again}",
        412: f"another commit changed {name} in the meantime: {again}",
        429: f"too many requests: wait, then {again}",
    }
    remedy = remedies.get(status, f"{again} later" if status >= 500 else "correct what the server names")
    reason = re.sub(r"\w+://\S*", "...", answer.headers.get("X-Error-Message", ""))[:200]
    return f"{host} answered {status}{f' ({visible_name(redacted(reason))})' if reason else ''}: {remedy}"


def push(options: Push) -> None:
    """Checks, uploads and prints what was uploaded. ValueError with the remedy if anything prevents it."""
    raise_problems(list(_problems(options)))
    # read again, since huggingface_hub keeps the value of its first import
    api = huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="spanjax")
    level = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()  # its warnings about retries hold signed links
    try:
        lines = upload(api, options)
    except Exception as error:
        message = _explained(error, options, urllib.parse.urlsplit(api.endpoint).hostname or "HF_ENDPOINT")
        if message is None:
            raise
        raise ValueError(message) from None
    finally:
        hub_logging.set_verbosity(level)
    print("\n".join(redacted(lines)))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        Push,
        args=arguments,
        prog="python -m spanjax.convert push",
        description=__doc__,
        elsewhere=("repository", "message"),
        stores=("folder",),
    )
    return exit_code(
        "push",
        lambda: push(with_local_copies(options, "folder")),
        cannot=f"cannot push {options.folder} to {options.repository}",
        stopped=f"stopped; nothing was committed to {options.repository}",
    )
