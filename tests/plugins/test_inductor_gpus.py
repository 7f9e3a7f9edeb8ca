"""Inductor on GPUs: what of it needs none to be tested."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plugin_inductor import compiler, lower, stored
from plugin_inductor.aligned import aligned, for_device
from plugin_inductor.backend import create
from plugin_inductor.compiler import Program, build, compiling
from plugin_inductor.support import supports
from torch import fx, nn
from torch._inductor import list_mode_options
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hub.errors import CompileError
from hub.plugin.backend import CompileSettings
from hub.testing.single import SETTINGS, whole_cluster

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

X = torch.ones(2, 8)


def off(*shape: int) -> torch.Tensor:
    """Return numbers that start four bytes after an aligned address."""
    return torch.randn(1 + torch.Size(shape).numel())[1:].reshape(shape)


class Sliced(nn.Module):
    """A model that reads a row and a column of a weight, each at an odd address."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(off(33, 32))  # fewer numbers would be written into the program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sum numbers times a column."""
        return x * self.weight[:32, 3] + self.weight[1]


@pytest.mark.parametrize(
    "view",
    [
        lambda value: value,
        lambda value: value.t(),
        lambda value: value[:, ::2],
        lambda value: value[1:3, 1:],
        lambda value: value[:, :1].expand(6, 5),
        lambda value: value[2, 3],
        lambda value: value[:0],
    ],
    ids=["whole", "transposed", "with gaps", "a part", "expanded", "one number", "nothing"],
)
def test_a_constant_is_moved_to_an_aligned_address(view: Any) -> None:
    """With the same numbers, sizes and strides."""
    value = view(off(6, 7))
    moved = aligned(value)
    assert torch.equal(moved, value)
    assert moved.stride() == value.stride()
    assert not moved.numel() or moved.data_ptr() % 16 == 0


def test_what_is_aligned_stays_where_it_is() -> None:
    """Weights can be gigabytes; and on CPUs Inductor takes any address."""
    value = torch.ones(4)
    assert aligned(value) is value
    assert for_device(odd := off(4)) is odd


def test_every_constant_of_a_program_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, and what folding makes of them; this CPU stands in for a GPU."""
    monkeypatch.setattr(compiler, "for_device", aligned)
    cluster, inputs = whole_cluster(Sliced().eval(), (torch.ones(2, 32),))
    with compiling(SETTINGS, has_weights=True):
        program = build(lower.lower(cluster))
    assert program.constants
    assert all(value.data_ptr() % 16 == 0 for value in program.constants.values())
    torch.testing.assert_close(program.call(list(inputs))[0], cluster.module(*inputs)[0])


def node_on(device: str) -> fx.Node:
    """Return a cosine on a device, which need not exist."""
    with FakeTensorMode(), torch.no_grad():
        module = make_fx(torch.cos)(torch.empty(2, device=device))
    return next(node for node in module.graph.nodes if node.op == "call_function")


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Triton look installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_gpus_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing, nodes on a GPU are refused by that reason; those on the CPU are taken."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert supports(node_on("cuda:0")).reason == "aten.cos.default: on cuda, where Inductor needs Triton: install triton"
    assert supports(node_on("cpu")).accepted


@pytest.mark.usefixtures("triton")
def test_old_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their capability, which is asked for only where the process has started the GPU."""
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or (6, 1))
    assert supports(node_on("cuda:0")).accepted
    assert not asked
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "on a GPU of capability 6.1, at least 7.0" in supports(node_on("cuda:0")).reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert supports(node_on("cuda:0")).accepted


def test_programs_for_gpus_are_not_saved(tmp_path: Path) -> None:
    """Their kernels lie in Triton's cache; the refusal says so before a file is written."""
    cluster, _ = whole_cluster(nn.ReLU(), (X,))
    program: Program = create().compile(cluster, SETTINGS)._program  # pyright: ignore
    assert program.devices == ("cpu",)
    with pytest.raises(CompileError, match="programs for cuda are not saved"):
        stored.save(replace(program, devices=("cuda",)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_full_effort_is_torchs_own() -> None:
    """Everything that "max-autotune" turns on, without CUDA graphs; nothing of it without the effort."""
    wanted = list_mode_options("max-autotune-no-cudagraphs")
    full, fast = (
        compiler._configuration(CompileSettings(threads=1, effort=effort), has_weights=True, trace_folder=None)
        for effort in ("full", "fast")
    )
    assert {name: full[name] for name in wanted} == wanted
    assert not any(fast[name] for name in wanted)
    assert not full["triton.cudagraphs"]


@pytest.mark.parametrize("places", [("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_number_of_the_cpu_does_not_make_a_program_the_cpus(places: tuple[str, str]) -> None:
    """Only programs that are wholly on the CPU are driven by C++; the first input says nothing of the others."""
    with FakeTensorMode():
        number, tensor = torch.empty((), device=places[0]), torch.empty(4, device=places[1])
        program = make_fx(lambda number, tensor: tensor * number, tracing_mode="fake")(number, tensor)
    assert compiler.is_on_cpu(program) == ("cuda" not in places)
