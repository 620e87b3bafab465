"""Wrong inputs of `spanjax.convert` and `spanjax.predict`: checkpoints and folders of PyTorch weights."""

import functools
import io
import json
import pathlib
import pickle
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

from tests.bad_inputs import Case, World

from_torch = functools.partial(Case, "convert from-torch")
to_torch = functools.partial(Case, "convert to-torch")
to_onnx = functools.partial(Case, "convert to-onnx")
inspect = functools.partial(Case, "convert inspect")
verify = functools.partial(Case, "convert verify")
HUB = {"HF_TOKEN": "hf_of-nobody", "HF_ENDPOINT": "http://127.0.0.1:9"}  # a port where nothing listens
push = functools.partial(Case, "convert push", variables=HUB)
fill_mask = functools.partial(Case, "predict fill-mask")
spans = functools.partial(Case, "predict spans")
encode = functools.partial(Case, "predict encode")
COPY = r"(?<=file \().*?(?=\): copy)"


class Hostile:
    """Would make a file when it is unpickled."""

    def __reduce__(self) -> tuple:
        return pathlib.Path.touch, (pathlib.Path("executed"),)


def zipped(content: bytes) -> bytes:
    """A file as torch.save writes it, around this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return file.getvalue()


def weights(change: Callable[[pathlib.Path], Any], *more: str) -> Callable[[World], list[Any]]:
    """Reading a copy of the folder of weights that was changed."""

    def made(world: World) -> list[Any]:
        folder = world.copy("weights")
        change(folder)
        return [folder, world.here / "out", *more]

    return made


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[World], list[Any]]:
    """Reading a copy whose tensors were changed."""

    def rewrite(folder: pathlib.Path) -> None:
        found = safetensors.numpy.load_file(folder / "model.safetensors")
        change(found)
        safetensors.numpy.save_file(found, folder / "model.safetensors")

    return weights(rewrite)


def config(**fields: Any) -> Callable[[World], list[Any]]:
    """Reading a copy whose config.json was changed; None takes a field out."""

    def rewrite(folder: pathlib.Path) -> None:
        found = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(
            json.dumps({name: each for name, each in found.items() if each is not None})
        )

    return weights(rewrite)


def instead(name: str, content: bytes) -> Callable[[World], list[Any]]:
    """Reading a copy with this file in the place of its weights."""

    def replace(folder: pathlib.Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)

    return weights(replace)


def index(content: Any) -> Callable[[World], list[Any]]:
    """Reading a copy with an index of weights in several files."""
    return instead("model.safetensors.index.json", json.dumps(content).encode())


def meta(change: Callable[[dict[str, Any]], Any]) -> Callable[[World], list[Any]]:
    """Converting a copy of a run whose checkpoint says something else; without checksums, which would show it."""

    def made(world: World) -> list[Any]:
        folder = world.copy("run") / "checkpoints" / "2"
        (folder / "checksums.json").unlink()
        file = folder / "meta" / "metadata"
        found = json.loads(file.read_text())
        change(found)
        file.write_text(json.dumps(found))
        return [world.here / "run", world.here / "out"]

    return made


def checkpoint(change: Callable[[pathlib.Path], Any]) -> Callable[[World], list[Any]]:
    """Converting a copy of a run whose checkpoint was changed."""

    def made(world: World) -> list[Any]:
        change(world.copy("run") / "checkpoints" / "2")
        return [world.here / "run", world.here / "out"]

    return made


def cut(name: str, by: int = 100) -> Callable[[pathlib.Path], Any]:
    """A file without its last bytes."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-by])


def taken(world: World) -> list[Any]:
    """An output in which a file of the user lies."""
    world.write("out/mine", "mine")
    return [world.weights, world.here / "out"]


def relative(world: World) -> list[Any]:
    """A run that says to have XLNet's attention, without a vocabulary."""
    change = meta(lambda found: [found["run"]["encoder"].update(relative_attention=True), found.update(vocabulary={})])
    return [*change(world), "--sbo"]


def disentangled(world: World) -> list[Any]:
    """A run that says to have DeBERTa's attention."""
    changes = {"disentangled_attention": "both", "max_distance": 8}
    return meta(lambda found: found["run"]["encoder"].update(changes))(world)


def other_vocabulary(world: World) -> list[Any]:
    """A vocabulary that is not that of the weights."""
    pieces = world.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    return [world.weights, world.here / "out", "--vocab", pieces]


def encoded(name: str, content: str, output: str = "v.npy", *more: str) -> Callable[[World], list[Any]]:
    """Vectors of a file of texts, by the tiny run; with --overwrite over another file."""

    def made(world: World) -> list[Any]:
        target = world.write(output, "mine") if more else world.here / output
        return [world.run, "--input", world.write(name, content), "--output", target, *more]

    return made


def no_vocabulary(world: World) -> list[Any]:
    """Weights without tokenizer files."""
    folder = world.copy("weights")
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    return [folder, "--text", "the [MASK]"]


def asked(*more: str) -> Callable[[World], list[Any]]:
    """Asking the good model."""
    return lambda world: [world.run, *more]


LAYER = "bert.encoder.layer.0.output.dense.weight"

MODEL_CASES = (
    Case("convert", "a command that is none", ("no command 'from-tensorflow'", "expected one of to-torch"),
         lambda world: ["from-tensorflow"]),
    from_torch("weights that do not exist", ("nothing does not exist", "expected a run directory"),
               lambda world: [world.here / "nothing", world.here / "out"]),
    from_torch("a folder without weights", ("weights holds none of them", "model.safetensors"),
               weights(lambda folder: (folder / "model.safetensors").unlink())),
    from_torch("a safetensors file cut short", ("model.safetensors", "not a whole", "copy it again"),
               weights(cut("model.safetensors")), library=COPY),
    from_torch("a tensor missing", ("missing (1)", LAYER), tensors(lambda found: found.pop(LAYER))),
    from_torch("a tensor of another shape", ("different shapes in different layers", "output.dense.weight", "(16, 5)"),
               tensors(lambda found: found.update({LAYER: np.zeros((5, 16), np.float32)}))),
    from_torch("tensors of another shape than config.json says", ("weights and config.json do not agree", "(2, 16, 64)"),
               config(intermediate_size=64)),
    from_torch("a tensor that nothing explains", ("not explained (1)", "adapter.weight"),
               tensors(lambda found: found.update({"adapter.weight": np.zeros(2, np.float32)}))),
    from_torch("a pickle that holds code", ("pytorch_model.bin", "the file requests", "nothing in it was run", "you trust"),
               instead("pytorch_model.bin", zipped(pickle.dumps({"a": Hostile()})))),
    from_torch("a pickle that torch did not write", ("pytorch_model.bin", "not a file that torch.save wrote"),
               instead("pytorch_model.bin", pickle.dumps({"a": 1}))),
    from_torch("an index that names a file elsewhere", ("'../model.safetensors'", "outside of its folder"),
               index({"weight_map": {"a": "../model.safetensors"}})),
    from_torch("an index that names the folder above", ("'..'", "outside of its folder"), index({"weight_map": {"a": ".."}})),
    from_torch("an index that names a file that is missing", ("two.safetensors", "copy the whole folder again"),
               index({"weight_map": {"a": "two.safetensors"}})),
    from_torch("an index of another form", ("index.json", "weight_map", "expected"), index({"weight_map": ["a"]})),
    from_torch("an index with a list for a name", ("index.json", "['a']", "copy the whole"), index({"weight_map": {"a": ["a"]}})),
    from_torch("a config.json that is not JSON", ("config.json is not readable JSON", "copy it again"),
               weights(cut("config.json", 9)), library=r"(?<=readable JSON \().*?(?=\): )"),
    from_torch("a config.json and an index of many brackets", ("index.json is not readable JSON", "more than 100 deep"),
               instead("model.safetensors.index.json", b"[" * 100_000)),
    from_torch("a config.json that is a list", ("config.json is not readable JSON", "it holds a list", "copy it again"),
               weights(lambda folder: (folder / "config.json").write_text("[1]"))),
    from_torch("two fields of config.json missing and one that is not known",
               ("hidden_size is missing", "vocab_size is missing", "hidden_act is 'swish'"),
               config(hidden_size=None, vocab_size=None, hidden_act="swish")),
    from_torch("heads that do not divide the hidden size", ("config.json", "16 is not a multiple", "heads 3"),
               config(num_attention_heads=3)),
    from_torch("sizes of nothing", ("config.json", "hidden_size is 0: expected at least 1"), config(hidden_size=0)),
    from_torch("a number that is text in config.json", ("config.json", "layer_norm_eps is 'small'", "expected a number"),
               config(layer_norm_eps="small")),
    from_torch("numbers out of range in config.json",
               ("encoder.norm_epsilon is nan: expected a finite number, more than 0", "initializer_std is -1",
                "positions is a number of 31 digits"),
               config(layer_norm_eps=float("nan"), initializer_range=-1, max_position_embeddings=10**30)),
    from_torch("more layers than tensors", ("config.json says 1,000,000,000 layers", "tensors in all"),
               config(num_hidden_layers=10**9)),
    from_torch("weights that are no numbers",
               (f"{LAYER} holds 3 of 512 numbers that are NaN or infinite", "attention.output.dense.weight holds int8",
                "attention.output.dense.bias holds bool, expected floating-point"),
               tensors(lambda found: found.update(
                   {LAYER: np.where(np.arange(512).reshape(16, 32) % 200, 0, np.inf).astype(np.float32),
                    LAYER.replace("output", "attention.output"): np.zeros((16, 16), np.int8),
                    LAYER.replace("output", "attention.output").replace("weight", "bias"): np.zeros(16, bool)}))),
    from_torch("another family of models", ("model_type is 'gpt2'", "expected one of bert"), config(model_type="gpt2")),
    from_torch("an XLNet that computes otherwise, with a size missing",
               ("n_layer is missing", "bi_data is True: only False", "summary_type is 'last': only 'first'"),
               config(model_type="xlnet", d_model=16, n_head=2, d_inner=32, bi_data=True,
                      architectures=["XLNetForSequenceClassification"])),
    from_torch("a DeBERTa with a convolution and with positions in its embeddings",
               ("position_biased_input is True: only False", "conv_kernel_size is 3: only 0", "'p2p': expected c2p"),
               config(model_type="deberta-v2", relative_attention=True, conv_kernel_size=3, pos_att_type="p2p")),
    from_torch("a vocabulary of another size", ("--vocab", "6 pieces", "the weights"), other_vocabulary),
    from_torch("a tokenizer.json that is damaged", ("tokenizer", "JSON"), weights(
        lambda folder: [(folder / "tokenizer.json").write_text("{"), *(file.unlink() for file in folder.glob("*.model"))]),
               library=r"(?<=not JSON \().*?(?=\); )"),
    from_torch("an output that is there", ("out exists", "--overwrite"), taken),
    from_torch("an output below a file", ("file/out", "file is a file, expected a folder"),
               lambda world: [world.weights, world.write("file", "mine") / "out"]),
    from_torch("an output where nothing can be written", ("/proc/nowhere/out cannot be written", "give a folder"),
               lambda world: [world.weights, "/proc/nowhere/out"], library=r"(?<=written \().*?(?=\): )"),
    to_torch("a run without a checkpoint", ("no whole checkpoint", "give another run"), lambda world: [
        world.write("run/checkpoints/note", "").parent.parent, world.here / "out"]),
    to_torch("modules of sentence-transformers in the original layout", ("--sentence-transformers: transformers reads no", "use"),
             lambda world: [world.run, world.here / "out", "--format=fairseq", "--sentence-transformers"]),
    to_torch("a checkpoint without a file", ("no whole checkpoint", "missing files", "damaged"),
             checkpoint(lambda folder: (folder / "meta" / "metadata").unlink())),
    to_torch("checksums of another form", ("checksums.json",), checkpoint(
        lambda folder: (folder / "checksums.json").write_text("[1]"))),
    to_torch("checksums of many brackets", ("2 is damaged (checksums.json", "more than 100 deep"), checkpoint(
        lambda folder: (folder / "checksums.json").write_text("[" * 100_000))),
    to_torch("a checkpoint whose meta is not JSON", ("2 cannot be read", "take another step"), checkpoint(
        lambda folder: [(folder / "checksums.json").unlink(), cut("meta/metadata")(folder)]),
             library=r"(?<=read \().*?(?=\): )"),
    to_torch("a checkpoint of a newer version",
             ("EncoderConfig has no setting experts here", "spanjax 9.9", "take the version of spanjax that wrote it"),
             meta(lambda found: [found["run"]["encoder"].update(experts=8), found.update(spanjax="9.9")])),
    to_torch("a checkpoint that names no encoder", ("names no encoder", "take the version that wrote it"),
             meta(lambda found: found.pop("run"))),
    to_torch("a checkpoint with a size that is no number", ("checkpoints/2: its meta is damaged", "take another step"),
             meta(lambda found: found["run"]["encoder"].update(heads="many")), library=r"(?<=damaged \().*?(?=\): take)"),
    to_torch("a checkpoint with sizes out of range", ("its meta is damaged", "encoder.vocab_size is 1000000000000: expected"),
             meta(lambda found: found["run"]["encoder"].update(vocab_size=10**12, norm_epsilon=float("nan")))),
    to_torch("a checkpoint whose vocabulary is damaged", ("vocabulary", "checkpoints/2"),
             meta(lambda found: found.update(vocabulary={"vocabulary.json": "%%%"})), library=r"(?<=damaged \().*?(?=\): take)"),
    to_torch("a checkpoint with a file name for a vocabulary", ("../vocab.txt", "checkpoints/2"),
             meta(lambda found: found.update(vocabulary={"../vocab.txt": "YQ=="}))),
    to_torch("a type that is none", ("--dtype", "float8", "bfloat16"),
             lambda world: [world.run, world.here / "out", "--dtype", "float8"]),
    to_onnx("a task without its head", ("--task classification", "its heads: mlm, sbo", "try --task encoder"),
            lambda world: [world.run, world.here / "out", "--task", "classification"]),
    to_onnx("boundaries of a model without their head", ("--sbo", "no span boundary head", "leave it out"),
            lambda world: [world.tuned, world.here / "out", "--sbo"]),
    to_onnx("relative attention and boundaries without a vocabulary",
            ("relative attention (XLNet)", "use to-torch", "came without a vocabulary"), relative),
    to_onnx("disentangled attention", ("disentangled attention (DeBERTa)", "use to-torch"), disentangled),
    to_onnx("an output that is there", ("out exists", "--overwrite"), lambda world: [world.run, *taken(world)[1:]]),
    inspect("a file that is none", ("notes.txt", "torch.save"), lambda world: [world.write("notes.txt", "a note")]),
    push("a run that was not exported", ("is a run directory: export it first", "convert to-torch"),
         lambda world: [world.run, "me/model"]),
    push("a folder that does not exist, a name without an owner, a branch that is none",
         ("nothing: no such folder", "model: expected OWNER/NAME", "--revision 'a b': expected the name of a branch"),
         lambda world: [world.here / "nothing", "model", "--revision", "a b"]),
    push("a folder without weights", ("weights: no weights: expected one of model.safetensors",),
         lambda world: [(weights(lambda folder: (folder / "model.safetensors").unlink())(world))[0], "me/model"]),
    push("no token", ("no token for the Hub: set HF_TOKEN", "hf auth login"), lambda world: [world.weights, "me/model"],
         variables={**HUB, "HF_TOKEN": "", "HF_HOME": "/nowhere"}, apart=True),
    push("a Hub that does not answer", ("127.0.0.1 cannot be reached", "check the network, HF_ENDPOINT"),
         lambda world: [world.weights, "me/model"], library=r"(?<=reached \()\w+(?=\))"),
    verify("sentences that do not exist", ("--text none.txt: no such file", "one a line"),
           lambda world: [world.run, world.weights, "--text", "none.txt"]),
    verify("sentences that are not UTF-8", ("old.txt", "UTF-8"),
           lambda world: [world.run, world.weights, "--text", world.write("old.txt", b"Caf\xe9\n")]),
    fill_mask("a model that does not exist", ("nothing does not exist", "expected a run directory"),
              lambda world: [world.here / "nothing", "--text", "the [MASK]"]),
    fill_mask("a text without a mask", ("has no [MASK]", "the cat"), asked("--text", "the cat")),
    fill_mask("a text that is too long", ("the model reads at most 128", "shorten it"), asked("--text", "[MASK] " * 200)),
    fill_mask("no pieces to show", ("top 0", "expected at least 1"), asked("--text", "the [MASK]", "--top", "0")),
    fill_mask("more pieces to show than there are", ("top 100000", "at most"), asked("--text", "the [MASK]", "--top", "100000")),
    fill_mask("a model without a vocabulary", ("without a vocabulary", "weights"), no_vocabulary),
    fill_mask("nothing to fill in", ("--text",), asked()),
    spans("a phrase that is not in the text", ("'dog' is not in the text",), asked("--text", "the cat", "--hide", "dog")),
    spans("no pieces to show", ("top 0", "expected at least 1"), asked("--text", "the [MASK]", "--top", "0")),
    encode("a table without the column of texts", ("'text'", "review", "--field"), encoded("a.jsonl", '{"review": "good"}\n')),
    encode("a text that is too long", ("index 0", "at most 128", "--truncate"), encoded("a.txt", "long time " * 200)),
    encode("no text at all", ("no text", "at least"), encoded("a.txt", "\n\n")),
    encode("a kind of file that is not written", ("v.txt", ".npy", ".parquet"), encoded("a.txt", "the cat\n", "v.txt")),
    encode("a file that holds something else", ("v.npy", "holds no vectors", "another name"),
           encoded("a.txt", "the cat\n", "v.npy", "--overwrite")),
)  # fmt: skip
