"""Rows in buckets: whole folders of rows are copied to this machine once, and read from its disk."""

import os
import pathlib

from spanjax.bounds import raise_problems
from spanjax.data.shards.portions import TRAIN, VALIDATION
from spanjax.data.shards.shards import (
    BLOCKS,
    DOCUMENTS,
    LENGTHS,
    MANIFEST,
    UNIGRAM,
    VOCABULARY,
    Manifest,
    record,
)
from spanjax.storage.cache import Cache, listed, user_files
from spanjax.storage.objects import Place, StorageError, is_remote, open_store


def local_rows(folder: str | os.PathLike[str], cache: Cache | None = None) -> pathlib.Path:
    """Returns the path of a folder of rows, or of train/ and validation/, on this machine; copies that of an address.

    Every host copies all shards: each order (`feed.order`) permutes or cuts the rows anew every epoch, so a host's part of
    the batches comes from every shard sooner or later. The manifest's checksums are compared. StorageError, or ValueError for
    a folder that is unfinished, lacks files or has files of other sizes; nothing is copied then.
    """
    if not is_remote(folder):
        return pathlib.Path(folder)
    place = Place.parse(folder)
    sources = {source.name: source for source in listed(place)}
    splits = [f"{split}/" for split in (TRAIN, VALIDATION) if f"{split}/{MANIFEST}" in sources]
    splits = splits or ([""] if MANIFEST in sources else [])
    if not splits:
        there = "files, but no finished rows" if sources else "nothing"
        raise StorageError(
            f"{place}: expected rows (a {MANIFEST} there or in {TRAIN}/) and found {there}: check the address, or prepare rows"
            f" with --output {place}"
        )
    wanted, problems = [], list[str]()
    for split in splits:
        name = f"{place / split}/{MANIFEST}"
        manifest = Manifest.from_json(open_store(place).read(place / split / MANIFEST)[0], name)
        size = record(manifest.length, manifest.vocabulary_size).itemsize
        for shard in manifest.shards:
            found = sources.get(f"{split}{shard.name}")
            if found is None:
                problems.append(f"{split}{shard.name} is missing")
            elif found.size != shard.rows * size:
                problems.append(f"{split}{shard.name} has {found.size:,} bytes, expected {shard.rows * size:,}")
            else:
                # the checksum identifies the content, so the copy outlives an upload of the same shard
                wanted.append(found._replace(version="", checksum=f"sha256:{shard.sha256}", flush=False))
        inner = {f"{split}{each}" for each in (MANIFEST, UNIGRAM, LENGTHS, BLOCKS, DOCUMENTS)}
        problems += [f"{each} is missing" for each in sorted(inner - {*sources})]
        wanted += [
            source for name, source in sources.items() if name in inner or name.startswith(f"{split}{VOCABULARY}/")
        ]
    raise_problems(problems, f"{place} is damaged; prepare or upload it again:")
    return (cache or user_files()).fetch(place, wanted)
