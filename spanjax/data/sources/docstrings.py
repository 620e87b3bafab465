"""The embedded corpus: prose of the docstrings of installed Python packages, read with `ast`; nothing is imported."""

import ast
import functools
import importlib.util
import pathlib
import re
import textwrap
import warnings
from collections.abc import Iterator

PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "orbax", "seqio", "tensorflow", "keras", "absl", "rich", "tyro")
_SKIPPED_FOLDERS = frozenset(
    {"tests", "test", "testing", "_api", "_vendor", "vendored", "third_party", "compat", "api", "keras"}
)
_LONG = 2_000  # characters of prose from which a class is a document of its own
_HEADING_WORDS = """
parameters returns return yields raises args arguments attributes examples example notes note references see also
methods warnings warning other keyword raise usage defaults inputs outputs input output shape call todo
"""
_HEADINGS = frozenset(_HEADING_WORDS.split())
_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_UNDERLINE = re.compile(r"^\s*([=\-~^\"'*+#_.`])\1{2,}[\s=\-]*$")
_CODE_START = re.compile(
    r"^\s*(>>>|\.\.\. |In \[\d|Out\[\d|\$ |%|@|import |from \w[\w.]* import |def |class |return\b|```|~~~|#)"
)
_FIELD = re.compile(r"^\s*[:*]{0,2}[\w.`*, \[\]()-]{1,60}\s*:(\s|$)")
_ROLE = re.compile(r":[\w+:-]+:`~?\.?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}|\[([^\]]+)\]\((?:https?:)?[^)]*\)")
_TICKS = re.compile(r"``([^`]*)``|`([^`]*)`_{0,2}")
_STRONG = re.compile(r"\*\*([^*\s][^*]*)\*\*|(?<!\w)\*([^*\s][^*]*)\*(?!\w)")
_FOOTNOTE = re.compile(r"\s*\[[\w#*]{1,4}\]_")
_BULLET = re.compile(r"^(?:[*+-]|\d+[.)])\s+")
_SYMBOLS = re.compile(r"[=<>{}\[\]()|\\_/*^~#@$%&+`:;]")


def _markup(text: str) -> str:
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(lambda found: found[1] or found[2], text)
    text = _TICKS.sub(lambda found: found[1] or found[2] or "", text)
    text = _STRONG.sub(lambda found: found[1] or found[2], text)
    return " ".join(_FOOTNOTE.sub("", text).split())


def _is_prose(paragraph: str) -> bool:
    words = paragraph.split()
    if len(words) < 5 or len(_SYMBOLS.findall(paragraph)) > 0.05 * len(paragraph):
        return False
    plain = sum(word.strip(".,;:!?()\"'").replace("-", "").isalpha() for word in words)
    return plain >= 0.7 * len(words) and paragraph[0].isalnum()


def _unwanted(line: str, following: str) -> bool:
    text = line.strip()
    if not text:
        return True
    if text[0].isalnum() and " " in text and len(text) > 40 and following.strip()[:1].isalnum():
        return False
    heading = text.rstrip(":").lower()
    return (
        text.startswith(("..", "|", "+-"))
        or bool(_UNDERLINE.match(line))
        or bool(_UNDERLINE.match(following) and len(following.strip()) >= 3)
        or (len(heading.split()) <= 2 and all(word in _HEADINGS for word in heading.split()))
    )


def _field_text(line: str) -> str:
    """Text after the name of "name: description", all of any other line; empty for NumPy's "name : type"."""
    found = _FIELD.match(line)
    if found is None:
        return line.strip()
    return "" if found.group().rstrip().endswith(" :") else line[found.end() :].strip()


def prose(docstring: str) -> list[str]:
    """Paragraphs of English prose of a docstring: no code, signatures, tables, directives, headings or field names."""
    lines = textwrap.dedent("    " + docstring if "\n" not in docstring else docstring).expandtabs().split("\n")
    first, rest = lines[0], textwrap.dedent("\n".join(lines[1:])).split("\n")
    lines = [first.strip(), *rest]
    paragraphs: list[str] = []
    gathered: list[str] = []
    code_indent: int | None = None
    fenced = session = False

    def close() -> None:
        if gathered:
            paragraphs.append(_markup(" ".join(gathered)))
            gathered.clear()

    last_indent, item = 0, False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        indent = len(line) - len(line.lstrip())
        if line.strip().startswith(("```", "~~~")):
            close()
            fenced = not fenced
        elif fenced:
            continue
        elif not line.strip():
            close()
            session = False
        elif code_indent is not None and indent > code_indent or session:
            continue
        elif _CODE_START.match(line):
            close()
            session = True  # up to the next blank line: the output of a doctest may look like prose
            code_indent = None
        elif _unwanted(line, following):
            close()
            code_indent = indent if line.strip().startswith("..") else None
        else:
            code_indent = None
            starts_item = bool(_BULLET.match(line.strip()) or _FIELD.match(line))
            if starts_item or indent < last_indent or (indent > last_indent and not item):
                close()
            item = starts_item
            gathered.append(_BULLET.sub("", _field_text(line)))
            if line.rstrip().endswith("::"):  # reStructuredText: a literal block follows, indented deeper
                gathered[-1] = gathered[-1].rstrip(":") + ":"
                close()
                code_indent = indent
        last_indent = indent
    close()
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


def _docstrings(node: ast.AST, line: int = 1) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            text = body[0].value.value
            if isinstance(text, str):
                yield line, text
        for child in body:
            yield from _docstrings(child, getattr(child, "lineno", line))
    elif isinstance(node, ast.If | ast.Try):
        for child in node.body:
            yield from _docstrings(child, getattr(child, "lineno", line))


def _module_documents(tree: ast.Module, name: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    rest: list[str] = []
    rest_line = 1
    for child in [tree, *tree.body]:
        own = _docstrings(child, getattr(child, "lineno", 1))
        found = (
            [next(own)]
            if child is tree and ast.get_docstring(tree, clean=False)
            else []
            if child is tree
            else list(own)
        )
        paragraphs = [text for _, docstring in found for text in prose(docstring)]
        new = [text for text in dict.fromkeys(paragraphs) if text not in seen]
        seen.update(new)
        if sum(map(len, new)) >= _LONG and child is not tree:
            yield "\n".join(new), f"{name}:{found[0][0]}"
        elif new:
            rest_line = rest_line if rest else found[0][0]
            rest += new
    if rest:
        yield "\n".join(rest), f"{name}:{rest_line}"


@functools.lru_cache(maxsize=2)
def package_documents(packages: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """(prose, "package/module.py:line") of every module or long class of the installed ones of `packages`.

    No paragraph occurs twice. The order is fixed for given versions.
    """
    seen: set[str] = set()
    documents: list[tuple[str, str]] = []
    for package in packages:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            root = pathlib.Path(place)
            for path in sorted(root.rglob("*.py")):
                if not _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts) or path.name.endswith("_test.py"):
                    continue
                source = path.read_bytes()
                quoted = sum(map(len, _QUOTED.findall(source)))
                if quoted < max(1_000, 0.2 * len(source)):
                    continue  # mostly code: much to parse, little to read
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # invalid escapes in other people's source
                    try:
                        tree = ast.parse(source)
                    except (SyntaxError, ValueError):
                        continue
                documents += _module_documents(tree, path.relative_to(root.parent).as_posix(), seen)
    return tuple(documents)
