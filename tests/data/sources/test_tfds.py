"""TFDS data sets as sources, on one that is built here."""

import collections
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from spanjax.data.sources import tfds as tfds_source
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import SourceSettings

COUNT = 100


class SpanjaxTexts(tfds.core.GeneratorBasedBuilder):
    """100 and 5 texts, one of them blank, and titles, of which one is not UTF-8."""

    __module__ = (
        "spanjax_texts"  # no package: TFDS looks into packages with importlib_resources, which it does not install
    )
    VERSION = tfds.core.Version("1.2.0")

    def _info(self) -> Any:
        features = {"text": tfds.features.Text(), "title": tfds.features.Text(), "number": np.int64}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(COUNT), "test": self._generate_examples(5)}

    def _generate_examples(self, count: int) -> Iterator[Any]:
        for number in range(count):
            title = b"\xff" if number == 3 else b"title"
            yield number, {"text": " " if number == 4 else f"Text {number} é", "title": title, "number": number}


@pytest.fixture(scope="module", params=["array_record", "parquet", "tfrecord"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The data set, prepared in one of TFDS's formats."""
    place = tmp_path_factory.mktemp(request.param)
    SpanjaxTexts(data_dir=str(place), file_format=request.param).download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=4)
    )
    return place


def read(name: str, settings: SourceSettings) -> tuple[list[str], list[str], dict[str, int]]:
    skipped: collections.Counter[str] = collections.Counter()
    groups = pickle.loads(pickle.dumps(open_sources([name], settings).groups()))
    found = [document for group in groups for document in group.documents(skipped)]
    return [document.text for document in found], [document.where for document in found], dict(skipped)


def test_a_split_comes_in_slices_that_hold_it_in_order(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SourceSettings(data_dir=str(folder))
    whole = read("tfds:spanjax_texts", settings)
    assert sorted(whole[0]) == sorted(f"Text {number} é" for number in range(COUNT) if number != 4)
    assert whole[2] == {"empty documents": 1} and whole[1][0] == "tfds:spanjax_texts/1.2.0@train:0"
    monkeypatch.setattr(tfds_source, "EXAMPLES_A_GROUP", 40)
    assert read("tfds:spanjax_texts:1.2.0@train", settings) == whole
    groups = open_sources(["tfds:spanjax_texts"], settings).groups()
    assert [group.name for group in groups] == [
        f"spanjax_texts/1.2.0@train[{part}]" for part in ("0:40", "40:80", "80:100")
    ]
    sizes = [group.bytes or 0 for group in groups]
    assert sizes[0] == sizes[1] == pytest.approx(2 * sizes[2], abs=1) and sizes[2] > 0
    texts, where, _ = read("tfds:spanjax_texts@train[12:15]+test", settings)
    at = [f"tfds:spanjax_texts/1.2.0@train:{number}" for number in (12, 13, 14)]
    assert texts[:3] == [text for text, place in zip(*whole[:2], strict=True) if place in at] and where[:3] == at
    assert len(texts) == 3 + 4 and where[-1].endswith("@test:4") == (texts[-1] != " ")


def test_bad_text_is_told_or_counted(folder: pathlib.Path) -> None:
    settings = SourceSettings(data_dir=str(folder), text_field="title")
    with pytest.raises(ValueError, match=r"^tfds:spanjax_texts/1\.2\.0@train:\d+: byte 1 of the text is not UTF-8"):
        read("tfds:spanjax_texts", settings)
    texts, _, skipped = read("tfds:spanjax_texts", SourceSettings("title", True, str(folder)))
    assert len(texts) == COUNT - 1 and skipped == {"lines not in UTF-8": 1}


@pytest.mark.parametrize(
    ("name", "field", "message"),
    [
        ("tfds:", "text", "expected tfds:NAME"),
        ("tfds:spanjax_no_such", "text", "knows no data set 'spanjax_no_such'.*holds none.*--data-dir"),
        ("tfds:spanjax_texts:9.9.9", "text", "9.9.9.*check the name, config and version"),
        ("tfds:spanjax_texts/config", "text", "config.*check the name, config and version"),
        ("tfds:spanjax_texts@dev", "text", r"split 'dev'.*the splits are \['test', 'train'\]"),
        ("tfds:spanjax_texts@train[5:5]", "text", "holds no examples"),
        ("tfds:spanjax_texts@train[", "text", "split 'train\\['"),
        ("tfds:spanjax_texts", "body", r"no feature 'body' \(the features are \['number', 'text', 'title'\]"),
        ("tfds:spanjax_texts", "number", "feature 'number' is int64 of shape .*expected text.*--columns"),
        ("tfds:wikipedia/20230601.en", "text", "not prepared in .*--data-dir.*--download"),
        ("tfds:wikipedia/no_config", "text", "no_config.*check the name"),
    ],
)
def test_what_is_not_there_is_told_with_what_there_is(
    folder: pathlib.Path, name: str, field: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"tfds:.*{message}") as caught:
        open_sources([name], SourceSettings(text_field=field, data_dir=str(folder)))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_data_set_is_downloaded_only_when_asked(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="not prepared"):
        open_sources(["tfds:spanjax_texts"], SourceSettings(data_dir=str(tmp_path)))
    settings = SourceSettings(data_dir=str(tmp_path), download=True)
    source = open_sources(["tfds:spanjax_texts"], settings)
    assert len(list(source.documents(collections.Counter()))) == COUNT - 1
    assert list(tmp_path.glob("spanjax_texts/*/*.array_record-*"))
    assert source.identity() == open_sources(["tfds:spanjax_texts"], settings).identity()


def test_reading_by_index_does_not_load_tensorflow(tmp_path: pathlib.Path) -> None:
    SpanjaxTexts(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    code = (
        "import collections, sys; from spanjax.data.sources.corpus import *;"
        "assert 'tensorflow_datasets' not in sys.modules and 'fsspec' not in sys.modules;"
        f"source = open_sources(['tfds:spanjax_texts'], SourceSettings(data_dir={str(tmp_path)!r}));"
        "print(len(list(source.documents(collections.Counter()))), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(COUNT - 1), "False"]
