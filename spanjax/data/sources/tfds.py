"""TensorFlow Datasets as sources: tfds:NAME[/CONFIG][:VERSION][@SPLIT], as in tfds:wikipedia/20230601.en@train.

SPLIT is what TFDS takes: a name, a slice (train[:10%]), a sum (train+test); train by default. A data set stored as
ArrayRecord is read by index, without TensorFlow; one stored as TFRecord, TFDS's default, or Parquet (where TFDS reads no
slices by index) through `tf.data` in stored order, which loads TensorFlow into the process that reads. Data sets that are
downloaded here are stored as ArrayRecord.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.sources.documents import Document, Source, SourceSettings, Trouble
from spanjax.data.sources.readers import row_document

TFDS_PREFIX = "tfds:"
FORM = f"{TFDS_PREFIX}NAME[/CONFIG][:VERSION][@SPLIT]"
EXAMPLES_A_GROUP = 10_000
_AT_A_TIME = 200  # examples


class Place(NamedTuple):
    """Folder of prepared data sets, and the remedies that an error names where a data set is missing."""

    data_dir: str | None = None
    """None for TFDS's own default."""
    download: bool = False
    """Download data sets that are not prepared."""
    option: str = "--data-dir"
    how: str = "download it with --download"


@dataclasses.dataclass(frozen=True)
class TfdsGroup:
    """Consecutive examples of a split."""

    folder: str
    """Folder of the prepared data set."""
    dataset: str
    """Name, config and version."""
    split: str
    first: int
    last: int
    """End of the group, exclusive."""
    settings: SourceSettings
    bytes: int | None = None

    @property
    def name(self) -> str:
        """The data set and the slice of the split."""
        return f"{self.dataset}@{self.split}[{self.first}:{self.last}]"

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields the texts in stored order."""
        name, settings = f"{TFDS_PREFIX}{self.dataset}@{self.split}", self.settings
        trouble = Trouble(name, settings.skip_bad, skipped, settings.max_document)
        for number, example in enumerate(self._examples(), start=self.first):
            text = example[self.settings.text_field]
            if document := row_document(text if isinstance(text, str) else bytes(text), None, number, trouble):
                yield document

    def _examples(self) -> Iterator[Any]:
        return stored_examples(self.folder, self.split, self.first, self.last, [self.settings.text_field])


@dataclasses.dataclass(frozen=True)
class TfdsSource(Source):
    """A split of a data set, in slices of 10,000 examples."""

    folder: str
    dataset: str
    split: str
    slices: tuple[tuple[str, int, int], ...]
    """Split, first example and end of the parts that make up the split."""
    example_bytes: tuple[tuple[str, float], ...]
    """Mean size of an example, by split."""
    fingerprint: tuple[Any, ...]
    settings: SourceSettings

    @property
    def description(self) -> str:
        """The name, as it is given to prepare, with the version."""
        return f"{TFDS_PREFIX}{self.dataset}@{self.split}"

    def groups(self) -> Sequence[TfdsGroup]:
        """Slices of 10,000 examples; the last of a split has the rest."""
        sizes = dict(self.example_bytes)
        return [
            TfdsGroup(self.folder, self.dataset, split, at, end, self.settings, round((end - at) * sizes[split]))
            for split, first, last in self.slices
            for at in range(first, last, EXAMPLES_A_GROUP)
            for end in [min(at + EXAMPLES_A_GROUP, last)]
        ]

    def identity(self) -> list[Any]:
        """Name, version, split, and examples and bytes of every shard of its splits."""
        return [self.description, *self.fingerprint]


def is_tfds(name: str) -> bool:
    """True if the name of an input requests a TFDS data set."""
    return name.startswith(TFDS_PREFIX)


def open_tfds(name: str, settings: SourceSettings) -> TfdsSource:
    """The source that tfds:NAME[/CONFIG][:VERSION][@SPLIT] names; ValueError lists the problems and the choices."""
    builder, split, slices, problems = open_split(name, Place(settings.data_dir, settings.download))
    info = builder.info
    features = info.features or {}
    field = settings.text_field
    if field not in features:
        what = f"no feature {field!r} (the features are {sorted(features)})"
        problems.append(f"{name}: {what}; name it with --columns text=FEATURE")
    elif (found := _kind(features[field])) != "text":
        problems.append(
            f"{name}: the feature {field!r} is {found}, expected text; name another with --columns text=FEATURE"
        )
    raise_problems(problems)
    used = {part: info.splits[part] for part in dict.fromkeys(part for part, _, _ in slices)}
    return TfdsSource(
        str(builder.data_dir),
        info.full_name,
        split,
        tuple(slices),
        tuple((part, float(each.num_bytes) / max(1, each.num_examples)) for part, each in used.items()),
        tuple([part, int(each.num_bytes), *map(int, each.shard_lengths)] for part, each in used.items()),
        settings,
    )


def open_split(name: str, place: Place) -> tuple[Any, str, list[tuple[str, int, int]], list[str]]:
    """(TFDS's builder, the split, its parts as (split, first example, end), problems with the split).

    ValueError where the data set is missing or not prepared.
    """
    dataset, _, split = name.removeprefix(TFDS_PREFIX).partition("@")
    split = split or "train"
    if not dataset:
        raise ValueError(f"{name}: expected {FORM}")
    builder = _builder(name, dataset, place)
    slices, wrong = _slices(builder.info, split)
    splits = sorted(builder.info.splits)
    return builder, split, slices, [f"{name}: split {split!r}: {wrong}; the splits are {splits}"] if wrong else []


def stored_examples(folder: str, split: str, first: int, last: int, features: Iterable[str]) -> Iterator[Any]:
    """Examples `first` to `last` (exclusive) of a split in stored order: dictionaries with these features at least, text as
    bytes or str. `folder` holds the data set."""
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(folder)
    part = f"{split}[{first}:{last}]"
    if _by_index(builder):
        source: Any = builder.as_data_source(split=part, file_format="array_record")
        for start in range(0, len(source), _AT_A_TIME):
            yield from source.__getitems__(range(start, min(start + _AT_A_TIME, len(source))))
        return
    only = tfds.decode.PartialDecoding(dict.fromkeys(features, True))
    in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    stored = builder.as_dataset(split=part, shuffle_files=False, decoders=only, read_config=in_order)
    yield from cast(Iterable[Any], tfds.as_numpy(stored))


def _kind(feature: Any) -> str:
    """Content of a feature: "text", or a description of anything else."""
    try:
        shape, dtype = feature.shape, np.dtype(feature.np_dtype)
    except (TypeError, AttributeError, ValueError):  # a dictionary or sequence of features
        return type(feature).__name__
    return "text" if shape == () and dtype.kind in "OSU" else f"{dtype} of shape {shape}"


def _by_index(builder: Any) -> bool:
    from tensorflow_datasets.core.file_adapters import FileFormat

    return FileFormat.ARRAY_RECORD in builder.info.available_file_formats()


def _builder(name: str, dataset: str, place: Place) -> Any:
    """The builder of a prepared data set; ValueError where there is none, or it is not prepared."""
    try:
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core import constants
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} needs a package: pip install tensorflow-datasets ({error})") from None
    where = place.data_dir or str(constants.DATA_DIR)
    try:
        builder = tfds.builder(dataset, data_dir=place.data_dir)
    except tfds.core.DatasetNotFoundError:
        raise ValueError(
            f"{name}: TFDS knows no data set {dataset!r}, and {where} holds none; check the name, config and version"
            f" (https://www.tensorflow.org/datasets/catalog/overview), or name the folder with {place.option}"
        ) from None
    except (ValueError, AssertionError, ImportError) as error:
        raise ValueError(f"{name}: {' '.join(str(error).split())}; check the name, config and version") from None
    if not builder.info.splits and place.download:
        try:
            builder.download_and_prepare(file_format="array_record")
        except ImportError as error:
            raise ValueError(f"{name}: to prepare it needs a package: pip install {error.name} ({error})") from error
    if not builder.info.splits:
        raise ValueError(f"{name}: not prepared in {where}; name another folder with {place.option}, or {place.how}")
    return builder


def _slices(info: Any, split: str) -> tuple[list[tuple[str, int, int]], str]:
    """The parts of a split as (name, first, end), and its problem, empty without one."""
    import tensorflow_datasets as tfds

    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(info.splits)
        found = [
            (part.splitname, part.from_ or 0, info.splits[part.splitname].num_examples if part.to is None else part.to)
            for part in parts
        ]
    except (ValueError, KeyError, AssertionError) as error:
        return [], " ".join(str(error).split())
    return found, "" if sum(last - first for _, first, last in found) else "it holds no examples"
