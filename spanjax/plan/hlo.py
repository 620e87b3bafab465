"""Reads the text of a compiled program (optimised HLO): collectives with their bytes, trip counts, and shapes that occur.

The forms differ by backend: a `-start` and `-done` pair, an `async-start` around a computation, a fusion of which the first
part starts the transfer (TPU), a fusion `all-reduce-scatter` (TPU), a host transfer to other slices (TPU).
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
BITS = {"pred": 8, "bf16": 16}  # other types end in their number of bits, or have it after the letters

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BOUND = re.compile(r"= s32\[\]\S* constant\((\d+)\)")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_CHAIN = re.compile(r'chain_id="(\w+)"')
_OPERAND = re.compile(r"%([\w.\-]+)")
_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    result: str
    """Its type, without layouts."""
    rest: str
    """Operands and attributes."""

    @functools.cached_property
    def operands(self) -> list[str]:
        """Names of its operands, in order."""
        depth = 1
        for place, letter in enumerate(self.rest):
            depth += (letter in "([{") - (letter in ")]}")
            if not depth:
                return _OPERAND.findall(self.rest[:place])
        return _OPERAND.findall(self.rest)


@dataclasses.dataclass(frozen=True)
class Collective:
    """A transfer between devices, as often as it runs in one call of the program."""

    kind: str
    """One of KINDS."""
    dtype: str
    """Type of the moved arrays, as XLA writes it; several joined with +."""
    bytes: int
    """Bytes of one execution on one device: of the whole (gathered, or not yet scattered) arrays."""
    count: int
    """Executions; the trip counts of the loops around it multiplied."""
    group: tuple[int, ...]
    """Mesh indices of the first group of devices that take part; empty for all devices."""
    asynchronous: bool
    """True if the program may compute meanwhile."""
    slices: int = 1
    """Slices it joins by host transfer; 1 for a transfer among the devices of `group`."""


def called(line: Instruction) -> list[str]:
    """Names of the computations that an instruction calls, runs in turns, or chooses from."""
    branches = (name.strip().lstrip("%") for names in _BRANCHES.findall(line.rest) for name in names.split(","))
    return [*_CALLED.findall(line.rest), *branches]


def bits(dtype: str) -> int:
    """Bits of an element of a type as XLA names it."""
    found = re.search(r"\d+", dtype)
    return BITS.get(dtype) or (int(found.group()) if found else 8)


def shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Every array type in the text, as (type, dimensions), in order."""
    return [(dtype, tuple(int(d) for d in dims.split(",") if d)) for dtype, dims in _SHAPE.findall(text)]


def size(text: str) -> int:
    """Bytes of all array types in the text, without padding of layouts."""
    return sum(math.prod(dims) * bits(dtype) // 8 for dtype, dims in shapes(text))


def split_type(text: str) -> tuple[str, str]:
    """("(bf16[2]{0}, f32[])", " opcode(...)") of the text after "= "; the type is a tuple or a single array."""
    if not text.startswith("("):
        head, _, rest = text.partition(" ")
        return head, rest
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[: place + 1], text[place + 1 :]
    return text, ""


def tuple_parts(text: str) -> list[str]:
    """The members of a tuple type; a type that is no tuple is its own only member."""
    text = re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", text).strip()
    if not text.startswith("("):
        return [text]
    parts, depth, begin = [], 0, 1
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if (letter == "," and depth == 1) or not depth:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return parts


class Program:
    """The computations of an HLO module in text form, as `jax.stages.Compiled.as_text` gives it."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry, body = "", None
        self.header = text.partition("\n")[0]
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                body = self.computations.setdefault(header.group(2), [])
                self.entry = header.group(2) if header.group(1) else self.entry
            elif body is not None and (name := _NAME.match(line)):
                kind, rest = split_type(line[name.end() :])
                opcode = _OPCODE.match(rest)
                if opcode:
                    body.append(Instruction(name.group(1), opcode.group(1), kind, rest[opcode.end() :]))
        if not self.entry:
            raise ValueError("this is not the text of a compiled program: expected a line that begins with ENTRY")

    @functools.cached_property
    def runs(self) -> dict[str, int]:
        """Name of every computation -> how often it runs in one call; both branches of a condition count."""
        calls = {name: list(self._calls(body)) for name, body in self.computations.items()}
        order, seen = [], set()

        def visit(name: str) -> None:
            if name not in seen and name in calls:
                seen.add(name)
                for called, _ in calls[name]:
                    visit(called)
                order.append(name)

        visit(self.entry)
        runs = collections.Counter({self.entry: 1})
        for name in reversed(order):
            for called, times in calls[name]:
                runs[called] += runs[name] * times
        return runs

    def _calls(self, body: list[Instruction]) -> Iterator[tuple[str, int]]:
        for line in body:
            times = self.trips(line) if line.opcode == "while" else 1
            yield from ((name, times) for name in called(line))

    def trips(self, loop: Instruction) -> int:
        """Trip count of a while loop: XLA's own, else the largest bound that its condition compares with, else 1."""
        known = _TRIPS.search(loop.rest)
        if known:
            return int(known.group(1))
        condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
        body = self.computations.get(condition.group(1), []) if condition else []
        bounds = [_BOUND.search(f"= {line.result} {line.opcode}({line.rest}") for line in body]
        return max((int(bound.group(1)) for bound in bounds if bound), default=1)

    @functools.cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """All transfers of the program; those of one kind, type, size and group are not merged."""
        return tuple(each for name in self.computations if self.runs[name] for each in self._collectives_in(name))

    def _collectives_in(self, computation: str) -> list[Collective]:
        body = self.computations[computation]
        starts = any("AsyncCollectiveStart" in line.rest for line in body)
        asynchronous = starts or computation in self._wrapped
        return [
            each
            for line in body
            if starts or "chain_id=" not in line.rest
            for each in self._collective(line, computation, asynchronous)
        ]

    @functools.cached_property
    def _wrapped(self) -> set[str]:
        """Names of the computations that an `async-start` runs."""
        lines = (line for body in self.computations.values() for line in body if line.opcode == "async-start")
        return {name for line in lines for name in called(line)}

    def begun_by(self, line: Instruction, computation: str) -> list[Collective]:
        """Transfers that begin when an instruction runs: its own one, or those of the computation that it fuses or wraps."""
        if line.opcode in ("fusion", "async-start"):
            return [each for name in called(line) for each in self._collectives_in(name)]
        return self._collective(line, computation, False)

    def chain(self, line: Instruction) -> str:
        """Name of the transfer that the fusions of a chain carry on next to their own work (TPU); empty for none."""
        found = (_CHAIN.search(each.rest) for each in self._fused(line))
        return next((match.group(1) for match in found if match), "")

    def ends_chain(self, line: Instruction) -> bool:
        """True if a fusion waits for the end of the transfer of its chain."""
        return any("AsyncCollectiveDone" in each.rest for each in self._fused(line))

    def _fused(self, line: Instruction) -> Iterator[Instruction]:
        """Instructions of the computation of a fusion; none for another instruction."""
        names = called(line) if line.opcode == "fusion" else []
        return (each for name in names for each in self.computations.get(name, []))

    def _collective(self, line: Instruction, computation: str, asynchronous: bool) -> list[Collective]:
        kind, started = line.opcode.removesuffix("-start"), line.opcode.endswith("-start")
        if line.opcode == "send" and "_xla_megascale_transfer_type" in line.rest:
            return [self._across_slices(line, computation)]
        if kind not in KINDS:
            return []
        moved, group = line.result, _group(line.rest)
        if started and kind != "all-reduce":
            parts = tuple_parts(line.result)
            moved = parts[1 if kind == "all-gather" else 0]
        amount = size(moved)
        if kind == "reduce-scatter" and not started:
            amount *= len(group) or 1
        if computation.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        dtype = "+".join(sorted({dtype for dtype, _ in shapes(moved)}))
        return [Collective(kind, dtype, amount, self.runs[computation], group, started or asynchronous)]

    def _across_slices(self, line: Instruction, computation: str) -> Collective:
        part = tuple_parts(line.result)[0]
        kind = re.search(r'_xla_megascale_transfer_type="(\w+)"', line.rest)
        target = re.search(r'_xla_megascale_target="\{([\d,:]*)\}', line.rest)
        members = target.group(1) if target else ""
        first, _, last = members.partition(":")
        slices = int(last) - int(first) + 1 if last else len(members.split(","))
        named = kind.group(1).lower().replace("_", "-") if kind else "collective-permute"
        return Collective(named, shapes(part)[0][0], size(part), self.runs[computation], (), True, slices)

    def opcodes(self) -> dict[str, int]:
        """Number of instructions of every kind: the program's length, whatever the number of devices."""
        return dict(collections.Counter(line.opcode for body in self.computations.values() for line in body))

    def donated(self) -> int:
        """Number of inputs that an output overwrites."""
        return len(re.findall(r"-alias\)", self.header))


def _group(attributes: str) -> tuple[int, ...]:
    """Returns the first replica group in the attributes of a collective; empty if it names none (all devices)."""
    listed = _LISTED.search(attributes)
    if listed:
        return tuple(int(place) for place in listed.group(1).split(",") if place)
    iota = _IOTA.search(attributes)
    if iota:
        (_, width), sizes, order = (_numbers(part) for part in iota.groups())
        return _first_group(sizes, order or tuple(range(len(sizes))), width)
    axes = _AXES.search(attributes)
    if axes:
        named = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes.group(1))}
        inside = [list(named).index(name) for name in re.findall(r"'([^']+)'", axes.group(2))]
        order = (*(axis for axis in range(len(named)) if axis not in inside), *inside)
        sizes = tuple(named.values())
        width = math.prod(sizes[axis] for axis in inside)
        return _first_group(sizes, order, width)
    return ()


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _first_group(sizes: tuple[int, ...], order: tuple[int, ...], width: int) -> tuple[int, ...]:
    return tuple(np.arange(math.prod(sizes)).reshape(sizes).transpose(order).ravel()[:width].tolist())


def memory_of(analysis: Any) -> dict[str, int]:
    """Bytes a device of a `CompiledMemoryStats`; outputs that overwrite an argument count once in the peak."""
    memory = {
        "arguments": analysis.argument_size_in_bytes,
        "outputs": analysis.output_size_in_bytes,
        "donated": analysis.alias_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "code": analysis.generated_code_size_in_bytes,
    }
    new = memory["outputs"] - memory["donated"]
    return memory | {"peak": memory["arguments"] + new + memory["temporaries"] + memory["code"]}


def exhausted(message: str) -> int:
    """Reads the bytes that a program would need from the message of an exhausted memory; 0 if it has none."""
    found = re.search(r"Used ([\d.]+)([BKMGT]?) of|\(([\d.]+)([BKMGT]?)\) exceeds", message)
    if not found:
        return 0
    number, unit = (part for part in found.groups() if part is not None)
    return int(float(number) * UNITS[unit])
