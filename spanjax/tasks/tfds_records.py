"""TensorFlow Datasets (`data.sources.tfds`) as records: tfds:glue/sst2@validation instead of a file of examples.

Data sets are in TFDS_DATA_DIR, by default ~/tensorflow_datasets. Nothing is downloaded.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.sources.tables import HIDDEN, TableRecord
from spanjax.data.sources.tfds import TFDS_PREFIX, Place, open_split, stored_examples

FOLDER = "TFDS_DATA_DIR"


def read_tfds(name: str, columns: Sequence[str]) -> Iterator[TableRecord]:
    """The records of tfds:NAME[/CONFIG][:VERSION][@SPLIT] (train, where no split is named) in stored order, with those of
    `columns` that the data set has; their place is tfds:NAME/CONFIG/VERSION@SPLIT:NUMBER, from 0.

    Text is str, a class its name, None where it is hidden; numbers are Python's, with the digits of float32.
    ValueError for a missing data set.
    """
    how = f"prepare it with `tfds build {name.removeprefix(TFDS_PREFIX).partition('@')[0]} --file_format array_record`"
    builder, _, slices, problems = open_split(name, Place(os.environ.get(FOLDER) or None, False, FOLDER, how))
    raise_problems(problems)
    features = builder.info.features or {}
    known = {column: getattr(features[column], "names", None) for column in columns if column in features}
    if not known:
        raise ValueError(f"{name}: the features are {sorted(features)}; expected some of {', '.join(columns)}")
    for split, first, last in slices:
        stored = stored_examples(str(builder.data_dir), split, first, last, known)
        for number, example in enumerate(stored, start=first):
            record: dict[str, Any] = {}
            problem = ""
            for column, names in known.items():
                # text that is not UTF-8 is the problem of one record, like a bad line of a file: reading continues
                try:
                    record[column] = _value(example[column], names)
                except UnicodeDecodeError as error:
                    problem = f"byte {error.start + 1} of {column} is not UTF-8: expected text"
            yield f"{TFDS_PREFIX}{builder.info.full_name}@{split}:{number}", None if problem else record, problem


def _value(value: Any, names: Sequence[str] | None) -> Any:
    if names is not None:
        return None if int(value) == HIDDEN else names[int(value)]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float | np.floating):
        return float(str(np.float32(value)))  # 3.8, without the rounding error of float32
    return value.item() if isinstance(value, np.generic) else value
