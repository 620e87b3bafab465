"""Files next to a model's by which sentence-transformers makes vectors of texts with it: its modules and their settings.

Written in the form that all versions from 2.0 on read, and read in that of version 6 too.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, get_args

from spanjax.json_files import read_json
from spanjax.tasks.base import TextPooling

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
TRANSFORMER, GENERAL = "sentence_bert_config.json", "config_sentence_transformers.json"
SENTENCE_FILES = (MODULES, POOLING, TRANSFORMER, GENERAL)
_MODES: Mapping[str, TextPooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_OTHER_MODES = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def sentence_files(pooling: TextPooling, hidden_size: int, positions: int) -> dict[str, bytes]:
    """Returns the files by name: an encoder that reads `positions` tokens, then `pooling`, compared by cosine similarity."""
    modes = {name: mode == pooling for name, mode in _MODES.items()}
    modes |= {f"pooling_mode_{name}": False for name in _OTHER_MODES}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    files: dict[str, Any] = {
        MODULES: [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
        POOLING: {"word_embedding_dimension": hidden_size, **modes, "include_prompt": True},
        TRANSFORMER: {"max_seq_length": positions, "do_lower_case": False},
        GENERAL: {"__version__": {}, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }
    return {name: (json.dumps(content, indent=2) + "\n").encode() for name, content in files.items()}


def write_sentence_files(folder: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Writes them into a folder, with the folder of the pooling."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def pooling_of_folder(folder: pathlib.Path) -> tuple[TextPooling, list[str]]:
    """(pooling of a folder of sentence-transformers, "mean" for any other; notes on modules that have no counterpart here).

    ValueError if the file is damaged.
    """
    if not (folder / MODULES).is_file() or not (folder / POOLING).is_file():
        return "mean", []
    found = read_json(folder / POOLING)
    mode = found.get("pooling_mode") or [
        name for name, used in found.items() if name.startswith("pooling_mode_") and used
    ]
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    known = {**_MODES, **{pooling: pooling for pooling in get_args(TextPooling)}}
    if isinstance(mode, str) and mode in known:
        return known[mode], []
    return "mean", [
        f"{folder / POOLING}: the pooling {mode!r} is unknown here: encode takes the mean unless it is told"
    ]
