"""The cost model: programs of version 0.1 against the sheet that read them by hand, and small programs by arithmetic."""

import dataclasses

import pytest

from spanjax.hardware import CHIPS, Achievable
from spanjax.plan.cost import (
    ELEMENTWISE,
    INTO_STACKS,
    MOVES,
    OUT_OF_STACKS,
    PRODUCTS,
    CostModel,
    by_kind,
    dearest,
    transfers,
)
from spanjax.plan.hlo import Program
from tests.plan.extracts import extract, programs

pytestmark = pytest.mark.unit

OF_VERSION_0_1 = {  # modelled milliseconds and kernels of the step that commit cd16a89 compiled for an H200
    "base_fast_scan_8": (34.2, 1591),
    "base_fast_unroll_1_64": (51.4, 795),
    "base_fast_unroll_8": (26.7, 895),
    "base_fast_unroll_8_nodrop": (26.0, 870),
    "base_fast_unroll_8_tanh": (27.9, 895),
    "base_parity_scan_8": (58.3, 1765),
    "base_parity_chunked_8": (59.3, 6378),
    "large_fast_scan_8": (96.3, 2758),
    "large_parity_scan_8": (160.0, 3148),
}
RATES = Achievable(bandwidth=1e6, products=1e6, attention=(1e6, 1e6), launch=0.5)  # seconds are easy to see


@pytest.fixture(scope="module")
def compiled() -> dict[str, str]:
    return programs()


@pytest.mark.parametrize("name", OF_VERSION_0_1)
def test_programs_of_version_0_1(name: str, compiled: dict[str, str]) -> None:
    milliseconds, kernels = OF_VERSION_0_1[name]
    model = CostModel(Program(compiled[name]), CHIPS["h200"].achievable)
    assert model.seconds * 1e3 == pytest.approx(milliseconds, rel=0.03)
    assert sum(each.runs for each in model.kernels) == kernels


def test_the_sheets_kinds_of_kernels(compiled: dict[str, str]) -> None:
    """The step of base in a scan, 32 rows: 41 % products, 11 % attention, 12 % into stacks, 8 % out of them."""
    kernels = CostModel(Program(compiled["base_fast_scan_8"]), CHIPS["h200"].achievable).kernels
    rows = {row["kind"]: row for row in by_kind(kernels, 32 * 512, 12, 768)}
    milliseconds = {kind: row["seconds"] * 1e3 for kind, row in rows.items()}
    expected = {"products": 13.9, "attention": 3.7, INTO_STACKS: 4.0, OUT_OF_STACKS: 2.6, ELEMENTWISE: 7.7}
    assert {kind: milliseconds[kind] for kind in expected} == pytest.approx(expected, rel=0.04)
    own = rows[ELEMENTWISE]
    assert own["per_token_layer"] == pytest.approx(own["bytes"] / (32 * 512 * 12 * 768))


LOOP = """
HloModule m

%body (p: (s32[], f32[10,1000])) -> (s32[], f32[10,1000]) {
  %p = (s32[], f32[10,1000]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %stack = f32[10,1000]{1,0} get-tuple-element(%p), index=1
  %row = f32[1,1000]{1,0} fusion(%stack, %i), kind=kLoop, calls=%cut
  %wide = f32[1,1000]{1,0} fusion(%row), kind=kLoop, calls=%twice
  %next = f32[10,1000]{1,0} fusion(%stack, %wide, %i), kind=kLoop, calls=%put
  ROOT %t = (s32[], f32[10,1000]{1,0}) tuple(%i, %next)
}

%condition (p: (s32[], f32[10,1000])) -> pred[] {
  %p = (s32[], f32[10,1000]{1,0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

%cut (a: f32[10,1000], i: s32[]) -> f32[1,1000] {
  %a = f32[10,1000]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %s = f32[1,1000]{1,0} dynamic-slice(%a, %i, %z), dynamic_slice_sizes={1,1000}
}

%twice (a: f32[1,1000]) -> f32[1,1000] {
  %a = f32[1,1000]{1,0} parameter(0)
  ROOT %s = f32[1,1000]{1,0} add(%a, %a)
}

%put (a: f32[10,1000], r: f32[1,1000], i: s32[]) -> f32[10,1000] {
  %a = f32[10,1000]{1,0} parameter(0)
  %r = f32[1,1000]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %u = f32[10,1000]{1,0} dynamic-update-slice(%a, %r, %i, %z)
}

ENTRY %main (a: f32[10,1000], b: f32[1000,20]) -> f32[10,20] {
  %a = f32[10,1000]{1,0} parameter(0)
  %b = f32[1000,20]{1,0} parameter(1)
  %n = s32[] constant(0)
  %t = (s32[], f32[10,1000]{1,0}) tuple(%n, %a)
  %loop = (s32[], f32[10,1000]{1,0}) while(%t), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %r = f32[10,1000]{1,0} get-tuple-element(%loop), index=1
  %copied = f32[10,1000]{0,1} copy(%r)
  ROOT %d = f32[10,20]{1,0} dot(%copied, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_slices_of_stacks_count_as_slices() -> None:
    """By hand: a row is 4,000 bytes, the index 4."""
    found = {each.name: each for each in CostModel(Program(LOOP), RATES).kernels}
    moved = {name: (each.kind, each.runs, each.bytes) for name, each in found.items()}
    assert moved == {
        "row": (OUT_OF_STACKS, 10, 8_004),
        "wide": (ELEMENTWISE, 10, 8_000),
        "next": (INTO_STACKS, 10, 8_004),
        "copied": (MOVES, 1, 80_000),
        "d": (PRODUCTS, 1, 40_000 + 80_000 + 800),
    }
    assert found["d"].flops == 2 * 10 * 1000 * 20
    assert found["d"].seconds == pytest.approx(0.4 + 0.5) and found["d"].bound == "launch"
    assert found["copied"].total == pytest.approx(0.08 + 0.5)


def test_what_bounds_a_kernel() -> None:
    slow = Achievable(bandwidth=1e6, products=1e5, attention=(1.0, 1.0), launch=0.001)
    found = {each.name: each for each in CostModel(Program(LOOP), slow).kernels}
    assert (found["d"].bound, found["copied"].bound) == ("arithmetic", "memory")
    assert found["d"].seconds == pytest.approx(4.0 + 0.001)


def test_the_same_kernels_of_all_layers_are_one_row() -> None:
    text = LOOP.replace("  ROOT %d", "  %again = f32[10,1000]{0,1} copy(%r)\n  ROOT %d")
    rows = dearest(CostModel(Program(text), RATES).kernels, 2)
    assert [(row["kind"], row["runs"]) for row in rows] == [(OUT_OF_STACKS, 10), (INTO_STACKS, 10)]
    copies = next(row for row in dearest(CostModel(Program(text), RATES).kernels) if row["kind"] == MOVES)
    assert copies["runs"] == 2 and copies["seconds"] == pytest.approx(2 * 0.58)


def test_of_a_condition_the_dearest_branch_counts() -> None:
    text = """
HloModule m

%small (a: f32[1000]) -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  ROOT %c = f32[1000]{0} copy(%a)
}

%large (a: f32[1000]) -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  %b = f32[1000]{0} copy(%a)
  ROOT %c = f32[1000]{0} negate(%b)
}

ENTRY %main (p: pred[], a: f32[1000]) -> f32[1000] {
  %p = pred[] parameter(0)
  %a = f32[1000]{0} parameter(1)
  ROOT %r = f32[1000]{0} conditional(%p, %a, %a), true_computation=%small, false_computation=%large
}
"""
    assert [each.name for each in CostModel(Program(text), RATES).kernels] == ["b", "c"]


def test_fetches_of_a_tpu_move_what_arrives_on_the_chip() -> None:
    text = """
HloModule m

ENTRY %main (a: bf16[32,1000]) -> bf16[32,1000] {
  %a = bf16[32,1000]{1,0} parameter(0)
  %part = ((bf16[32,1000]{1,0}), bf16[8,1000]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:8], [0:1000]}
  %part.done = bf16[8,1000]{1,0:S(1)} slice-done(%part)
  %all = (bf16[32,1000]{1,0:S(1)}, bf16[32,1000]{1,0}, u32[]{:S(2)}) copy-start(%a)
  ROOT %all.done = bf16[32,1000]{1,0:S(1)} copy-done(%all)
}
"""
    found = CostModel(Program(text), CHIPS["v5e"].achievable).kernels
    assert [(each.name, each.kind, each.bytes) for each in found] == [("part", MOVES, 16_000), ("all", MOVES, 64_000)]


def test_products_of_a_tpu_are_convolutions() -> None:
    """A batch of 32 products [512, 64] x [64, 128], written as a convolution over a dilated input."""
    text = """
HloModule m

ENTRY %main (a: bf16[512,64,32], b: bf16[128,64,32]) -> bf16[512,128,32] {
  %a = bf16[512,64,32]{2,1,0} parameter(0)
  %b = bf16[128,64,32]{2,1,0:T(8,128)S(1)} parameter(1)
  ROOT %c = bf16[512,128,32]{2,1,0} convolution(%a, %b), window={size=32 stride=31 lhs_dilate=32}, dim_labels=bf0_oi0->bf0
}
"""
    rates = dataclasses.replace(CHIPS["v5e"].achievable, bandwidth=1e15)
    (kernel,) = CostModel(Program(text), rates).kernels
    assert kernel.flops == 2 * 32 * 512 * 64 * 128
    assert kernel.seconds == pytest.approx(2 * kernel.flops / rates.products)  # half of the 128 lanes have no element
    assert kernel.bytes == 2 * 32 * (512 * 64 + 512 * 128)  # the second operand is on the chip


@pytest.mark.parametrize(("bounds", "share"), [("s32[2,3]", 4), ("bf16[2,1,64,64]", 1)])
def test_attention_inside_of_blocks_costs_less(bounds: str, share: int) -> None:
    """Rows of four equal blocks, with the bounds of blocks as an operand or with a mask."""
    queries = "bf16[2,64,4,16]"
    text = f"""
HloModule m

ENTRY %main (a: {queries}, b: {queries}, c: {queries}, d: {bounds}) -> {queries} {{
  %a = {queries} parameter(0)
  %b = {queries} parameter(1)
  %c = {queries} parameter(2)
  %d = {bounds} parameter(3)
  ROOT %e = {queries} custom-call(%a, %b, %c, %d), custom_call_target="__cudnn$fmhaSoftmax"
}}
"""
    (kernel,) = CostModel(Program(text), CHIPS["h200"].achievable, blocks=4).kernels
    assert kernel.flops == 4 * 2 * 64 * 4 * 64 / share * 16


BESIDE = """
HloModule m

ENTRY %main (a: f32[1000], b: f32[250000]) -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  %b = f32[250000]{0} parameter(1)
  %first = f32[1000]{0} all-reduce-start(%a), replica_groups={{0,1}}
  %work = f32[250000]{0} negate(%b)
  %second = f32[1000]{0} all-reduce-start(%a), replica_groups={{0,1}}
  %more = f32[250000]{0} negate(%work)
  %first.done = f32[1000]{0} all-reduce-done(%first)
  %second.done = f32[1000]{0} all-reduce-done(%second)
  ROOT %third = f32[1000]{0} all-reduce(%second.done), replica_groups={{0,1}}
}
"""


@pytest.mark.parametrize(
    ("seconds", "hidden"), [(1.0, [1.0, 1.0, 0.0]), (3.0, [3.0, 2.0, 0.0]), (9.0, [5.0, 0.0, 0.0])]
)
def test_transfers_hide_behind_what_stands_between_their_ends(seconds: float, hidden: list[float]) -> None:
    """Each kernel takes 2.5 s and hides one transfer at a time: the older one first."""
    found = transfers(CostModel(Program(BESIDE), RATES), lambda _: seconds)
    assert [each.seconds for each in found] == [seconds] * 3
    assert [each.hidden for each in found] == pytest.approx(hidden)


def test_an_extract_has_the_cost_of_its_program() -> None:
    whole, short = (CostModel(Program(text), RATES) for text in (LOOP, extract(LOOP)))
    assert [(each.runs, each.bytes, each.flops) for each in whole.kernels] == [
        (each.runs, each.bytes, each.flops) for each in short.kernels
    ]


VECTOR = """HloModule m

%fused (a: f32[100], b: u32[100], c: f32[100]) -> f32[100] {
  %a = f32[100] parameter(0)
  %b = u32[100] parameter(1)
  %c = f32[100] parameter(2)
  %exp = f32[100] exponential(%a)
  %product = u32[100] multiply(%b, %b)
  %sum = f32[100] add(%exp, %c)
  %keep = pred[100] compare(%product, %b), direction=GE
  ROOT %kept = f32[100] select(%keep, %sum, %c)
}

ENTRY %main (a: f32[100], b: u32[100], c: f32[100]) -> f32[100] {
  %a = f32[100] parameter(0)
  %b = u32[100] parameter(1)
  %c = f32[100] parameter(2)
  ROOT %e = f32[100] fusion(%a, %b, %c), kind=kLoop, calls=%fused
}
"""


def test_exponentials_and_integers_take_a_tpus_time() -> None:
    """100 exponentials as long as 400 integer operations, a product and a comparison of integers; the sum and the choice hide."""
    tpu = dataclasses.replace(RATES, lanes=128, integers=1e2)
    (kernel,) = CostModel(Program(VECTOR), tpu).kernels
    assert (kernel.seconds, kernel.bound) == (0.5 + (400 + 200) / 1e2, "arithmetic")
    (kernel,) = CostModel(Program(VECTOR), dataclasses.replace(tpu, lanes=1)).kernels
    assert kernel.seconds == 0.5 + 4 * 400 / 1e6
