"""Writes portions with Apache Beam: on Dataflow, Flink or Spark, or in this process with Beam's direct runner.

Groups -> portions -> shards, with the functions of the local runner, so that the files are the same. All workers write into
the folder of the work, which they must share; the launching process finishes the rows. Only this module imports Beam.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from spanjax.data.shards.passes import Pass, folders, read_group
from spanjax.data.shards.portions import Portion, PortionRows, Written
from spanjax.data.shards.staging import Unfinished
from spanjax.data.sources.documents import content_key
from spanjax.data.vocab.loading import Vocabulary, vocabulary_from_files

try:
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:
    raise ValueError("--runner beam needs Apache Beam: pip install 'spanjax[beam]'") from None

DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
IN_PROCESS = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_Key = tuple[int, int]  # of a portion: group, number


class _Cut(beam.DoFn):
    """(number, group) -> its portions, by key."""

    def __init__(self, one: Pass, work: Unfinished):
        self._one, self._work = one, work

    def process(self, element: tuple[int, Any]) -> Iterator[tuple[_Key, Portion]]:
        """Yields the portions of `read_group`."""
        for portion in read_group(self._work, self._one, *element):
            yield (portion.group, portion.number), portion


def _places(element: tuple[_Key, Portion]) -> Iterator[tuple[bytes, tuple[_Key, int]]]:
    """Every document of a portion: its content, and its place among all documents."""
    key, portion = element
    for place, document in enumerate(portion.documents):
        yield content_key(document.text), (key, place)


def _repeated(element: tuple[bytes, Iterable[tuple[_Key, int]]]) -> Iterator[tuple[_Key, int]]:
    """The places of one content, but for the first."""
    places = element[1]
    first = min(places)
    return (place for place in places if place != first)


def _marked(element: tuple[_Key, dict[str, Iterable[Any]]]) -> Portion:
    """A portion with the places in it that are repeated."""
    (portion,) = element[1]["portions"]
    return portion._replace(repeated=frozenset(element[1]["repeated"]))


class _Write(beam.DoFn):
    """Portion -> its shards on disk."""

    def __init__(self, one: Pass, work: Unfinished, files: dict[str, bytes]):
        self._one, self._work, self._files = one, work, files

    def setup(self) -> None:
        """Loads vocabulary and annotator, once a worker."""
        self._folders = folders(self._work, self._one.settings.splits)
        self._rows = PortionRows(self._one.settings, vocabulary_from_files(self._files), self._folders)

    def process(self, portion: Portion) -> Iterator[Written]:
        """Writes the missing shards."""
        if not self._folders.has(self._one.settings.splits, portion.name):
            yield self._rows.write(portion)


def with_runner(words: list[str]) -> list[str]:
    """Beam's options; without any runner among them, the one that stays in this process and its memory.

    Beam's own choice would look for a program on the network first, and listen on every interface for it. Beam knows Dask's
    runner by its long name only.
    """
    words = [re.sub(r"^(--runner=)?DaskRunner$", rf"\g<1>{DASK}", word) for word in words]
    return words if any(word.startswith("--runner") for word in words) else ["--runner", IN_PROCESS, *words]


def write_with_beam(one: Pass, work: Unfinished, vocabulary: Vocabulary, options: str) -> None:
    """Runs the pipeline of a pass to its end; `options` are those of Beam's command line."""
    groups = list(enumerate(one.source.groups()))
    folders(work, one.settings.splits)
    with beam.Pipeline(options=PipelineOptions(with_runner(shlex.split(options)))) as pipeline:
        cut = pipeline | "groups" >> beam.Create(groups) | beam.Reshuffle() | "cut" >> beam.ParDo(_Cut(one, work))
        if one.deduplicate:
            repeated = (
                cut
                | "contents" >> beam.FlatMap(_places)
                | "by content" >> beam.GroupByKey()
                | "repeated" >> beam.FlatMap(_repeated)
            )
            portions = (
                {"portions": cut, "repeated": repeated}
                | "to their portions" >> beam.CoGroupByKey()
                | "marked" >> beam.Map(_marked)
            )
        else:
            portions = cut | "portions" >> beam.Values() | "to all workers" >> beam.Reshuffle()
        _ = portions | "write" >> beam.ParDo(_Write(one, work, vocabulary.files()))
