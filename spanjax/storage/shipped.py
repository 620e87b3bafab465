"""Files that come with spanjax: the presets of `configs/` and the compiler flags of `launch/xla_flags/`.

In a clone they lie at its top, in an installed package inside `spanjax/` (package-dir in pyproject.toml).
"""

import ast
import difflib
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def shipped(installed: str, cloned: str) -> pathlib.Path:
    """Folder of files that come with spanjax, by its name in an installed package and by its path in a clone."""
    inside = PACKAGE / installed
    return inside if inside.is_dir() else PACKAGE.parent / cloned


CONFIGS = shipped("configs", "configs")
XLA_FLAGS = shipped("xla_flags", "launch/xla_flags")


def presets() -> dict[str, pathlib.Path]:
    """Name of every preset -> its file: `pretrain/spanbert_base`, sorted."""
    files = sorted(CONFIGS.glob("*/*.py"))
    return {str(file.relative_to(CONFIGS).with_suffix("")): file for file in files if file.stem != "__init__"}


def find_config(name: str) -> pathlib.Path:
    """The file that --config names: a path, or a preset as `spanbert_base` or `pretrain/spanbert_base`.

    A path below `configs/` that does not exist here is that of a preset, so the commands of the documentation run in any folder.
    Raises ValueError with the nearest names if there is no such file, or if several presets have the name.
    """
    file = pathlib.Path(name)
    if file.is_file():
        return file
    known = presets()
    wanted = name.removeprefix("./").removeprefix("configs/").removesuffix(".py")
    found = [path for each, path in known.items() if wanted in (each, each.rpartition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        names = " or ".join(each for each in known if each.endswith(f"/{wanted}"))
        raise ValueError(f"--config {name}: several presets have this name; give {names}")
    # a wrong path is nearest to a file of this folder, a wrong name to a preset with or without its folder
    here = [str(path) for path in sorted(pathlib.Path("configs").rglob("*.py"))]
    stems = {each.rpartition("/")[2]: each for each in known}
    close = difflib.get_close_matches(name, here, n=1) if file.suffix else []
    close += [stems.get(each, each) for each in difflib.get_close_matches(wanted, [*stems, *known], n=1)]
    near = (
        f"did you mean {' or '.join(dict.fromkeys(close))}?"
        if close
        else "give a file, or a preset such as spanbert_base;"
    )
    raise ValueError(f"--config {name}: no such file, and no preset has this name; {near} `--list` prints the presets")


def preset_table() -> str:
    """Names of the presets, one a line, with the first line of each one's description; nothing is run."""
    lines = {name: _first_line(file) for name, file in presets().items()}
    width = max(map(len, lines), default=0) + 2
    return "\n".join(f"{name:{width}s}{line}" for name, line in lines.items())


def _first_line(file: pathlib.Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return text.partition("\n")[0]
