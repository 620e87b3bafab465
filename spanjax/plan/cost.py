"""A model of the time of a compiled program, kernel by kernel, and of the transfers that it can hide.

A kernel takes max(bytes / achievable bandwidth, operations / achievable rate) + a launch. Its bytes are those of its operands and
results, once each; where it only cuts slices from an array or writes one into it, those of the slices. Caches are not modelled.
Kernels do not overlap, nor do a TPU's copies between memory and chip.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spanjax.hardware import Achievable
from spanjax.plan import own_kernels
from spanjax.plan.hlo import Collective, Instruction, Program, called, shapes, size, tuple_parts

PRODUCTS, ATTENTION, ELEMENTWISE = "products", "attention", "element-wise"
INTO_STACKS, OUT_OF_STACKS, MOVES = "into stacks", "out of stacks", "copies and fills"
KINDS = (PRODUCTS, ATTENTION, ELEMENTWISE, INTO_STACKS, OUT_OF_STACKS, MOVES)
"""Matrix products; attention by a kernel; maps and reductions; writes of slices into stacked arrays; reads of slices of them;
changes of layout, joins and fills."""

_NO_KERNEL = {
    *(
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "call",
        "after-all",
        "add-dependency",
        "opt-barrier",
    ),
    *("partition-id", "replica-id", "domain", "while", "conditional"),
}
_TRANSFER = re.compile(r"all-|reduce-scatter|collective-|async-|send|recv|ragged-|\S+-done$")
_FETCHES = ("copy-start", "slice-start", "dynamic-slice-start")  # a TPU's copies between memory and chip
_SLICES = ("dynamic-slice", "slice", "gather")
_VIEWS = ("bitcast", "convert", "copy", "reshape")
_MOVED = {*_VIEWS, *_SLICES, "parameter", "constant", "broadcast", "transpose", "concatenate", "pad", "tuple", "iota"}
_EXPONENTIALS = {
    "exponential",
    "exponential-minus-one",
    "log",
    "log-plus-one",
    "tanh",
    "erf",
    "logistic",
    "rsqrt",
    "power",
}
_INTEGER = {
    *("add", "subtract", "multiply", "xor", "and", "or", "compare", "minimum", "maximum"),
    *("shift-left", "shift-right-logical", "shift-right-arithmetic"),
}
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CONTRACTED = re.compile(r'"?lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)[\]}]')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"(\w+)=([\dx_\-]+)")
_WORKSPACE = re.compile(r"s8\[\d+\]")  # of a matrix product: it may use it, or not
_INDEX = re.compile(r"\s*(\d+)")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel of a program, as often as it runs in one call."""

    name: str
    """Name of its instruction."""
    kind: str
    """One of KINDS."""
    result: str
    """Type of its result, without layouts."""
    runs: int
    bytes: float
    """Bytes of one run that device memory reads and writes."""
    flops: float
    """Operations of the matrix products of one run; multiply-add is 2."""
    seconds: float
    """Seconds of one run."""
    bound: str
    """Resource that takes its time: memory, arithmetic, or launch (the least that any kernel takes)."""

    @property
    def total(self) -> float:
        """Seconds of all runs in one call of the program."""
        return self.runs * self.seconds


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A collective with its modelled time and the part of it that kernels between its start and its end can hide."""

    collective: Collective
    seconds: float
    """Seconds of all executions in one call of the program."""
    hidden: float


def is_kernel(line: Instruction) -> bool:
    """Returns True if an instruction of a computation that runs is a kernel of its own."""
    return not (line.opcode in _NO_KERNEL or _TRANSFER.match(line.opcode) or '"AllocateBuffer"' in line.rest)


class CostModel:
    """The kernels of a program at the achievable rates of a device.

    An attention kernel that gets the bounds of blocks computes nothing outside of them: it is priced for rows that are full, of
    `blocks` equal ones.
    """

    def __init__(self, program: Program, rates: Achievable, blocks: int = 1):
        self.program, self.rates, self.blocks = program, rates, blocks
        self._names = {name: {line.name: line for line in body} for name, body in program.computations.items()}
        self._readers = dict[str, Mapping[str, list[tuple[Instruction, int]]]]()

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel of one call of the program; of the branches of a condition those of the dearest."""
        return tuple(self._kernels(self.program.entry, 1))

    @property
    def seconds(self) -> float:
        """Seconds of all kernels of one call, without transfers between devices."""
        return sum(kernel.total for kernel in self.kernels)

    def _kernels(self, computation: str, runs: int) -> Iterator[Kernel]:
        names = self.names(computation)
        for line in self.program.computations[computation]:
            for body, times in self.inside(line):
                yield from self._kernels(body, runs * times)
            if is_kernel(line):
                yield self.kernel(line, names, runs)

    def inside(self, line: Instruction) -> Iterator[tuple[str, int]]:
        """Computations that an instruction runs as a part of the program, with how often it does."""
        names = called(line)
        if line.opcode == "conditional":
            yield max(names, key=lambda name: sum(each.total for each in self._kernels(name, 1))), 1
        elif line.opcode in ("while", "call"):
            times = self.program.trips(line) if line.opcode == "while" else 1
            yield from ((name, times) for name in names)

    def names(self, computation: str) -> Mapping[str, Instruction]:
        """Name -> instruction of a computation."""
        return self._names[computation]

    def kernel(self, line: Instruction, names: Mapping[str, Instruction], runs: int) -> Kernel:
        """The kernel of an instruction of a computation with these names."""
        operands = [names[name] for name in line.operands if name in names]
        fused = _CALLS.search(line.rest)
        if line.opcode == "fusion" and fused:
            amount, kind = self._fusion(fused.group(1), line, operands), self._kind(fused.group(1))
        else:
            amount, kind = self._single(line, operands), MOVES if line.opcode in (*_MOVED, *_FETCHES) else ELEMENTWISE
        # other elementwise arithmetic does not count: it hides behind the bytes
        flops = self._flops(line, names)
        arithmetic = (
            self._flops(line, names, self.rates.lanes) if self.rates.lanes > 1 else flops
        ) / self.rates.products
        arithmetic += self._vector(line, names) / self.rates.integers if self.rates.lanes > 1 else 0.0
        target = _TARGET.search(line.rest) if line.opcode.startswith("custom-call") else None
        if target and (attention := self._attention(target.group(1), line, operands)):
            kind, (flops, arithmetic) = ATTENTION, attention
        elif flops:
            kind = PRODUCTS
        memory = amount / self.rates.bandwidth
        times = {"arithmetic": arithmetic, "memory": memory, "launch": self.rates.launch}
        bound = max(times, key=times.__getitem__)
        return Kernel(
            line.name,
            kind,
            re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", line.result),
            runs,
            amount,
            flops,
            max(memory, arithmetic) + self.rates.launch,
            bound,
        )

    def _size(self, line: Instruction) -> int:
        """Bytes of a result that lie in device memory."""
        return size(self.rates.in_memory(line.result))

    def _single(self, line: Instruction, operands: Sequence[Instruction]) -> float:
        """Bytes of an instruction that is a kernel of its own."""
        if line.opcode in _FETCHES:  # one side lies on the chip; a slice's result names its whole operand first
            return size(tuple_parts(line.result)[line.opcode != "copy-start"])
        if line.opcode in _SLICES:
            return 2 * self._size(line)
        if line.opcode == "dynamic-update-slice":
            return 2 * self._size(operands[1])
        written = line.result if not line.opcode.startswith("custom-call") else _WORKSPACE.sub("", line.result)
        return size(self.rates.in_memory(written)) + sum(map(self._size, operands))

    def _fusion(self, computation: str, line: Instruction, operands: Sequence[Instruction]) -> float:
        """Bytes of a fusion: what it reads of each operand and writes of each result."""
        inside, parameters = self.names(computation), self._parameters(computation)
        root = self.program.computations[computation][-1]
        results = root.operands if root.opcode == "tuple" else [root.name]
        kept = self.rates.in_memory_each(line.result)
        total = sum(self._written(inside, name) for name, there in zip(results, kept, strict=False) if there)
        for number, operand in enumerate(operands):
            if self._size(operand) and number in parameters:
                total += self._read(computation, parameters[number])
        return total

    def _parameters(self, computation: str) -> dict[int, Instruction]:
        """Number -> instruction of the parameters of a computation."""
        lines = (line for line in self.program.computations[computation] if line.opcode == "parameter")
        return {int(found.group(1)): line for line in lines if (found := _INDEX.match(line.rest))}

    def _users(self, computation: str) -> Mapping[str, list[tuple[Instruction, int]]]:
        """Name -> instructions of the computation that read it, with the place among their operands."""
        if computation not in self._readers:
            users = collections.defaultdict(list)
            for line in self.program.computations[computation]:
                for place, name in enumerate(line.operands):
                    users[name].append((line, place))
            self._readers[computation] = users
        return self._readers[computation]

    def _read(self, computation: str, value: Instruction) -> float:
        """Bytes that all users in a fused computation together read of a value, at most all of it."""
        whole, found = size(value.result), 0.0
        for user, place in self._users(computation)[value.name]:
            fused = _CALLS.search(user.rest)
            if user.opcode in _SLICES and not place:
                found += size(user.result)
            elif user.opcode in _VIEWS:
                found += self._read(computation, user) * whole / max(1, size(user.result))
            elif user.opcode == "fusion" and fused:
                inner = self._parameters(fused.group(1)).get(place)
                found += self._read(fused.group(1), inner) if inner else 0
            elif user.opcode == "scatter" and not place:  # it adds to what is there
                found += size(self.names(computation)[user.operands[2]].result)
            elif user.opcode != "dynamic-update-slice" or place:
                return whole
        return min(found, whole)

    def _written(self, inside: Mapping[str, Instruction], name: str) -> float:
        """Bytes of a result of a fused computation; of one that updates an array in place those of the update."""
        line = inside[name]
        while line.opcode == "bitcast":
            line = inside[line.operands[0]]
        fused = _CALLS.search(line.rest) if line.opcode == "fusion" else None
        if fused:
            root = self.program.computations[fused.group(1)][-1]
            if root.opcode != "tuple":
                return self._written(self.names(fused.group(1)), root.name)
        update = {"dynamic-update-slice": 1, "scatter": 2}.get(line.opcode)
        return size(inside[name if update is None else line.operands[update]].result)

    def _kind(self, computation: str) -> str:
        inside = self.names(computation)
        root = self.program.computations[computation][-1]
        ends = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]
        while any(each.opcode in _VIEWS for each in ends):
            ends = [inside[each.operands[0]] if each.opcode in _VIEWS else each for each in ends]
        if all(each.opcode == "dynamic-update-slice" for each in ends):
            return INTO_STACKS
        opcodes = {each.opcode for each in inside.values()}
        if opcodes - {"parameter", *_VIEWS} == set():
            return MOVES
        plain = all(each.opcode in _MOVED or not shapes(each.result)[0][1] for each in inside.values())
        return ELEMENTWISE if not plain else OUT_OF_STACKS if "dynamic-slice" in opcodes else MOVES

    def _flops(self, line: Instruction, names: Mapping[str, Instruction], lanes: int = 1) -> float:
        """Operations of the matrix products of an instruction and of the computation that it calls, for units of `lanes`."""
        fused = _CALLS.search(line.rest)
        if line.opcode == "fusion" and fused:
            inside = self.names(fused.group(1))
            return sum(self._flops(each, inside, lanes) for each in inside.values())
        contracted = _CONTRACTED.search(line.rest) if "fmha" not in line.rest else None
        result = math.prod(shapes(tuple_parts(line.result)[0])[0][1]) if shapes(line.result) else 0
        if contracted and (line.opcode == "dot" or line.opcode.startswith("custom-call")):
            dims = shapes(names[line.operands[0]].result)[0][1]
            places = contracted.group(1).replace('"', "").split(",")
            return 2 * result * math.prod(dims[int(place)] for place in places if place)
        if line.opcode == "convolution":  # how TPUs write products
            return _convolution_flops(line, result, shapes(names[line.operands[0]].result)[0][1], names, lanes)
        return 0

    def _vector(self, line: Instruction, names: Mapping[str, Instruction]) -> float:
        """Integer operations of an instruction and of the computation that it calls, with what as many exponentials take.

        A TPU's vector unit is not so much faster than its memory that they hide behind bytes, as those of a GPU do.
        """
        fused = _CALLS.search(line.rest)
        if line.opcode == "fusion" and fused:
            inside = self.names(fused.group(1))
            return sum(self._vector(each, inside) for each in inside.values())
        weight = own_kernels.EXPONENTIAL if line.opcode in _EXPONENTIALS else 0
        if line.opcode in _INTEGER and (read := names.get(line.operands[0])) and shapes(read.result):
            weight = shapes(read.result)[0][0] in ("u32", "s32")
        return weight * math.prod(shapes(line.result)[0][1]) if weight else 0.0

    def _attention(self, target: str, line: Instruction, operands: Sequence[Instruction]) -> tuple[float, float] | None:
        """(operations, seconds of arithmetic) of a call of an attention kernel, from the shapes of queries and keys."""
        if target in (own_kernels.HOPPER, own_kernels.TRITON):
            return own_kernels.gpu(self.rates, line, operands, self.blocks)
        if "fmha" not in target and target != "tpu_custom_call":
            return None
        if target == "tpu_custom_call" and (own := own_kernels.tpu(self.rates, line, operands, self.blocks)):
            return own
        arrays = [dims for each in operands for _, dims in shapes(each.result) if len(dims) == 4]
        if len(arrays) < 3:
            return None
        rows, *inner, width = arrays[0]
        length, heads = inner if "fmha" in target else reversed(inner)
        backward = "Backward" in target if "fmha" in target else len(arrays) > 3
        bounded = "fmha" in target and any(kind == "s32" for each in operands for kind, _ in shapes(each.result))
        keys = length / self.blocks if bounded else length
        flops = (10 if backward else 4) * rows * heads * length * keys * width
        return flops, flops / self.rates.attention[backward]


def transfers(model: CostModel, seconds_of: Callable[[Collective], float]) -> list[Transfer]:
    """Every transfer of one call of a program, with the seconds that the kernels between its begin and its end can hide.

    A program is a schedule: what stands between the two does not need the transfer. A kernel hides one transfer at a time, the
    oldest first; `seconds_of` models one execution.
    """
    found: list[Transfer] = []

    def walk(computation: str, runs: int) -> float:
        """Returns the seconds of the kernels of one run."""
        program, names = model.program, model.names(computation)
        total, begun = 0.0, dict[str, tuple[Collective, list[float]]]()
        for line in program.computations[computation]:
            own = sum(times * walk(body, runs * times) for body, times in model.inside(line))
            own += model.kernel(line, names, runs).seconds if is_kernel(line) else 0.0
            total += own
            for _, left in begun.values():
                own, left[0] = max(0.0, own - left[0]), max(0.0, left[0] - own)
            chain = program.chain(line)
            ended = (
                [chain]
                if chain and program.ends_chain(line)
                else line.operands
                if line.opcode.endswith("-done")
                else []
            )
            for name in filter(begun.__contains__, ended):
                collective, left = begun.pop(name)
                seconds = seconds_of(collective)
                found.append(Transfer(collective, runs * seconds, runs * (seconds - left[0])))
            for number, each in enumerate(program.begun_by(line, computation)):
                if each.asynchronous:
                    begun[(chain or line.name) if not number else f"{line.name} {number}"] = each, [seconds_of(each)]
                else:
                    found.append(Transfer(each, runs * seconds_of(each), 0.0))
        for each, left in begun.values():  # its end is in another computation
            seconds = seconds_of(each)
            found.append(Transfer(each, runs * seconds, runs * (seconds - left[0])))
        return total

    walk(model.program.entry, 1)
    return found


def by_kind(kernels: Sequence[Kernel], tokens: int, layers: int, hidden_size: int) -> list[dict[str, Any]]:
    """For every kind of kernel, dearest first: seconds, launches, bytes, and the bytes of a token and layer in hidden sizes.

    `tokens` are those of one device. Embeddings, heads and the optimizer count too.
    """
    rows = [
        {
            "kind": kind,
            "seconds": sum(each.total for each in own),
            "kernels": sum(each.runs for each in own),
            "bytes": sum(each.runs * each.bytes for each in own),
        }
        for kind in KINDS
        if (own := [each for each in kernels if each.kind == kind])
    ]
    share = tokens * layers * hidden_size
    return sorted(({**row, "per_token_layer": row["bytes"] / share} for row in rows), key=lambda row: -row["seconds"])


def dearest(kernels: Sequence[Kernel], number: int = 10) -> list[dict[str, Any]]:
    """The kernels that take the most time, those of one shape together, as of all layers of an unrolled program."""
    groups = collections.defaultdict(list)
    for each in kernels:
        groups[each.kind, each.result, each.bytes, each.flops].append(each)
    alike = sorted(groups.values(), key=lambda own: -sum(each.total for each in own))[:number]
    return [
        {
            **dataclasses.asdict(own[0]),
            "runs": sum(each.runs for each in own),
            "seconds": sum(each.total for each in own),
        }
        for own in alike
    ]


def _convolution_flops(
    line: Instruction, result: int, lhs: tuple[int, ...], names: Mapping[str, Instruction], lanes: int
) -> float:
    """Operations of a convolution, without those on padding and on the zeros of a dilated input.

    Products over several axes, and batches of products, are convolutions over such inputs. Both sides of its matrices are
    rounded up to whole lanes.
    """
    labels = _LABELS.search(line.rest)
    if labels is None:
        return 0
    left, right, _ = labels.groups()
    kernel = shapes(names[line.operands[1]].result)[0][1]
    window = re.search(r"window=\{([^}]*)\}", line.rest)
    settings = dict(_WINDOW.findall(window.group(1))) if window else {}
    axes = [str(axis) for axis in range(len(kernel) - 2)]
    outputs = shapes(tuple_parts(line.result)[0])[0][1]
    flops = 2.0 * result * kernel[right.index("i")]
    for side in (kernel[right.index(label)] for label in "io"):
        flops *= -(-side // lanes) * lanes / side
    for number, axis in enumerate(axes):
        width = kernel[right.index(axis)]
        stride, apart, taps = (
            int(settings.get(name, "x".join("1" * len(axes))).split("x")[number])
            for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        # which element of the input each tap of each output reads: none where it is padding or between two elements
        low = int(settings.get("pad", "x".join(["0_0"] * len(axes))).split("x")[number].split("_")[0])
        there = lhs[left.index(axis)]
        made = outputs[labels.group(3).index(axis)]
        place = np.arange(made)[:, None] * stride + np.arange(width)[None] * taps - low
        valid = (place >= 0) & (place <= (there - 1) * apart) & (place % apart == 0)
        flops *= valid.sum() / made
    return float(flops)
