"""Wrong inputs of `spanjax.train` and `spanjax.plan`: settings, configs, rows, work directories, weights to start from."""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bad_inputs import DEMO, Case, World

XLNET = """
from spanjax.data.feed.masking import Tokens
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.run import Run

RUN = Run(objective=PermutedPrediction(masking=Tokens(), memory=8))
"""

train = functools.partial(Case, "train")
plan = functools.partial(Case, "plan")


def config(content: str | None) -> Callable[[World], list[Any]]:
    """The arguments that name a config file of this content."""

    def made(world: World) -> list[Any]:
        path = world.here / "mine.py" if content is None else world.write("mine.py", content)
        return [f"--config={path}", "--data.rows=rows", "--workdir=work"]

    return made


def damaged_rows(change: Callable[[pathlib.Path], Any]) -> Callable[[World], list[Any]]:
    """Training on a copy of the rows whose folder `train` was changed."""

    def made(world: World) -> list[Any]:
        rows = world.copy("rows")
        change(rows / "train")
        return world.train(rows=rows)

    return made


def manifest(**fields: Any) -> Callable[[pathlib.Path], None]:
    """Fields of the manifest that are replaced; None takes one out."""

    def change(folder: pathlib.Path) -> None:
        file = folder / "manifest.json"
        found = json.loads(file.read_text()) | fields
        file.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))

    return change


def shorter(name: str, by: int) -> Callable[[pathlib.Path], None]:
    """The file without its last bytes."""

    def change(folder: pathlib.Path) -> None:
        file = next(folder.glob(name))
        file.write_bytes(file.read_bytes()[:-by])

    return change


def another_vocabulary(folder: pathlib.Path) -> None:
    """A vocabulary of another size in the place of the rows' own."""
    from spanjax.data.vocab.base import SPECIAL_PIECES
    from spanjax.data.vocab.loading import WordPieceVocabulary, save_vocabulary

    for file in (folder / "vocabulary").iterdir():
        file.unlink()
    save_vocabulary(WordPieceVocabulary([*SPECIAL_PIECES, "a", "b"], lower_case=False), folder / "vocabulary")


def objects(folder: pathlib.Path) -> None:
    """An array of Python objects, which NumPy stores as a pickle."""
    np.save(folder / "unigram.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


def continued(change: Callable[[pathlib.Path], Any], *more: str) -> Callable[[World], list[Any]]:
    """Going on in a copy of a run directory that was changed."""

    def made(world: World) -> list[Any]:
        change(world.copy("run"))
        words = world.train(*more, workdir="run")
        return [f"--config={DEMO.replace('demo', 'tiny')}" if "--config" in word else word for word in words]

    return made


def damaged_checkpoint(run: pathlib.Path) -> None:
    """A byte turned in the only checkpoint, in a file whose name is always the same."""
    file = run / "checkpoints" / "2" / "state" / "manifest.ocdbt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def newer_run(run: pathlib.Path) -> None:
    """A setting that this version does not know."""
    file = run / "run.json"
    found = json.loads(file.read_text())
    found["encoder"]["experts"] = True
    file.write_text(json.dumps(found))


def as_file(name: str) -> Callable[[World], list[Any]]:
    """A work directory that is a file, or lies below one."""

    def made(world: World) -> list[Any]:
        world.write("file", "mine")
        return world.train(workdir=name)

    return made


def settings(*more: str) -> Callable[[World], list[Any]]:
    """A good training with these settings."""
    return lambda world: world.train(*more)


def planned(*more: str) -> Callable[[World], list[Any]]:
    """A plan of the demo with these options."""
    return lambda world: [f"--config={DEMO}", *more]


RUN_CASES = (
    train("a misspelt setting", ("--optimizer.lerning-rate", "--optimizer.learning-rate"),
          settings("--optimizer.lerning-rate=1")),
    train("a word where a number belongs", ("--steps", "many", "int"), settings("--steps=many")),
    train("a choice that is none", ("float8", "bfloat16"), settings("--compute-dtype=float8")),
    train("a preset that is none", ("quick", "parity"), settings("--preset=quick")),
    train("five settings out of range at once",
          ("steps is 0: expected at least 1", "optimizer.beta1 is 1", "cadence.keep is 0", "seed is -1", "mesh",
           "batch_size is 0"),
          settings("--steps=0", "--optimizer.beta1=1", "--cadence.keep=0", "--seed=-1", "--mesh.data=0",
                   "--batch-size=0")),
    train("microbatches of none", ("microbatches is 0: expected at least 1",), settings("--microbatches=0")),
    train("a batch that the devices do not divide", ("batch_size 6", "4 device(s)", "multiple of 4"),
          settings("--batch-size=6")),
    train("a batch that the microbatches do not divide", ("batch_size 4", "3 microbatch", "multiple of 12"),
          settings("--microbatches=3")),
    train("a batch warm-up of no equal parts", ("batch_warmup 0:3 8:4", "no equal parts of those of 4", "divisor"),
          settings("--batch-warmup", "0:3", "8:4")),
    train("a batch warm-up whose stage begins inside a batch", ("reads 20 rows", "no multiple of 8", "at step 6"),
          settings("--batch-size=8", "--batch-warmup", "0:4", "5:8")),
    train("a batch warm-up that the devices do not divide", ("batch_warmup's update of 2 rows", "4 device(s)", "multiple of 4"),
          settings("--batch-size=4", "--batch-warmup", "0:2", "2:4")),
    train("a stage of a batch warm-up that is none", ("batch_warmup 'half'", "expected STEP:ROWS", "0:64"),
          settings("--batch-warmup", "half")),
    train("a mesh that does not fit the devices", ("data=3", "4 device(s)", "mesh.data=-1"), settings("--mesh.data=3")),
    train("a mesh with a size below 1", ("data=0", "at least 1", "one -1"), settings("--mesh.data=0")),
    train("a mesh with two open sizes", ("tensor=-1", "one -1"), settings("--mesh.tensor=-1")),
    train("heads that do not divide the hidden size", ("hidden_size 16", "encoder.heads 3", "multiple"),
          settings("--encoder.heads=3")),
    train("a vocabulary size that is not the rows'", ("encoder.vocab_size is 7", "vocabulary of 1", "set it to 0"),
          settings("--encoder.vocab-size=7")),
    train("rows longer than the positions", ("rows of 128 tokens", "encoder.positions of at least 128", "16"),
          settings("--encoder.positions=16")),
    train("no rows named", ("data.rows is not set", "--rows FOLDER", "spanjax.prepare"),
          settings("--data.rows=")),
    train("a folder of rows that does not exist", ("nowhere", "no such folder", "spanjax.prepare"),
          settings("--data.rows=nowhere")),
    train("two folders missing and a setting out of range", ("nowhere: no such", "there: no such", "steps is 0"),
          settings("--data.rows", "nowhere", "there", "--steps=0")),
    train("weights for other folders", ("data.weights has 2 values for 1 folders", "one each"),
          settings("--data.weights", "1", "2")),
    train("weights that are not positive", ("data.rows", "-1"),
          lambda world: world.train("--data.weights", "-1", "2", "--data.rows", str(world.rows), str(world.rows))),
    train("nothing at all", ("no --config", "--list", "--rows FOLDER", "spanjax.prepare"), lambda world: []),
    train("no work directory", ("--workdir is not set", "--dry-run"), settings("--workdir=")),
    train("a work directory that is a file", ("--workdir file", "folder"), as_file("file")),
    train("a work directory below a file", ("--workdir file/run", "folder"), as_file("file/run")),
    train("permuted prediction that cannot be",
          ("expected mask=0 and random=0", "encoder.relative_attention is False", "expected FullSentences()"), config(XLNET)),
    train("attention by distances with what it does not go with",
          ("encoder.rope_theta is 100.0: expected 0.0", "encoder.norm_first is True: expected False", "encoder.biases is False"),
          settings("--encoder.relative-attention", "--encoder.rope-theta=100", "--encoder.norm-first", "--encoder.no-biases")),
    train("a config that does not exist", ("mine.py: no such file", "spanbert_base", "--list"), config(None)),
    train("a config without RUN", ("mine.py", "no RUN", "found int"), config("RUN = 3\n")),
    train("a config with an error of syntax", ("mine.py", "does not load", "SyntaxError", "line 2"),
          config("import math\nRUN = \n")),
    train("a config that raises", ("mine.py", "does not load", "ZeroDivisionError", "line 3"),
          config("import math\n\nRUN = 1 / 0\n")),
    train("a config that imports what is not installed", ("mine.py", "No module named 'nowhere'"),
          config("import nowhere\n")),
    train("a config that is no Python file", ("config.json is no Python file", "spanbert_base"),
          lambda world: [f"--config={world.write('config.json', '{}')}", "--workdir=work"]),
    train("a config whose settings are of other types",
          ("RUN.encoder is None: expected EncoderConfig", "RUN.steps is 100.0: expected int"),
          config("from spanjax.run import Run\n\nRUN = Run(encoder=None, steps=1e2)\n")),
    train("a config that ends the program", ("mine.py", "does not load", "SystemExit", "line 1"),
          config("raise SystemExit(7)\n")),
    train("numbers that are none or without end",
          ("optimizer.learning_rate is nan: expected a finite number, more than 0", "optimizer.clip_norm is nan",
           "optimizer.weight_decay is inf", "objective.terms.0.weight is nan", "objective.terms.1.extra_count is -5.0",
           "encoder.initializer_std is nan", "encoder.norm_epsilon is -1.0: expected more than 0",
           "encoder.rope_theta is nan", "guard.stall_seconds is nan", "data.weights.0 is 0.0: expected more than 0",
           "steps is a number of 31 digits: expected at most 2,147,483,647"),
          settings("--optimizer.learning-rate=nan", "--optimizer.clip-norm=nan", "--optimizer.weight-decay=inf",
                   "--objective.terms.0.weight=nan", "--objective.terms.1.extra-count=-5", "--encoder.initializer-std=nan",
                   "--encoder.norm-epsilon=-1", "--encoder.rope-theta=nan", "--guard.stall-seconds=nan", "--data.weights=0",
                   f"--steps={10**30}")),
    train("a pattern that is none", ("optimizer.no_decay.0 is '('", "expected a regular expression"),
          settings("--optimizer.no-decay", "(")),
    train("rows that are not finished", ("not a finished folder of rows", "run spanjax.prepare again"),
          damaged_rows(lambda folder: (folder / "manifest.json").unlink())),
    train("a shard of rows cut short", ("rows-", "bytes, expected", "prepare or copy it again"),
          damaged_rows(shorter("rows-*.bin", 100)), library=r"(?<=expected )[\d,]+"),
    train("a shard of rows and a file of figures missing", ("is damaged", "bin is missing", "lengths.npy is missing"),
          damaged_rows(lambda folder: [next(folder.glob("rows-*.bin")).unlink(), (folder / "lengths.npy").unlink()])),
    train("figures of rows cut short", ("unigram.npy is damaged", "prepare or copy the rows again"),
          damaged_rows(shorter("unigram.npy", 8)), library=r"(?<=damaged \()Failed.*?(?=\): prep)"),
    train("figures of rows of another size", ("lengths.npy is damaged", "3 numbers, expected", "prepare or copy"),
          damaged_rows(lambda folder: np.save(folder / "lengths.npy", np.arange(3))),
          library=r"(?<=expected )[\d,]+"),
    train("an array of Python objects among the rows", ("unigram.npy is damaged", "prepare or copy"),
          damaged_rows(objects), library=r"(?<=damaged \().*?(?=\): prep)"),
    train("rows of another format", ("format 9", "reads 2", "prepare the rows again"), damaged_rows(manifest(format=9))),
    train("a manifest that is not JSON", ("is not a manifest of rows", "prepare the rows again"),
          damaged_rows(shorter("manifest.json", 20))),
    train("a manifest that lacks a field", ("wrong fields ['fill']", "prepare the rows again"),
          damaged_rows(manifest(fill=None))),
    train("a manifest with a wrong type", ("length is 'long'", "expected", "prepare the rows again"),
          damaged_rows(manifest(length="long"))),
    train("a manifest that names a file elsewhere", ("'../../shard.bin'", "file name", "prepare the rows again"),
          damaged_rows(manifest(shards=[["../../shard.bin", 1, "0"]]))),
    train("rows whose vocabulary is gone", ("a folder without vocabulary.json", "prepare or copy the rows again"),
          damaged_rows(lambda folder: [file.unlink() for file in (folder / "vocabulary").iterdir()])),
    train("rows whose vocabulary is damaged", ("sentencepiece.model", "prepare or copy the rows again"),
          damaged_rows(shorter("vocabulary/*.model", 500)), library=r"(?<=model \()[^()]*\([^()]*\).*?(?=\); )"),
    train("rows with the vocabulary of others", ("was prepared with the vocabulary", "(7 ids)", "prepare the rows again"),
          damaged_rows(another_vocabulary)),
    train("a work directory of another run",
          ("holds another run", "optimizer.learning_rate", "-> 0.5", "seed: 0 -> 9", "another --workdir"),
          continued(lambda run: None, "--optimizer.learning-rate=0.5", "--seed=9")),
    train("a work directory of a newer version", ("holds another run", "encoder.experts: True", "another --workdir"),
          continued(newer_run)),
    train("a work directory with a damaged run.json", ("run.json", "not readable JSON", "restore it"),
          continued(shorter("run.json", 30)), library=r"(?<=JSON \().*?(?=\): )"),
    train("a work directory with a run.json of many brackets", ("run.json", "brackets more than 100 deep", "restore it"),
          continued(lambda run: (run / "run.json").write_text("[" * 100_000))),
    train("the only checkpoint is damaged", ("none of the checkpoints [2]", "damaged", "another --workdir"),
          continued(damaged_checkpoint), moves=True),
    train("weights to start from that are none", ("nothing", "does not exist", "expected a run directory"),
          lambda world: world.train(f"--init-from={world.here / 'nothing'}")),
    train("weights to start from of another size",
          ("--init-from", "encoder.hidden_size is 32", "the weights have 16", "--encoder.hidden-size 16", "encoder.layers"),
          lambda world: world.train(f"--init-from={world.run}", "--encoder.hidden-size=32", "--encoder.layers=3")),
    train("a work directory where nothing can be written", ("cannot be written", "give a folder"),
          lambda world: world.train("--workdir=/proc/nowhere/run"), library=r"(?<=written \().*?(?=\): )"),
    plan("no topology", ("--topology ''", "expected one of", "v5e:4x4"), planned()),
    plan("an accelerator that is not known", ("'v9:4x4'", "expected one of", "v5e:4x4"), planned("--topology=v9:4x4")),
    plan("a topology without its size", ("v5e", "no size", "v5e:4x4"), planned("--topology=v5e")),
    plan("options out of range at once",
         ("--memory-fraction is 2", "--length 9999", "steps is 0"),
         planned("--topology=h200:8", "--memory-fraction=2", "--length=9999", "--steps=0")),
    plan("a number of slices that is none", ("--slices", "some"), planned("--topology=v5e:4x4", "--slices=some")),
    plan("a batch that the devices do not divide", ("batch_size 32", "64 device(s)", "multiple of 64"),
         planned("--topology=h200:64", "--length=64")),
)  # fmt: skip
