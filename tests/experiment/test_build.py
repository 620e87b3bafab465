"""What a mesh cannot do is said before anything is compiled."""

import dataclasses
import re
import types
from typing import Any

import numpy as np
import pytest

from spanjax.experiment import build, finetune
from spanjax.experiment.build import SCHEDULER_OFF, mesh_problems
from spanjax.nn.attention import platform_name
from spanjax.run import Run
from spanjax.sharding import MeshConfig, make_mesh
from spanjax.tasks.contrastive import Contrastive
from spanjax.tasks.coref import Coref
from spanjax.tasks.glue import Glue


def problems(config: MeshConfig, devices: int, batch_size: int = 8, **settings: Any) -> list[str]:
    import jax

    run = dataclasses.replace(Run(), mesh=config, batch_size=batch_size, **settings)
    return mesh_problems(run, make_mesh(config, jax.devices()[:devices]))


def test_fsdp_on_cpu_devices_is_refused_but_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    (problem,) = problems(MeshConfig(fsdp=True), 4)
    assert "mesh.fsdp on 4 CPU devices" in problem and SCHEDULER_OFF in problem
    assert problems(MeshConfig(fsdp=True), 1) == problems(MeshConfig(), 4) == []
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count=4 {SCHEDULER_OFF}")
    assert problems(MeshConfig(fsdp=True), 4) == []
    monkeypatch.setenv("XLA_FLAGS", f"{SCHEDULER_OFF} --xla_a=1 {SCHEDULER_OFF.replace('false', 'true')}")
    assert problems(MeshConfig(fsdp=True), 4) == [problem], "the last one counts"


def test_each_size_of_a_batch_warm_up_is_split_over_devices_and_microbatches() -> None:
    stages = ("0:2", "4:4", "6:8")
    assert problems(MeshConfig(), 2, batch_warmup=stages) == problems(MeshConfig(), 4, 8) == []
    (problem,) = problems(MeshConfig(), 4, batch_warmup=stages)
    assert problem == (
        "batch_warmup's update of 2 rows does not divide over 4 device(s) x 1 microbatch(es): use a multiple of 4"
    )
    (problem,) = problems(MeshConfig(), 2, batch_warmup=stages, microbatches=2)
    assert "update of 2 rows does not divide over 2 device(s) x 2 microbatch(es)" in problem
    assert problems(MeshConfig(), 4, batch_warmup=("half",)) == [], "reported by Run.problems"


@pytest.mark.parametrize(
    ("platform", "changes", "unroll", "reason"),
    [
        ("cuda", {}, 12, "unrolled .the fastest on gpu"),
        ("cpu", {}, 1, "in a scan .the default for 12 layers on cpu"),
        ("cpu", {"layers": 2}, 2, "unrolled .the fastest on cpu"),
        ("cpu", {"layers": 2, "remat": "full"}, 1, "in a scan .remat frees memory on cpu only there"),
        ("cuda", {"remat": "full"}, 12, "unrolled"),
        ("tpu", {}, 1, "in a scan .the default for 12 layers on tpu"),
        ("cuda", {"layers": 48}, 1, "in a scan .the default for 48 layers on gpu"),
        ("tpu", {"unroll": 3}, 3, "3 a turn of the scan .requested"),
    ],
)
def test_layers_are_unrolled_where_that_pays(
    platform: str, changes: dict[str, Any], unroll: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    run = dataclasses.replace(Run(), encoder=dataclasses.replace(Run().encoder, **changes))  # pyright: ignore
    monkeypatch.setattr(build, "mesh_platform", lambda _: platform_name(platform))
    grid = make_mesh(MeshConfig(), jax.devices()[:1])
    found, why = build.layers_unrolled(run, grid)
    assert found == unroll and re.search(reason, why), why
    fsdp = dataclasses.replace(run, mesh=MeshConfig(fsdp=True))
    assert build.layers_unrolled(fsdp, grid)[0] == (run.encoder.unroll or 1)


def test_a_task_unrolls_more_layers_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretraining of as many layers keeps the scan, and so the rounding of its losses; so does a task on a TPU."""
    import jax

    grid = make_mesh(MeshConfig(), jax.devices()[:1])

    def unrolled(objective: Any, layers: int, platform: str = "cpu", **encoder: Any) -> int:
        monkeypatch.setattr(build, "mesh_platform", lambda _: platform)
        run = dataclasses.replace(Run(), **({"objective": objective} if objective else {}))
        settings: Any = {"layers": layers, **encoder}
        run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, **settings))
        return build.layers_unrolled(run, grid)[0]

    assert [unrolled(Glue(), layers) for layers in (3, 6, 7)] == [3, 6, 1]
    assert [unrolled(None, layers) for layers in (3, 6)] == [3, 1]
    assert unrolled(Glue(), 6, "tpu") == unrolled(Glue(), 6, remat="full") == unrolled(Glue(), 6, unroll=1) == 1
    assert unrolled(Glue(), 12, "gpu") == 12


def test_finer_lengths_are_for_cpus_and_tasks_without_lengths_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document's batch holds whole segments: half a segment more could not be cut into them."""
    import jax

    grid = make_mesh(MeshConfig(), jax.devices()[:1])
    assert [finetune.takes_finer_lengths(task, grid) for task in (Glue(), Coref(), Contrastive())] == [
        True,
        False,
        False,
    ]
    monkeypatch.setattr(finetune, "mesh_platform", lambda _: "gpu")
    assert not finetune.takes_finer_lengths(Glue(), grid)


@pytest.mark.parametrize(
    ("changes", "microbatches", "platform", "layerwise"),
    [
        ({"unroll": 12}, 1, "gpu", True),
        ({"unroll": 1}, 1, "gpu", False),
        ({"unroll": 1}, 1, "tpu", True),
        ({"unroll": 12}, 2, "tpu", False),
        ({"unroll": 1, "num_layer_groups": 1}, 1, "tpu", False),
        ({"unroll": 12, "num_layer_groups": 1}, 1, "gpu", False),
        ({"unroll": 12}, 1, "cpu", False),
    ],
)
def test_layers_gather_on_their_own_where_transfers_can_hide(
    changes: dict[str, int], microbatches: int, platform: str, layerwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where each would be moved more than once."""
    import jax

    monkeypatch.setattr(build, "mesh_platform", lambda _: platform)
    run = dataclasses.replace(Run(), microbatches=microbatches)
    run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, **changes))  # pyright: ignore
    assert build.gathered_layerwise(run, make_mesh(MeshConfig(), jax.devices()[:1])) is layerwise


def test_rows_divide_over_the_devices() -> None:
    assert "batch_size 6 does not divide over 4 device(s)" in problems(MeshConfig(), 4, batch_size=6)[0]


def elsewhere(
    changes: dict[str, Any], platform: str = "cuda", kind: str = "NVIDIA H200", tensor: int = 1
) -> tuple[Any, Any]:
    """(a run in bfloat16 with these settings of its encoder, a mesh of a device that is not here)."""
    run = dataclasses.replace(Run(), compute_dtype="bfloat16")
    run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, **changes))  # pyright: ignore
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    return run, types.SimpleNamespace(shape={"tensor": tensor}, devices=np.array([device]))


def norm_of(changes: dict[str, Any], **where: Any) -> tuple[str, str]:
    """The choice of `residual_norm` for devices that are not here."""
    return build.norm_backend(*elsewhere(changes, **where))


LOCAL = {"local_window": 64, "global_every": 3, "attention_dropout": 0.0}


def local_of(changes: dict[str, Any], length: int = 512, **where: Any) -> tuple[str, str]:
    """The choice of `local_backend` for rows of this length."""
    run, mesh = elsewhere({**LOCAL, **changes}, **where)
    return build.local_backend(run, mesh, length, build.attention_backend(run, mesh, length)[0])


@pytest.mark.parametrize(
    ("changes", "where", "backend", "reason"),
    [
        ({}, {}, "pallas_hopper", "cudnn computes whole rows"),
        ({}, {"length": 256}, "cudnn", "short for a window of 64"),
        ({"attention": "cudnn"}, {}, "cudnn", "as the other layers"),
        ({"attention": "xla"}, {}, "xla", "as the other layers"),
        ({"attention": "cudnn", "local_backend": "pallas_triton"}, {}, "pallas_triton", "requested"),
        ({"attention_dropout": 0.1}, {}, "pallas_hopper", "as the other layers"),
        ({}, {"tensor": 2}, "xla", "as the other layers"),
        ({}, {"platform": "tpu", "kind": "TPU v5e"}, "splash", "as the other layers"),
        ({"local_window": 0, "global_every": 0}, {}, "auto", "none are local"),
    ],
)
def test_local_layers_take_the_kernel_that_skips(
    changes: dict[str, Any], where: dict[str, Any], backend: str, reason: str
) -> None:
    found, why = local_of(changes, **where)
    assert found == backend and reason in why, why


def test_a_backend_of_local_layers_that_cannot_run_is_named() -> None:
    with pytest.raises(ValueError, match="^encoder.local_backend: .*'cudnn_packed' cannot be used: it has no windows"):
        local_of({"local_backend": "cudnn_packed"})


def test_the_kernel_of_local_layers_is_tried_beside_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch)
    asked = []
    monkeypatch.setattr(build.pallas_hopper, "verify", lambda *shape: asked.append(shape) or (2e-3, 1e-3))
    found, why = local_of({})
    assert found == "cudnn" and why.startswith("not pallas_hopper: it is slower than cudnn on this device: 2.00 ms"), (
        why
    )
    assert asked == [(512, 64, "bfloat16", 64, 0.0, "cudnn")]
    monkeypatch.setattr(build.pallas_hopper, "verify", lambda *shape: (1e-3, 2e-3))
    assert local_of({})[0] == "pallas_hopper"


@pytest.mark.parametrize(
    ("lengths", "changes", "local"),
    [
        ((128, 512), {}, "auto"),  # what `build` makes of the longest
        ((64, 512), {}, "cudnn"),
        ((64, 512), {"attention": "xla"}, "auto"),
        ((129, 512), {}, "auto"),  # cuDNN has no odd lengths: all layers take xla
    ],
)
def test_local_layers_of_a_task_have_one_backend_for_all_lengths(
    lengths: tuple[int, ...], changes: dict[str, Any], local: str
) -> None:
    run, mesh = elsewhere({**LOCAL, **changes})
    run = dataclasses.replace(run, objective=Glue(length=512))
    packed: Any = types.SimpleNamespace(buckets=dict.fromkeys(lengths))
    assert finetune._with_attention(run, packed, mesh).encoder.local_backend == local
    named = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, local_backend="pallas_hopper"))
    if lengths[0] % 128:
        refused = f"encoder.local_backend: .* its length is a multiple of 128, not {lengths[0]}"
        with pytest.raises(ValueError, match=refused):
            finetune._with_attention(named, packed, mesh)
    else:
        assert finetune._with_attention(named, packed, mesh) == named


def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every device count as one of this process, and no trial remembered."""
    import jax

    class Everything:
        def __contains__(self, _: Any) -> bool:
            return True

    monkeypatch.setattr(jax, "devices", Everything)
    monkeypatch.setattr(build, "remembered", lambda name, shape, trial: trial())


@pytest.mark.parametrize(
    ("changes", "where", "backend", "reason"),
    [
        ({}, {}, "pallas", "one kernel each way"),
        ({"residual_norm": "pallas"}, {}, "pallas", "requested"),
        ({"residual_norm": "xla"}, {}, "xla", "requested"),
        ({}, {"kind": "NVIDIA A100-SXM4-80GB"}, "pallas", "one kernel"),
        ({}, {"kind": "Tesla V100"}, "xla", "capability 8.0"),
        ({}, {"platform": "tpu", "kind": "TPU v5e"}, "xla", "it runs on gpu"),
        ({}, {"tensor": 2}, "xla", "mesh.tensor"),
        ({"norm_first": True}, {}, "xla", "do not use it"),
        ({"remat": "dots"}, {}, "xla", "encoder.remat"),
        ({"hidden_size": 312}, {}, "xla", "multiple of 128, not 312"),
        (
            {"remat": "dots", "norm_first": True},
            {"tensor": 2},
            "xla",
            "its width; layers of this kind do not use it; encoder.remat",
        ),
    ],
)
def test_the_kernel_of_norms_is_taken_where_it_fits(
    changes: dict[str, Any], where: dict[str, Any], backend: str, reason: str
) -> None:
    found, why = norm_of(changes, **where)
    assert found == backend and reason in why, why
    if backend == "xla" and changes.get("residual_norm") != "xla":
        with pytest.raises(ValueError, match="encoder.residual_norm 'pallas' cannot be used: .*take 'auto' or 'xla'"):
            norm_of({**changes, "residual_norm": "pallas"}, **where)


def test_the_kernel_of_norms_is_tried_on_devices_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch)
    monkeypatch.setattr(build.residual_norm, "verify", lambda *shape: (2e-3, 1e-3) if shape[0] == 768 else (1e-3, 2e-3))
    assert norm_of({}) == (
        "xla",
        "not pallas: it is slower than xla on this device: 2.00 ms in place of 1.00 a layer of some rows",
    )
    assert norm_of({"hidden_size": 1024})[0] == "pallas"
    assert norm_of({"residual_norm": "pallas"})[0] == "pallas", "named, it is taken if it is right"
