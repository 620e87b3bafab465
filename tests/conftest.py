"""Every test: CPU, four devices, strict ranks, warnings are errors (pyproject), a tiny encoder and a corpus made in code."""

# ruff: noqa: E402  (the environment is set before jax is imported)

import fcntl
import gc
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ["XLA_FLAGS"] += (
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compile fast
)
if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends a process with a flag that it does not know
    # XLA aborts a process if a device's thread does not come to a collective for 40 s, as on a machine that pauses
    os.environ["XLA_FLAGS"] += " --xla_cpu_collective_call_terminate_timeout_seconds=600"
    # the emitter of older versions compiles in a third of the time
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # lines of source in compiled programs: 4 % of the time
# the same small programs are compiled by many tests, in all workers: once a checkout is enough (`make clean` removes them)
ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import hypothesis
import jax
import pytest

from tests.made import made_documents

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile("spanjax", deadline=None)  # no test is timed
hypothesis.settings.load_profile("spanjax")

DATA_VARIABLE = "SPANJAX_DATA"


# `make quick` sets 2; a machine that shares its cores counts up to four times the CPU seconds of a quiet one
UNIT_CPU_SECONDS = float(os.environ.get("UNIT_CPU_SECONDS", "8"))


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("a unit test starts a process: take its mark `unit` away")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Unit tests start no process and take at most UNIT_CPU_SECONDS, so that `make quick` stays quick."""
    if item.get_closest_marker("unit") is None:
        return (yield)
    with mock.patch.object(subprocess, "Popen", _refused), mock.patch.object(os, "fork", _refused):
        before = time.process_time()
        result = yield
        spent = time.process_time() - before
    if spent > UNIT_CPU_SECONDS:
        pytest.fail(
            f"{spent:.1f} CPU seconds, a unit test has {UNIT_CPU_SECONDS:.0f}: make it smaller, or take its mark away"
        )
    return result


def pytest_collection_finish() -> None:
    """Keeps the garbage collector away from modules and test items, which took a tenth of the time of tests that compile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Frees the compiled programs of a module: a worker that kept those of all would grow to 7 GB."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Folder of real test data; the test is skipped with the reason where it is absent."""
    folder = pathlib.Path(os.environ.get(DATA_VARIABLE, ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found in {folder}: set {DATA_VARIABLE} to its folder")
    return folder


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """A folder of this session that one worker makes and all workers read; tests do not change it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = base / name, base / f"{name}.done"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel of this tree."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")

    def make(folder: pathlib.Path) -> None:
        sources = folder / "sources"  # setuptools writes next to its sources: a copy of them keeps the clone clean
        sources.mkdir()
        for name in ("spanjax", "configs", "launch", "pyproject.toml", "README.md", "LICENSE"):
            subprocess.run(["cp", "-r", "--parents", name, str(sources)], cwd=ROOT, check=True)
        command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
        subprocess.run([sys.executable, *command, str(sources)], check=True, capture_output=True)

    (wheel,) = shared(tmp_path_factory, "wheel", make).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """400 made documents in a text file, a blank line between them."""

    def make(folder: pathlib.Path) -> None:
        (folder / "corpus.txt").write_text("\n\n".join(made_documents(400)) + "\n")

    return shared(tmp_path_factory, "corpus", make) / "corpus.txt"


@pytest.fixture(scope="session")
def tagged_rows_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Rows as those of `rows_folder` whose names are entities and whose "the ..." are noun phrases."""
    from spanjax.prepare import main

    def make(folder: pathlib.Path) -> None:
        patterns = {"entities": r"(?<=for )[A-Z]\w+", "noun_phrases": r"\bthe \w+( \w+)?"}
        with open(folder / "corpus.jsonl", "w", encoding="utf-8") as lines:
            for text in made_documents(300, seed=5):
                spans = {name: [match.span() for match in re.finditer(how, text)] for name, how in patterns.items()}
                lines.write(json.dumps({"text": text, "spans": spans}) + "\n")
        arguments = [
            "--input",
            str(folder / "corpus.jsonl"),
            "--train-vocab",
            "120",
            "--length",
            "128",
            "--holdout",
            "0.1",
        ]
        tags = ["--tags", *patterns, "--workers", "1"]
        assert main([*arguments, *tags, "--output", str(folder / "rows")]) == 0

    return shared(tmp_path_factory, "tagged", make) / "rows"


@pytest.fixture(scope="session")
def rows_folder(corpus_file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Rows of 128 tokens with a SentencePiece vocabulary of 120 pieces, every tenth document held out."""
    from spanjax.prepare import main

    def make(folder: pathlib.Path) -> None:
        arguments = ["--input", str(corpus_file), "--train-vocab", "120", "--length", "128", "--holdout", "0.1"]
        assert main([*arguments, "--workers", "1", "--output", str(folder / "rows")]) == 0

    return shared(tmp_path_factory, "prepared", make) / "rows"


@pytest.fixture(scope="session")
def run_folder(rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run directory of a tiny SpanBERT, two steps on `rows_folder`; not to be changed."""
    from tests.trained import trained

    return shared(tmp_path_factory, "trained", lambda folder: trained(rows_folder, folder / "run")) / "run"


@pytest.fixture(scope="session")
def weights_folder(run_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The model of `run_folder` as a folder for transformers; not to be changed."""
    from tests.trained import weights_of

    return shared(tmp_path_factory, "written", lambda folder: weights_of(run_folder, folder / "weights")) / "weights"


@pytest.fixture(scope="session")
def tuned_folder(run_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of two steps on sentences with the labels no and yes, from `run_folder`; not to be changed."""
    from tests.trained import fine_tuned

    return shared(tmp_path_factory, "tuned", lambda folder: fine_tuned(run_folder, folder / "tuned")) / "tuned"
