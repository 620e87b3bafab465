"""Quotes values for shell scripts, YAML and manifests of Kubernetes, so that nothing in them is run, split or expanded."""

import json
import shlex
import string
from collections.abc import Iterable, Mapping, Sequence


class _Blank(string.Template):
    delimiter = "@@"


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replaces every `@@name` of the template; a line that is only an empty value is skipped."""
    lines = []
    for line in template.splitlines():
        filled = _Blank(line).substitute(values)
        if filled.strip() or not line.strip():
            lines.append(filled.rstrip())
    return "\n".join(lines) + "\n"


def word(value: object) -> str:
    """One word for a POSIX shell."""
    return shlex.quote(str(value))


def options(words: Sequence[str]) -> list[str]:
    """Words for a shell, every option with its values on a line of its own."""
    lines: list[str] = []
    for each in words:
        if lines and not each.startswith("--"):
            lines[-1] += f" {word(each)}"
        else:
            lines.append(word(each))
    return lines


def continued(lines: Iterable[str], indent: int) -> str:
    """Lines of one shell command; all but the first are indented."""
    return (" \\\n" + " " * indent).join(lines)


def exports(variables: Mapping[str, str]) -> str:
    """A line `export NAME=value` for each variable."""
    return "\n".join(f"export {name}={word(value)}" for name, value in variables.items())


def scalar(value: object) -> str:
    """A string as YAML in double quotes, where no character has a special meaning."""
    return json.dumps(str(value))


def pod_scalar(value: object) -> str:
    """A YAML string for `args` and `env` of a container, where Kubernetes expands $(NAME) and turns $$ into $."""
    return scalar(str(value).replace("$", "$$"))


def indented(lines: Iterable[str], spaces: int) -> str:
    """Joins lines; all but the first are indented, as the template indents that one."""
    return ("\n" + " " * spaces).join(lines)
