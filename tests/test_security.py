"""What comes from outside runs no code, and names no file outside of its folder; nothing listens beyond this machine."""

import ast
import contextlib
import ipaddress
import json
import os
import pathlib
import pickle
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from spanjax import run_format
from spanjax.convert import main as convert
from spanjax.data.feed.rows import open_rows
from spanjax.data.shards.record_file import load_array
from spanjax.data.vocab.loading import save_vocabulary, vocabulary_from_files
from spanjax.evaluate import main as evaluate
from spanjax.predict import main as predict
from spanjax.prepare import main as prepare
from spanjax.pretrained.load import load_model
from spanjax.report import main as report
from spanjax.storage.local import is_file_name
from spanjax.torch_format.folder import read_folder
from spanjax.training.checkpoint_files import damage
from tests.running import ROOT, begin_group, begin_together, environment, finish, shrunk
from tests.test_architecture import Module, read_tree, write_tree

FORBIDDEN = frozenset(
    {
        *("pickle.load", "pickle.loads", "marshal.load", "marshal.loads", "shelve.open", "dill.load", "dill.loads"),
        *("cloudpickle.load", "cloudpickle.loads", "joblib.load", "pandas.read_pickle", "torch.load"),
        *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec", "compile", "__import__"),
        *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
        *("tempfile.mktemp", "shutil.unpack_archive", "shutil.copytree", "jax.profiler.start_server"),
    }
)
"""Calls that run what is in a file, or write where a file says."""
ATTRIBUTES = frozenset({"extractall", "extract"})
"""Methods of archives that write what an archive names."""
ALLOWED = {
    "pickle.Unpickler": "spanjax.torch_format.unpickling",  # knows the names that weights need, imports and calls none
    ".exec_module": "spanjax.run_format",  # --config and --code are Python, and are run by design
    "socket.create_server": "spanjax.distributed.meeting",  # the only socket that is opened here
}
"""What one module alone may do."""
EXPORTED = "spanjax.torch_format.modeling_spanbert"
"""Source that is copied into exported folders: its `super().from_pretrained` runs where a user has trusted that folder."""
ELSEWHERE = ("../x", "a/../../x", "/etc/hostname", "a/b", "..", ".", "", "a\\b", "a\0b")


def full_names(module: Module) -> dict[str, str]:
    """Local name -> what was imported under it."""
    found = {}
    for node in ast.walk(module.syntax):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name.split(".")[0]: each.name if each.asname else each.name.split(".")[0]
                      for each in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """`np.load` -> numpy.load; what is not a plain name begins with a dot."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    return f"{dotted(node.value, names)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def unsafe(module: Module) -> Iterator[str]:
    """What a module does that it must not, in words."""
    names = full_names(module)
    for node in ast.walk(module.syntax):
        where = f"{module.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, names)
            for what, owner in ALLOWED.items():
                if (name == what or (what[0] == "." and name.endswith(what))) and module.name != owner:
                    yield f"{where} uses {name}: only {owner} may"
            if name in FORBIDDEN:
                yield f"{where} uses {name}"
            if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
                yield f"{where} unpacks an archive"
        if isinstance(node, ast.Call):
            name, given = dotted(node.func, names), {each.arg: ast.unparse(each.value) for each in node.keywords}
            if name == "numpy.load" and given.get("allow_pickle") != "False":
                yield f"{where} calls numpy.load without allow_pickle=False"
            trusted = given.get("trust_remote_code") == "False" or module.name == EXPORTED
            if name.endswith(".from_pretrained") and not trusted:
                yield f"{where} calls from_pretrained without trust_remote_code=False"
            if given.get("shell") == "True" or given.get("allow_pickle") == "True":
                yield f"{where} says shell=True or allow_pickle=True"
        if (
            isinstance(node, ast.Constant)
            and node.value == "0.0.0.0"
            and module.name != ALLOWED["socket.create_server"]
        ):
            yield f"{where} names all interfaces"


def test_nothing_runs_what_it_reads() -> None:
    tree = read_tree(ROOT)
    found = [line for module in tree.values() for line in unsafe(module)]
    assert not found, "\n".join(found)
    assert EXPORTED in tree and not [
        name for name, module in tree.items() if EXPORTED in {i.name for i in module.imports}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.load(open('x', 'rb'))",
        "from pickle import loads as parse\nparse(b'')",
        "import pickle as p\nclass Mine(p.Unpickler): ...",
        "import torch\ntorch.load('x')",
        "import numpy as np\nnp.load('x')",
        "from numpy import load\nload('x', allow_pickle=True)",
        "import yaml\nyaml.load('x')",
        "eval('1')",
        "exec('1')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import tarfile\ntarfile.open('x').extractall()",
        "import zipfile\nwith zipfile.ZipFile('x') as f:\n    f.extract('a')",
        "import tempfile\ntempfile.mktemp()",
        "import shutil\nshutil.copytree('a', 'b')",
        "spec.loader.exec_module(module)",
        "from transformers import AutoModel\nAutoModel.from_pretrained('x')",
        "import socket\nsocket.create_server(('0.0.0.0', 1))",
        "import jax\njax.profiler.start_server(9999)",
    ],
)
def test_what_is_unsafe_is_seen(text: str, tmp_path: pathlib.Path) -> None:
    assert list(unsafe(write_tree(tmp_path, {"made.py": text})["spanjax.made"]))


def test_what_is_safe_is_allowed(tmp_path: pathlib.Path) -> None:
    text = "import re, numpy as np\nre.compile('x')\nnp.load('x', allow_pickle=False)\nre.match('x', 'x')"
    tree = write_tree(tmp_path, {"made.py": text, "run_format.py": "spec.loader.exec_module(module)"})
    assert [line for module in tree.values() for line in unsafe(module)] == []


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return pathlib.Path.touch, (self.path,)


def test_a_hostile_pickle_is_not_run(tmp_path: pathlib.Path, capsys: Any) -> None:
    folder, ran = tmp_path / "weights", tmp_path / "ran"
    folder.mkdir()
    hostile = {"bert.embeddings.word_embeddings.weight": Touch(ran)}
    older = [pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, hostile, [])]
    pickle.loads(older[3])  # it would run
    assert ran.exists()
    ran.unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(hostile, 2))
    newer = (folder / "pytorch_model.bin").read_bytes()
    for content in (newer, b"".join(older), older[3]):
        (folder / "pytorch_model.bin").write_bytes(content)
        for command in (["from-torch", folder, tmp_path / "out"], ["inspect", folder]):
            assert convert([str(word) for word in command]) == 2
            assert "pytorch_model.bin" in capsys.readouterr().err
            assert not ran.exists() and not (tmp_path / "out").exists()


def test_arrays_of_objects_are_refused(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rows = shutil.copytree(rows_folder / "train", tmp_path / "rows")
    opened = open_rows(rows)
    for name in ("unigram.npy", "lengths.npy", "blocks.npy", "documents.npy"):
        whole = (rows / name).read_bytes()
        np.save(rows / name, np.array([Touch(tmp_path / "ran")], dtype=object), allow_pickle=True)
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            load_array(rows / name)
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            (open_rows(rows) if name in ("unigram.npy", "lengths.npy") else opened).block_documents(
                np.array([0]), np.array([1])
            )
        (rows / name).write_bytes(whole)
    assert not (tmp_path / "ran").exists()


def test_file_names() -> None:
    assert [name for name in ELSEWHERE if is_file_name(name)] == [] and not is_file_name(["a"])
    assert is_file_name("rows-00000.bin") and is_file_name("model-00001-of-00002.safetensors")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_manifest_names_no_file_elsewhere(name: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The file that it names is there, and has the right size."""
    rows = pathlib.Path(shutil.copytree(rows_folder / "train", tmp_path / "a" / "rows"))
    manifest = json.loads((rows / "manifest.json").read_text())
    shard = manifest["shards"][0]
    for place in ("x", "a/x"):
        shutil.copy(rows / shard[0], tmp_path / place)
    manifest["shards"][0][0] = name
    (rows / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="a file name without a path"):
        open_rows(rows)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_index_names_no_file_elsewhere(name: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "a" / "weights"
    folder.mkdir(parents=True)
    for place in (tmp_path / "x", tmp_path / "a" / "x"):
        safetensors.numpy.save_file({"t": np.zeros(2, np.float32)}, place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(ValueError, match="outside of its folder"):
        read_folder(folder)


def test_archive_members_are_not_written(tmp_path: pathlib.Path) -> None:
    inside = tmp_path / "a"
    inside.mkdir()
    with zipfile.ZipFile(inside / "model.pt", "w") as archive:
        archive.writestr("../data.pkl", pickle.dumps({"a": 1}, 2))
        archive.writestr("../data/0", b"written")
        archive.writestr("../../escaped", b"written")
    with pytest.raises(ValueError, match=r"model\.pt"):
        read_folder(inside / "model.pt")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "model.pt"]


def test_a_checkpoint_names_no_file_elsewhere(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Names of vocabulary files in its meta become no paths, and neither do those of its checksums."""
    run = pathlib.Path(shutil.copytree(run_folder, tmp_path / "a" / "run"))
    folder = run / "checkpoints" / "2"
    meta = json.loads((folder / "meta" / "metadata").read_text())
    meta["vocabulary"] |= {name: "ZXNjYXBlZA==" for name in ELSEWHERE}
    (folder / "meta" / "metadata").write_text(json.dumps(meta))
    (folder / "checksums.json").unlink()
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(run)}
    model = load_model(run)
    assert model.vocabulary is not None
    assert convert(["to-torch", str(run), str(tmp_path / "a" / "out")]) == 0
    save_vocabulary(vocabulary_from_files(model.vocabulary.files() | {"../x": b"escaped"}), tmp_path / "a" / "saved")
    made = {path for path in tmp_path.rglob("*") if not path.is_relative_to(run)} - before
    assert {path.relative_to(tmp_path / "a").parts[0] for path in made} == {"out", "saved"}
    assert {path.name for path in (tmp_path / "a" / "saved").iterdir()} == set(model.vocabulary.files())
    assert not any(b"escaped" in path.read_bytes() for path in made if path.is_file())
    (folder / "checksums.json").write_text(json.dumps({"/etc/hostname": [1, 1], "../x": [1, 1]}))
    assert "missing files ['../x', '/etc/hostname']" in str(damage(folder))


@pytest.mark.parametrize("kind", ["pretraining", "task"])
def test_a_class_that_a_run_names_is_neither_imported_nor_made(
    kind: str, run_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """By any command that reads runs; without --code, which alone runs a module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(run_format, "CODE", {})
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    ran = tmp_path / "ran"
    (tmp_path / "hostile.py").write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    run = pathlib.Path(shutil.copytree(run_folder, tmp_path / "run"))
    popen = {"class": "Popen", "module": "subprocess", "args": ["touch", str(ran)]}
    own = {"class": "Own", "module": "hostile", "train": [], "dev": [], "masking": popen}
    metadata = run / "checkpoints" / "2" / "meta" / "metadata"
    for file in (run / "run.json", metadata):
        found = json.loads(file.read_text())
        for described in (found, found.get("run", {})):
            described |= {"kind": kind, "objective": popen if kind == "task" else own, "tracking": {"to": [popen, own]}}
        file.write_text(json.dumps(found))
    (run / "checkpoints" / "2" / "checksums.json").unlink()
    for main, words in (
        (evaluate, [run, "--data", run / "run.json"]),
        (predict, ["task", run, "--file", metadata]),
        (predict, ["fill-mask", run, "--text", "[MASK]"]),
        (convert, ["to-torch", run, tmp_path / "out"]),
        (report, [run, "--output", tmp_path / "report.html"]),
    ):
        assert main([str(word) for word in words]) in (0, 2)
        assert not ran.exists() and "hostile" not in sys.modules
    assert "is no class of spanjax" in capsys.readouterr().err + (tmp_path / "report.html").read_text()
    assert convert(["inspect", str(run), "--code=hostile"]) == 0 and ran.exists()


def test_a_vocabulary_folder_names_no_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_text("[PAD]\n")
    with pytest.raises(ValueError, match="expected one of the kinds"):
        vocabulary_from_files({"vocabulary.json": b'{"kind": "../x"}', "../x": b"[PAD]\n"})


def test_arrays_of_a_checkpoint_lie_in_its_folder(tmp_path: pathlib.Path) -> None:
    """TensorStore, which reads and writes them for Orbax, takes no key that leads out."""
    import tensorstore

    store = tensorstore.KvStore.open({"driver": "file", "path": f"{tmp_path}/state/"}).result()
    for key in ("../x", "a/../../x"):
        with pytest.raises(ValueError, match="Invalid key"):
            store.write(key, b"escaped").result()
    assert not (tmp_path / "x").exists()


def test_links_are_not_followed_when_a_folder_is_replaced(
    run_folder: pathlib.Path, corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("precious")
    rows = [
        "--input",
        str(corpus_file),
        "--train-vocab",
        "120",
        "--length",
        "64",
        "--workers",
        "1",
        "--max-documents",
        "20",
    ]
    for name, command in (("hf", ["to-torch", str(run_folder)]), ("rows", [])):
        out = tmp_path / name
        out.mkdir()
        (out / "link").symlink_to(mine)
        work = lambda to, command=command: (  # noqa: E731
            convert([*command, str(to), "--overwrite"])
            if command
            else prepare([*rows, "--output", str(to), "--overwrite"])
        )
        assert work(out) == 2 and "did not write ('link')" in capsys.readouterr().err
        assert (out / "link").is_symlink()
        (out / "link").unlink()
        assert work(out) == 0
        assert (mine / "precious").read_text() == "precious"
        capsys.readouterr()
        (tmp_path / f"to-{name}").symlink_to(mine)
        assert work(tmp_path / f"to-{name}") == 2
        assert f"to-{name} is a link" in capsys.readouterr().err
        assert (tmp_path / f"to-{name}").is_symlink() and (mine / "precious").read_text() == "precious"


def listening(pid: int) -> set[str]:
    """Addresses that a process listens on: the sockets among its open files, looked up in the tables of the kernel."""
    inodes = set()
    with contextlib.suppress(FileNotFoundError):
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(link)))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[place] for place in (1, 3, 9))
            if state == "0A" and inode in inodes:
                words = bytes.fromhex(local.partition(":")[0])
                turned = b"".join(words[place : place + 4][::-1] for place in range(0, len(words), 4))
                address = ipaddress.ip_address(turned)
                found.add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


def test_listening_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)), socket.create_server(("0.0.0.0", 0)):
        assert {"127.0.0.1", "0.0.0.0"} <= listening(os.getpid())
    with socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert "::1" in listening(os.getpid())
    assert "0.0.0.0" not in listening(os.getpid())


PROGRAM = """
import sys
from spanjax import distributed
distributed.start()
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
assert multihost_utils.process_allgather(jnp.arange(2.0)).shape == (2, 2)
print("talked", flush=True)
sys.stdin.readline()
distributed.barrier("end")
"""


def own_address() -> str | None:
    """An address of this machine that is not loopback, where it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        found = probe.getsockname()[0]
        return None if ipaddress.ip_address(found).is_loopback else found
    return None


def named(host: str) -> list[str]:
    """What makes a process see this as the name of its host, where that is allowed; the name leads to its address."""
    words = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
    try:
        done = subprocess.run([*words, "hostname"], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return words if done.stdout.strip() == host else []


@pytest.mark.parametrize("outside", [False, True], ids=["own name", "a name that leads outside"])
def test_processes_of_one_host_listen_on_loopback_alone(outside: bool) -> None:
    """gloo takes the address of the host's name where it is not told another."""
    address = own_address() if outside else None
    wrapper = named(address) if address else []
    if outside and not wrapper:
        pytest.skip("needs an address besides loopback, and unshare(1) to give the process a host name of its own")
    command = [*wrapper, sys.executable, "-c", PROGRAM]
    pair = begin_group(command, range(2), stdin=subprocess.PIPE, stderr=None)
    try:
        for process in pair:
            assert process.stdout is not None and process.stdin is not None
            assert any("talked" in line for line in process.stdout)
        found = [listening(process.pid) for process in pair]
        for process in pair:
            process.stdin.write("\n")  # pyright: ignore[reportOptionalMemberAccess]
            process.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess]
        for process in pair:
            process.communicate(timeout=60)
    finally:
        for process in pair:
            process.kill()
            process.communicate()
    assert [process.returncode for process in pair] == [0, 0]
    assert all(found), "each of them listens, for gloo"
    assert all(ipaddress.ip_address(each).is_loopback for each in set.union(*found)), found


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_run_listens_on_loopback_at_most(count: int, rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """From the start to the end of a real run, with a recorded profile and the feed of TensorFlow. Alone it listens nowhere."""
    words = shrunk(
        "configs/pretrain/demo.py", rows_folder, tmp_path / "run", 6, "--profile.start=2", "--profile.steps=2"
    )
    started = begin_together(count, words)
    found: set[str] = set()
    while all(process.poll() is None for process in started):
        found |= set.union(*(listening(process.pid) for process in started))
        time.sleep(0.05)
    for process in started:
        finish(process)
    assert bool(found) == (count > 1) and all(ipaddress.ip_address(each).is_loopback for each in found), found


def test_beam_stays_in_this_process_where_no_runner_is_named() -> None:
    pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install 'spanjax[beam]'")
    from spanjax.data.shards.beam_runner import IN_PROCESS, with_runner

    assert with_runner(["--job_name=mine"]) == ["--runner", IN_PROCESS, "--job_name=mine"]
    assert with_runner(["--runner=FlinkRunner"]) == ["--runner=FlinkRunner"]


@pytest.mark.slow
def test_prepare_with_beam_listens_nowhere(corpus_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install 'spanjax[beam]'")
    words = ["--input", str(corpus_file), "--train-vocab", "120", "--length", "64", "--output", str(tmp_path / "rows")]
    command = [sys.executable, "-m", "spanjax.prepare", "rows", "--runner", "beam", *words]
    with subprocess.Popen(command, cwd=ROOT, env=environment(1), stdout=subprocess.DEVNULL) as process:
        found: set[str] = set()
        while process.poll() is None:
            found |= listening(process.pid)
            time.sleep(0.05)
    assert process.returncode == 0 and not found, found
