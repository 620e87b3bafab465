"""The price of the project's own attention kernels: which kernel a call is, its products, its integers."""

import pytest

from spanjax.hardware import CHIPS, Achievable
from spanjax.nn.attention.request import WINDOW
from spanjax.plan import own_kernels
from spanjax.plan.cost import ATTENTION, CostModel
from spanjax.plan.hlo import Program

pytestmark = pytest.mark.unit

WIDE, LINE, SCORES, LENGTH = "bf16[2,512,4,64]", "f32[2,4,512]", "bf16[2,4,512,512]", 512
ALL_SCORES = 2 * 4 * 512 * 512
RATES = Achievable(bandwidth=1e30, products=1.0, attention=(1e6, 1e5), launch=0.0, integers=1e4)


def program(made: str, *operands: str, target: str = "mosaic_gpu_v2") -> str:
    lines = [f"  %p{number} = {kind} parameter({number})" for number, kind in enumerate(operands)]
    names = ", ".join(f"%p{number}" for number in range(len(operands)))
    call = f'  ROOT %e = {made} custom-call({names}), custom_call_target="{target}"'
    given = ", ".join(f"p{number}: {kind}" for number, kind in enumerate(operands))
    return "\n".join(["HloModule m", "", f"ENTRY %main ({given}) -> {made} {{", *lines, call, "}", ""])


FORWARD = (f"({WIDE}, {LINE})", WIDE, WIDE, WIDE, "s32[2,512]")
OF_KEYS = (f"({WIDE}, {WIDE}, {SCORES})", *(WIDE,) * 4, LINE, LINE)
DRAWS = ("u32[2,4,512]", "u32[2,4,512]", "u32[512]")


@pytest.mark.parametrize(
    ("made", "operands", "products", "integers"),
    [
        (FORWARD[0], FORWARD[1:], 2, 2),
        (FORWARD[0], (*FORWARD[1:], *DRAWS), 2, 4),
        (OF_KEYS[0], OF_KEYS[1:], 4, 2),
        (OF_KEYS[0], (*OF_KEYS[1:], *DRAWS), 4, 4),
        (f"({WIDE}, {WIDE})", (*OF_KEYS[1:], *DRAWS), 4, 4),
        (WIDE, (*OF_KEYS[1:], *DRAWS), 3, 4),
        (WIDE, (WIDE, SCORES, "s32[2,4,2]"), 1, 0),
    ],
    ids=["forward", "with dropout", "keys", "keys, dropout", "keys of long rows", "queries of long rows", "queries"],
)
def test_each_kernel_has_its_products_and_integers(
    made: str, operands: tuple[str, ...], products: int, integers: int
) -> None:
    (kernel,) = CostModel(Program(program(made, *operands)), RATES).kernels
    flops = products * 2 * ALL_SCORES * 64
    rate = 1e6 if "f32" in made else 1e5
    assert (kernel.kind, kernel.flops) == (ATTENTION, flops)
    assert kernel.seconds == pytest.approx(flops / (0.6 * rate) + integers * ALL_SCORES / 1e4)


@pytest.mark.parametrize(("blocks", "met"), [(1, 512), (2, 256), (3, 171), (8, 64), (16, 64)])
def test_positions_meet_at_least_a_tile(blocks: int, met: int) -> None:
    (kernel,) = CostModel(Program(program(*FORWARD)), RATES, blocks).kernels
    assert kernel.flops == 4 * 2 * 4 * 512 * met * 64


@pytest.mark.parametrize(
    ("window", "blocks", "met"), [(64, 1, 192), (65, 1, 320), (64, 4, 128), (300, 1, 512), (0, 1, 512)]
)
def test_a_window_is_met_in_whole_tiles(window: int, blocks: int, met: int) -> None:
    scope = f', metadata={{op_name="jit(step)/transpose(jvp({WINDOW}{window}))/mosaic_gpu"}}' if window else ""
    text = program(*FORWARD).replace('"mosaic_gpu_v2"', f'"mosaic_gpu_v2"{scope}')
    (kernel,) = CostModel(Program(text), RATES, blocks).kernels
    assert kernel.flops == 4 * 2 * 4 * 512 * met * 64


ROW, LEVELS, SEGMENTS = "bf16[2,1024,256]", "f32[2,2,2,2,512]", "s32[2,2,1,512]"


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("keys", "integers"), [(1, 4 + 2), (2, 4 + 5)], ids=["without dropout", "with dropout"])
@pytest.mark.parametrize(("blocks", "met"), [(1, 1024), (2, 512), (8, 512)])
def test_kernels_for_tpu(backward: bool, keys: int, integers: int, blocks: int, met: int) -> None:
    """4 heads of 64 in two groups, rows of two tiles of 512."""
    made = f"({ROW}, {ROW}, {ROW})" if backward else f"({ROW}, {LEVELS})"
    arrays = (*(ROW,) * 4, LEVELS, ROW) if backward else (ROW,) * 3
    text = program(made, f"s32[{keys}]", "s32[8]", SEGMENTS, *arrays, target="tpu_custom_call")
    (kernel,) = CostModel(Program(text), RATES, blocks).kernels
    scores = 2 * 4 * 1024 * met
    flops = (5 if backward else 2) * 2 * scores * 64
    assert (kernel.kind, kernel.flops) == (ATTENTION, flops)
    assert kernel.seconds == pytest.approx(flops / (0.6 * (1e5 if backward else 1e6)) + integers * scores / 1e4)


def test_integers_of_a_v5e() -> None:
    """4 operations on 8 x 128 numbers at 1.5 GHz."""
    assert CHIPS["v5e"].achievable.integers == pytest.approx(4 * 1024 * 1.5e9, rel=0.01)


def test_other_kernels_of_mosaic_are_not_attention() -> None:
    (kernel,) = CostModel(Program(program("f32[8,8]", "f32[8,8]")), RATES).kernels
    assert kernel.kind != ATTENTION and kernel.flops == 0


def test_the_share_of_published_rates() -> None:
    rates = CHIPS["h200"].achievable
    assert own_kernels.seconds(rates, False, 335e12, 0) == pytest.approx(1 / own_kernels.SHARE)
    assert own_kernels.seconds(rates, True, 0, 64 * 132 * 1.98e9) == pytest.approx(1)
