"""Folders as the `datasets` library writes them by save_to_disk."""

import json
import pathlib
from typing import Any

import pyarrow


def saved_dataset(
    folder: pathlib.Path, table: pyarrow.Table, features: dict[str, Any], footer: bool = False
) -> pyarrow.Table:
    """Writes a folder as `datasets` does by save_to_disk, in two files; returns the table with the features in its metadata."""
    folder.mkdir(parents=True)
    schema = table.schema.with_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})
    table = table.cast(schema)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (table.slice(0, 1), table.slice(1)), strict=True):
        opened = pyarrow.ipc.new_file if footer else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(folder / name), "wb") as file, opened(file, schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return table
