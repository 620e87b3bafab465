"""`hf://` paths: Parquet and JSON lines of a data set on a Hub, read in parts, by every worker, without a download."""

import io
import json
import pathlib
from collections.abc import Iterator

import pyarrow
import pytest
from pyarrow import parquet

from spanjax.prepare import main
from tests.data.sources.dataset_hub import NAME, DatasetHub, dataset_hub
from tests.made import made_documents

pytest.importorskip("huggingface_hub", reason="hf:// paths are read by huggingface_hub")
TEXTS = made_documents(300, seed=3)


def table(texts: list[str]) -> bytes:
    """A Parquet file of several row groups, with a second column that is not read."""
    file = io.BytesIO()
    more = [bytes(2_000)] * len(texts)
    parquet.write_table(pyarrow.table({"text": texts, "other": more}), file, row_group_size=50, compression="none")
    return file.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[DatasetHub]:
    """A Hub with two Parquet files and one of JSON lines."""
    from huggingface_hub import HfFileSystem, constants
    from huggingface_hub.utils import close_session

    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[200:])
    files = {
        "data/train-00000.parquet": table(TEXTS[:100]),
        "data/train-00001.parquet": table(TEXTS[100:200]),
        "more/rest.jsonl": lines.encode(),
    }
    with dataset_hub(files) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)  # of workers, which import it
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "hf_none")
        HfFileSystem.clear_instance_cache()
        yield running
        HfFileSystem.clear_instance_cache()
        close_session()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_rows_are_those_of_the_same_files_here(
    hub: DatasetHub, rows_folder: pathlib.Path, tmp_path: pathlib.Path, workers: str
) -> None:
    fingerprints = []
    for name, content in hub.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    common = ["--vocab", str(rows_folder / "train" / "vocabulary"), "--length", "128", "--workers", workers]
    for root in (str(tmp_path), f"hf://datasets/{NAME}"):
        out = tmp_path / f"rows{len(fingerprints)}"
        given = [f"{root}/data/*.parquet", f"{root}/more/rest.jsonl"]
        assert main(["--input", *given, *common, "--output", str(out)]) == 0
        manifest = json.loads((out / "train" / "manifest.json").read_text())
        assert manifest["documents"] == 300
        fingerprints.append(manifest["fingerprint"])
    assert fingerprints[0] == fingerprints[1]
    assert any("bytes=" in each and ".parquet" in each for each in hub.requests), "in parts, not as a whole"


def test_what_is_not_there_is_one_message(
    hub: DatasetHub, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    given = [f"hf://datasets/{NAME}/none/*.parquet", "hf://datasets/me/private/a.parquet"]
    assert main(["--input", *given, "--train-vocab", "100", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"hf://datasets/{NAME}/none/*.parquet: no such file" in said and "me/private" in said
    assert "Traceback" not in said
