"""Executables for a GPU, as far as they can be told without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plugin_triton import backend, runtime
from plugin_triton.choices import Limits
from plugin_triton.machine import Machine
from plugin_triton.runtime import TritonExecutable, build
from plugin_triton.settings import Settings
from plugin_triton.targets import Target


class Devices:
    """Stands in for PyTorch's idea of the current GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.entered: list[int] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self._entered)
        machine = Machine(Target.parse("cuda:90"), Limits(), "a stand-in")
        monkeypatch.setattr(runtime, "machine_of", lambda _: machine)

    @contextlib.contextmanager
    def _entered(self, device: torch.device) -> Iterator[None]:
        self.entered.append(device.index)
        before, self.current = self.current, device.index
        yield
        self.current = before


@pytest.fixture
def devices() -> Iterator[Devices]:
    """Gives GPUs that are not there, for no longer than the test."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Devices(monkeypatch)


def doubling_on(device: str) -> TritonExecutable:
    """Gives x + x, built for a GPU."""
    return build(backend._doubling(torch.device(device)))


def test_the_probe_is_built_for_the_device_that_its_value_is_on(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on "cuda" says "cuda:0", and an executable takes nothing from elsewhere."""
    seen: list[torch.device] = []

    def stubbed(cluster: Any, *_: Any, **__: Any) -> TritonExecutable:
        executable = build(cluster)
        executable._call = lambda value, device: (seen.append(device), (value + value,))[1]
        return executable

    monkeypatch.setattr(backend, "build", stubbed)
    monkeypatch.setattr(torch, "tensor", lambda values, device: torch.empty(len(values), device=device))
    monkeypatch.setattr(torch, "equal", lambda *_: True)
    with FakeTensorMode():
        verdict = backend.create(Settings()).probe()
    assert verdict.accepted, verdict.reason
    assert seen == [torch.device("cuda:0")]
    assert devices.entered == []


@pytest.mark.parametrize("current", [0, 1])
def test_kernels_are_launched_on_the_gpu_that_has_the_memory(devices: Devices, current: int) -> None:
    """Triton launches on the current one; where that is the right one already, nothing is switched."""
    devices.current = current
    executable, places = doubling_on("cuda:1"), list[int]()
    executable._call = lambda value, _: (places.append(devices.current), (value,))[1]
    with FakeTensorMode():
        executable(torch.empty(2, device="cuda:1"))
    assert places == [1]
    assert devices.entered == ([] if current == 1 else [1])
    assert devices.current == current
