"""Resampling at sizes that were not verified: one program serves hundreds of them, and each result is eager's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

import hub

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

Case = tuple[Callable[..., torch.Tensor], int, int]
"""A function of a tensor, its dims of space, and the largest size."""


def by(factor: Any, **how: Any) -> Callable[..., torch.Tensor]:
    """Return resampling by a factor."""
    return lambda x: interpolate(x, scale_factor=factor, **how)


CASES: dict[str, Case] = {
    "linear by a fraction": (by(1 / 250, mode="linear"), 1, 90_000),
    "linear, not by a whole number": (by(1.7, mode="linear"), 1, 60_000),
    "nearest by a fraction": (by(1 / 6, mode="nearest"), 1, 60_000),
    "nearest by 41, whose reciprocal is rounded down": (by(41.0, mode="nearest"), 1, 3_000),
    "linear between corners": (by(2.5, mode="linear", align_corners=True), 1, 40_000),
    "bilinear by two factors": (by((1.25, 0.6), mode="bilinear"), 2, 130),
    "bilinear by a factor of two": (by(2.0, mode="bilinear"), 2, 130),
    "bicubic by a fraction": (by(1 / 3, mode="bicubic"), 2, 130),
    "bicubic between corners": (by((2.0, 1.5), mode="bicubic", align_corners=True), 2, 90),
    "factors that are computed again": (by(0.7, mode="bilinear", recompute_scale_factor=True), 2, 130),
    "trilinear": (by(1.5, mode="trilinear"), 3, 14),
}
USUAL = ("linear by a fraction", "nearest by 41, whose reciprocal is rounded down", "bicubic by a fraction")
N_SIZES = 120


class Resample(nn.Module):
    """Resamples, and does something with the result."""

    def __init__(self, resample: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.resample = resample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.resample(x)) * 2


def check(name: str, backend: str) -> hub.Plan:
    """Call a compiled model at many sizes; raise AssertionError if one result is not eager's. Return the last plan."""
    resample, space, largest = CASES[name]
    model, draw = Resample(resample), random.Random(3)
    run: Any = torch.compile(
        model, backend="hub", dynamic=True, options={"tune": "off", "backends": [backend], "isolate": False}
    )
    with torch.no_grad():
        for number in range(N_SIZES):
            high = largest if number % 8 == 7 else max(largest // 40, 12)
            sizes = [draw.randint(min(largest // 50, 250) + 3, max(high, 300 if space == 1 else 12)) for _ in range(space)]
            x = torch.randn(1, 2, *sizes)
            torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    plans = hub.plans(run)
    assert not [event for plan in plans for event in plan.events if event.kind in ("failed", "fallback")]
    assert all(backend in plan.backends for plan in plans), plans
    return plans[-1]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in USUAL)) for name in CASES])
def test_onnxruntime_resamples_as_eager_does(name: str) -> None:
    """Places between elements are those of PyTorch's kernels, rounded as they round them, at every size."""
    plan = check(name, "onnxruntime")
    assert not [cluster for cluster in plan.clusters if cluster.backend == "eager" and "upsample" in str(cluster.operators)]


def test_openvino_resamples_only_where_it_is_exact() -> None:
    """A factor of two is exact at every size; others, of sizes known only at run time, run in eager."""
    check("bilinear by a factor of two", "openvino")
    model = Resample(by(3.0, mode="bilinear"))
    run: Any = torch.compile(
        model, backend="hub", dynamic=True, options={"tune": "off", "backends": ["openvino"], "isolate": False}
    )
    with torch.no_grad():
        for sizes in ((24, 48), (21, 33), (40, 56)):
            x = torch.randn(2, 3, *sizes)
            torch.testing.assert_close(run(x), model(x), rtol=0, atol=5e-6)
    reasons = [cluster.reason for cluster in hub.plans(run)[-1].clusters if "upsample" in str(cluster.operators)]
    assert "powers of 2" in reasons[0]
