"""The user's cache of compiled programs: where it lies, who may write it, what turns it off, and that later commands use it."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import pytest

from spanjax import evaluate, predict, train
from spanjax.evaluate import run as evaluate_run
from spanjax.predict import answering
from spanjax.training import compilation_cache
from spanjax.training.compilation_cache import (
    JAX_VARIABLE,
    SETTINGS,
    VARIABLE,
    cache_folder,
    machine_kind,
    open_folder,
    use_compilation_cache,
)
from tests.running import ROOT

PROGRAM = """
import json, sys
import jax
from spanjax.training.compilation_cache import use_compilation_cache
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
use_compilation_cache(sys.argv[1] == "on")
for number in range(int(sys.argv[2])):
    jax.jit(lambda x: (x @ x + number).sum())(jax.numpy.ones((8, 8))).block_until_ready()
print(json.dumps({name: events.count(name) for name in ("cache_hits", "cache_misses")}))
"""


def test_the_folder_is_the_users(tmp_path: pathlib.Path) -> None:
    kind = machine_kind()
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == pathlib.Path("/x/spanjax/compiled") / kind
    for ignored in ("", "relative"):
        found = cache_folder({"XDG_CACHE_HOME": ignored, "HOME": "/h"})
        assert found == pathlib.Path("/h/.cache/spanjax/compiled") / kind
    with pytest.raises(RuntimeError, match="HOME is not set"):
        cache_folder({})


def test_unlike_processors_have_folders_of_their_own(tmp_path: pathlib.Path) -> None:
    kinds = []
    for flags in ("sse4_2 avx2", "sse4_2 avx2 avx512f", "sse4_2 avx2"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\nprocessor : 1\nflags : {flags}\n")
        kinds.append(machine_kind(tmp_path / "cpuinfo"))
    assert kinds[0] == kinds[2] != kinds[1]
    assert machine_kind(tmp_path / "none")


def test_a_folder_is_private_and_repaired(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "deep" / "compiled"
    open_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("whole-cache", "whole-atime", "cut-cache", "other"):
        (folder / name).write_bytes(b"12345678")
    open_folder(folder)
    assert {path.name for path in folder.iterdir()} >= {"whole-cache", "whole-atime", "other"}
    assert not (folder / "cut-cache").exists(), "jax stops writing where the time of an entry is missing"
    folder.chmod(0o770)
    with pytest.raises(RuntimeError, match="can be written by others"):
        open_folder(folder)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> dict[str, Any]:
    """What is set in jax's configuration; nothing is. The cache is in a folder of this test."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (JAX_VARIABLE, VARIABLE, *map(str.upper, SETTINGS)):
        monkeypatch.delenv(name, raising=False)
    return found


def test_the_cache_has_a_size_limit(updates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    use_compilation_cache()
    assert updates == {"jax_compilation_cache_dir": str(cache_folder(os.environ)), **SETTINGS}
    assert 0 < updates["jax_compilation_cache_max_size"] <= 2**30
    updates.clear()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "5000")
    use_compilation_cache()
    assert "jax_compilation_cache_max_size" not in updates and "jax_compilation_cache_dir" in updates


def test_a_folder_of_the_user_is_left_alone(updates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JAX_VARIABLE, "/elsewhere")
    use_compilation_cache()
    assert updates == {}


@pytest.mark.parametrize("how", ["flag", "off", "0"])
def test_a_flag_or_a_variable_turns_it_off(how: str, updates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JAX_VARIABLE, "/elsewhere")
    if how != "flag":
        monkeypatch.setenv(VARIABLE, how)
    use_compilation_cache(how != "flag")
    assert updates == {"jax_enable_compilation_cache": False}


@pytest.mark.parametrize("how", ["a file in its place", "no home", "open to others"])
def test_a_bad_folder_is_reported_and_stops_nothing(
    how: str, updates: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: pathlib.Path
) -> None:
    if how == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME")
    elif how == "open to others":
        cache_folder(os.environ).mkdir(parents=True)
        cache_folder(os.environ).chmod(0o777)
    else:
        (tmp_path / "spanjax").write_text("")
    use_compilation_cache()
    assert updates == {}
    told = capsys.readouterr().err
    assert told.startswith("no compilation cache: ") and told.count("\n") == 1 and "XDG_CACHE_HOME" in told


COMMANDS = {
    "train": (train.main, ["--config", str(ROOT / "configs/finetune/glue.py")]),
    "evaluate": (evaluate.main, ["missing", "--data", "missing"]),
    **{
        name: (predict.main, [name, "missing", *words])
        for name, words in {
            "fill-mask": ["--text", "a"],
            "spans": ["--text", "a"],
            "qa": ["--question", "a", "--context", "b"],
            "classify": ["--text", "a"],
            "relation": ["--text", "a"],
            "ner": ["--text", "a"],
            "coref": ["--text", "missing"],
        }.items()
    },
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_compiles_uses_the_cache(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It is set before the model is read, so also where there is none."""
    wanted: list[bool] = []
    for module in (compilation_cache, evaluate_run, answering):
        monkeypatch.setattr(module, "use_compilation_cache", wanted.append)
    main, words = COMMANDS[command]
    assert main(list(words)) == 2 and main([*words, "--no-compilation-cache"]) == 2
    assert wanted == [True, False], capsys.readouterr().err


@pytest.mark.slow
def test_a_second_process_finds_the_programs_of_the_first(tmp_path: pathlib.Path) -> None:
    left_out = (JAX_VARIABLE, VARIABLE, *map(str.upper, SETTINGS))
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}

    def run(how: str, programs: int, **more: str) -> dict[str, int]:
        """Counts of a process; warnings of jax about a cache are errors."""
        words = [sys.executable, "-W", "error", "-c", PROGRAM, how, str(programs)]
        done = subprocess.run(words, env={**environment, **more}, capture_output=True, text=True, check=True)
        assert not done.stderr, done.stderr
        return json.loads(done.stdout)

    assert run("off", 1) == {"cache_hits": 0, "cache_misses": 0} and not any(tmp_path.iterdir())
    first = run("on", 3)
    assert first["cache_hits"] == 0 and first["cache_misses"] >= 3
    assert run("on", 3) == {"cache_hits": first["cache_misses"], "cache_misses": 0}
    entries = sorted(cache_folder(environment).glob("*-cache"))
    assert len(entries) == first["cache_misses"]
    # what a process leaves that is killed while it writes
    entries[0].write_bytes(entries[0].read_bytes()[:100])
    entries[0].with_name(entries[0].name.removesuffix("-cache") + "-atime").unlink()
    assert run("on", 3) == {"cache_hits": first["cache_misses"] - 1, "cache_misses": 1}
    limit = 2 * max(path.stat().st_size for path in entries)
    run("on", 6, JAX_COMPILATION_CACHE_MAX_SIZE=str(limit))
    assert sum(path.stat().st_size for path in cache_folder(environment).glob("*-cache")) <= limit
