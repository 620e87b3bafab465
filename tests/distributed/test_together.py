"""Real processes on CPU: those that do not come are named, at the start and at every barrier; and the meeting's manners."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from spanjax import distributed
from spanjax.cli import PROCESSES_MISSING
from spanjax.distributed import ProcessesMissing, meeting
from spanjax.distributed.meeting import (
    GREETING,
    attend,
    is_local,
    join_address,
    listen,
    name_processes,
    receive,
    split_address,
)
from spanjax.launch.processes import free_port
from tests.running import ROOT, begin_group, begin_together, environment, finish, shrunk, start, wait_until

PROGRAM = """
import sys
from spanjax import distributed
try:
    distributed.start()
{body}
except (ValueError, distributed.ProcessesMissing) as error:
    print("said:", error, flush=True)
    distributed.abort_process(3)
    sys.exit(3)
"""


def begin(count: int, ids: list[int], body: str = "", **more: str) -> list[subprocess.Popen]:
    """These processes of a run of `count`; the body is run after the start."""
    program = PROGRAM.format(body="\n".join("    " + line for line in body.splitlines()))
    return begin_group([sys.executable, "-c", program], ids, count, more=more)


def end(processes: list[subprocess.Popen], codes: list[int]) -> list[str]:
    """What each printed, their exit codes checked."""
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == codes, said
    return said


@pytest.mark.slow
def test_two_of_three_name_the_third() -> None:
    began = time.monotonic()
    for text in end(begin(3, [0, 1], SPANJAX_STARTUP_TIMEOUT="4"), [3, 3]):
        assert "2 of 3 processes started within 4 s; missing: process 2." in text
    assert time.monotonic() - began < 60


def test_without_process_0() -> None:
    (text,) = end(begin(2, [1], SPANJAX_STARTUP_TIMEOUT="2"), [3])
    assert "process 0 did not answer at 127.0.0.1:" in text and "within 2 s" in text


BODY = """
import jax, time
assert jax.process_count() == 3
me = jax.process_index()
assert distributed.all_gather_text("names", f"{me}") == ["0", "1", "2"]
for turn in range(3):
    distributed.barrier("again")
    assert distributed.any_process(me == turn) and not distributed.any_process(False)
try:
    distributed.collective_call("rows", lambda: int("x" if me == 1 else "1"))
    raise AssertionError
except ValueError as error:
    assert "process 1 (" in str(error) and "invalid literal" in str(error), error
assert distributed.collective_call("rows", lambda: me) == me
print("agreed", flush=True)
if me == 2:
    time.sleep(8)
distributed.barrier("the late one", timeout_s=3)
"""


def test_agreement_and_the_late_one_is_named() -> None:
    host = socket.gethostname()
    first, second, late = begin(3, [0, 1, 2], BODY)
    for text in end([first, second], [3, 3]):
        assert "agreed" in text
        assert f"said: barrier 'the late one': process 2 ({host}) did not come within 3 s" in text
    text, _ = late.communicate(timeout=120)
    assert late.returncode != 0 and "agreed" in text


STOPPING = """
import jax, os, signal, time
from spanjax.training.preemption import StopRequest
me = jax.process_index()
for when, number in ((0, signal.SIGTERM), (30, signal.SIGUSR1)):
    if me == 1 and not when:
        os.kill(os.getpid(), number)  # before the loop: jax's preemption service takes it
    time.sleep(0.5)
    with StopRequest(0) as stop:
        for step in range(1, 10_000):
            time.sleep(0.005 * (1 + me))
            if me == 2 and step == when:
                os.kill(os.getpid(), number)
            if stop.requested():
                break
    print("stopped after", step, flush=True)
    if not when:
        distributed.barrier("the next signal")
        preemption.preempted = lambda step: False  # it stays reached
"""


@pytest.mark.slow
def test_all_stop_after_the_same_step() -> None:
    """A signal before the loop, by jax's preemption service; another one within it, by ours."""
    body = STOPPING.replace("import jax, os", "from spanjax.training import preemption\nimport jax, os", 1)
    said = end(begin(3, [0, 1, 2], body), [0, 0, 0])
    steps = [[int(line.split()[-1]) for line in text.splitlines() if line.startswith("stopped after")] for text in said]
    assert steps[0] == steps[1] == steps[2] and len(steps[0]) == 2
    assert steps[0][0] < 10_000 and 30 < steps[0][1] < 10_000 - 1


@pytest.mark.slow
def test_a_wrong_number_of_devices_ends_all() -> None:
    for text in end(begin(2, [0, 1], SPANJAX_EXPECTED_DEVICES="4"), [3, 3]):
        assert "jax sees 2 device(s) on 2 process(es), expected 4" in text


def test_one_process_agrees_with_itself() -> None:
    assert distributed.any_process(True) and not distributed.any_process(False)
    assert distributed.all_gather_text("names", "me") == ["me"] and distributed.abort_process(2) == 2
    distributed.barrier("alone")
    with pytest.raises(ValueError, match="invalid literal"):
        distributed.collective_call("alone", lambda: int("x"))


def greeting(each: int, count: int, **more: Any) -> dict[str, Any]:
    """What a process says."""
    return {"greeting": GREETING, "process": each, "processes": count, "host": f"h{each}", "jax": "1", **more}


def meet(others: list[dict[str, Any]], count: int, timeout: float = 10.0) -> list[Any]:
    """Process 0 and others as threads: what each got, or its error."""
    port, results = free_port(), {}
    server, address = listen(f"localhost:{port}", "", time.monotonic())
    assert address == f"127.0.0.1:{port}" and server.getsockname()[0] == "127.0.0.1"

    def run(place: int, work: Any) -> None:
        try:
            results[place] = work()
        except (ValueError, ProcessesMissing) as error:
            results[place] = error

    works: list[Any] = [lambda: receive(server, greeting(0, count), {1: "named"}, timeout)]
    works += [lambda said=said: attend(address, said, timeout) for said in others]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    with server, socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [results[place] for place in range(len(works))]


def test_all_come_and_strangers_do_no_harm() -> None:
    assert meet([greeting(2, 3), greeting(1, 3)], 3) == [{0: "h0", 1: "h1", 2: "h2"}] * 3


@pytest.mark.parametrize(
    ("others", "kind", "words"),
    [
        ([greeting(2, 3)], ProcessesMissing, "missing: process 1 (named)."),
        ([greeting(1, 4), greeting(2, 3)], ValueError, "process 1 (h1) says processes = 4, process 0 (h0) 3"),
        ([greeting(1, 3, jax="2"), greeting(2, 3)], ValueError, "says jax = '2', process 0 (h0) '1'"),
    ],
)
def test_all_that_came_hear_the_same(others: list[dict[str, Any]], kind: type, words: str) -> None:
    for said in meet(others, 3, timeout=1.0):
        assert type(said) is kind and words in str(said), said


def test_an_id_twice_is_refused() -> None:
    said = meet([greeting(1, 3, host="a"), greeting(1, 3, host="b")], 3)
    assert all("two processes say that they are process 1: on " in str(each) for each in said)


def test_a_taken_port_is_told() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of the coordinator is taken"):
            listen(f"127.0.0.1:{port}", "", time.monotonic())


def test_a_name_that_leads_nowhere_here_listens_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_resolved", lambda host, port: [])
    port = free_port()
    server, address = listen(f"service.cluster:{port}", "", time.monotonic())
    with server, socket.create_connection(("127.0.0.1", port), timeout=5):
        assert address in (f"[::]:{port}", f"0.0.0.0:{port}")
    server, address = listen(f"service.cluster:{port}", f"127.0.0.1:{port}", time.monotonic())
    with server:
        assert address == f"127.0.0.1:{port}"
    with pytest.raises(ValueError, match="this host cannot listen on 192.0.2.1"):
        listen(f"service.cluster:{port}", f"192.0.2.1:{port}", time.monotonic())


def test_names_and_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80) and join_address("::1", 80) == "[::1]:80"
    assert is_local("127.0.1.1") and is_local("localhost") and not is_local("10.0.0.1")
    assert name_processes([3, 7, 8], {3: "b"}) == "process 3 (b), process 7 and process 8"
    assert name_processes(list(range(30)), {}, most=2) == "process 0, process 1 and 28 more"
    assert json.loads(json.dumps(greeting(1, 2)))["greeting"] == GREETING


@pytest.mark.slow
def test_rows_that_one_host_does_not_have_end_all(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    address, folders = f"127.0.0.1:{free_port()}", [rows_folder, tmp_path / "nowhere"]
    common = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    pair = [
        start(
            shrunk("configs/pretrain/demo.py", folder, tmp_path / "run", 3, "--data.feed=numpy"),
            env=environment(1, **common, JAX_PROCESS_ID=str(each)),
        )
        for each, folder in enumerate(folders)
    ]
    for text in end(pair, [2, 2]):
        assert f"spanjax.train: process 1 ({socket.gethostname()}): data.rows {tmp_path / 'nowhere'}" in text


MANY = 32
RENDEZVOUS = f"""
import sys
from spanjax.distributed import meeting
address, me = sys.argv[1], int(sys.argv[2])
ours = {{"greeting": meeting.GREETING, "process": me, "processes": {MANY}, "host": f"node{{me:02d}}", "jax": "1", "token": "t"}}
try:
    if me:
        roster = meeting.attend(address, ours, float(sys.argv[3]))
    else:
        server, _ = meeting.listen(address, "", 1e9)
        roster = meeting.receive(server, ours, {{}}, float(sys.argv[3]))
    assert roster == {{each: f"node{{each:02d}}" for each in range({MANY})}}, roster
    print("all")
except meeting.ProcessesMissing as error:
    print(error)
assert not {{"jax", "numpy"}} & sys.modules.keys()
"""


def rendezvous(ids: list[int], seconds: float) -> list[str]:
    """What each of these processes of a run of 32 printed; process 0 starts last."""
    address = f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    started = [
        subprocess.Popen([sys.executable, "-c", RENDEZVOUS, address, str(each), str(seconds)], **options)
        for each in sorted(ids, reverse=True)
    ]
    try:
        return [process.communicate(timeout=120)[0].strip() for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_32_processes_without_jax_find_each_other() -> None:
    assert rendezvous([*range(MANY)], 100.0) == ["all"] * MANY


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_31_of_32_processes_name_the_last_one() -> None:
    """All of them hear it, at the time limit of process 0."""
    for text in rendezvous([each for each in range(MANY) if each != 17], 20.0):
        assert f"{MANY - 1} of {MANY} processes started within 20 s; missing: process 17." in text


def test_32_threads_find_each_other() -> None:
    """The same in a second: every one hears of all."""
    met = meet([greeting(each, MANY) for each in range(1, MANY)], MANY)
    assert met == [{each: f"h{each}" for each in range(MANY)}] * MANY


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_8_processes_start_and_train_twice(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """From their first imports to the last line; the second time while twice as many others as cores keep them busy."""
    burning = [sys.executable, "-c", "while True: pass"]
    for load in (0, 2 * (os.cpu_count() or 1)):
        arguments = shrunk(
            "configs/pretrain/demo.py", rows_folder, tmp_path / f"run{load}", 3, "--batch-size=8", "--data.feed=tf"
        )
        others = [subprocess.Popen(burning) for _ in range(load)]
        try:
            printed = [finish(process, timeout=600) for process in begin_together(8, arguments)]
        finally:
            for other in others:
                other.kill()
                other.wait()
        assert "8 x cpu, 8 processes (data 8)" in printed[0] and "finished: 3 steps" in printed[0], printed[0]
        assert not any("Traceback" in text for text in printed), printed


HELD = """
import os, pathlib, sys, time
from spanjax import train
from spanjax.training.checkpoint import Checkpoints
if os.environ["JAX_PROCESS_ID"] == "1":
    def finish(self):
        if self.pending():
            pathlib.Path(os.environ["MARK"]).touch()
            time.sleep(600)
    Checkpoints.finish = finish
train.end(train.main())
"""
"""The second process saves for ever, and the first one waits for it."""


@pytest.mark.slow
def test_a_process_that_is_killed_in_a_save_is_named(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The other one ends with a message and the code of a lost process before jax aborts it."""
    words = shrunk("configs/pretrain/tiny.py", rows_folder, tmp_path / "run", 4, "--data.feed=numpy")
    mark = tmp_path / "held"
    processes = begin_group([sys.executable, "-c", HELD, *words], range(2), more={"MARK": str(mark)})
    assert wait_until(processes, mark.exists, 280)
    processes[1].kill()
    processes[1].communicate()
    printed = finish(processes[0], PROCESSES_MISSING)
    assert "process 1 (" in printed and "this process saves and waits for it; the run ends" in printed, printed
    assert "Fatal Python error" not in printed
