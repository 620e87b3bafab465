"""`spanjax serve` in a process of its own: its address, an answer, and a clean end by both signals."""

import json
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from spanjax.serve import main
from spanjax.serve.server import opened
from tests.running import ROOT, environment
from tests.serve.test_server import predict, request
from tests.test_security import listening


def begin(model: pathlib.Path, *more: str) -> tuple[subprocess.Popen, str]:
    """Starts the command on a free port; returns it with the address that it prints."""
    command = [sys.executable, "-m", "spanjax", "serve", str(model), "--port", "0", *more]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=ROOT, env=environment(1), text=True, **pipes)
    assert process.stdout and process.stderr
    line, until = "", time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None and not line:
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        line = process.stdout.readline() if ready else ""
    found = re.fullmatch(rf"{re.escape(str(model))}: open (http://\S+/) in a browser; Ctrl-C stops\n", line)
    if not found:
        process.kill()
        raise AssertionError((line, *process.communicate()))
    return process, found[1]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_pretrained_run(run_folder: pathlib.Path, number: signal.Signals) -> None:
    process, url = begin(run_folder)
    body = json.dumps({"text": "the long time was good", "hide": [[4, 13]]}).encode()
    status, text = predict(url, body)
    (span,) = json.loads(text)["spans"]
    assert listening(process.pid) == {"127.0.0.1"}
    assert status == 200 and span["fills"].keys() == {"mlm", "sbo", "both"} and url.startswith("http://127.0.0.1:")
    page = request(url, "GET", "/")[2]
    assert json.loads(re.findall(r'id="settings">(.*?)</script>', page)[0])["kind"] == "fill"
    # the program of the guide, which asks the address that it names
    guide = (ROOT / "docs" / "howto" / "playground.md").read_text()
    program = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0].replace("http://127.0.0.1:8000/", url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert url in program and done.returncode == 0 and done.stdout.strip(), done.stderr
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output, error) == (0, "stopped\n", "")


def test_a_fine_tuned_run_for_the_network(tuned_folder: pathlib.Path) -> None:
    """The warning, and pages of other hosts; a signal with an idle connection, as browsers keep them, still ends it."""
    process, url = begin(tuned_folder, "--host", "0.0.0.0")
    url = f"http://127.0.0.1:{url.rpartition(':')[2]}"
    status, text = predict(url, b'{"sentence1": "the old clock"}')
    assert status == 200 and json.loads(text)["prediction"] in ("no", "yes")
    assert request(url, "GET", "/", headers={"Host": "evil.example"})[0] == 403
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2][:-1]))):
        process.send_signal(signal.SIGTERM)
        output, error = process.communicate(timeout=60)
    assert process.returncode == 0 and output == "stopped\n"
    assert "warning: --host 0.0.0.0 opens this page to every machine" in error and "without authentication" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port is 70000: expected at least 0 and at most 65,535"),
        (["--host", ""], "--host is empty: give an address of this machine"),
        (["--port", "BUSY"], "Address already in use): give another --port (0 takes a free one)"),
        (["--host", "no.such.host.invalid"], "give an address of this machine as --host"),
        (["--port", "0"], "no-model does not exist: expected a run directory"),
    ],
)
def test_wrong_input(words: Sequence[str], message: str, capsys: pytest.CaptureFixture) -> None:
    with opened("127.0.0.1", 0) as server:
        assert main(["no-model", *(word.replace("BUSY", str(server.server_port)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("spanjax.serve: cannot serve no-model:\n") and message in error
