"""Reading compiled programs: by hand-written lines in the forms of every backend, and a program of four CPU devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.plan.hlo import Program, exhausted, memory_of, shapes, size, split_type, tuple_parts
from spanjax.sharding import MeshConfig, make_mesh, manual_specs
from tests.pods import array_types

pytestmark = pytest.mark.unit

LOOP = """HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%x, %y)
}

%cond (p: (s32[], bf16[64])) -> pred[] {
  %p = (s32[], bf16[64]{0}) parameter(0)
  %bound = s32[]{:T(128)} constant(12), metadata={op_name="bound"}
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%body (q: (s32[], bf16[64])) -> (s32[], bf16[64]) {
  %q = (s32[], bf16[64]{0}) parameter(0)
  %v = bf16[64]{0:T(256)(128)(2,1)S(1)} get-tuple-element(%q), index=1
  %inner = (s32[], bf16[64]{0}) while(%q), condition=%cond, body=%inner_body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %out = (s32[], bf16[64]{0}) tuple(%i, %v)
}

%inner_body (r: (s32[], bf16[64])) -> (s32[], bf16[64]) {
  %r = (s32[], bf16[64]{0}) parameter(0)
  %w = bf16[64]{0} get-tuple-element(%r), index=1
  %ar = bf16[64]{0} all-reduce(%w), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %out.1 = (s32[], bf16[64]{0}) tuple(%i, %ar)
}

ENTRY %main (a: s32[], b: bf16[64]) -> (s32[], bf16[64]) {
  %a = s32[] parameter(0)
  %b = bf16[64]{0} parameter(1)
  %t = (s32[], bf16[64]{0}) tuple(%a, %b)
  ROOT %w.1 = (s32[], bf16[64]{0}) while(%t), condition=%cond, body=%body
}
"""


def entry(*lines: str, before: str = "") -> Program:
    """A program whose entry has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return Program(f"HloModule m\n{before}\nENTRY %main (a: f32[8]) -> f32[8] {{\n{body}\n}}\n")


def test_loops_multiply_what_is_inside() -> None:
    program = Program(LOOP)
    assert (program.runs["body"], program.runs["inner_body"]) == (12, 36)
    (one,) = program.collectives
    assert (one.kind, one.dtype, one.bytes, one.count, one.group) == ("all-reduce", "bf16", 128, 36, (0, 1))
    assert not one.asynchronous and program.donated() == 2
    assert program.opcodes()["while"] == 2 and ("bf16", (64,)) in array_types(program)


@pytest.mark.parametrize(
    ("line", "kind", "amount", "group"),
    [
        ("%c = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add", "all-reduce", 32, ()),
        ("%c = bf16[8]{0} all-reduce-start(%a), replica_groups=[2,4]<=[8]", "all-reduce", 16, (0, 1, 2, 3)),
        ("%c = (f32[8], bf16[2]) all-reduce(%a, %b), replica_groups=[4,2]<=[2,4]T(1,0)", "all-reduce", 36, (0, 4)),
        (
            "%c = f32[2]{0} reduce-scatter(%a), replica_groups={{0,1,2,3}}, dimensions={0}",
            "reduce-scatter",
            32,
            (0, 1, 2, 3),
        ),
        ("%c = (f32[8]{0}, f32[4]{0}) reduce-scatter-start(%a), replica_groups={{0,2}}", "reduce-scatter", 32, (0, 2)),
        (
            "%c = (bf16[2]{0}, bf16[8]{0}) all-gather-start(%a), replica_groups={{4,5,6,7}}",
            "all-gather",
            16,
            (4, 5, 6, 7),
        ),
        (
            "%c = ((bf16[2]{0}, f32[1]{0}), (bf16[8]{0}, /*index=1*/f32[4]{0})) all-gather-start(%a, %b), "
            "replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}",
            "all-gather",
            32,
            (0, 1, 2, 3),
        ),
        ("%c = u8[8] all-gather(%a), replica_groups=mesh['x'=2,'y'=4] {'x'}", "all-gather", 8, (0, 4)),
        ("%c = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%a)", "collective-permute", 32, ()),
    ],
)
def test_forms_of_collectives(line: str, kind: str, amount: int, group: tuple[int, ...]) -> None:
    (one,) = entry(line).collectives
    assert (one.kind, one.bytes, one.group, one.count) == (kind, amount, group, 1)
    assert one.asynchronous == ("-start(" in line)


def test_a_transfer_in_parts_counts_once() -> None:
    """TPU: an asynchronous gather is repeated in the fusion that starts it, those beside it and the one that waits."""
    gather = '%g = bf16[8]{0} all-gather(%p), replica_groups={{0,1}}, frontend_attributes={chain_id="0"}'
    target = {
        "start": ', custom_call_target="AsyncCollectiveStart"',
        "beside": "",
        "wait": ', custom_call_target="Done"',
    }
    parts = [
        f"%{name} (p: bf16[4]) -> bf16[8] {{\n  {gather}\n  ROOT %s = u32[] custom-call(%g){call}\n}}"
        for name, call in target.items()
    ]
    lines = (f"%{name} = u32[] fusion(%a), kind=kCustom, calls=%{name}" for name in target)
    (one,) = entry(*lines, before="\n".join(parts)).collectives
    assert (one.bytes, one.asynchronous) == (16, True)


def test_other_wrappings() -> None:
    """An async-start around a computation, and a TPU fusion of an all-reduce of which each device keeps a part."""
    computations = "\n".join(
        f"%{name} (p: bf16[8]) -> bf16[8] {{\n  ROOT %r = bf16[8] all-reduce(%p), replica_groups={{{{0,1}}}}\n}}"
        for name in ("wrapped", "all-reduce-scatter.1", "never")
    )
    start = "%s = ((bf16[8]), bf16[8]) async-start(%a), calls=%wrapped"
    fusion = "%f = bf16[4] fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1"
    found = entry(start, fusion, before=computations).collectives
    assert [(one.kind, one.asynchronous) for one in found] == [("all-reduce", True), ("reduce-scatter", False)]


def test_transfer_to_other_slices() -> None:
    (one,) = entry(
        "%s = (bf16[1,2,128]{2,1,0}, u32[], token[]) send(%a, %t), is_host_transfer=true, frontend_attributes={"
        '_xla_megascale_target="{1,2}x{0:15}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    ).collectives
    assert (one.kind, one.bytes, one.slices, one.asynchronous) == ("all-reduce", 512, 2, True)


def test_pieces_of_types() -> None:
    assert shapes("(bf16[2,3]{1,0}, pred[], s4[8])") == [("bf16", (2, 3)), ("pred", ()), ("s4", (8,))]
    assert size("(bf16[2,3]{1,0:T(8,128)(2,1)}, pred[4], s4[8])") == 20
    assert split_type("(f32[2]{0:T(1)}, f32[]) tuple(%a)") == ("(f32[2]{0:T(1)}, f32[])", " tuple(%a)")
    assert tuple_parts("((f32[2,3], /*index=1*/s32[]), u32[])") == ["(f32[2,3], s32[])", "u32[]"]


def test_text_without_an_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a line that begins with ENTRY"):
        Program("HloModule m")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Ran out of memory in memory space hbm. Used 17.50G of 15.75G hbm.", int(17.5 * 2**30)),
        ("memory required for HLO temporaries (576.00M) exceeds available HBM (30.75G).", 576 * 2**20),
        ("something else", 0),
    ],
)
def test_what_was_missing(message: str, expected: int) -> None:
    assert exhausted(message) == expected


def test_a_compiled_program_of_four_devices() -> None:
    """Gather, scatter and sum in a loop of five turns, as XLA compiles them for CPU."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:4])
    shapes_of = {"w": jax.ShapeDtypeStruct((8, 16), jnp.float32)}
    specs, _, whole = manual_specs(shapes_of, mesh)

    def local(params: dict) -> jax.Array:
        def turn(total: jax.Array, _: None) -> tuple[jax.Array, None]:
            full = jax.lax.all_gather(params["w"] * total[0, 0], "data", axis=1, tiled=True)
            part = jax.lax.psum_scatter(jnp.sin(full), "data", scatter_dimension=1, tiled=True)
            return total + jax.lax.psum(part, "data"), None

        return jax.lax.scan(turn, jnp.ones((8, 4)), None, length=5)[0]

    step = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=whole, check_vma=False))
    result = step.lower(shapes_of).compile()
    program = Program(result.as_text() or "")
    found = {one.kind: (one.count, one.bytes) for one in program.collectives}
    assert found["all-gather"] == (5, 8 * 16 * 4)
    assert found.get("reduce-scatter", (5, 512)) == (5, 512)
    assert sum(one.count for one in program.collectives) == 15
    memory = memory_of(result.memory_analysis())
    assert memory["arguments"] == 8 * 16 // 4 * 4 and memory["peak"] >= memory["arguments"]
    assert np.isfinite(float(step({"w": jnp.ones((8, 16))}).sum()))
