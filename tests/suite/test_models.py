"""Names of encoders in tables and folders."""

import pytest

from spanjax.suite.models import names_of

pytestmark = pytest.mark.unit


def test_steps_and_seeds_are_named_with_what_they_are_of() -> None:
    paths = {
        "runs/mine": "mine",
        "runs/mine/checkpoints/2000": "mine-2000",
        "runs/masking/tokens/0": "tokens-0",
        "runs/masking/tokens/0/checkpoints/1000": "tokens-0-1000",
        "random:hf/bert base/model": "random-bert-base",
        "other/mine/": "mine-2",
        "/": "encoder",
    }
    assert names_of(list(paths)) == list(paths.values())
    for path, name in paths.items():
        assert names_of([path]) == [name.removesuffix("-2") if path == "other/mine/" else name]
