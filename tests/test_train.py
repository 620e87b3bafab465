"""The command line: dry run, refusals, metrics on disk, a full disk."""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from typing import Any

import pytest

from spanjax import train
from spanjax.data.feed.masking import Stage, Staged, TaggedSpans, WholeWords
from spanjax.data.feed.rows import open_rows
from spanjax.experiment import session as sessions
from spanjax.experiment.pretrain import open_pretraining_session
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.prepare import main as prepare
from spanjax.run import Run, load, with_defaults
from spanjax.run_format import describe, differences
from spanjax.tasks.glue import Glue
from spanjax.training import metrics
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW
from spanjax.training.preemption import StopRequest
from spanjax.training.workdir import claim_workdir
from tests.made import made_documents
from tests.running import ROOT, begin_together, environment, last_step, records, shrunk, wait_until
from tests.test_resume import assert_same_state

DEMO = "configs/pretrain/demo.py"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def refused(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    assert train.main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and captured.err.startswith("spanjax.train: ")
    return captured.err


def test_a_file_that_the_system_refuses_is_one_message(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device", "runs/summary.json")

    monkeypatch.setattr(train, "train", full)
    assert refused([f"--config={DEMO}"], capsys) == "spanjax.train: No space left on device (runs/summary.json)\n"
    monkeypatch.setattr(train, "train", lambda *_: (_ for _ in ()).throw(ConnectionResetError(104, "reset")))
    with pytest.raises(ConnectionResetError):  # of no file: the same command may work again
        train.main([f"--config={DEMO}"])


def test_run_json_with_classes_that_are_no_names_is_of_another_run(tmp_path: pathlib.Path) -> None:
    for wrong in ('{"objective": {"class": [1]}}', '{"encoder": {"class": {}}}'):
        (tmp_path / "run.json").write_text(wrong)
        with pytest.raises(ValueError, match="holds another run"):
            claim_workdir(tmp_path, describe(Run()))


def test_dry_run_prints_the_plan_and_an_example(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    workdir = tmp_path / "run"
    assert train.main([*shrunk(DEMO, rows_folder, workdir, 50), "--dry-run", "--data.feed=numpy"]) == 0
    said = capsys.readouterr().out
    for word in (
        "mesh",
        "parameters",
        "GFLOP a row",
        "GiB of state",
        "50 of 4 rows",
        "epochs",
        "the warm-up of 200 steps is longer than the run",
        "example",
    ):
        assert word in said, word
    example = said.split("example")[-1]
    assert "«" in example and "→" in example and "|" in example
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--batch-size=6"], ["batch_size 6 does not divide over 4 device(s)", "multiple of 4"]),
        (["--microbatches=3"], ["3 microbatch", "multiple of 12"]),
        (["--mesh.data=3"], ["does not fit 4 device(s)", "mesh.data=-1"]),
        (["--encoder.heads=3"], ["encoder.hidden_size 16 is not a multiple of encoder.heads 3"]),
        (["--encoder.vocab-size=7"], ["encoder.vocab_size is 7", "vocabulary of 1"]),
        (["--encoder.positions=16"], ["rows of 128 tokens need encoder.positions of at least 128"]),
        (["--data.rows="], ["data.rows is not set", "spanjax.prepare"]),
        (["--data.rows=nowhere"], ["data.rows nowhere"]),
        (["--workdir="], ["--workdir is not set"]),
        (["--steps=0", "--optimizer.beta1=1", "--cadence.keep=0"], ["steps is 0", "beta1 is 1", "cadence.keep is 0"]),
        (["--seed=-1"], ["seed is -1"]),
    ],
)
def test_bad_settings_are_named_with_the_remedy(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, more: list[str], words: list[str]
) -> None:
    message = refused(shrunk(DEMO, rows_folder, tmp_path / "run", 2, *more), capsys)
    assert all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["no such file", "--list"]),
        ("RUN = 3", ["no RUN", "int"]),
        ("RUN = ", ["does not load", "SyntaxError"]),
    ],
)
def test_bad_config_files(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, content: str | None, words: list[str]
) -> None:
    path = tmp_path / "config.py"
    if content is not None:
        path.write_text(content)
    message = refused([f"--config={path}"], capsys)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("config", "words"),
    [("demo", ["--rows FOLDER", "(1400)", "(32)", "(0.002)", "(none)", "(50, 700, 700)"]),
     ("squad2", ["--train FILE, --dev FILE", "(derived)", "(20, derived, derived)"])],
)  # fmt: skip
def test_help_begins_with_the_ten_settings_of_most_runs(
    config: str, words: list[str], capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        train.parse(["--config", config, "--help"])
    first, _, every = capsys.readouterr().out.partition("Every setting:")
    lines = first.split("The settings that most runs change:\n")[1].strip().splitlines()
    assert len(lines) == 10
    missing = [word for word in words if word not in first]
    assert not missing, first
    for flag in re.findall(r"--[a-z.-]+", "\n".join(line[:35] for line in lines)):
        assert flag in every, flag


def test_misspelt_setting_suggests_the_right_one(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        train.parse([f"--config={DEMO}", "--optimizer.lerning-rate=1"])
    assert "--optimizer.learning-rate" in capsys.readouterr().err


def test_workdir_of_another_run_is_refused_with_a_diff(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 1, "--data.feed=numpy")
    assert train.main(arguments) == 0
    before = (tmp_path / "run" / "run.json").read_text()
    capsys.readouterr()
    message = refused([*arguments, "--optimizer.learning-rate=0.5", "--seed=9"], capsys)
    assert "optimizer.learning_rate: 0.002 -> 0.5" in message and "seed: 0 -> 9" in message
    assert (tmp_path / "run" / "run.json").read_text() == before


def test_a_run_of_version_01_resumes_by_length_with_a_note(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """Its run.json knows neither the version of the order nor the settings that were added to masking."""
    rows = len(open_rows(rows_folder / "train"))
    size = next(size for size in (4, 8, 12, 20) if rows % size)
    more = ["--data.feed=numpy", "--data.order=by_length", f"--batch-size={size}"]
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 1, *more)
    file = tmp_path / "run" / "run.json"
    assert train.main(arguments) == 0 == train.main(arguments)
    assert "was begun by spanjax 0.1" not in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found.pop("order_version") == 2
    del found["objective"]["masking"]["replacement"]["unknown"]
    file.write_text(json.dumps(found))
    assert train.main(arguments) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "was begun by spanjax 0.1, whose order by_length never read the longest rows" in told
    assert "use another --workdir" in told and json.loads(file.read_text()) == found


def test_a_run_with_older_dropout_masks_says_once_that_they_change(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "run" / "run.json"
    for rate, told in (("0.1", 1), ("0.0", 0)):
        arguments = shrunk(
            DEMO, rows_folder, file.parent, 1, f"--encoder.dropout={rate}", f"--encoder.attention-dropout={rate}"
        )
        assert train.main(arguments) == 0
        whole = file.read_text()
        found = json.loads(whole)
        assert found.pop("mask_version") == 2
        file.write_text(json.dumps(found, indent=2) + "\n")
        capsys.readouterr()
        assert train.main(arguments) == 0 == train.main(arguments)
        assert " ".join(capsys.readouterr().out.split()).count("hashed dropout masks in another way") == told
        assert json.loads(file.read_text()) == json.loads(whole)
        shutil.rmtree(file.parent)


def test_settings_that_were_added_to_masking_have_their_defaults() -> None:
    """At any depth, in the stages of a policy too; another value than the default is another run."""
    masking = Staged(stages=(Stage(0, WholeWords()), Stage(9, TaggedSpans())))
    now = json.loads(json.dumps(describe(Run(objective=MaskedPrediction(masking=masking)))))
    before = json.loads(json.dumps(now))
    for policy in (
        before["objective"]["masking"],
        *(each["policy"] for each in before["objective"]["masking"]["stages"]),
    ):
        del policy["replacement"]["unknown"]
        policy.pop("fallback", None)
    assert differences(before, now) == []
    now["objective"]["masking"]["stages"][1]["policy"]["fallback"] = "geometric"
    assert differences(before, now) == ["  objective.masking.stages.1.policy.fallback: words -> geometric"]


def test_speed_settings_may_change_between_runs() -> None:
    run = load(DEMO)
    other = dataclasses.replace(
        run,
        microbatches=4,
        cadence=dataclasses.replace(run.cadence, keep=9),
        data=dataclasses.replace(run.data, rows="x"),
    )
    assert differences(describe(run), describe(other)) == []
    assert differences(describe(run), describe(dataclasses.replace(run, batch_size=1))) == ["  batch_size: 32 -> 1"]
    assert "class" in json.loads(json.dumps(describe(Run())))["objective"]


def test_a_task_that_0_1_began_resumes() -> None:
    """0.1 stored `uniform`, its default of an order that tasks do not read."""
    now = describe(Run(objective=Glue(train=("a",)), steps=3))
    assert now["data"]["order"] == "auto"
    assert differences({**now, "data": {**now["data"], "order": "uniform"}}, now) == []
    assert differences({**now, "data": {**now["data"], "order": "by_length"}}, now) == [
        "  data.order: by_length -> auto"
    ]


@pytest.mark.slow
def test_training_goes_on_over_a_full_disk_but_does_not_end_on_one(
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import orbax.checkpoint as ocp

    original, failing = ocp.CheckpointManager.wait_until_finished, iter([True])

    def full(self: ocp.CheckpointManager) -> None:
        original(self)
        if threading.current_thread().name == "spanjax-checkpoint" and next(failing, False):
            raise OSError(28, "No space left on device")

    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 6, "--data.feed=numpy", "--cadence.checkpoint-every=2")
    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "wait_until_finished", full)
        assert train.main(arguments) == 0
        assert "the checkpoint of step 2 could not be written" in caplog.text and "training continues" in caplog.text
        assert "step 4 could not" not in caplog.text
        failing = itertools.repeat(True)
        other = [word.replace(str(tmp_path / "run"), str(tmp_path / "other")) for word in arguments]
        message = refused(other, capsys)
    assert "could not be written" in message and "No space left on device" in message
    assert "run the same command: it starts again from step 0" in message
    assert list((tmp_path / "other" / "checkpoints").iterdir()) == []
    assert train.main(other) == 0
    assert "finished: 6 steps" in capsys.readouterr().out


def test_training_needs_no_tensorflow(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """On a machine without TensorFlow, seqio and tensorboardX the NumPy feed trains; the tf feed would need them."""
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 2, "--feed=numpy")
    missing = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "tensorboardX")
    program = f"import sys; sys.modules.update(dict.fromkeys({missing}))\nfrom spanjax import train\n"
    program += f"sys.exit(train.main({arguments!r}))"
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(1), capture_output=True, text=True, timeout=250
    )
    assert process.returncode == 0, process.stderr
    assert "finished: 2 steps" in process.stdout and "tensorboardX is not installed" in process.stdout


def test_metrics_hold_what_a_person_wants_to_know(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert train.main(shrunk(DEMO, rows_folder, tmp_path / "run", 3, "--data.feed=numpy")) == 0
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    for key in ("train/mlm/loss", "train/sbo/accuracy", "train/gradient_norm", "train/learning_rate", "data/fill"):
        assert key in line
    for key in ("data/masked", "data/span_tokens", "speed/tokens_per_s", "speed/data_wait", "memory/host_peak_gib"):
        assert key in line
    assert 0.1 < line["data/masked"] <= 0.2
    assert records(tmp_path / "run", "eval/loss").keys() == {3}
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_mixture_trains_and_resumes_with_its_weights(
    rows_folder: pathlib.Path, tagged_rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """Two folders of one vocabulary; the same command goes on, other weights are another run."""
    other = tmp_path / "rows"
    text = tmp_path / "more.txt"
    text.write_text("\n\n".join(made_documents(40, seed=9)) + "\n")
    vocabulary = str(rows_folder / "train" / "vocabulary")
    options = ["--length", "128", "--holdout", "0.2", "--workers", "1"]
    assert prepare(["--input", str(text), "--vocab", vocabulary, "--output", str(other), *options]) == 0
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 3, "--data.feed=numpy")
    arguments = [word for word in arguments if not word.startswith("--data.rows")]
    mixture = ["--data.rows", str(rows_folder), str(other), "--data.weights", "1", "3"]
    assert train.main([*arguments, *mixture, "--steps=2"]) == 0
    assert set(records(tmp_path / "run", "train/mlm/loss")) == {1, 2}
    message = refused([*arguments, *mixture[:-1], "2", "--steps=2"], capsys)
    assert "rows_fingerprint" in message and "data.weights.1: 3.0 -> 2.0" in message
    assert "data.weights has 1 values for 2 folders" in refused([*arguments, *mixture[:-1]], capsys)
    mixed = ["--data.rows", str(rows_folder), str(tagged_rows_folder)]
    message = refused([*arguments, *mixed], capsys)
    assert "has the vocabulary" in message and "has the tags" in message and "prepare them alike" in message


def test_a_run_goes_on_with_another_mixture(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """One more corpus from step 2 on: as the run that was planned so, recorded, and not from a step that is over."""
    (tmp_path / "more.txt").write_text("\n\n".join(made_documents(40, seed=9)) + "\n")
    options = ["--length", "128", "--workers", "1", "--vocab", str(rows_folder / "train" / "vocabulary")]
    assert prepare(["--input", str(tmp_path / "more.txt"), "--output", str(tmp_path / "rows"), *options]) == 0

    def arguments(name: str, *more: str) -> list[str]:
        words = shrunk(DEMO, rows_folder, tmp_path / name, 4, "--data.feed=numpy", "--cadence.checkpoint-every=2")
        return [*(word for word in words if not word.startswith("--data.rows")), *more]

    rows = ("--data.rows", str(rows_folder))
    added = (*rows, str(tmp_path / "rows"), "--data.weights", "1", "--data.stages", "2:1,3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 2)
        assert train.main(arguments("run", *rows)) == 75
    message = refused(arguments("run", *added[:-1], "1:1,3"), capsys)
    assert "may add stages from step 2, its newest checkpoint, on" in message
    assert train.main(arguments("run", *added)) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["stages"] == ["2:1,3"]
    assert train.main(arguments("planned", *added)) == 0
    assert "from step 2 weights 1,3" in capsys.readouterr().out
    assert_same_state(tmp_path / "planned", tmp_path / "run")
    assert records(tmp_path / "planned", "data/masked") == records(tmp_path / "run", "data/masked")
    assert "may add stages" in refused(arguments("run", *added[:-1], "2:1,4"), capsys)


@pytest.mark.slow
def test_a_window_of_steps_is_profiled(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A window inside the run, and one that the end of the run cuts; the metrics tell where the time went."""
    more = ("--data.feed=numpy", "--profile.start=1", "--profile.steps=1")
    assert train.main(shrunk(DEMO, rows_folder, tmp_path / "run", 3, *more)) == 0
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert (
        train.main(shrunk(DEMO, rows_folder, tmp_path / "cut", 2, "--data.feed=numpy", *more[1:2], "--profile.steps=9"))
        == 0
    )
    assert list((tmp_path / "cut" / "profile").rglob("*.xplane.pb"))
    host = records(tmp_path / "run", "speed/host").values()
    assert all(0 <= share <= 1 for share in host) and any(host)
    for name in ("speed/model_tflops", "speed/step_ms"):
        assert all(value > 0 for value in records(tmp_path / "run", name).values())


def test_attention_is_chosen_and_said(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """A backend changes no result beyond rounding, so a run may go on with another; one that cannot is refused at once."""
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 2, "--data.feed=numpy")
    assert train.main([*arguments, "--dry-run"]) == 0
    assert "attention   xla (the first on cpu that can do it" in capsys.readouterr().out
    assert train.main([*arguments, "--encoder.attention=cudnn"]) == 2
    assert "'cudnn' cannot be used: it runs on gpu" in capsys.readouterr().err
    assert train.main([*arguments, "--encoder.attention=xla_chunked", "--mesh.tensor=2", "--mesh.data=2"]) == 2
    assert "cannot split its heads over mesh.tensor" in capsys.readouterr().err
    assert train.main(arguments) == 0
    losses = records(tmp_path / "run", "train/mlm/loss")
    other = shrunk(DEMO, rows_folder, tmp_path / "other", 2, "--data.feed=numpy")
    assert train.main([*other, "--encoder.attention=xla_chunked", "--encoder.remat=dots"]) == 0
    for step, loss in records(tmp_path / "other", "train/mlm/loss").items():
        assert loss == pytest.approx(losses[step], rel=1e-5)
    assert train.main([*arguments, "--encoder.attention=xla_chunked"]) == 0
    assert "from step 2" in capsys.readouterr().out


def test_presets_set_attention_dropout(capsys: pytest.CaptureFixture) -> None:
    def rate(*arguments: str) -> float:
        return train.parse([f"--config={DEMO}", *arguments]).run.encoder.attention_dropout

    assert (rate("--preset=parity"), rate("--preset=fast")) == (0.1, 0.0)
    assert rate() == load(DEMO).encoder.attention_dropout
    assert rate("--preset", "fast", "--encoder.attention-dropout=0.2") == 0.2
    with pytest.raises(SystemExit):
        train.parse([f"--config={DEMO}", "--preset=quick"])
    assert "quick" in capsys.readouterr().err


def test_an_order_of_rows_that_a_memory_cannot_read_is_refused(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    memory = ("--objective.memory=16", "--objective.block=32")
    config = "configs/pretrain/xlnet_small.py"
    for order in ("by_length", "uniform"):
        arguments = shrunk(config, rows_folder, tmp_path / "run", 2, *memory, f"--data.order={order}")
        said = refused(arguments, capsys)
        assert f"data.order is {order!r}, but objective PermutedPrediction reads rows in the order 'both_ways'" in said
    session = open_pretraining_session(train.parse(shrunk(config, rows_folder, tmp_path / "run", 2, *memory)).run)
    assert session.run.data.order == session.spec.order == "both_ways"
    assert "data.order is both_ways: objective PermutedPrediction reads rows in it" in session.notes
    stored = describe(session.run)
    older = {**stored, "data": {**stored["data"], "order": "uniform"}}  # what version 0.1 wrote
    assert not differences(older, stored)
    assert differences({**stored, "data": {**stored["data"], "order": "by_length"}}, stored)


def test_defaults_are_numbers_before_a_run_is_stored() -> None:
    run = with_defaults(Run())
    assert (run.steps, run.optimizer.warmup_steps) == (100_000, 10_000)
    assert (run.cadence.eval_every, run.cadence.checkpoint_every) == (1000, 1000)
    own = dataclasses.replace(Run(), steps=3, cadence=Cadence(eval_every=0), optimizer=AdamW(warmup_steps=0))
    run = with_defaults(own, steps=7, warmup_steps=8, every=9)
    assert (run.steps, run.optimizer.warmup_steps, run.cadence.eval_every, run.cadence.checkpoint_every) == (3, 0, 0, 9)


def test_what_is_open_is_closed_when_the_start_fails(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trackers cannot be made, after the metrics, the checkpoints and the lock were opened."""
    closed, made = list[str](), RuntimeError("trackers")

    def noted(name: str, kind: type) -> None:
        close = kind.close

        def closing(self: Any) -> None:
            closed.append(name)
            close(self)

        monkeypatch.setattr(kind, "close", closing)

    noted("metrics", metrics.JsonLines)
    noted("terminal", metrics.Terminal)
    noted("checkpoints", Checkpoints)

    def failing(*_: Any) -> None:
        raise made

    monkeypatch.setattr(sessions, "Trackers", failing)
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 2, "--data.feed=numpy")
    with pytest.raises(RuntimeError) as error:
        train.main(arguments)
    assert error.value is made and {*closed} == {"metrics", "terminal", "checkpoints"}
    monkeypatch.undo()
    monkeypatch.chdir(ROOT)
    assert train.main(arguments) == 0, "and the lock is free"


def damaged(path: pathlib.Path, how: str) -> None:
    """Changes a shard in place: cut short, zeroed, or a bit flipped in every 256 bytes."""
    if how == "cut":
        os.truncate(path, path.stat().st_size // 3)
        return
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 256 if how == "flipped" else 1):
        content[place] = content[place] ^ 1 if how == "flipped" else 0
    with open(path, "r+b") as file:
        file.write(content)


def copied(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A copy of the rows, and its first shard of training rows."""
    rows = pathlib.Path(shutil.copytree(rows_folder, tmp_path / "rows"))
    return rows, min((rows / "train").glob("rows-*.bin"))


@pytest.mark.parametrize("feed", ["numpy", pytest.param("tf", marks=pytest.mark.slow)])
def test_a_flipped_bit_in_the_rows_ends_the_run_before_a_save(
    feed: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    rows, shard = copied(rows_folder, tmp_path)
    with open(shard, "r+b") as file:
        file.seek(2)
        (byte,) = file.read(1)
        file.seek(2)
        file.write(bytes([byte ^ 1]))
    message = refused(shrunk(DEMO, rows, tmp_path / "run", 3, f"--data.feed={feed}"), capsys)
    assert f"{shard} is damaged (its sha256 is" in message and "saves nothing more" in message
    assert not list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    shutil.copy(next((rows_folder / "train").glob(shard.name)), shard)
    assert train.main(shrunk(DEMO, rows, tmp_path / "run", 3, f"--data.feed={feed}")) == 0


@pytest.mark.parametrize("how", ["zeroed", pytest.param("flipped", marks=pytest.mark.slow)])
def test_rows_that_change_under_a_run_end_it_and_lose_nothing(
    how: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    rows, shard = copied(rows_folder, tmp_path)
    run, changed = tmp_path / "run", threading.Event()

    def change() -> None:
        while last_step(run) < 7 and not changed.wait(0.01):
            pass
        damaged(shard, how)

    thread = threading.Thread(target=change)
    thread.start()
    message = refused(
        shrunk(DEMO, rows, run, 100_000, "--data.feed=numpy", "--cadence.checkpoint-every=3", "--cadence.eval-every=0"),
        capsys,
    )
    changed.set()
    thread.join()
    assert (
        f"{shard} has changed while it was in use (it was written again)" in message and "checkpoints stay" in message
    )
    saved = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    assert saved and all(step % 3 == 0 for step in saved) and max(saved) <= last_step(run)


@pytest.mark.slow
def test_rows_cut_short_under_two_processes_end_both(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The name of the shard, and no signal: a memory map would end in SIGBUS."""
    rows, shard = copied(rows_folder, tmp_path)
    run = tmp_path / "run"
    processes = begin_together(2, shrunk(DEMO, rows, run, 100_000, "--data.feed=numpy"))
    assert wait_until(processes, lambda: last_step(run) >= 3, 280)
    damaged(shard, "cut")
    said = [process.communicate(timeout=120)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert 2 in codes and set(codes) <= {2, 3}, "\n".join(said)
    for code, text in zip(codes, said, strict=True):
        assert code == 3 or f"{shard} has changed while it was in use" in text
