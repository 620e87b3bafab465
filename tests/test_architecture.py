"""House tests: which room may import which (docs/design.md), who may touch a library, how large things may grow.

Every check takes a source tree, so that it is also run on a small tree that breaks it.
"""

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# A room may import its own line of this table and the lines above it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("spanjax", "cli", "bounds", "json_files", "hardware", "storage", "scoring", "pages"),
    ("distributed", "sharding"),
    ("data",),
    ("nn",),
    ("objectives",),
    ("tasks",),
    ("run_format",),
    ("training",),
    ("run", "torch_format", "pretrained"),
    ("experiment", "inference", "suite"),
    ("train", "prepare", "evaluate", "score", "predict", "serve", "convert", "plan", "report", "doctor", "launch"),
    ("api", "__main__"),
)
COMMANDS, API = LAYERS[-2:]
LOOSE = frozenset({"train", "score", "api", "cli", "run", "run_format", "sharding", "hardware", "bounds", "json_files"})
"""The only modules that stand in no folder."""
BASES = frozenset({"spanjax.objectives.base", "spanjax.tasks.base"})  # all that the trunk knows of what it trains
TENSORFLOW = frozenset({"tensorflow", "tensorflow_text", "seqio"})
TENSORFLOW_FILES = frozenset({"spanjax.data.vocab.seqio", "spanjax.data.feed.feeds"})
OWNERS = {
    "orbax": "spanjax.training.checkpoint",
    "apache_beam": "spanjax.data.shards.beam_runner",
    "spacy": "spanjax.data.sources.annotate",
    "numba": "spanjax.data.compiled",
    "wandb": "spanjax.training.trackers.wandb",
    "mlflow": "spanjax.training.trackers.mlflow",
}
PRIVATE_JAX = "spanjax.distributed.jax_internals"
JSON_READERS = frozenset(  # the others read lines of our own processes
    {"spanjax.json_files", "spanjax.training.watchdog", "spanjax.doctor", "spanjax.distributed.meeting"}
)
OLD_NAMES = "spanjax.run_format.RENAMED"
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_MODULES = 500, 60, 16
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module: its full name, the line, and whether importing the file runs it."""

    name: str
    line: int
    at_start: bool

    @property
    def library(self) -> str:
        """The top-level package."""
        return self.name.split(".")[0]


@dataclasses.dataclass(frozen=True)
class Module:
    """One parsed source file."""

    name: str
    text: str
    syntax: ast.Module
    imports: tuple[Import, ...]


Tree = Mapping[str, Module]


def find_imports(node: ast.AST, package: str, known: frozenset[str], at_start: bool = True) -> Iterator[Import]:
    """Every import below the node; `from package import module` names the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_start) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
            origin = ".".join([*parts, child.module] if child.module else parts)
            full = (f"{origin}.{alias.name}" for alias in child.names)
            names = {name if name in known else origin for name in full}
            yield from (Import(name, child.lineno, at_start) for name in sorted(names))
        else:
            now = at_start and not isinstance(child, Function) and not for_types(child)
            yield from find_imports(child, package, known, now)


def for_types(node: ast.AST) -> bool:
    """True for `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@functools.cache
def read_tree(root: pathlib.Path) -> dict[str, Module]:
    """Every module of root/spanjax by its full name."""
    paths = {}
    for path in sorted((root / "spanjax").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    known, tree = frozenset(paths), {}
    for name, path in paths.items():
        text = path.read_text()
        syntax = ast.parse(text, str(path))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        # the public names of the package are imports for type checkers alone: it loads them at first use
        body = [node for node in syntax.body if not (name == "spanjax" and for_types(node))]
        tree[name] = Module(name, text, syntax, tuple(find_imports(ast.Module(body, []), package, known)))
    return tree


def room(name: str) -> str:
    """spanjax.data.feed.rows -> data; the package itself is the room `spanjax`."""
    return name.split(".")[1] if "." in name else name


def layer(name: str) -> int:
    """Place of the module's room in LAYERS, -1 for a room that is not there."""
    return next((place for place, rooms in enumerate(LAYERS) if room(name) in rooms), -1)


def reached(tree: Tree, start: str, at_start_only: bool) -> set[str]:
    """Modules of ours that importing `start` brings in, itself and the packages around them included."""
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in found or name not in tree:
            continue
        found.add(name)
        waiting.append(name.rpartition(".")[0])
        waiting += [i.name for i in tree[name].imports if i.at_start or not at_start_only]
    return found


def check_rooms(tree: Tree) -> list[str]:
    """Imports go one way, nothing imports a command line, and every file belongs to a room."""
    problems = [f"{name}: no room of that name in LAYERS" for name in tree if layer(name) < 0]
    for name, module in tree.items():
        for found in module.imports:
            if found.library != "spanjax":
                continue
            if room(found.name) in COMMANDS and room(name) not in (room(found.name), *API):
                problems.append(f"{name}:{found.line} imports the command line {found.name}")
            elif layer(found.name) > layer(name) >= 0:
                problems.append(f"{name}:{found.line} imports {found.name}, a later room")
    return problems


def check_trunk(tree: Tree) -> list[str]:
    """Training knows objectives and tasks by their interface only."""
    return [
        f"{name}:{found.line} imports {found.name}, not an interface"
        for name, module in tree.items()
        for found in module.imports
        if room(name) == "training" and room(found.name) in ("objectives", "tasks") and found.name not in BASES
    ]


def check_no_jax(tree: Tree) -> list[str]:
    """Neither data nor scoring brings in jax or flax, directly or through another of our modules."""
    problems = []
    for name in tree:
        if room(name) not in ("data", "scoring"):
            continue
        for through in sorted(reached(tree, name, at_start_only=False)):
            bad = [i for i in tree[through].imports if i.library in ("jax", "jaxlib", "flax", "optax")]
            problems += [f"{name} imports {i.name} ({through}:{i.line})" for i in bad]
    return problems


def check_libraries(tree: Tree) -> list[str]:
    """TensorFlow stays in the files of the seqio feed, Orbax in the checkpoints, Beam and spaCy in their runners."""
    problems = []
    for name, module in tree.items():
        for found in module.imports:
            if found.library in TENSORFLOW and name not in TENSORFLOW_FILES:
                problems.append(f"{name}:{found.line} imports {found.name}")
            if found.library in OWNERS and name != OWNERS[found.library]:
                problems.append(f"{name}:{found.line} imports {found.name}")
    return problems


def check_lazy_tensorflow(tree: Tree) -> list[str]:
    """Importing anything but the feed's own files does not load TensorFlow."""
    problems = []
    for name in sorted(set(tree) - TENSORFLOW_FILES):
        for through in sorted(reached(tree, name, at_start_only=True)):
            heavy = [
                i for i in tree[through].imports if i.at_start and i.library in TENSORFLOW | {"tensorflow_datasets"}
            ]
            problems += [f"{name} loads {i.name} ({through}:{i.line})" for i in heavy]
    return problems


def check_partition_spec(tree: Tree) -> list[str]:
    """Only sharding.py says PartitionSpec."""
    problems = []
    for name, module in tree.items():
        for node in ast.walk(module.syntax):
            said = {getattr(node, "id", None), getattr(node, "attr", None)}
            if isinstance(node, ast.alias):
                said.add(node.name.rpartition(".")[2])
            if "PartitionSpec" in said and name != "spanjax.sharding":
                problems.append(f"{name}:{getattr(node, 'lineno', 0)} says PartitionSpec")
    return problems


def check_private_jax(tree: Tree) -> list[str]:
    """Only distributed/jax_internals.py touches `jax._src`, where `spanjax.doctor` checks that it is still there."""
    problems = []
    for name, module in tree.items():
        if name == PRIVATE_JAX:
            continue
        for node in ast.walk(module.syntax):
            said = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                said = [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.Attribute):
                said = [ast.unparse(node)]
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said = [node.value]
            if any(each.startswith("jax._src") for each in said):
                problems.append(f"{name}:{getattr(node, 'lineno', 0)} touches jax._src")
    return problems


def check_json(tree: Tree) -> list[str]:
    """Files of JSON are read by json_files.py, whose limits and errors hold for all of them."""
    problems = []
    for name, module in tree.items():
        for node in ast.walk(module.syntax) if name not in JSON_READERS else ():
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called == "json.load" or (called == "json.loads" and "json.dumps" not in ast.unparse(node)):
                problems.append(f"{name}:{getattr(node, 'lineno', 0)} reads JSON: use spanjax.json_files")
    return problems


def check_size(tree: Tree) -> list[str]:
    """No file over 500 lines, no function over 60."""
    problems = []
    for name, module in tree.items():
        lines = len(module.text.splitlines())
        if lines > MAX_FILE_LINES:
            problems.append(f"{name} has {lines} lines, at most {MAX_FILE_LINES}")
        for node in ast.walk(module.syntax):
            if isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    problems.append(
                        f"{name}:{node.lineno} {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"
                    )
    return problems


def folders(tree: Tree) -> dict[str, set[str]]:
    """Package -> the last names of the modules and packages in it."""
    found: dict[str, set[str]] = {}
    for name in tree:
        parent, _, last = name.rpartition(".")
        if parent and last != "__main__":
            found.setdefault(parent, set()).add(last)
    return found


def check_folders(tree: Tree) -> list[str]:
    """At most 16 modules in a folder, and none without a folder but those of LOOSE."""
    problems, inside = [], folders(tree)
    for folder, names in sorted(inside.items()):
        modules = sorted(name for name in names if f"{folder}.{name}" not in inside)
        if folder == "spanjax":
            problems += [f"spanjax.{name} stands in no folder" for name in modules if name not in LOOSE]
        elif len(modules) > MAX_MODULES:
            problems.append(f"{folder} has {len(modules)} modules, at most {MAX_MODULES}: {', '.join(modules)}")
    return problems


def check_cycles(tree: Tree) -> list[str]:
    """No module imports itself through others, at any time."""
    problems, after = [], dict[str, set[str]]()
    for name in tree:
        found, waiting = set[str](), [name]
        while waiting:
            new = {i.name for i in tree[waiting.pop()].imports if i.name in tree} - found
            found |= new
            waiting += new
        after[name] = found
    for name in sorted(tree):
        if name in after[name]:
            ring = sorted(other for other in after[name] if name in after[other])
            problems += [f"{' and '.join(ring)} import each other"] if name == ring[0] else []
    return problems


def check_names_of_folders(tree: Tree) -> list[str]:
    """What a package defines or imports has the name of no module in it: `from package import name` would be either."""
    problems = []
    for folder, names in folders(tree).items():
        body = tree[folder].syntax.body if folder in tree else []
        inside = [each for node in body if isinstance(node, ast.If) for each in node.body]
        for node in (*body, *inside):
            bound = {node.name: folder} if isinstance(node, Function | ast.ClassDef) else {}
            if isinstance(node, ast.ImportFrom):
                bound = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            problems += [
                f"{folder}:{node.lineno} {name} is also a module"
                for name, origin in bound.items()
                if name in names and origin != f"{folder}.{name}"
            ]
    return problems


def check_registries(tree: Tree) -> list[str]:
    """No mapping names our classes by strings, as a user's class would be in none; but for the old names that files have."""
    classes = {
        node.name for module in tree.values() for node in ast.walk(module.syntax) if isinstance(node, ast.ClassDef)
    }
    problems = []
    for name, module in tree.items():
        for statement in module.syntax.body:
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            if f"{name}.{getattr(target, 'id', '')}" == OLD_NAMES:
                continue
            for node in ast.walk(statement):
                if not isinstance(node, ast.Dict):
                    continue
                parts = [*node.keys, *node.values]
                texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
                named = [
                    text for text in texts if text.split() and {w.rpartition(".")[2] for w in text.split()} <= classes
                ]
                problems += [f"{name}:{node.lineno} names the class {text} by a string" for text in named]
    return problems


def check_manners(tree: Tree) -> list[str]:
    """No drawer for leftovers, no `global`."""
    drawers = ("utils", "util", "common", "misc")
    problems = [f"{name}: name it after what it does" for name in tree if name.rpartition(".")[2] in drawers]
    for name, module in tree.items():
        found = [node for node in ast.walk(module.syntax) if isinstance(node, ast.Global)]
        problems += [f"{name}:{node.lineno} uses global" for node in found]
    return problems


def undocumented(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    """Public functions, classes and methods without a docstring; a protocol's own stands for its members, and that of the
    function for its overloads."""
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            continue
        if not ast.get_docstring(node):
            yield f"{prefix}:{node.lineno} {node.name} has no docstring"
        if isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
            yield from undocumented(node.body, prefix)


def check_docstrings(tree: Tree) -> list[str]:
    """Every module and everything public says what it is."""
    problems = [f"{name} has no docstring" for name, module in tree.items() if not ast.get_docstring(module.syntax)]
    return problems + [line for name, module in tree.items() for line in undocumented(module.syntax.body, name)]


def functions_of(tree: Tree) -> dict[tuple[str, str], tuple[str, Function]]:
    """(module, name) -> the module that defines it and the function: its own, methods, and what it imports from ours by name."""
    found: dict[tuple[str, str], tuple[str, Function]] = {}
    brought: list[tuple[tuple[str, str], tuple[str, str]]] = []
    for name, module in tree.items():
        for node in ast.walk(module.syntax):
            if isinstance(node, Function):
                found[name, node.name] = (name, node)
            elif isinstance(node, ast.ImportFrom):
                brought += [((str(node.module), each.name), (name, each.asname or each.name)) for each in node.names]
    for _ in range(3):  # through packages that pass names on
        for origin, here in brought:
            if origin in found:
                found.setdefault(here, found[origin])
    return found


def begins_threads(call: ast.Call) -> list[ast.expr]:
    """Returns what a call runs on another thread: Thread(target=f), Timer(1, f), submit(f), map(f), StopSignals(f)."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    if name == "Thread":
        return [word.value for word in call.keywords if word.arg == "target"]
    if name == "Timer":
        return [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "function")]
    if name in ("submit", "StopSignals") or (name == "map" and isinstance(call.func, ast.Attribute)):
        return call.args[:1]
    return []


def check_threads(tree: Tree) -> list[str]:
    """No import runs on a thread.

    tensorflow_datasets replaces `builtins.__import__` while it loads, for all threads: an import on another one gets a stand-in
    of the module then, or fails. Followed are functions and methods by their name, in their module and where they are imported.
    """
    known, waiting, seen, problems = functions_of(tree), list[tuple[str, str]](), set[int](), list[str]()
    for name, module in tree.items():
        if "Thread" not in module.text and "Timer" not in module.text and "StopSignals" not in module.text:
            continue  # `submit` and `map` of processes have importers of their own
        for call in (node for node in ast.walk(module.syntax) if isinstance(node, ast.Call)):
            for target in begins_threads(call):
                said = getattr(target, "attr", None) or getattr(target, "id", None)
                waiting += [(name, said)] if said else []
    while waiting:
        where, function = known.get(waiting.pop(), ("", None))
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                problems.append(f"{where}:{node.lineno} imports in {function.name}, which runs on a thread")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                waiting.append((where, node.func.id))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of_self = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
                waiting += [(where, node.func.attr)] if of_self else []
    return sorted(problems)


Check = Callable[[Tree], list[str]]
THREAD = "import threading\nfrom spanjax.lock import g\n"
TYPES = "if TYPE_CHECKING:\n    from spanjax.api import {}"
FEED = {"data/feed/feeds.py": "import seqio"}
CHECKS: tuple[Check, ...] = (
    *(check_rooms, check_trunk, check_no_jax, check_libraries, check_lazy_tensorflow),
    *(check_partition_spec, check_private_jax, check_json, check_size, check_manners, check_docstrings),
    *(check_threads, check_folders, check_cycles, check_names_of_folders, check_registries),
)
BROKEN: tuple[tuple[Check, str, dict[str, str]], ...] = (
    (check_rooms, "a later room", {"data/rows.py": "import spanjax.nn.encoder", "nn/encoder.py": ""}),
    (check_rooms, "a later room", {"data/rows.py": "def f():\n    from ..nn import encoder", "nn/encoder.py": ""}),
    (check_rooms, "command line", {"evaluate.py": "from spanjax.train import main", "train.py": ""}),
    (check_rooms, "command line", {"inference/a.py": "from spanjax.train import main", "train.py": ""}),
    (check_rooms, "a later room", {"train.py": "def f():\n    import spanjax.api", "api.py": ""}),
    (check_rooms, "a later room", {"__init__.py": "def f():\n    import spanjax.api", "api.py": ""}),
    (check_rooms, "no room", {"models/bert.py": ""}),
    (check_trunk, "interface", {"training/loop.py": "from spanjax.objectives import bert", "objectives/bert.py": ""}),
    (check_trunk, "interface", {"training/loop.py": "from spanjax.objectives import Bert", "objectives/bert.py": ""}),
    (check_no_jax, "data.rows imports jax", {"data/rows.py": "def f():\n    import jax.numpy as jnp"}),
    (check_no_jax, "data.rows imports flax", {"data/rows.py": "from spanjax import cli", "cli.py": "import flax"}),
    (check_libraries, "imports tensorflow", {"run.py": "def f():\n    import tensorflow as tf"}),
    (check_libraries, "imports orbax", {"training/loop.py": "import orbax.checkpoint"}),
    (check_libraries, "imports spacy", {"data/rows.py": "def f():\n    import spacy"}),
    (check_lazy_tensorflow, "spanjax.predict", {"predict.py": "from spanjax.data.feed import feeds", **FEED}),
    (check_lazy_tensorflow, "spanjax.data ", {"data/__init__.py": "import spanjax.data.feed.feeds", **FEED}),
    (check_partition_spec, "says PartitionSpec", {"run.py": "from jax.sharding import PartitionSpec as P"}),
    (check_partition_spec, "says PartitionSpec", {"run.py": "import jax\nspec = jax.sharding.PartitionSpec()"}),
    (check_private_jax, "touches jax._src", {"run.py": "def f():\n    from jax._src import clusters"}),
    (check_private_jax, "touches jax._src", {"run.py": "from jax import _src"}),
    (check_private_jax, "touches jax._src", {"run.py": "import jax\nx = jax._src.distributed"}),
    (check_private_jax, "touches jax._src", {"run.py": "import importlib\nimportlib.import_module('jax._src.lib')"}),
    (check_json, "run:2 reads JSON", {"run.py": "import json\nx = json.loads(path.read_text())"}),
    (check_size, "has 501 lines", {"run.py": "x = 1\n" * 501}),
    (check_size, "f has 61 lines", {"run.py": "def f():\n" + "    x = 1\n" * 60}),
    (check_manners, "name it", {"data/utils.py": ""}),
    (check_manners, "uses global", {"run.py": "def f():\n    global x\n    x = 1"}),
    (check_threads, "run:3 imports in f", {"run.py": "from threading import Thread\ndef f():\n    import jax\nThread(target=f)"}),
    (check_threads, "imports in b", {"run.py": THREAD + "class A:\n    def a(self):\n        self.b()\n    def b(self):\n"
     "        from jax import numpy\n    def c(self):\n        threading.Thread(target=self.a).start()"}),
    (check_threads, "imports in f", {"run.py": THREAD + "def f():\n    import jax\nthreading.Timer(1.0, f)"}),
    (check_threads, "imports in f", {"run.py": "pool = ThreadPoolExecutor()\ndef f():\n    import jax\npool.submit(f, 1)"}),
    (check_threads, "lock:2 imports in g", {"run.py": THREAD + "def f():\n    g()\nthreading.Thread(target=f)",
     "lock.py": "def g():\n    import jax"}),
    (check_folders, "has 17 modules", {"nn/__init__.py": "", **{f"nn/a{number}.py": "" for number in range(17)}}),
    (check_folders, "spanjax.extra stands in no folder", {"extra.py": ""}),
    (check_cycles, "spanjax.nn.a and spanjax.nn.b import",
     {"nn/a.py": "import spanjax.nn.b", "nn/b.py": "from spanjax.nn import a"}),
    (check_cycles, "spanjax.run and spanjax.train",
     {"run.py": "def f():\n    import spanjax.train", "train.py": "from spanjax.run import Run"}),
    (check_names_of_folders, "nn:1 a is also", {"nn/__init__.py": "def a(): ...", "nn/a.py": ""}),
    (check_names_of_folders, "spanjax:2 run is also", {"__init__.py": TYPES.format("run"), "run.py": "", "api.py": ""}),
    (check_names_of_folders, "nn:1 a is also", {"nn/__init__.py": "from spanjax.nn.b import a", "nn/a.py": "", "nn/b.py": ""}),
    (check_registries, "report.arms:2 names the class Glue", {"report/arms.py": "from x import y\nA = {'Glue': 1}",
     "tasks/glue.py": "class Glue: ..."}),
    (check_registries, "run:2 names the class spanjax.tasks.glue.Glue", {"run.py": "def f():\n    return "
     "{'glue': 'spanjax.tasks.glue.Glue'}", "tasks/glue.py": "class Glue: ..."}),
    (check_docstrings, "spanjax.run has no docstring", {"run.py": "x = 1"}),
    (check_docstrings, "run:4 f has no docstring", {"run.py": '"""Run."""\n@overload\ndef f(): ...\ndef f(): ...'}),
    (check_docstrings, "f has no docstring", {"run.py": '"""Run."""\nclass A:\n    """A."""\n    def f(self): ...'}),
)  # fmt: skip
ALLOWED: tuple[tuple[Check, dict[str, str]], ...] = (
    (check_rooms, {"nn/a.py": "from spanjax.data import rows", "data/rows.py": "from . import b", "data/b.py": ""}),
    (check_trunk, {"training/loop.py": "from spanjax.objectives.base import Objective", "objectives/base.py": ""}),
    (check_lazy_tensorflow, {"run.py": "def f():\n    from spanjax.data.feed import feeds", **FEED}),
    (check_partition_spec, {"sharding.py": "from jax.sharding import PartitionSpec"}),
    (check_private_jax, {"distributed/jax_internals.py": "from jax._src import clusters"}),
    (check_json, {"run.py": "import json\nx = json.loads(json.dumps(1))"}),
    (check_threads, {"run.py": THREAD + "def f():\n    import jax\ndef h():\n    g()\nthreading.Thread(target=h)",
     "lock.py": "def g():\n    print()"}),
    (check_folders, {"nn/__init__.py": "", "nn/__main__.py": "", "train.py": "",
     **{f"nn/a{number}.py": "" for number in range(16)}}),
    (check_cycles, {"nn/a.py": "import spanjax.nn.b", "nn/b.py": "from spanjax.nn import c", "nn/c.py": ""}),
    (check_names_of_folders, {"nn/__init__.py": "from spanjax.nn import a\ndef b(): ...", "nn/a.py": ""}),
    (check_rooms, {"__init__.py": TYPES.format("f"), "api.py": "from spanjax import train", "train.py": ""}),
    (check_cycles, {"__init__.py": TYPES.format("f"), "api.py": "from spanjax import __version__"}),
    (check_registries, {"run_format.py": "RENAMED: dict = {'Old': 'Glue'}", "tasks/glue.py": "class Glue: ...\n"
     "A = {'Glue and more': Glue, '': 1}"}),
    (check_docstrings, {"__init__.py": '"""A."""', "run.py": '"""Run."""\n@overload\ndef f(): ...\ndef f():\n    """F."""'}),
    (check_size, {"run.py": "x = 1\n" * 239 + "def f():\n" + "    x = 1\n" * 59}),
)  # fmt: skip


def write_tree(root: pathlib.Path, files: Mapping[str, str]) -> Tree:
    """A package `spanjax` made of these files."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "spanjax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_tree(root)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_project(check: Check) -> None:
    tree = read_tree(ROOT)
    assert len(tree) > 10
    problems = check(tree)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("check", "message", "files"), BROKEN)
def test_broken_tree_is_seen(check: Check, message: str, files: dict[str, str], tmp_path: pathlib.Path) -> None:
    assert message in "\n".join(check(write_tree(tmp_path, files)))


@pytest.mark.parametrize(("check", "files"), ALLOWED)
def test_allowed_tree_passes(check: Check, files: dict[str, str], tmp_path: pathlib.Path) -> None:
    assert check(write_tree(tmp_path, files)) == []


def test_every_check_is_seen_to_fail() -> None:
    assert {check for check, _, _ in BROKEN} == set(CHECKS)


def private_imports(text: str) -> list[str]:
    """Names with an underscore that a test imports from us: a test checks what others may use."""
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spanjax")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def test_tests_import_no_private_names() -> None:
    assert private_imports("from spanjax.run import Run, _executed\nfrom spanjax import __version__") == [
        "spanjax.run._executed"
    ]
    found = {
        str(path): names for path in (ROOT / "tests").rglob("*.py") if (names := private_imports(path.read_text()))
    }
    assert not found, found
