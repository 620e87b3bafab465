"""python -m benchmarks.house --before TREE [--after TREE]: how large two checkouts are, and how far a batch walks, in Markdown.

Rooms are the folders and the loose modules of spanjax; an arrow is a room that imports another one. The way of a batch are the
files in which a function runs in a traced run of two steps (`benchmarks.life_of_a_batch`): on any thread, imports not counted.
"""

import argparse
import ast
import io
import pathlib
import subprocess
import sys
import tokenize
from collections.abc import Iterator

from benchmarks.life_of_a_batch import LOOP, ROOT, traced

SMALL, LONG = 45, 25  # lines of a file, lines of a function
WHOLE = "train.py:main"


def modules(tree: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns dotted name -> file of every module of a checkout."""
    found = {}
    for path in sorted((tree / "spanjax").rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: pathlib.Path, known: set[str]) -> Iterator[str]:
    """Yields the modules of ours that a file imports, anywhere in it but for types alone."""
    tree = ast.parse(path.read_text())
    typing = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    unused = {part for node in typing for part in ast.walk(node)}
    for node in ast.walk(tree):
        if node in unused:
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            names = [name if name in known else node.module for name in full]
        yield from (name for name in names if name in known)


def room(name: str) -> str:
    """Returns the folder of spanjax, or the loose module, that a module is in."""
    return name.split(".")[1] if "." in name else ""


def rings(after: dict[str, set[str]]) -> int:
    """Returns how many groups of modules import each other."""
    reached: dict[str, set[str]] = {}
    for name in after:
        found, waiting = set[str](), [name]
        while waiting:
            new = after[waiting.pop()] - found
            found |= new
            waiting += new
        reached[name] = found
    return len({frozenset(b for b in reached[a] if a in reached[b]) for a in reached if a in reached[a]})


def docstring_lines(tree: ast.Module) -> set[int]:
    """Returns the numbers of the lines of docstrings, also of those below fields and constants."""
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    return {
        line
        for body in bodies
        for part in body
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
        for line in range(part.lineno, (part.end_lineno or 0) + 1)
    }


def kinds(text: str) -> dict[str, int]:
    """Returns the lines of a source text by kind, and its functions of more than `LONG` lines, those without a comment too."""
    tree, code, comments = ast.parse(text), set[int](), set[int]()
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code |= set(range(token.start[0], token.end[0] + 1))
    docstrings = docstring_lines(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    spans = [set(range(node.lineno, (node.end_lineno or 0) + 1)) for node in functions]
    return {
        "lines": len(text.splitlines()),
        "code": len(code - docstrings),
        "docstrings": len(docstrings),
        "comments": len(comments - code),
        "long": sum(len(span) > LONG for span in spans),
        "silent": sum(len(span) > LONG and not span & comments for span in spans),
    }


def static_figures(tree: pathlib.Path) -> dict[str, str]:
    """Returns the figures of the source text of a checkout."""
    found = modules(tree)
    after = {name: set(imported(path, set(found))) - {name} for name, path in found.items()}
    counted = {name: kinds(path.read_text()) for name, path in found.items()}
    total = {kind: sum(each[kind] for each in counted.values()) for kind in next(iter(counted.values()))}
    sizes = [each["lines"] for each in counted.values()]
    return {
        "rooms": f"{len({room(name) for name in found} - {''})}",
        "arrows between rooms": f"{len({(room(a), room(b)) for a in after for b in after[a] if room(a) != room(b)}):,}",
        "loose modules": f"{sum(path.parent.name == 'spanjax' and path.name[0] != '_' for path in found.values())}",
        "import cycles": f"{rings(after)}",
        "files": f"{len(found):,}",
        "lines; code without docstrings, comments, blanks": f"{total['lines']:,}; {total['code']:,}",
        "lines of a file: mean, largest": f"{sum(sizes) / len(sizes):.0f}, {max(sizes):,}",
        f"files under {SMALL} lines": f"{sum(size < SMALL for size in sizes)}",
        "docstring lines": f"{total['docstrings']:,} ({total['docstrings'] / total['lines']:.1%})",
        "comment lines": f"{total['comments']:,} ({total['comments'] / total['lines']:.1%})",
        f"functions over {LONG} lines; without a comment": f"{total['long']}; {total['silent']}",
    }


def figures(tree: pathlib.Path) -> dict[str, str]:
    """Returns all figures of a checkout."""
    calls = traced(tree, {WHOLE: "outside", LOOP: "loop"})
    texts = {call.file: (tree / "spanjax" / call.file).read_text() for call in calls}
    inside = {call.file for call in calls if call.phase == "loop"}

    def way(files: set[str]) -> str:
        return f"{len(files)} files, {sum(len(texts[file].splitlines()) for file in files):,} lines"

    return {
        "a batch, from the first row read to the last save: while `fit` runs": way(inside),
        "a run, from the shell to the exit code: while `main` runs": way(set(texts)),
        **static_figures(tree),
    }


def commit(tree: pathlib.Path) -> str:
    """Returns the short name of the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, default=ROOT)
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    old, new = figures(before), figures(after)
    print(f"| figure | before ({commit(before)}) | after ({commit(after)}) |\n|---|---|---|")
    print(*(f"| {name} | {value} | {new[name]} |" for name, value in old.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
