"""The benchmark of long rows at a tiny size: a row of figures for each length, and its targets."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_rows_are_packed_from_documents_of_all_sizes(tmp_path: pathlib.Path) -> None:
    from benchmarks.lengths import document_rows

    rows = document_rows(tmp_path / "rows", 20_000, 2048)
    manifest = rows.manifest
    assert manifest.text_tokens_by_blocks[-1] > 0 and len(manifest.text_tokens_by_blocks) > 3
    assert 20_000 <= manifest.text_tokens <= 22_048
    assert manifest.rows * 2048 < 1.2 * 20_000


@pytest.mark.slow
def test_every_length_has_its_figures(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "found.json"
    sizes = ["--layers=4", "--width=64", "--tokens=1024", "--lengths", "256", "1024", "--repeats=5"]
    command = [sys.executable, "-m", "benchmarks.lengths", *sizes, "--json", str(file)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=600, capture_output=True)
    found = json.loads(file.read_text())
    for name in ("256, global", "256, local", "1024, global", "1024, local"):
        figure = found["figures"][name]
        assert len(figure["seconds"]) == 5 and min(figure["seconds"]) > 0
        assert 0.5 < figure["used"] <= 1 and figure["bytes"] > 0
    assert len(found["targets"]) == 3
    memory = found["figures"]["memory of twice as many layers"]
    assert 0 < memory["full"] < memory["none"]
