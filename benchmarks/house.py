"""python -m benchmarks.house [TREE ...]: how large the house is and how far one batch walks through it, for each checkout given.

Rooms are the folders and the loose modules of spanjax. The way of a batch are the files in which a function runs while
`spanjax.train` opens its session, trains two steps, evaluates and saves; it is traced in a run of the demo's config on made rows.
"""

import argparse
import ast
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = 45  # lines of a file
TRACED = """
import json, pathlib, sys, threading
seen, root = set(), str(pathlib.Path("spanjax").resolve())
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(root):
        seen.add(code.co_filename[len(root) + 1:])
sys.path.insert(0, ".")
from spanjax import train
threading.setprofile(note)
sys.setprofile(note)
code = train.main(json.loads(sys.argv[2]))
sys.setprofile(None)
pathlib.Path(sys.argv[1]).write_text(json.dumps(sorted(seen)))
sys.exit(code)
"""
MADE = """
import sys
sys.path.insert(0, ".")
from tests.made import made_documents
from spanjax import prepare
open(sys.argv[1] + "/corpus.txt", "w").write("\\n\\n".join(made_documents(200)) + "\\n")
sys.exit(prepare.main(["--input", sys.argv[1] + "/corpus.txt", "--train-vocab", "120", "--length", "64", "--holdout", "0.1",
                       "--workers", "1", "--output", sys.argv[1] + "/rows"]))
"""


def modules(tree: pathlib.Path) -> dict[str, pathlib.Path]:
    """Dotted name -> file of every module of a checkout."""
    found = {}
    for path in sorted((tree / "spanjax").rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: pathlib.Path, known: set[str]) -> Iterator[str]:
    """Modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            names = [name for name in names if name in known][:1] if names[-1] in known else names
        yield from (name for name in names if name in known)


def room(name: str) -> str:
    """The folder of spanjax, or the loose module, that a module is in."""
    return name.split(".")[1] if "." in name else ""


def rings(after: dict[str, set[str]]) -> int:
    """How many groups of modules import each other."""
    reached: dict[str, set[str]] = {}
    for name in after:
        found, waiting = set[str](), [name]
        while waiting:
            new = after[waiting.pop()] - found
            found |= new
            waiting += new
        reached[name] = found
    return len({frozenset(b for b in reached[a] if a in reached[b]) for a in reached if a in reached[a]})


def comments(path: pathlib.Path) -> int:
    """Lines that are a comment and nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def way_of_a_batch(tree: pathlib.Path) -> list[str]:
    """Files in which a function runs during a run of two steps."""
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-c", MADE, made], cwd=tree, check=True, capture_output=True)
        arguments = [
            "--config=configs/pretrain/demo.py",
            f"--data.rows={made}/rows",
            f"--workdir={made}/run",
            "--steps=2",
        ]
        arguments += ["--data.feed=numpy", "--batch-size=4", "--encoder.vocab-size=0", "--encoder.layers=1"]
        command = [sys.executable, "-c", TRACED, f"{made}/seen.json", json.dumps(arguments)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(pathlib.Path(made, "seen.json").read_text())


def figures(tree: pathlib.Path) -> dict[str, Any]:
    """All figures of a checkout."""
    found = modules(tree)
    after = {name: set(imported(path, set(found))) - {name} for name, path in found.items()}
    rooms = {name: room(name) for name in found}
    lines = {name: len(path.read_text().splitlines()) for name, path in found.items()}
    large = [count for name, count in lines.items() if found[name].name not in ("__init__.py", "__main__.py")]
    way = way_of_a_batch(tree)
    return {
        "files": len(found),
        "lines": sum(lines.values()),
        "rooms": len({*rooms.values()} - {""}),
        "arrows between rooms": len({(rooms[a], rooms[b]) for a in after for b in after[a] if rooms[a] != rooms[b]}),
        "loose modules": sum(path.parent.name == "spanjax" and path.name[0] != "_" for path in found.values()),
        "import cycles": rings(after),
        "mean lines of a file": round(sum(large) / len(large)),
        "largest file": max(large),
        f"files under {SMALL} lines": sum(count < SMALL for count in large),
        "comment lines": sum(map(comments, found.values())),
        "files on the way of a batch": len(way),
        "their lines": sum(len((tree / "spanjax" / name).read_text().splitlines()) for name in way),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("trees", nargs="*", type=pathlib.Path, default=[ROOT])
    found = {str(tree): figures(tree.resolve()) for tree in parser.parse_args().trees}
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
