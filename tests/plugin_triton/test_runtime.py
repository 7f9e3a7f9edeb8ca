"""Executables for a GPU, as far as they can be tested without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hub.errors import CompileError
from hub.plugin.backend import CompileSettings
from hub.plugin.probing import addition
from plugin_triton import backend, runtime
from plugin_triton.choices import Limits
from plugin_triton.machine import Machine
from plugin_triton.runtime import TritonExecutable, build
from plugin_triton.settings import Settings
from plugin_triton.support import capability_of, too_old
from plugin_triton.targets import Target


class Devices:
    """A substitute for PyTorch's notion of the current GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.capability = (9, 0)
        self.entered: list[int] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: self.capability)
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
    """Yield GPUs that do not exist, for the duration of the test."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Devices(monkeypatch)


class Sums:
    """What the probe's addition gives: a fake tensor has no values to read."""

    def tolist(self) -> list[float]:
        """Return the right ones."""
        return [2.0, 4.0]


def doubling_on(device: str) -> TritonExecutable:
    """Return x + x, built for a GPU."""
    return build(addition(torch.device(device)))


def test_the_probe_is_built_for_the_device_that_its_value_is_on(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on "cuda" says "cuda:0", and an executable takes nothing from elsewhere."""
    seen: list[torch.device] = []

    def stubbed(cluster: Any, *_: Any, **__: Any) -> TritonExecutable:
        executable = build(cluster)
        executable._call = lambda value, device: (seen.append(device), (Sums(),))[1]
        return executable

    monkeypatch.setattr(backend, "build", stubbed)
    monkeypatch.setattr(torch, "tensor", lambda values, device: torch.empty(len(values), device=device))
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


# --- Old GPUs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", [None, (7, 0), (7, 5), (8, 6), (9, 0), (10, 3), (12, 0)])
def test_capabilities_that_triton_knows(capability: tuple[int, int] | None) -> None:
    """And GPUs of others, of which nothing is known."""
    assert too_old(capability) is None


@pytest.mark.parametrize("capability", [(3, 5), (6, 0), (6, 1)])
def test_capabilities_that_are_too_old(capability: tuple[int, int]) -> None:
    """With what the GPU has, and what it takes."""
    reason = too_old(capability)
    assert reason == f"a GPU of capability {capability[0]}.{capability[1]}, at least 7.0 for Triton"


def test_numbers_of_other_gpus_are_no_capabilities(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD's gfx610, if there were one, would be as good as any; and the CPU has none."""
    devices.capability = (6, 1)
    assert capability_of(torch.device("cuda:0")) == (6, 1)
    assert capability_of(torch.device("cpu")) is None
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert capability_of(torch.device("cuda:0")) is None


def test_an_old_gpu_is_refused(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the probe, by nodes where this process has started the GPU already, and else by compiling."""
    devices.capability = (6, 1)
    monkeypatch.setattr(torch, "tensor", lambda values, device: torch.empty(len(values), device=device))
    cluster = addition(torch.device("cuda:0"))
    (node,) = cluster.nodes
    with FakeTensorMode():
        verdict = backend.create(Settings()).probe()
        for each in cluster.module.graph.nodes:
            each.meta["val"] = torch.empty(2, device="cuda:0")
    assert (verdict.accepted, verdict.reason) == (False, "a GPU of capability 6.1, at least 7.0 for Triton")
    assert backend.create(Settings()).supports(node).accepted
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "a GPU of capability 6.1, at least 7.0" in backend.create(Settings()).supports(node).reason
    with pytest.raises(CompileError, match=r"capability 6\.1") as raised:
        backend.create(Settings()).compile(cluster, CompileSettings(threads=1))
    assert (raised.value.backend, raised.value.cluster) == ("triton", "probe")
