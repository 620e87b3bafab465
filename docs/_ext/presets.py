"""Reference page of the presets: the description, command and settings of every config that comes with spanjax."""

import ast
import dataclasses
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from docs._ext.markdown import code, escaped, prose
from docs._ext.settings import value_text
from spanjax.run import Run, load
from spanjax.storage.shipped import presets

TITLES = {"pretrain": "Pretraining", "finetune": "Fine-tuning", "ablations": "Ablations"}
_COMMAND = re.compile(r"^(Command[^\n]*:)\n((?:    [^\n]*\n)+)", re.MULTILINE)


def differences(value: Any, default: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields names and values of settings that differ from a default: flags, and fields that hold a class by their names."""
    for field in dataclasses.fields(value):
        name, own = f"{prefix}{field.name}", getattr(value, field.name)
        usual = getattr(default, field.name)
        if dataclasses.is_dataclass(own) and not isinstance(own, type):
            if type(own) is not type(usual):
                yield name, type(own).__name__
                # the settings of another class are compared with its own defaults
                usual = type(own)()
            yield from differences(own, usual, f"{name}.")
        elif own != usual:
            classes = isinstance(own, tuple) and any(map(dataclasses.is_dataclass, own))
            yield name if classes else f"--{name.replace('_', '-')}", value_text(own)


def note_of(docstring: str) -> str:
    """Returns the Markdown of a config's docstring without its first line: its commands as blocks, the rest as prose."""
    body, parts, start = docstring.partition("\n")[2].strip("\n") + "\n", [], 0
    body = re.sub(r"(?<=[^\n])\n(?=Expect:)", "\n\n", body)
    for found in _COMMAND.finditer(body):
        parts += [prose(body[start : found.start()]), escaped(found[1])]
        parts.append(f"```bash\n{textwrap.dedent(found[2]).strip()}\n```")
        start = found.end()
    return "\n\n".join(part for part in [*parts, prose(body[start:])] if part)


def page() -> str:
    """Returns the Markdown of all presets, by their folders."""
    names = presets()
    stems = [name.rpartition("/")[2] for name in names]
    folders = dict.fromkeys([*TITLES, *(name.partition("/")[0] for name in names)])
    parts = []
    for folder in folders:
        parts.append(f"## {TITLES.get(folder, folder)}")
        for name, file in ((name, file) for name, file in names.items() if name.startswith(f"{folder}/")):
            first, run = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "", load(str(file))
            stem = name.rpartition("/")[2]
            short = stem if stems.count(stem) == 1 else name
            parts += [f"### {escaped(short)}", escaped(first.partition("\n")[0])]
            parts += [f"`--config {short}`: [configs/{escaped(name)}.py](../../configs/{name}.py)", note_of(first)]
            rows = [f"| {code(setting)} | {code(value)} |" for setting, value in differences(run, Run())]
            parts.append(
                "\n".join(["| setting | value |", "|---|---|", *rows]) if rows else "All settings have their defaults."
            )
    return "\n\n".join(parts)
