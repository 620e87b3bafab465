"""Mesh shapes, sharding by name."""

import jax
import numpy as np
import pytest

from spanjax import sharding
from spanjax.objectives.base import Mean
from spanjax.sharding import (
    MeshConfig,
    data_dimension,
    first_match,
    make_mesh,
    map_named,
    named_leaves,
    parameter_spec,
    to_global,
)


def test_mesh_shapes() -> None:
    assert MeshConfig().shape(4) == (1, 4, 1)
    assert MeshConfig(replica=2, tensor=2).shape(8) == (2, 2, 2)
    assert MeshConfig(data=2, tensor=-1).shape(8) == (1, 2, 4)


@pytest.mark.parametrize("config", [MeshConfig(data=3), MeshConfig(replica=-1), MeshConfig(data=0), MeshConfig(data=8)])
def test_impossible_meshes(config: MeshConfig) -> None:
    with pytest.raises(ValueError, match="mesh"):
        config.shape(4)


def test_slices_are_joined_on_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = jax.devices()
    monkeypatch.setattr(sharding, "_slice_number", lambda device: device.id % 2)
    mesh = make_mesh(MeshConfig(replica=2), devices)
    assert mesh.shape == {"replica": 2, "data": 2, "tensor": 1}
    assert [{device.id % 2 for device in part.flat} for part in mesh.devices] == [{0}, {1}]
    with pytest.raises(ValueError, match="mesh.replica is 1 over 2 TPU slices: use a multiple"):
        make_mesh(MeshConfig(), devices)


def test_parameters_lie_by_name() -> None:
    mesh = make_mesh(MeshConfig(data=2, tensor=2))
    spec = {
        "encoder/layers/query/kernel": ((3, 16, 16), (None, "data", "tensor")),
        "encoder/layers/output/kernel": ((3, 16, 16), (None, "tensor", "data")),
        "encoder/layers/feed_out/bias": ((3, 16), (None, "data")),
        "encoder/embeddings/token/embedding": ((128, 16), ("tensor", "data")),
        "sbo/position/embedding": ((15, 7), (None, None)),
    }
    for name, (shape, expected) in spec.items():
        assert tuple(parameter_spec(name, shape, mesh)) == expected, name
    assert data_dimension("sbo/position/embedding", (15, 7), mesh) is None
    assert tuple(parameter_spec("encoder/layers/query/kernel", (3, 16, 16), mesh, manual_only=True)) == (
        None,
        "data",
        None,
    )


def test_rows_become_a_global_array() -> None:
    mesh = make_mesh(MeshConfig())
    rows = to_global({"x_BL": np.arange(16).reshape(8, 2)}, mesh)["x_BL"]
    assert [shard.data.shape for shard in rows.addressable_shards] == [(2, 2)] * 4
    np.testing.assert_array_equal(rows, np.arange(16).reshape(8, 2))


def test_means_merge_exactly() -> None:
    assert Mean(6.0, 2).merge(Mean(0.0, 4)).value() == 1.0
    assert np.isnan(Mean(0.0, 0).value())


def test_names_and_rules() -> None:
    tree = {"a": {"b": 1, "c": 2}, "d": 3}
    assert named_leaves(tree) == {"a/b": 1, "a/c": 2, "d": 3}
    assert map_named(lambda name, leaf: f"{name}{leaf}", tree) == {"a": {"b": "a/b1", "c": "a/c2"}, "d": "d3"}
    assert first_match([("b$", "x"), ("", "y")], "a/b") == "x" and first_match([("b$", "x"), ("", "y")], "d") == "y"
    with pytest.raises(ValueError, match="no rule covers the parameter 'd'"):
        first_match([("b$", "x")], "d")
