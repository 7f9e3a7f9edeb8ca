"""ONNX Runtime never sees the calls that it kills the process on, fails on, or answers with whatever lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hub

CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "cumprod of nothing": (lambda x: x.cumprod(-1), (torch.ones(5, 0, 0, dtype=torch.int64),)),
    "product over nothing": (lambda x, y: (x + 1) @ y, (torch.ones(3, 0), torch.ones(0, 4))),
    "roll of nothing": (lambda x: (x * 2).roll(1, 0), (torch.ones(0, 3),)),
    "a slope for a number": (torch.nn.functional.prelu, (torch.tensor(-2.0), torch.tensor([0.5]))),
    "product of unsqueezed vectors": (lambda x, y: x[None].t().mm(y[None]), (torch.arange(4.0), torch.arange(3.0))),
    "a norm over nothing": (
        lambda v, g: torch._weight_norm(v, g, 0),
        (torch.tensor([-3.0, 4.0]), torch.tensor([2.0, 1.0])),
    ),
    "no difference": (lambda x: x.exp().diff(n=0, prepend=x[:1], dim=0), (torch.ones(3, 4),)),
}


def test_gradients_of_a_norm_over_all_dims() -> None:
    """Weight and bias have a gradient for each element where no dim is left to sum over."""
    x, weight, bias = (torch.randn(2, 3, requires_grad=True) for _ in range(3))

    def normed(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (2, 3), weight, bias)

    run = torch.compile(normed, backend="hub", options={"backends": ("onnxruntime",), "tune": "off"})
    found, wanted = (torch.autograd.grad(call(x).square().sum(), (x, weight, bias)) for call in (run, normed))
    torch.testing.assert_close(found, wanted)
    assert "onnxruntime" in {name for plan in hub.plans(run) if plan.mode == "backward" for name in plan.backends}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_eagers(name: str) -> None:
    """The call gives what eager gives, and no backend failed on the way."""
    function, arguments = CALLS[name]
    call = torch.compile(function, backend="hub", options={"backends": ("onnxruntime",), "tune": "off"}, dynamic=False)
    torch.testing.assert_close(call(*arguments), function(*arguments))
