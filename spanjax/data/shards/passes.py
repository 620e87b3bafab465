"""A pass over a source: its documents become the rows of one split or two. Finds the unwritten portions and joins the shards.

Apart from the shards every group leaves a record of its number of portions and of what its reader skipped, so that the
totals are known and a group whose portions are all written is not read again.
"""

import collections
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from spanjax.data.shards.portions import VALIDATION, Folders, Occurred, Portion, RowSettings, cut, portion_name
from spanjax.data.shards.shards import Manifest, finish_rows
from spanjax.data.shards.staging import Unfinished
from spanjax.data.sources.documents import Group, Source
from spanjax.data.vocab.loading import Vocabulary
from spanjax.json_files import read_json
from spanjax.storage.local import write_whole


@dataclasses.dataclass(frozen=True)
class Pass:
    """One reading of a source and the processing of its documents."""

    source: Source
    settings: RowSettings
    characters: int  # of a portion
    deduplicate: bool = False
    most: int = 0  # documents; 0 takes all

    @property
    def name(self) -> str:
        """The name of its first split."""
        return self.settings.splits[0]

    def group_record(self, work: Unfinished, number: int) -> pathlib.Path:
        """The file that says how group `number` was cut."""
        return work.folder / "groups" / f"{self.name}-{number:05d}.json"


def folders(work: Unfinished, splits: tuple[str, ...]) -> Folders:
    """Folders for the shards of these splits, made if need be."""
    for split in splits:
        work.subfolder("result", split)
        work.subfolder("figures", split)
    work.subfolder("groups")
    return Folders(work.result, work.folder / "figures")


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except FileNotFoundError:
        return None


def written(work: Unfinished, one: Pass) -> int:
    """Number of written portions of a pass."""
    return len(list((work.folder / "figures" / one.settings.splits[-1]).glob("rows-*.npz")))


def _whole(work: Unfinished, one: Pass, places: Folders, number: int) -> bool:
    """True if group `number` was read to its end and all its portions are written."""
    record = _read(one.group_record(work, number))
    names = (portion_name(number, place) for place in range(record["portions"])) if record else ()
    return record is not None and all(places.has(one.settings.splits, name) for name in names)


def unread_bytes(work: Unfinished, one: Pass) -> int | None:
    """Bytes of the files that `unwritten` will read, as `CountedFile` counts them; None where that is unknown."""
    places = folders(work, one.settings.splits)
    sizes = [
        getattr(group, "counted_bytes", None)
        for number, group in enumerate(one.source.groups())
        if one.deduplicate or not _whole(work, one, places, number)
    ]
    return None if one.most or None in sizes else sum(filter(None, sizes))


def read_group(
    work: Unfinished, one: Pass, number: int, group: Group, occurred: Occurred | None = None, most: int | None = None
) -> Iterator[Portion]:
    """Reads and cuts group `number`: yields its portions, written or not, and leaves its record at the end.

    Repeated documents are those that `occurred` has seen; of the group only the first `most` documents are taken. A group
    that is whole is not read, except where the groups after it depend on what is in it.
    """
    if not (one.deduplicate or one.most) and _whole(work, one, folders(work, one.settings.splits), number):
        return
    skipped: collections.Counter[str] = collections.Counter()
    count = 0
    for documents in cut(itertools.islice(group.documents(skipped), most), one.characters):
        yield Portion(number, count, documents, occurred.repeated(documents) if occurred else frozenset())
        count += 1
    write_whole(one.group_record(work, number), json.dumps({"portions": count, "skipped": skipped}))


def unwritten(work: Unfinished, one: Pass) -> Iterator[Portion]:
    """Reads and cuts the source, in order; yields the portions that are not written yet."""
    places = folders(work, one.settings.splits)
    occurred = Occurred() if one.deduplicate else None
    left = one.most or None
    for number, group in enumerate(one.source.groups()):
        for portion in read_group(work, one, number, group, occurred, left):
            left = left and left - len(portion.documents)
            if not places.has(one.settings.splits, portion.name):
                yield portion
        if left == 0:
            return


def finish_pass(
    work: Unfinished, one: Pass, vocabulary: Vocabulary, settings: Mapping[str, Any]
) -> dict[str, Manifest]:
    """Joins the shards of a pass: the manifest of every split. ValueError where a split has no text.

    What the reader skipped counts for the first split.
    """
    places = folders(work, one.settings.splits)
    skipped: collections.Counter[str] = collections.Counter()
    for number, _ in enumerate(one.source.groups()):
        record = _read(one.group_record(work, number))
        if record is None and one.most:
            break
        if record is None or not _whole(work, one, places, number):
            raise OSError(
                f"{work.folder} lacks portions of group {number} of {one.name}: workers failed, or wrote elsewhere;"
                " give an output folder that all workers share"
            )
        skipped.update(record["skipped"])
    manifests = {}
    for split in one.settings.splits:
        try:
            manifests[split] = finish_rows(
                places.rows / split, places.figures / split, vocabulary, one.settings.length,
                max_blocks=one.settings.most_blocks, source=one.source.description, tags=one.settings.tags,
                settings=settings, skipped=skipped if split == one.name else {},
            )  # fmt: skip
        except ValueError:
            work.worthless = True  # the same command would end here again
            share = " or a larger --holdout" if split == VALIDATION and one.settings.holdout else ""
            raise ValueError(f"the {split} split holds no text; give more documents{share}") from None
    return manifests
