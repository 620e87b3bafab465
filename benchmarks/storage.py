"""python -m benchmarks.storage [--check] [--json FILE]: rows fetched from buckets, beside a plain parallel download.

The rows are 120 MB in eight shards, the buckets moto's S3 and the stand-in for Google Cloud Storage of the tests, each in a
process of its own on this machine; the plain download is a pool of threads with one HTTP connection each that read whole objects
and write them, without checks or with the SHA-256 of the bytes that arrive, which the cache compares as well. All contenders
start with an empty folder; S3 is read with s3fs. The target is half of the rate of the plain download with SHA-256.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks import timing

SHARDS, BYTES = 8, 15_000_000
CONNECTIONS = 8
AUTHORIZATION = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
"""Moto compares no signatures, but serves nothing to anonymous clients."""
SERVER = """
import sys, time
from tests.storage import servers
with servers.serving(sys.argv[1]) as variables:
    print("\\n".join(f"{name}={value}" for name, value in variables.items()), flush=True)
    print("", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def serving(scheme: str) -> Iterator[None]:
    """Runs a server of a scheme in a process of its own and sets its variables here."""
    command = [sys.executable, "-c", SERVER, scheme]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        while line := process.stdout.readline().strip():
            name, _, value = line.partition("=")
            os.environ[name] = value
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(20)


def url(scheme: str, name: str) -> str:
    """The address from which a plain client reads an object."""
    if scheme == "s3":
        return f"{os.environ['AWS_ENDPOINT_URL']}/bucket/rows/{name}"
    return f"{os.environ['STORAGE_EMULATOR_HOST']}/download/storage/v1/b/bucket/o/rows%2F{name}?alt=media"


def plain(scheme: str, names: list[str], folder: pathlib.Path, checksums: dict[str, str] | None = None) -> None:
    """Downloads objects in parallel; with checksums ("sha256:HEX" by name) it compares them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def get(name: str) -> None:
        request = urllib.request.Request(url(scheme, name), headers=AUTHORIZATION if scheme == "s3" else {})
        with urllib.request.urlopen(request) as source, open(folder / name, "wb") as target:
            if checksums is None:
                shutil.copyfileobj(source, target, 2**20)
                return
            digest = hashlib.sha256()
            while data := source.read(2**20):
                digest.update(data)
                target.write(data)
            assert checksums[name] == f"sha256:{digest.hexdigest()}"

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(get, names))


def measure(scheme: str, root: pathlib.Path, repeats: int) -> dict[str, list[float]]:
    """MB per second of every contender."""
    from spanjax.storage.cache import Cache, listed
    from spanjax.storage.checksums import file_checksum
    from spanjax.storage.objects import Place, open_store

    place, checksums = Place.parse(f"{scheme}://bucket/rows"), dict[str, str]()
    for number in range(SHARDS):
        file = root / f"rows-{number:05d}.bin"
        file.write_bytes(os.urandom(BYTES))
        checksums[file.name] = file_checksum(file, "sha256")
        open_store(place).upload(file, place / file.name)
    cache, copy = root / f"cache-{scheme}", root / f"plain-{scheme}"

    def cached() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        # as `spanjax.data.shards.remote` fetches shards
        Cache(cache).fetch(place, [each._replace(flush=False) for each in listed(place, checksums)])

    contenders = {
        "cache": cached,
        "plain": lambda: plain(scheme, sorted(checksums), copy),
        "plain with SHA-256": lambda: plain(scheme, sorted(checksums), copy, checksums),
    }
    seconds = timing.alternating(contenders, repeats)
    return {name: [SHARDS * BYTES / 1e6 / each for each in times] for name, times in seconds.items()}


def main() -> int:
    """Runs everything; the exit code."""
    found = timing.options(__doc__ or "")
    timing.pin(found.cores)
    figures, targets = dict[str, dict[str, list[float]]](), list[timing.Target]()
    for scheme in ("s3", "gs"):
        with tempfile.TemporaryDirectory() as folder, serving(scheme):
            figures[scheme] = measure(scheme, pathlib.Path(folder), found.repeats)
        rates = {name: statistics.median(values) for name, values in figures[scheme].items()}
        print(f"{scheme}: " + ", ".join(f"{name} {rate:.0f} MB/s" for name, rate in rates.items()))
        share = rates["cache"] / rates["plain with SHA-256"]
        targets.append(timing.Target(f"{scheme}: share of the plain rate with SHA-256", share, least=0.5))
    return timing.report({"MB a second": figures}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
