"""Private parts of jax: the installed one has them all, and one that loses a name is noticed."""

import pytest

from spanjax.distributed.jax_internals import NAMES, cudnn_answers, missing


def test_the_installed_jax_has_every_private_name() -> None:
    assert missing() == []


@pytest.mark.parametrize("module", sorted(NAMES))
def test_a_name_that_jax_has_lost_is_noticed(module: str) -> None:
    assert missing({module: (*NAMES[module], "no_such_name", "no_such.name")}) == [
        f"{module}.no_such_name",
        f"{module}.no_such.name",
    ]
    assert missing({f"{module}_moved": NAMES[module]}) == [f"{module}_moved"]


def test_jax_is_asked_again_after_a_plan_even_one_that_failed() -> None:
    from jax._src.cudnn import fused_attention_stablehlo as module

    names = ("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal")
    before = [getattr(module, name) for name in names]
    with pytest.raises(KeyError), cudnn_answers(91002, 9.0):
        assert module.check_cudnn_version() == 91002
        assert module.check_compute_capability("8.0") and not module.check_compute_capability("10.0")
        raise KeyError
    assert [getattr(module, name) for name in names] == before
