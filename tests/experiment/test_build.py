"""What a mesh cannot do is said before anything is compiled."""

import dataclasses

import pytest

from spanjax.experiment.build import SCHEDULER_OFF, mesh_problems
from spanjax.run import Run
from spanjax.sharding import MeshConfig, make_mesh


def problems(config: MeshConfig, devices: int, batch_size: int = 8) -> list[str]:
    import jax

    run = dataclasses.replace(Run(), mesh=config, batch_size=batch_size)
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


def test_rows_divide_over_the_devices() -> None:
    assert "batch_size 6 does not divide over 4 device(s)" in problems(MeshConfig(), 4, batch_size=6)[0]
