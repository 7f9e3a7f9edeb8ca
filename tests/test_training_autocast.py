"""Training under autocast follows eager: dtypes, loss and gradients, on each backend alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),  # Inductor's own imports
    pytest.mark.filterwarnings("ignore:torch.cpu.amp:FutureWarning"),
]

TRAINING = [
    name for name in registry().available() if registry().entries[name].info.training and name not in ("triton", "mdla")
]
"""Interpreters take minutes."""


class Net(nn.Module):
    """Normalizations of half-precision features far from zero, and a part in float32 in which autocast is off.

    Means in bfloat16 would be off by a tenth of the features' deviation, and every gradient with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.group, self.layer = nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(6)
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.inner(self.batch(x) + self.group(x) + self.layer(x))
        with torch.autocast("cpu", enabled=False):
            pooled = h.float().tanh().mean((1, 2))
        return self.head(pooled), pooled


def step(model: Any, x: torch.Tensor, dtype: torch.dtype | None, *, cache: bool) -> tuple[Any, ...]:
    """Run forward and backward; return outputs and gradients. A scaled loss, as for float16."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, enabled=dtype is torch.float16)
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=cache):
        outputs = model(x)
        loss = nn.functional.cross_entropy(outputs[0].float(), torch.arange(len(x)) % 3)
    scaler.scale(loss).backward()
    scale = scaler.get_scale() if dtype is torch.float16 else 1.0
    return loss.detach(), outputs, [parameter.grad / scale for parameter in model.parameters()]


def features(dtype: torch.dtype) -> torch.Tensor:
    """Return features around 8 with deviation 0.1."""
    return (8 + 0.1 * torch.randn(6, 4, 5, 6)).to(dtype)


def check_alike(mine: tuple[Any, ...], eager: tuple[Any, ...]) -> None:
    """Check that dtypes are equal, and loss and gradients as close as sums of bfloat16 products in another order."""
    assert [output.dtype for output in mine[1]] == [output.dtype for output in eager[1]]
    torch.testing.assert_close(mine[0], eager[0], rtol=1e-2, atol=0)
    for got, wanted in zip(mine[2], eager[2], strict=True):
        assert got.dtype is wanted.dtype
        assert (got - wanted).norm() <= 2e-2 * wanted.norm() + 1e-3


@pytest.mark.parametrize("backend", TRAINING)
def test_training_under_autocast_follows_eager(backend: str) -> None:
    """Steps in bfloat16, in full precision and in bfloat16 again have eager's dtypes, losses, gradients and statistics."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    reference = Net()
    model = copy.deepcopy(reference)
    compiled = torch.compile(model, backend="hub", options={"backends": [backend], "tune": "off"})
    for dtype, cache in ((torch.bfloat16, True), (None, True), (torch.bfloat16, False)):
        x = features(dtype or torch.float32)
        check_alike(step(compiled, x, dtype, cache=cache), step(reference, x, dtype, cache=cache))
    torch.testing.assert_close(model.batch.running_mean, reference.batch.running_mean)
    plans = hub.plans(compiled)
    assert not [event for plan in plans for event in plan.events if event.kind in ("failed", "fallback")]
    assert backend in {cluster.backend for plan in plans for cluster in plan.clusters}


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[pytest.mark.slow] * (name == "inductor")) for name in TRAINING]
)
def test_training_in_float16_with_scaled_loss(backend: str) -> None:
    """In float16 with a scaled loss gradients are eager's, and inference under autocast afterwards is too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    reference = Net()
    model = copy.deepcopy(reference)
    compiled = torch.compile(model, backend="hub", options={"backends": [backend], "tune": "off"})
    x = features(torch.float16)
    check_alike(step(compiled, x, torch.float16, cache=True), step(reference, x, torch.float16, cache=True))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        mine, eager = (each.eval()(x) for each in (compiled, reference))
    for got, wanted in zip(mine, eager, strict=True):
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
    assert not [event for plan in hub.plans(compiled) for event in plan.events if event.kind in ("failed", "fallback")]
