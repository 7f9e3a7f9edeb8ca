"""Inductor's kernels on a GPU, against eager there: as they come, and with everything tuned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plugin_inductor.backend import create
from torch import nn

import hub
from hub.plugin.backend import CompileSettings
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of
from tests.plugin_triton.cases import CASES, HALF, placed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
]

DEVICE = "cuda"
EFFORTS = ("fast", "full")


def assert_right(module: nn.Module, inputs: tuple[torch.Tensor, ...], effort: str) -> None:
    """Assert that Inductor supports all of a module, and that results are as accurate as plugins' must be."""
    cluster, given = whole_cluster(module, inputs)
    backend = create()
    assert [reason for node in cluster.nodes if (reason := backend.supports(node).reason)] == []
    executable: Any = backend.compile(cluster, CompileSettings(threads=1, effort=effort))
    wanted, references = eager(cluster, given), exact(cluster, given)
    for _ in range(2):  # the first call launches kernels otherwise than later ones
        assert value_problem(executable(*given), wanted, references) == ""


def test_probe() -> None:
    """It says nothing about GPUs, and passes on a machine with one."""
    assert create().probe().accepted


@pytest.mark.parametrize("name", ["pointwise", "softmax", "columns", "layer norm", "embedding", "scatter add", "running"])
def test_programs(name: str) -> None:
    """Kernels that Inductor writes by itself."""
    function, inputs = CASES[name]
    assert_right(Wrapped(function), placed(inputs(129), device=DEVICE), "fast")


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("name", ["product", "deep product", "batched product", "convolution", "attention"])
def test_products(name: str, effort: str) -> None:
    """By cuBLAS and cuDNN, and, with full effort, by whichever of them and Triton's templates is faster."""
    function, inputs = CASES[name]
    assert_right(Wrapped(function), placed(inputs(128), device=DEVICE), effort)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("name", ["pointwise", "softmax", "product", "attention"])
def test_half_precision(name: str, effort: str) -> None:
    """On tensor cores."""
    function, inputs = HALF[name]
    assert_right(Wrapped(function), placed(inputs(128), torch.bfloat16, DEVICE), effort)


@pytest.mark.parametrize("name", ["residual_norm", "rms_rotary", "causal_softmax"])
def test_clusters_of_real_models(name: str) -> None:
    """With full effort Triton's kernels are tuned along each coordinate."""
    assert_right(Wrapped(PROGRAMS[name]), placed(inputs_of(name, 64, 256), device=DEVICE), "full")


class Sliced(nn.Module):
    """A model that reads a row and a column of a weight: the column starts at an odd address."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(33, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[:32, 3] + self.weight[1]


@pytest.mark.parametrize("effort", EFFORTS)
def test_constants_at_odd_addresses(effort: str) -> None:
    """Folding leaves views of weights, which kernels would read in pieces of 16 bytes."""
    assert_right(Sliced().eval().to(DEVICE), (torch.randn(2, 32, device=DEVICE),), effort)


@pytest.mark.parametrize("tune", ["off", "full"])
def test_a_model_through_the_hub(tune: str) -> None:
    """Compiled in a worker, and again here, for its programs are not saved: no fallback, and eager's numbers."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10), nn.Softmax(-1))
    model = model.eval().to(DEVICE)
    x = torch.randn(32, 64, device=DEVICE)
    options = {"backends": ("inductor",), "tune": tune, **({"budget_s": 60.0} if tune == "full" else {})}
    compiled: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("inductor",)
    assert [event for event in plan.events if event.kind in ("failed", "fallback")] == []
