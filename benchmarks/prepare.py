"""python -m benchmarks.prepare [--check] [--json FILE]: `spanjax.prepare` beside Hugging Face's `datasets` and `tokenizers`.

Both turn the same JSON lines (Wikipedia, repeated to --megabytes) into rows of 512, each as a command on one core, by turns, into
folders on the same disk; imports and writing count. --memory makes --small and --large megabytes of text instead, and
prepares each once on all cores: peak memory of all processes together, and the speed of each third. Asked for: twice the peer's
megabytes a second; 100 MB more memory at most for ten times the text; the last third within 10 % of the first.
"""

import argparse
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from benchmarks import timing

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("SPANJAX_DATA", ROOT.parent / "shared" / "data"))
SECOND = 0.5  # between looks at the memory of all processes


def documents() -> Iterator[str]:
    """Texts of Wikipedia's articles, again and again; from the second round on with the round's number, so that none is equal."""
    texts: list[str] = []
    for file in sorted((DATA / "wiki").glob("train-*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    if not texts:
        raise SystemExit(f"no text: {DATA}/wiki/train-*.jsonl.gz is missing; give its parent as SPANJAX_DATA")
    yield from texts
    number = 1
    while True:
        yield from (f"{number} {text}" for text in texts)
        number += 1


def write_text(file: pathlib.Path, megabytes: float) -> float:
    """Writes JSON lines of about this size; returns the megabytes written."""
    size = 0
    with file.open("w", encoding="utf-8") as lines:
        for text in documents():
            if size >= megabytes * 1e6:
                break
            size += len(line := json.dumps({"text": text}, ensure_ascii=False) + "\n")
            lines.write(line)
    return file.stat().st_size / 1e6


def command(source: pathlib.Path, vocabulary: pathlib.Path, output: pathlib.Path, workers: int) -> list[str]:
    """The command of spanjax."""
    files = ["--input", str(source), "--vocab", str(vocabulary), "--output", str(output)]
    return [sys.executable, "-m", "spanjax.prepare", *files, "--length=512", f"--workers={workers}", "--overwrite"]


def on_one_core(words: list[str], output: pathlib.Path, core: int) -> Callable[[], None]:
    """Runs a command on one core, after removing what it wrote before."""

    def run() -> None:
        for folder in (output, pathlib.Path(f"{output}.cache")):
            shutil.rmtree(folder, ignore_errors=True)
        only = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "HF_DATASETS_OFFLINE": "1"}
        subprocess.run(["taskset", "-c", str(core), *words], check=True, cwd=ROOT, env=only, capture_output=True)

    return run


def memory_of_tree(process: int) -> float:
    """Megabytes that a process and all below it use alone or share by halves (PSS)."""
    total, waiting = 0.0, [process]
    while waiting:
        each = waiting.pop()
        try:
            text = pathlib.Path(f"/proc/{each}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1e3
            for task in pathlib.Path(f"/proc/{each}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, StopIteration):
            continue  # it has ended meanwhile
    return total


def watched(words: list[str], progress: Callable[[], int]) -> tuple[float, list[tuple[float, int]]]:
    """Runs a command: (its peak memory in megabytes, [(seconds since its start, progress)])."""
    peak, seen, begin = 0.0, [(0.0, 0)], time.monotonic()
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, memory_of_tree(process.pid))
            if (done := progress()) > seen[-1][1]:
                seen.append((time.monotonic() - begin, done))
            time.sleep(SECOND)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return peak, seen


def third_speeds(seen: list[tuple[float, int]]) -> tuple[float, float]:
    """Progress a second in the first and in the last third of what was done."""
    total = seen[-1][1]
    one = min(seen, key=lambda each: abs(each[1] - total / 3))
    two = min(seen, key=lambda each: abs(each[1] - total * 2 / 3))
    start = seen[1] if seen[1][1] < one[1] else seen[0]  # imports are no work
    return (one[1] - start[1]) / (one[0] - start[0]), (total - two[1]) / (seen[-1][0] - two[0])


def grown_memory(found: argparse.Namespace, folder: pathlib.Path, vocabulary: pathlib.Path) -> int:
    """Prepares the small and the large text; the exit code."""
    figures, peaks = {}, []
    targets: list[timing.Target] = []
    for megabytes in (found.small, found.large):
        source, output = folder / f"{megabytes:.0f}.jsonl", folder / "rows"
        size, unfinished = write_text(source, megabytes), folder / ".rows.unfinished"

        def shards(unfinished: pathlib.Path = unfinished, output: pathlib.Path = output) -> int:
            return len([*unfinished.rglob("rows-*.bin"), *output.rglob("rows-*.bin")])

        peak, seen = watched(command(source, vocabulary, output, found.cores), shards)
        first, last = third_speeds(seen)
        peaks.append(peak)
        figures[f"{megabytes:.0f} MB"] = {
            "megabytes": size,
            "seconds": seen[-1][0],
            "peak": peak,
            "thirds": (first, last),
        }
        print(f"{size:8,.0f} MB in {seen[-1][0]:7.1f} s, peak {peak:7.1f} MB, last third over first {last / first:.2f}")
        targets = [timing.Target("speed of the last third over the first", last / first, least=0.9)]
        shutil.rmtree(output)
        source.unlink()
    targets.append(timing.Target("MB more at the peak for the large text", peaks[1] - peaks[0], most=100.0))
    return timing.report(figures, targets, found)


def main() -> int:
    """Runs everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--megabytes", type=float, default=60.0, help="of JSON lines that both read")
    more.add_argument("--memory", action="store_true", help="measure memory of a small and a large text instead")
    more.add_argument("--small", type=float, default=300.0, help="megabytes of the small text")
    more.add_argument("--large", type=float, default=3000.0, help="megabytes of the large text")
    found = timing.options(__doc__ or "", more)
    vocabulary = DATA / "vocab" / "bert-base-cased-vocab.txt"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if found.memory:
            return grown_memory(found, folder, vocabulary)
        source = folder / "text.jsonl"
        size, core = write_text(source, found.megabytes), min(os.sched_getaffinity(0))
        peer = [
            sys.executable,
            "-m",
            "benchmarks.hf_prepare",
            str(source),
            str(vocabulary),
            str(folder / "theirs"),
            "1",
        ]
        contenders = {
            "spanjax": on_one_core(command(source, vocabulary, folder / "ours", 1), folder / "ours", core),
            "datasets and tokenizers": on_one_core(peer, folder / "theirs", core),
        }
        seconds = timing.alternating(contenders, found.repeats)
    speeds = timing.rates(dict.fromkeys(contenders, size), seconds)
    for each, speed in speeds.items():
        print(f"{each:26s}{speed['median']:6.2f} MB/s a core ({speed['lowest']:.2f} to {speed['highest']:.2f})")
    ratio = speeds["spanjax"]["median"] / speeds["datasets and tokenizers"]["median"]
    targets = [timing.Target("MB/s a core over datasets and tokenizers", ratio, least=2.0)]
    return timing.report({"megabytes": size, "seconds": seconds, "rates": speeds}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
