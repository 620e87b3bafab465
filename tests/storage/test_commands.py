"""Commands that read from buckets and write into them."""

import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import spanjax
from spanjax import evaluate, report, train
from spanjax.convert import main as convert
from spanjax.data.feed.rows import open_rows
from spanjax.data.shards.remote import local_rows
from spanjax.plan import main as plan
from spanjax.predict import main as predict
from spanjax.prepare import main as prepare
from spanjax.storage.checksums import file_checksum
from spanjax.storage.commits import Committed, Head
from spanjax.storage.inputs import local_copy
from spanjax.storage.objects import Place, Store, in_parallel, open_store
from tests.running import ROOT, shrunk
from tests.storage.conftest import opened
from tests.storage.servers import Fault, Faults


def upload(folder: pathlib.Path, address: str) -> str:
    """Copies a folder to an address and returns the address."""
    place = Place.parse(address)
    files = [path for path in folder.rglob("*") if path.is_file()]
    in_parallel(lambda path: open_store(place).upload(path, place / path.relative_to(folder).as_posix()), files)
    return address


def upload_file(file: pathlib.Path, address: str) -> str:
    """Copies a file to an address and returns the address."""
    place = Place.parse(address)
    open_store(place).upload(file, place)
    return address


def names(address: str) -> set[str]:
    return {entry.name for entry in open_store(Place.parse(address)).list(Place.parse(address))}


@pytest.fixture(
    params=["memory", pytest.param("s3", marks=pytest.mark.slow), pytest.param("gs", marks=pytest.mark.slow)]
)
def place(
    request: pytest.FixtureRequest, faults: Faults, user_cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of an empty folder; one of memory in the fast tests."""
    with opened(request.param, faults, monkeypatch) as found:
        yield found


@pytest.mark.slow
def test_prepare_and_train_on_rows_in_a_bucket(
    address: str,
    corpus_file: pathlib.Path,
    rows_folder: pathlib.Path,
    user_cache: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = f"{address}/rows"
    arguments = ["--input", str(corpus_file), "--train-vocab", "120", "--length", "128", "--holdout", "0.1"]
    arguments += ["--workers", "1", "--output", rows]
    assert prepare(arguments) == 0
    assert names(rows) == {
        path.relative_to(rows_folder).as_posix() for path in rows_folder.rglob("*") if path.is_file()
    }
    capsys.readouterr()
    assert prepare(arguments) == 2
    assert f"--output {rows} exists already" in capsys.readouterr().err
    assert prepare([*arguments, "--overwrite"]) == 0
    assert not list((user_cache / "unfinished").glob("*/*")), "nothing is left on this machine"
    local, remote = tmp_path / "local", tmp_path / "remote"
    config = str(ROOT / "configs/pretrain/tiny.py")
    assert train.main(shrunk(config, rows_folder, local, 2, "--data.feed=numpy")) == 0
    assert train.main(shrunk(config, rows, remote, 2, "--data.feed=numpy")) == 0
    first, second = (json.loads((run / "summary.json").read_text()) for run in (local, remote))
    assert first == second, "rows from a bucket are the same batches"
    described = json.loads((remote / "run.json").read_text())
    assert described["data"]["rows"] == [rows] and described["data"]["cache"] == ""
    assert train.main(shrunk(config, rows_folder, remote, 2, "--data.feed=numpy")) == 0, "a resume from local rows"


@pytest.mark.slow
def test_several_workers_prepare_into_a_bucket(
    served: str, corpus_file: pathlib.Path, faults: Faults, user_cache: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The objects are the files of a local prepare by one worker, also while requests fail."""
    source = upload_file(corpus_file, f"{served}/text/corpus.txt")
    common = ["--train-vocab", "120", "--length", "128", "--holdout", "0.1"]
    assert prepare(["--input", str(corpus_file), *common, "--workers", "1", "--output", str(tmp_path / "rows")]) == 0
    faults.rate, faults.kinds = 0.05, (Fault.UNAVAILABLE, Fault.RESET, Fault.HALF)
    rows = f"{served}/rows"
    assert prepare(["--input", source, *common, "--workers", "2", "--output", rows]) == 0
    faults.rate = 0.0
    local = {path.relative_to(tmp_path / "rows").as_posix(): path for path in (tmp_path / "rows").rglob("*")}
    local = {name: path for name, path in local.items() if path.is_file()}
    assert names(rows) == local.keys()
    place = Place.parse(rows)
    for name, path in local.items():
        if not name.endswith("manifest.json"):  # it names its inputs
            assert open_store(place).read(place / name)[0] == path.read_bytes(), name
    assert sorted(open_rows(local_rows(rows) / "train").manifest.shards) == sorted(
        open_rows(tmp_path / "rows/train").manifest.shards
    )


def test_examples_of_a_task_in_a_bucket(
    memory: str,
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    user_cache: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Training and dev files, copied to --data.cache as the weights are; messages name the address."""
    (tmp_path / "bad.jsonl").write_text('{"sentence": "the old clock"}\n{"sentence": 3, "label": "no"}\n')
    bad = upload_file(tmp_path / "bad.jsonl", f"{memory}/bad.jsonl")
    run, cache = upload(run_folder, f"{memory}/run"), tmp_path / "copies"
    words = ["--config=configs/finetune/glue.py", f"--train={bad}", f"--init-from={run}", "--objective.length=32"]
    words += [f"--workdir={tmp_path / 'tuned'}", f"--data.cache={cache}", "--dry-run"]
    assert train.main(words) == 2
    assert f"--train: {bad}:2: " in capsys.readouterr().err
    (tmp_path / "good.jsonl").write_text('{"sentence": "the old clock", "label": "no"}\n' * 8)
    good = upload_file(tmp_path / "good.jsonl", f"{memory}/good.jsonl")
    words[1] = f"--train={good}"
    assert train.main([*words, f"--dev={good}"]) == 0
    assert "8 dev examples" in capsys.readouterr().out
    assert {path.name for path in cache.glob("*/*")} >= {"run", "good.jsonl"} and not (user_cache / "storage").exists()


def test_plan_and_push_take_addresses(
    memory: str,
    weights_folder: pathlib.Path,
    user_cache: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, pushed = upload(weights_folder, f"{memory}/weights"), list[pathlib.Path]()
    monkeypatch.setattr("spanjax.convert.push.push", lambda options: pushed.append(pathlib.Path(options.folder)))
    assert convert(["push", weights, "me/model"]) == 0
    assert (pushed[0] / "config.json").read_bytes() == (weights_folder / "config.json").read_bytes()

    def planned(command: Any, topology: Any) -> int:
        assert pathlib.Path(command.flags).read_text() == "--xla_x=1\n"
        assert command.run.data.rows == (f"{memory}/rows",), "rows are not read"
        pathlib.Path(command.hlo).write_text("HloModule")
        return 0

    monkeypatch.setattr("spanjax.plan.plan", planned)
    (tmp_path / "flags").write_text("--xla_x=1\n")
    flags, hlo = upload_file(tmp_path / "flags", f"{memory}/flags"), f"{memory}/program.txt"
    words = ["--config", "tiny", "--topology", "v5e:2x2", f"--rows={memory}/rows", f"--init-from={weights}"]
    assert plan([*words, f"--flags={flags}", f"--hlo={hlo}"]) == 0
    assert open_store(Place.parse(hlo)).read(Place.parse(hlo))[0] == b"HloModule"


def test_rows_of_an_address_are_those_of_the_folder(
    place: str, rows_folder: pathlib.Path, user_cache: pathlib.Path
) -> None:
    rows = upload(rows_folder, f"{place}/rows")
    copied = local_rows(rows)
    assert user_cache in copied.parents and copied.name == "rows"
    first, second = open_rows(rows_folder / "train"), open_rows(copied / "train")
    index_B = np.arange(len(first))[::-7]
    for left, right in zip(first.fetch(index_B), second.fetch(index_B), strict=True):
        np.testing.assert_array_equal(left, right)
    assert local_rows(f"{rows}/train").name == "train", "one split alone"


def test_stats_of_rows_in_a_bucket(memory: str, rows_folder: pathlib.Path, user_cache: pathlib.Path) -> None:
    rows = upload(rows_folder, f"{memory}/rows")
    assert prepare(["stats", rows, "--rows", "20"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: [n for n in names if n.endswith(".bin")][:1], "rows-.*bin is missing"),
        (lambda names: ["train/lengths.npy"], "train/lengths.npy is missing"),
        (
            lambda names: [n for n in names if n.endswith("manifest.json")],
            "expected rows .*found files, but no finished rows",
        ),
        (lambda names: list(names), "expected rows .*found nothing: check the address"),
    ],
    ids=["shard", "array", "manifest", "all"],
)
def test_incomplete_rows_are_not_copied(
    memory: str,
    rows_folder: pathlib.Path,
    user_cache: pathlib.Path,
    change: Callable[[list[str]], list[str]],
    message: str,
) -> None:
    place = Place.parse(upload(rows_folder, f"{memory}/rows"))
    open_store(place).delete(place / name for name in change(sorted(names(str(place)))))
    with pytest.raises(ValueError, match=message):
        local_rows(str(place))
    assert not list((user_cache / "storage").glob("*/rows"))


def test_damaged_rows_are_noticed(memory: str, rows_folder: pathlib.Path, user_cache: pathlib.Path) -> None:
    place = Place.parse(upload(rows_folder, f"{memory}/rows"))
    shard = next(place / name for name in sorted(names(str(place))) if name.endswith(".bin"))
    content = bytearray(open_store(place).read(shard)[0])
    content[len(content) // 2] ^= 1
    open_store(place).write(shard, bytes(content))
    with pytest.raises(ValueError, match=r"\.bin: its content has sha256:.*it is damaged; upload it again"):
        local_rows(str(place))


def test_convert_to_a_bucket_and_from_it(
    place: str, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, weights = upload(run_folder, f"{place}/run"), f"{place}/weights"
    assert convert(["to-torch", run, weights]) == 0
    assert {"config.json", "model.safetensors", "conversion.json"} <= names(weights)
    assert not any(name.startswith(".") for name in names(weights)), "the mark of the upload is gone"
    capsys.readouterr()
    assert convert(["to-torch", run, weights]) == 2
    assert f"{weights} exists already: choose another folder" in capsys.readouterr().err
    before = names(weights)
    assert convert(["to-torch", run, weights, "--overwrite", "--format", "hf-bin"]) == 0
    assert names(weights) == before - {"model.safetensors"} | {"pytorch_model.bin"}, "files of the old folder are gone"
    assert convert(["from-torch", weights, f"{place}/again"]) == 0
    assert "checkpoints/0/meta/metadata" in names(f"{place}/again")
    model, again = spanjax.load(str(run_folder)), spanjax.load(f"{place}/again")
    np.testing.assert_array_equal(model.encode(["a text"]), again.encode(["a text"]))
    model.save_torch(f"{place}/saved")
    assert "config.json" in names(f"{place}/saved")
    assert convert(["verify", run, f"{place}/saved"]) == 0
    assert convert(["inspect", weights]) == 0


def test_what_others_wrote_is_not_replaced(
    memory: str, run_folder: pathlib.Path, user_cache: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place.parse(f"{memory}/mine")
    open_store(place).write(place / "notes.txt", b"mine")
    assert convert(["to-torch", str(run_folder), str(place), "--overwrite"]) == 2
    assert f"{place} holds files that this command did not write ('notes.txt')" in capsys.readouterr().err
    run = upload(run_folder, f"{memory}/run")
    assert convert(["to-torch", str(run_folder), run, "--overwrite"]) == 2
    assert "is a training run" in capsys.readouterr().err
    assert open_store(place).read(place / "notes.txt")[0] == b"mine" and "run.json" in names(run)


def test_a_killed_upload_leaves_nothing_that_reads_as_whole(
    memory: str,
    run_folder: pathlib.Path,
    user_cache: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights, sent = f"{memory}/weights", list[str]()
    whole = Store.upload

    def counted(store: Store, file: pathlib.Path, place: Place) -> str:
        sent.append(place.name)
        return whole(store, file, place)

    monkeypatch.setattr(Store, "upload", counted)
    assert convert(["to-torch", str(run_folder), weights]) == 0
    assert sent[-1] == "config.json", "the file that makes the folder valid comes last"
    files = len(sent)
    for limit in range(files):
        place = Place.parse(f"{memory}/killed{limit}")
        left = iter(range(limit))

        def killed(store: Store, file: pathlib.Path, place: Place, left: Iterator[int] = left) -> str:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return whole(store, file, place)

        monkeypatch.setattr(Store, "upload", killed)
        assert convert(["to-torch", str(run_folder), str(place)]) == 130
        assert "config.json" not in names(str(place))
        with pytest.raises(ValueError, match="holds none of them|config"):
            spanjax.load(str(place))
    monkeypatch.setattr(Store, "upload", whole)
    capsys.readouterr()
    assert convert(["to-torch", str(run_folder), str(place)]) == 2
    assert "an upload to it was stopped, or is under way: replace it with --overwrite" in capsys.readouterr().err
    assert convert(["to-torch", str(run_folder), str(place), "--overwrite"]) == 0
    assert names(str(place)) == names(weights)


def test_models_in_a_bucket_are_used(
    place: str, run_folder: pathlib.Path, tuned_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, tuned = upload(run_folder, f"{place}/run"), upload(tuned_folder, f"{place}/tuned")
    data = upload(tuned_folder.parent, f"{place}/data") + "/train.jsonl"
    assert predict(["fill-mask", run, "--text", "the [MASK] clock"]) == 0
    local = capsys.readouterr().out
    assert predict(["fill-mask", str(run_folder), "--text", "the [MASK] clock"]) == 0
    assert capsys.readouterr().out == local
    answers = f"{place}/answers.jsonl"
    assert predict(["classify", tuned, "--file", data, "--output", answers]) == 0
    lines = open_store(Place.parse(answers)).read(Place.parse(answers))[0].splitlines()
    assert len(lines) == 8 and "prediction" in json.loads(lines[0])
    assert predict(["classify", tuned, "--file", data, "--output", answers]) == 0, "its own answers are replaced"
    scores = f"{place}/scores"
    assert evaluate.main([tuned, "--data", data, "--output", scores]) == 0
    assert "scores.json" in names(scores)
    capsys.readouterr()
    assert evaluate.main([tuned, "--data", data, "--output", scores]) == 2
    assert "holds files: name another" in capsys.readouterr().err
    assert evaluate.main([tuned, "--data", data, "--output", scores, "--overwrite"]) == 0
    assert report.main([run, tuned, "--output", f"{place}/report.html", "--examples", "0"]) == 0
    page = Place.parse(f"{place}/report.html")
    assert b"spanjax" in open_store(page).read(page)[0]
    found = spanjax.load_task(tuned).predict(sentence="the old clock")
    assert found["prediction"] in ("no", "yes")


@pytest.mark.slow
def test_training_starts_from_weights_in_a_bucket(
    address: str, run_folder: pathlib.Path, rows_folder: pathlib.Path, user_cache: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run = upload(run_folder, f"{address}/run")
    config = str(ROOT / "configs/pretrain/tiny.py")
    assert train.main(shrunk(config, rows_folder, tmp_path / "run", 1, "--data.feed=numpy", f"--init-from={run}")) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["init_from"] == run


def committed(run_folder: pathlib.Path, address: str, losses: dict[int, float | None]) -> Place:
    """A run in a bucket with the checkpoint of `run_folder` committed as several steps, laid out as in `commits`."""
    place = Place.parse(address)
    store, steps = open_store(place), {}
    (source,) = (path for path in (run_folder / "checkpoints").iterdir() if path.name.isdigit())
    store.upload(run_folder / "run.json", place / "run.json")
    for step, loss in losses.items():
        name, files = f"{step}-1", {}
        for path in (path for path in source.rglob("*") if path.is_file()):
            inner = path.relative_to(source).as_posix()
            store.upload(path, place / "checkpoints" / name / inner)
            files[inner] = [path.stat().st_size, file_checksum(path, "crc32c")]
        content = {"step": step, "fencing": 1, "files": files}
        store.write(place / "commits" / f"{name}.json", json.dumps(content).encode())
        steps[step] = Committed(name, loss)
    store.write(place / "commits" / "HEAD", Head(1, steps).to_json("test", 1))
    return place


def test_of_a_run_one_committed_checkpoint_is_copied(place: str, run_folder: pathlib.Path) -> None:
    run = committed(run_folder, f"{place}/run", {10: 1.0, 20: 2.0})
    store = open_store(run)
    store.write(run / "checkpoints/30-1/state/x", b"never committed")
    copy = pathlib.Path(local_copy(str(run)))
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["20"], "the newest that is committed"
    assert spanjax.load(str(run)).weights.parts == spanjax.load(str(run_folder)).weights.parts
    copy = pathlib.Path(local_copy(f"{run}/checkpoints/10"))
    assert [path.name for path in copy.parent.iterdir()] == ["10"]
    with pytest.raises(ValueError, match="no checkpoint of step 30 is committed; those kept are 10, 20"):
        local_copy(f"{run}/checkpoints/30")
    described = json.loads(store.read(run / "run.json")[0])
    store.write(run / "run.json", json.dumps(described | {"kind": "task"}).encode())
    copy = pathlib.Path(local_copy(str(run)))
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["10"], "of a fine-tuned run the best"
    assert convert(["to-torch", str(run_folder), str(run), "--overwrite"]) == 2


def test_a_damaged_object_of_a_checkpoint_is_noticed(
    memory: str, run_folder: pathlib.Path, user_cache: pathlib.Path
) -> None:
    run = committed(run_folder, f"{memory}/run", {10: None})
    store = open_store(run)
    place = run / "checkpoints/10-1/meta/metadata"
    content = store.read(place)[0]
    store.write(place, content[:-1] + b" ")
    with pytest.raises(ValueError, match="meta/metadata: its content has crc32c:.*it is damaged"):
        spanjax.load(str(run))
    store.write(place, content[:-1])
    with pytest.raises(ValueError, match=r"meta/metadata: it has [\d,]+ bytes, expected"):
        spanjax.load(str(run))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: convert(["to-torch", "s3:///x", "out"]), "s3:///x: expected s3://BUCKET/NAME"),
        (lambda: evaluate.main(["s3://bucket/../x", "--data", "x"]), "expected s3://BUCKET/NAME, with a bucket"),
        (lambda: convert(["to-torch", "memory://bucket/none", "out"]), "no such file or folder; check the address"),
        (
            lambda: convert(["to-torch", "spanbert-mini", "memory://bucket"]),
            "a whole bucket; expected the name of a file",
        ),
        (lambda: report.main(["memory://bucket/none"]), "no such file or folder; check the address"),
        (lambda: prepare(["stats", "memory://bucket/none"]), "expected rows .*found nothing"),
    ],
    ids=["bucket", "dots", "nothing", "whole", "report", "stats"],
)
def test_wrong_addresses(
    memory: str, user_cache: pathlib.Path, run: Callable[[], int], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 2
    assert re.search(message, capsys.readouterr().err)
