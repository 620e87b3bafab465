"""python -m benchmarks.life_of_a_batch: writes docs/life-of-a-batch.md, the files that a batch passes through, in order.

A run of `spanjax.train` is traced: the demo's config, two steps on made rows, one CPU device. `benchmarks.house` counts with the
same trace. Imports do not count. numba is switched off, because Python does not see what it compiles; the model's code runs while
its shapes are computed and while XLA's program of the step is made.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "life-of-a-batch.md"
MADE = """
import sys
sys.path.insert(0, ".")
from tests.made import made_documents
from spanjax import prepare
open(sys.argv[1] + "/corpus.txt", "w").write("\\n\\n".join(made_documents(200)) + "\\n")
sys.exit(prepare.main(["--input", sys.argv[1] + "/corpus.txt", "--train-vocab", "120", "--length", "64", "--holdout", "0.1",
                       "--workers", "1", "--output", sys.argv[1] + "/rows"]))
"""
TRACER = """
import inspect, json, pathlib, sys, threading
file, functions, arguments = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
root, found = str(pathlib.Path("spanjax").resolve()) + "/", {}
def phase_of(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(root):
            if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class body: it is being imported
                return None
            phase = functions.get(code.co_filename[len(root):] + ":" + code.co_qualname)
            if phase:
                return phase
        frame = frame.f_back
    return getattr(threading.current_thread(), "phase", None)
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root):
        phase = phase_of(frame)
        if phase:
            found.setdefault((phase, code.co_filename[len(root):], code.co_qualname), None)
start = threading.Thread.start
def start_in_phase(self):
    self.phase = phase_of(sys._getframe(1))
    start(self)
threading.Thread.start = start_in_phase
sys.path.insert(0, ".")
from spanjax import train
threading.setprofile(note)
sys.setprofile(note)
code = train.main(arguments)
sys.setprofile(None)
threading.setprofile(None)
pathlib.Path(file).write_text(json.dumps(list(found)))
sys.stdout.flush()
sys.exit(code)
"""
SETTINGS = ("--steps=2", "--data.feed=numpy", "--batch-size=4", "--encoder.vocab-size=0", "--encoder.layers=1")
LOOP = "training/loop.py:fit"
PHASES = {
    "train.py:main": "command line",
    "train.py:train": "session",
    "distributed/__init__.py:start": "command line",
    "experiment/session.py:description": "folder",
    "training/workdir.py:open_workdir": "folder",
    "train.py:train_session": "folder",
    LOOP: "loop",
    "experiment/pretrain.py:PretrainingSession.feed": "feed",
    "data/feed/feeds.py:numpy_feed": "feed",
    "training/loop.py:_next_batch": "feed",
    "experiment/build.py:CompiledRun.open_step": "step",
    "training/loop.py:_dispatch": "step",
    "training/loop.py:Log.write": "log",
    "training/checkpoint.py:Checkpoints.restore_newest": "save",
    "training/loop.py:_save": "save",
    "training/loop.py:Evaluations.run": "evaluation",
    "experiment/pretrain.py:PretrainingSession.summary_lines": "end",
}
"""Function -> the phase of all calls inside it, on threads that it starts too; the innermost of these functions counts."""
TEXTS = {
    "command line": "## 1. Command line\n\nReads the config file and the options, and detects the launcher.",
    "session": """## 2. Session

Opens the rows, validates all settings, and builds the mesh and the shapes of the model. A setting that
cannot work ends the run here, before any weight exists.""",
    "folder": """## 3. Work directory

Locks the folder, describes the run in it, initialises or restores the weights, and opens the writers.""",
    "loop": "## 4. Loop\n\nRepeats phases 5 to 9 until the last step, or until a signal requests a stop.",
    "feed": """## 5. Feed

Computes the indices of the rows from the step number, reads the rows from the disk, masks them, and
starts the transfer of the batch to the devices.""",
    "step": """## 6. Step

Turns a batch into an update: the forward and backward pass of the model, then the optimizer.""",
    "log": "## 7. Log\n\nFetches the metrics of the step before, while the devices compute, and writes them.",
    "save": "## 8. Checkpoint\n\nWrites the state and verifies it. A run that resumes restores the newest checkpoint in phase 3.",
    "evaluation": "## 9. Evaluation\n\nMeasures held-out losses and stores them with the checkpoint.",
    "end": "## 10. Summary\n\nCompares the results with baselines, fills in a masked span, and prints the next commands.",
}
"""Phase -> heading and introduction, in the order of the page."""
PREFACE = """# The life of a batch

This page follows a batch through the code, from `python -m spanjax.train` to the checkpoint. It lists
the files in the order of their first call, in ten phases. Each file appears once, in the phase in which
most of its public functions run. Its entry names the first of these functions and repeats the first
sentence of the file's docstring. [design.md](design.md) explains the interfaces between the files.

`python -m benchmarks.life_of_a_batch` writes this page from a traced run: the demo's config, two steps
on generated rows, the NumPy feed, one CPU device. A test compares the page with a new trace, so do not
edit it. Files that only define types and constants, or only check settings, are not listed.
"""
WORK = ("feed", "step")
"""Phases that get a file of which as many functions run in another one, but for the loop's own."""
REPEATS = {"evaluation": {*WORK}, "end": TEXTS.keys() - {"end"}}
"""Phase -> phases that get a file before it does: an evaluation reads and computes as a step does, the end shows all again."""
LONGEST = 150  # characters of a sentence that is taken whole


class Call(NamedTuple):
    """A function of spanjax that ran in a phase."""

    phase: str
    file: str
    """Path below spanjax/."""
    function: str
    """Qualified name."""


def traced(tree: pathlib.Path, phases: Mapping[str, str] = PHASES) -> list[Call]:
    """Returns the functions that ran in each phase with the code of a checkout, in the order of their first calls.

    RuntimeError with the output of a run that fails, and if a function of `phases` never ran: it has another name now.
    """
    with tempfile.TemporaryDirectory() as made:
        # no other variable of this process, such as a launcher's, changes the way through the code; nor do caches of the user
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        fixed = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0", "NUMBA_DISABLE_JIT": "1"}
        variables = {**kept, **fixed, "HOME": made, "LANG": "C.UTF-8", "PYTHONPATH": str(tree)}
        rows, workdir = f"--data.rows={made}/rows", f"--workdir={made}/run"
        arguments = ["--config=configs/pretrain/demo.py", rows, workdir, *SETTINGS]
        calls = pathlib.Path(made, "calls.json")
        for command in ([MADE, made], [TRACER, str(calls), json.dumps(phases), json.dumps(arguments)]):
            done = subprocess.run(
                [sys.executable, "-c", *command], cwd=tree, env=variables, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
        found = [Call(*each) for each in json.loads(calls.read_text())]
    if unknown := phases.keys() - {f"{call.file}:{call.function}" for call in found}:
        raise RuntimeError(f"no call of {', '.join(sorted(unknown))}: correct PHASES")
    return found


def public(names: Sequence[str]) -> list[str]:
    """Returns the public functions, without nested ones and checks of settings; a constructor or a call is its class."""
    plain = [name.removesuffix(".__init__").removesuffix(".__call__") for name in names if "<" not in name]
    parts = [(name, name.split(".")) for name in dict.fromkeys(plain)]
    return [name for name, words in parts if words[-1] != "problems" and not any(word[0] == "_" for word in words)]


def by_phase(calls: Sequence[Call]) -> dict[str, dict[str, list[str]]]:
    """Returns phase -> file -> its public functions there. The phase of a file is that in which most of them run."""
    names: dict[str, dict[str, list[str]]] = {}
    for call in calls:
        names.setdefault(call.file, {}).setdefault(call.phase, []).append(call.function)
    found: dict[str, dict[str, list[str]]] = {phase: {} for phase in TEXTS}
    for file, phases in names.items():
        # constructors only prepare what runs in a later phase
        counts = {}
        for phase, functions in phases.items():
            working = public([name for name in functions if ".__init__" not in name]) or public(functions)[:1]
            counts |= {phase: len(working)} if working else {}
        own = {phase: count for phase, count in counts.items() if not REPEATS.get(phase, set()) & counts.keys()}
        if own:
            home = max(own, key=lambda phase: (own[phase], phase in WORK and "loop" not in own))
            found[home][file] = public(phases[home])
    order = list(dict.fromkeys((call.phase, call.file) for call in calls))
    return {
        phase: {file: files[file] for at, file in order if at == phase and file in files}
        for phase, files in found.items()
    }


def sentence(docstring: str) -> str:
    """Returns the first sentence of a docstring, without the command in front of it; of a long one the part before a colon."""
    text = " ".join(docstring.split("\n\n")[0].split())
    if command := re.match(r"`?python -m [^:]*: ", text):
        text = text[command.end()].upper() + text[command.end() + 1 :]
    first = re.split(r"(?<=[^.])[.?](?= [A-Z`]|$)", text)[0]
    for end in (": ", "; ", " (", ", "):
        if len(first) > LONGEST:
            first = first.split(end)[0]
    return f"{first}."


def page(tree: pathlib.Path) -> str:
    """Returns the page of a checkout, in Markdown."""
    parts = [PREFACE]
    for phase, files in by_phase(traced(tree)).items():
        parts.append(f"{TEXTS[phase]}\n")
        for file, names in files.items():
            docstring = ast.get_docstring(ast.parse((tree / "spanjax" / file).read_text())) or ""
            line = f"- [{file}](../spanjax/{file}), `{names[0]}`: {sentence(docstring)}"
            parts.append(
                textwrap.fill(line, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            )
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
