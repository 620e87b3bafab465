"""A SLURM of this machine's own programs for as long as a test takes: two nodes, on loopback, in a folder of its own.

It disturbs no SLURM that the machine belongs to: ports, configuration, munge's socket and its key are its own. The names of the
nodes are in a hosts file that its daemons alone see, in mount namespaces of their own.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from spanjax.launch.processes import free_port
from tests.running import environment

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "scontrol", "scancel", "srun", "unshare", "setpriv", "mount")
NODES = ("spx1", "spx2")
PENDING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
RUNNING = ("CONFIGURING", "RUNNING", "COMPLETING", "PREEMPTED", "SUSPENDED")
START_SECONDS, COMMAND_SECONDS, END_SECONDS = 60.0, 60.0, 15.0
# cred_expire is also how long a job waits that was queued again: 120 s if nobody says another number.
# sched/builtin tries the queue again every sched_interval seconds, 60 if nobody says another number.
CONFIGURATION = """\
ClusterName=spanjax-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=1
SlurmdTimeout=60
SlurmctldDebug=debug
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports} CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """The reason why this machine cannot start a SLURM for a test; empty where it can."""
    absent = [name for name in (*DAEMONS, *COMMANDS) if not program(name)]
    if absent:
        return f"{', '.join(absent)} missing: install the packages slurm-wlm and munge"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "no mount namespaces, in which the daemons see a hosts file with the names of the nodes: run as root"
    return ""


def program(name: str) -> str | None:
    """Where a program is; daemons lie in folders that PATH of a user may lack."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def configuration(folder: pathlib.Path, host: str, port: int, first_node_port: int, user: str = "root") -> str:
    """slurm.conf of the cluster in this folder."""
    return CONFIGURATION.format(
        folder=folder,
        host=host,
        port=port,
        user=user,
        nodes=f"spx[1-{len(NODES)}]",
        node_ports=f"[{first_node_port}-{first_node_port + len(NODES) - 1}]",
    )


def parsed(text: str) -> dict[str, str]:
    """What `scontrol show job` printed, "JobState=RUNNING Restarts=1 ...", by name."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", text))


class Job:
    """A batch job."""

    def __init__(self, cluster: "Cluster", number: int, folder: pathlib.Path):
        self.cluster, self.number, self.folder = cluster, number, folder

    def shown(self) -> dict[str, str]:
        """What SLURM says of it."""
        return parsed(self.cluster.run("scontrol", "show", "job", str(self.number)))

    def output(self) -> str:
        """What all its goes have printed so far."""
        return "".join(path.read_text(errors="replace") for path in self.folder.glob(f"*-{self.number}.out"))

    def restarts(self) -> int:
        """How often SLURM has started it again."""
        return int(self.shown()["Restarts"])

    def tasks(self, rank: int | None = None) -> list[int]:
        """Ids of the processes that train, of one rank or of all, in the order of their ranks."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if b"spanjax.train" not in command or not command[0].rpartition(b"/")[2].startswith(b"python"):
                    continue
                pairs = (pair.partition(b"=") for pair in (folder / "environ").read_bytes().split(b"\0"))
                own = {name: value.decode() for name, _, value in pairs if name in (b"SLURM_JOB_ID", b"SLURM_PROCID")}
                if own.get(b"SLURM_JOB_ID") == str(self.number):
                    found[int(own.get(b"SLURM_PROCID", "-1"))] = int(folder.name)
        return [found[each] for each in sorted(found) if rank in (None, each)]

    def over(self) -> bool:
        """True if SLURM neither runs it nor has it in the queue."""
        return self.shown()["JobState"] not in (*PENDING, *RUNNING)

    def described(self) -> str:
        """What SLURM says of it, and the end of what it printed."""
        return f"{self.shown()}\n{self.output()[-6000:]}"

    def wait(self, condition: Callable[[], object], seconds: float, what: str = "") -> None:
        """Waits for it; TimeoutError with what was printed."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"{what or 'nothing'} within {seconds:.0f} s: {self.described()}")
            time.sleep(0.1)

    def ended(self, seconds: float) -> dict[str, str]:
        """What SLURM says of it when it neither runs nor waits any more."""
        self.wait(self.over, seconds, "the job did not end")
        return self.shown()


class Cluster:
    """The daemons, inside of a `with` block."""

    def __init__(self, folder: pathlib.Path):
        """`folder` is made; everything that they write lies there."""
        self.folder, self.daemons = folder, list[subprocess.Popen[bytes]]()
        self.file = folder / "slurm.conf"

    def variables(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Environment of the commands and of jobs: none of another SLURM's variables."""
        own = {"SLURM_CONF": str(self.file), **(more or {})}
        kept = {name: value for name, value in environment(1).items() if not name.startswith(("SLURM", "SBATCH"))}
        return {**kept, **own}

    def __enter__(self) -> "Cluster":
        (self.folder / "munge").mkdir(parents=True)
        (self.folder / "state").mkdir()
        (self.folder / "plugstack.conf").touch()  # the one of the machine's own SLURM may name plugins
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        names = pathlib.Path("/etc/hosts").read_text() if os.path.exists("/etc/hosts") else ""
        (self.folder / "hosts").write_text(f"{names}\n127.0.0.1 {' '.join(NODES)}\n")
        port = free_ports(1 + len(NODES))
        self.file.write_text(configuration(self.folder, socket.gethostname(), port, port + 1))
        try:
            self._start()
            self._wait_for_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        munge = self.folder / "munge"
        paths = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        # --force: munged otherwise wants the folders above its socket open to everybody, which those of a test are not
        self._daemon("munged", "--foreground", "--force", *(f"--{name}={munge / path}" for name, path in paths.items()))
        self._until((munge / "socket").exists)
        self._daemon("slurmctld", "-D", "-i", "-f", str(self.file))
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node, "-f", str(self.file))

    def _daemon(self, name: str, *words: str) -> None:
        """Starts one in a mount namespace where /etc/hosts has the names of the nodes; it ends with this process."""
        # every program takes the place of the one before, so the daemon has the id that Popen knows
        script = f'mount --bind "{self.folder}/hosts" /etc/hosts && exec setpriv --pdeathsig TERM "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, name, str(program(name)), *words]
        with (self.folder / f"{name}.out").open("ab") as output:
            started = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=self.variables()
            )
        self.daemons.append(started)

    def _until(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > until or any(daemon.poll() is not None for daemon in self.daemons):
                raise TimeoutError("SLURM did not start:\n" + self.printed())
            time.sleep(0.1)

    def _wait_for_nodes(self) -> None:
        def idle() -> bool:
            command = [str(program("scontrol")), "show", "nodes", "--oneliner"]
            done = subprocess.run(command, capture_output=True, text=True, env=self.variables(), check=False)
            return done.stdout.count("State=IDLE ") == len(NODES)

        self._until(idle)

    def printed(self) -> str:
        """The ends of what the daemons have written."""
        files = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in files)

    def __exit__(self, *_: object) -> None:
        if len(self.daemons) > 1:
            with contextlib.suppress(Exception):
                self.run("scancel", "--user=root", "--signal=KILL", "--full")
                self.run("scancel", "--user=root")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons.clear()
        self._kill_steps()

    def _kill_steps(self) -> None:
        """Kills what the jobs still have: slurmstepd and the tasks outlive slurmd."""
        mark = f"SLURM_CONF={self.file}".encode()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if folder.name != str(os.getpid()) and mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)

    def run(self, name: str, *words: str) -> str:
        """What one of SLURM's commands printed; AssertionError with its message where it failed."""
        done = subprocess.run(
            [str(program(name)), *words],
            capture_output=True,
            text=True,
            env=self.variables(),
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{name} {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, script: pathlib.Path, more: Mapping[str, str] | None = None, *words: str) -> Job:
        """Submits a script from its folder, where its output goes too, with these variables."""
        done = subprocess.run(
            [str(program("sbatch")), "--parsable", *words, script.name],
            capture_output=True,
            text=True,
            env=self.variables(more),
            cwd=script.parent,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Job(self, int(done.stdout.split(";")[0]), script.parent)


def written(folder: pathlib.Path, settings: Sequence[str], train: Sequence[str]) -> pathlib.Path:
    """The script that `python -m spanjax.launch slurm` writes into the folder, with these settings."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.sbatch"
    command = [sys.executable, "-m", "spanjax.launch", "slurm", "--output", str(file), *settings, "--", *train]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(1), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return file
