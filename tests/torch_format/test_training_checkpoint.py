"""Training checkpoints of the original code: weights to the bit, settings and the update number, and nothing of them is run."""

import argparse
import collections
import contextlib
import os
import pathlib
import sys
import zipfile
from typing import Any

import pytest

from spanjax.torch_format.pickles import open_torch_file
from spanjax.torch_format.training_checkpoint import encoder_settings, skipped_notes
from tests.torch_format.originals import CONFIG, UPDATE, Original, checkpoint, filled, made_up, torch

either_format = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
METERS = tuple(f"fairseq.meters.{name}" for name in ("AverageMeter", "StopwatchMeter", "TimeMeter"))


class Calls:
    """Pickled as this tuple of what `__reduce__` may give: a call, state, items."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@either_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_settings_and_update_are_read(dtype: Any, is_zip: bool, tmp_path: pathlib.Path) -> None:
    model = Original()
    found = open_torch_file(checkpoint(model, tmp_path / "checkpoint_last.pt", is_zip, dtype))
    assert not [name for name in sys.modules if name.startswith("fairseq")], "neither does the writer leave them here"
    expected = model.state_dict()
    assert found.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found.tensors[name].dtype.name == str(dtype).removeprefix("torch.")
        assert found.tensors[name].tobytes() == tensor.to(dtype).numpy().tobytes(), name
    settings = {name: value for name, value in CONFIG.items() if name != "clamp_attention"}
    assert encoder_settings(found.top) == settings | {"layer_norm_eps": 1e-12}
    assert sorted(found.skipped) == sorted(["fairseq.models.pair_bert.BertConfig", *METERS])
    optimizer, objects = skipped_notes(found.top, found.skipped)
    assert optimizer == "the optimizer's state of update 12,345 (2 tensors) is skipped: a run starts with fresh moments"
    assert UPDATE == 12_345 and all(name in objects for name in found.skipped)


def test_the_epsilon_is_the_models(tmp_path: pathlib.Path) -> None:
    """The original's model without a span boundary head has another epsilon, in its code alone."""
    found = open_torch_file(checkpoint(Original(), tmp_path / "c.pt", True, torch.float32, "hf_bert"))
    assert encoder_settings(found.top)["layer_norm_eps"] == 1e-5


def test_settings_are_plain_values_alone(tmp_path: pathlib.Path) -> None:
    """Attributes that are objects, lists or flags are no settings; without attention heads there are none."""

    def settings(**attributes: Any) -> dict[str, Any]:
        with made_up("other.Config", "other.Thing") as (config, thing):
            given = {name: filled(thing, a=1) if value == "thing" else value for name, value in attributes.items()}
            args = argparse.Namespace(config=filled(config, **given))
            torch.save({"args": args, "model": {"a": torch.ones(2)}}, tmp_path / "c.pt")
        return encoder_settings(open_torch_file(tmp_path / "c.pt").top)

    assert settings(num_attention_heads=4, hidden_act="thing", vocab_size=[3], other=5) == {"num_attention_heads": 4}
    assert settings(num_attention_heads=True, hidden_size=4) == {} and settings(hidden_size=8) == {}


@either_format
@pytest.mark.parametrize("place", ["args", "extra_state"])
def test_what_is_skipped_is_never_run(place: str, is_zip: bool, tmp_path: pathlib.Path) -> None:
    """Calls of every kind, in place of an object beside the weights: named in the notes, and nothing happens."""
    ran = tmp_path / "ran"
    command = f"touch {ran}"
    hostile = [
        Calls(os.system, (command,)),
        Calls(eval, (f"__import__('pathlib').Path({str(ran)!r}).touch()",)),
        Calls(Calls, (), None, iter([1, 2]), iter([("a", Calls(os.system, (command,)))])),
        Calls(os.system, (Calls(os.system, (command,)),), {"__class__": 1, "attributes": 2, "asked": 3}),
    ]
    path = tmp_path / "c.pt"
    torch.save({"model": {"a": torch.ones(2)}, place: hostile}, path, _use_new_zipfile_serialization=is_zip)
    found = open_torch_file(path)
    assert found.tensors["a"].tolist() == [1, 1] and not ran.exists()
    assert "posix.system" in found.skipped and "posix.system" in skipped_notes(found.top, found.skipped)[0]
    with contextlib.suppress(Exception):  # torch fails on what the calls gave, after it has run them
        torch.load(path, weights_only=False)
    assert ran.exists(), "the file would have run it"


@either_format
def test_weights_are_not_taken_out_of_objects(is_zip: bool, tmp_path: pathlib.Path) -> None:
    """Wherever a state dict holds an object of an unknown class, or lies in one, the file is refused and the class is named."""
    path = tmp_path / "c.pt"
    one = torch.ones(2)
    with made_up("parallel.Wrapped", "other.Meter") as (wrapped, meter):
        inside = filled(wrapped, weight=one, module={"a": one})
        for where, name in (
            ({"model": inside, "args": filled(meter)}, "parallel.Wrapped"),
            (inside, "parallel.Wrapped"),
            ({"model": {"a": one, "b": inside}}, "parallel.Wrapped"),
            ({"model": {"a": one, "b": [{"c": (inside,)}]}}, "parallel.Wrapped"),
            ({"a": one, "meter": filled(meter)}, "other.Meter"),
            ({"model": {"epoch": 3}, "ema": inside}, "parallel.Wrapped"),
            ({"model": {"a": one, "b": wrapped}}, "parallel.Wrapped"),
            ({"a": one, wrapped: one}, "parallel.Wrapped"),
        ):
            torch.save(where, path, _use_new_zipfile_serialization=is_zip)
            with pytest.raises(ValueError, match=f"requests {name}, which weights do not need; nothing in it was run"):
                open_torch_file(path)
        for aside in ({"model": {"a": one}, "ema": inside}, {"state_dict": {"a": one}, "optimizer": inside}):
            torch.save(aside, path, _use_new_zipfile_serialization=is_zip)
            assert list(open_torch_file(path).tensors) == ["a"]


@either_format
def test_what_tensors_are_given_is_looked_through(is_zip: bool, tmp_path: pathlib.Path) -> None:
    """Hooks, attributes and subclasses of a tensor, and the state of the dictionary, may not be opaque either."""
    one = torch.ones(2)
    names = collections.OrderedDict(a=one)
    with made_up("other.Thing") as (thing,):
        names.extra = filled(thing)  # pyright: ignore[reportAttributeAccessIssue]
        storage = one._typed_storage()
        rebuild, again = torch._utils._rebuild_tensor_v2, torch._utils._rebuild_parameter
        for value in (
            {"a": Calls(rebuild, (storage, 0, (2,), (1,), False, filled(thing)))},
            {"a": Calls(again, (one, True, filled(thing)))},
            {"a": Calls(torch._tensor._rebuild_from_type_v2, (again, thing, (one, True, {}), {}))},
            {"a": Calls(torch._tensor._rebuild_from_type_v2, (again, torch.Tensor, (one, True, {}), filled(thing)))},
            names,
        ):
            for saved in (value, {"model": value}):
                torch.save(saved, tmp_path / "c.pt", _use_new_zipfile_serialization=is_zip)
                with pytest.raises(ValueError, match=r"requests other\.Thing, which weights"):
                    open_torch_file(tmp_path / "c.pt")


def with_program(path: pathlib.Path, program: bytes, is_zip: bool) -> pathlib.Path:
    """A checkpoint of one tensor beside whose weights this program of pickle's opcodes pushes one object."""
    here = b"X\x04\x00\x00\x00HERE"
    torch.save({"model": {"a": torch.ones(2)}, "x": "HERE"}, path, _use_new_zipfile_serialization=is_zip)
    if not is_zip:
        content = path.read_bytes()
        assert content.count(here) == 1
        path.write_bytes(content.replace(here, program))
        return path
    with zipfile.ZipFile(path) as old:
        records = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in records.items():
            new.writestr(name, content.replace(here, program))
    return path


@either_format
@pytest.mark.parametrize(
    ("program", "names"),
    [
        (b"(V1+1\nibuiltins\neval\n", ["builtins.eval"]),
        (b"(cbuiltins\neval\nV1+1\no", ["builtins.eval"]),
        (b"\x8c\x08builtins\x8c\x04eval\x93\x8c\x031+1\x85R", ["builtins.eval"]),
        (b"cos\nsystem\n)\x81", ["os.system"]),
        (b"cos\nsystem\n)}V__class__\nK\x01s\x92", ["os.system"]),
        (b"cbuiltins\ngetattr\n(cos\npath\nVsystem\ntR(Vtouch ran\ntR", ["builtins.getattr", "os.path"]),
        (b"ca\nB\n)\x81(K\x01K\x02eK\x03a(K\x01K\x02uK\x03K\x04s(K\x01\x90", ["a.B"]),
        (b"}ca\nB\n)\x81K\x01s", ["a.B"]),
        (b"ca\nB\n)\x81(N}V__class__\nca\nC\nstb", ["a.B", "a.C"]),
        (b"c__main__\nx\n0]", ["__main__.x"]),
    ],
)
def test_every_way_to_make_an_object_makes_a_stand_in(
    program: bytes, names: list[str], is_zip: bool, tmp_path: pathlib.Path
) -> None:
    found = open_torch_file(with_program(tmp_path / "c.pt", program, is_zip))
    assert list(found.skipped) == names and found.tensors["a"].tolist() == [1, 1]


@either_format
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"ca\nB\n}V__new__\nK\x01sb", "damaged"),  # state of a class, not of an object
        (b"ca\nB\nK\x01a", "damaged"),
        (b"ca\nB\nK\x01K\x02s", "damaged"),
        (b"ca\nB\n)\x81Q", r"requests a\.B, which"),
        (b"(Vstorage\nca\nB\nV9\nVcpu\nK\x01tQ", r"requests a\.B, which"),
        (b"\x82\x01", "not one that torch writes"),
        (b"".join(b"ca\nB%d\n0" % number for number in range(1001)) + b"N", "names over 1,000 classes"),
        (b"ca\nB\n" + b"\x85" * 1001, "not one that torch writes"),
    ],
)
def test_objects_that_no_stand_in_takes_are_refused(
    program: bytes, message: str, is_zip: bool, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=message):
        open_torch_file(with_program(tmp_path / "c.pt", program, is_zip))


@either_format
def test_deep_and_shared_objects_are_walked_once(is_zip: bool, tmp_path: pathlib.Path) -> None:
    """A tower of objects that are each other's state, and lists that hold each other twice: 2^60 ways through them."""
    tower = b"ca\nB\n)\x81" * 100_000 + b"b" * 99_999
    assert open_torch_file(with_program(tmp_path / "c.pt", tower, is_zip)).skipped == ("a.B",)
    twice: list[Any] = []
    for _ in range(60):
        twice = [twice, twice]
    torch.save({"model": {"a": torch.ones(2)}, "optimizer": twice}, tmp_path / "c.pt")
    found = open_torch_file(tmp_path / "c.pt")
    assert skipped_notes(found.top, found.skipped) == []
    torch.save({"model": {"a": torch.ones(2), "twice": twice}}, tmp_path / "c.pt")
    assert list(open_torch_file(tmp_path / "c.pt").tensors) == ["a"]


def test_names_of_classes_cannot_steer_a_terminal(tmp_path: pathlib.Path) -> None:
    program = b"cfair\x1b]0;seq\x07\nA" + b"b" * 500 + b"\n)\x81"
    (name,) = open_torch_file(with_program(tmp_path / "c.pt", program, True)).skipped
    assert name.startswith("fair\\x1b]0;seq\\x07.Abbb") and name.isprintable() and len(name) == 100
