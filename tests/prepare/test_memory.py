"""Prepare holds some portions in memory, not the corpus: what all its processes take does not grow with the input."""

import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from spanjax.data.vocab.base import SPECIAL_PIECES

ROOT = pathlib.Path(__file__).parents[2]


def write_corpus(folder: pathlib.Path, megabytes: int) -> pathlib.Path:
    """A text file of made-up words and a vocabulary for it."""
    draw = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = sorted({"".join(draw.choice(letters, size)) for size in draw.integers(2, 9, 20_000)} - set(letters))
    pieces = [*SPECIAL_PIECES, *words[:15_000], ".", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    path = folder / f"{megabytes}.txt"
    with open(path, "w") as file:
        while file.tell() < megabytes * 10**6:
            sentences = [" ".join(some).capitalize() + "." for some in draw.choice(words, (2000, 14)).tolist()]
            cuts = np.sort(draw.choice(2000, 100, replace=False))
            file.write("\n\n".join(" ".join(sentences[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)) + "\n\n")
    return path


def _resident(process: int) -> int:
    """Resident bytes of a process and all below it."""
    try:
        children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
        own = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return own + sum(_resident(int(child)) for child in children)


def most_memory(text: pathlib.Path, out: pathlib.Path, *more: str) -> int:
    """The most resident bytes, summed over its processes, of a prepare with two workers."""
    line = [sys.executable, "-m", "spanjax.prepare", "--input", str(text), "--output", str(out), "--workers", "2"]
    process = subprocess.Popen([*line, "--vocab", str(text.parent / "vocab.txt"), *more], cwd=ROOT)
    most = 0
    while process.poll() is None:
        most = max(most, _resident(process.pid))
        time.sleep(0.02)
    assert process.returncode == 0
    return most


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path: pathlib.Path) -> None:
    line = ("--portion", "1000000", "--holdout", "0.1", "--deduplicate")
    small, large = (
        most_memory(write_corpus(tmp_path, size), tmp_path / f"out{size}", *line) / 1e6 for size in (15, 75)
    )
    print(f"most memory: {small:.0f} MB for 15 MB of text, {large:.0f} MB for 75 MB")
    assert large < small + 40 and large < 900
