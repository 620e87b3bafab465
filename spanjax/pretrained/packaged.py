"""Models that come as Python packages: a distribution names the folder of its weights in the entry point group `spanjax.models`.

    [project.entry-points."spanjax.models"]
    spanbert-mini = "spanbert_mini:FOLDER"

`spanjax.load("spanbert-mini")`, `--init-from spanbert-mini` and every command that takes a model find it by that name.
"""

import importlib.metadata
import os
import pathlib

GROUP = "spanjax.models"


def packaged_models() -> list[str]:
    """Returns the names of the installed models, sorted."""
    return sorted(entry.name for entry in importlib.metadata.entry_points(group=GROUP))


def packaged_folder(name: str | os.PathLike[str]) -> pathlib.Path | None:
    """Returns the folder of an installed model, None if no package has a model of that name.

    Only the package with that name is imported. ValueError if it does not name a folder.
    """
    found = importlib.metadata.entry_points(group=GROUP, name=os.fspath(name))
    if not found:
        return None
    entry = next(iter(found))
    try:
        folder = pathlib.Path(entry.load())
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"the installed model {entry.name} cannot be read ({error}): install its package again"
        ) from error
    if not folder.is_dir():
        raise ValueError(f"the installed model {entry.name} lacks its folder {folder}: install its package again")
    return folder
