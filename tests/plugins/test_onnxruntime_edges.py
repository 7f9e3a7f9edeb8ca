"""ONNX Runtime never sees the calls that it kills the process on, fails on, or answers with whatever lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hub
from hub.plan import TROUBLE

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


LATER: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "integers compared with a changing number": (lambda x, t: x < t, (torch.arange(6), 2.0), (torch.arange(6), 2.5)),
    "bools compared with a changing number": (
        lambda x, t: (x > 0) == t, (torch.arange(6.0), 1.0), (torch.arange(6.0), 0.5)
    ),
    "floor of log2": (
        lambda x: torch.log2(x).floor().long(), (torch.arange(1, 100),), (torch.tensor([2**15, 2**27, 8] * 33),)
    ),
    "floor of log10": (
        lambda x: torch.log10(x).floor() + 0, (torch.rand(50),), (torch.tensor([10.0**k for k in range(-20, 30)]),)
    ),
    "interpolated to the end": (
        lambda a, b: torch.lerp(a, b, 1.0) + 0, (torch.rand(64), torch.rand(64)), (torch.rand(64) * 1e8, torch.rand(64))
    ),
    "interpolated by a tensor": (
        lambda a, b, w: torch.lerp(a, b, w) + 0, (torch.rand(64), torch.rand(64), torch.rand(64)),
        (torch.rand(64) * 1e8, torch.rand(64), torch.ones(64)),
    ),
}  # fmt: skip
"""Functions, with the inputs of a first call and those of the call that counts."""


@pytest.mark.parametrize("name", LATER)
def test_later_calls_are_eagers(name: str) -> None:
    """With values that the first call, and verification, do not have."""
    function, first, later = LATER[name]
    is_changing = any(isinstance(value, float) for value in first)
    options = {"backends": ("onnxruntime",), "tune": "off", "start": "wait"}
    call: Any = torch.compile(function, backend="hub", options=options, dynamic=is_changing)
    call(*first)
    torch.testing.assert_close(call(*later), function(*later), rtol=1e-6, atol=0)
    assert "onnxruntime" in hub.plans(call)[-1].backends


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_position_beyond_the_classes_is_eagers_error(wrong: int) -> None:
    """OneHot itself wraps one below, and leaves out one above."""
    options = {"backends": ("onnxruntime",), "tune": "off", "start": "wait"}
    call: Any = torch.compile(lambda i: torch.nn.functional.one_hot(i + 0, 5) * 2, backend="hub", options=options)
    call(torch.tensor([1, 2, 3]))
    with pytest.raises(RuntimeError, match="Class values must be"):
        call(torch.tensor([1, 2, wrong]))
    assert call(torch.tensor([4, 2, 0])).tolist()[0] == [0, 0, 0, 0, 2]


def test_windows_of_a_square_image_are_compiled() -> None:
    """Height and width have one symbol, whose square is a size of the windows."""
    weight = torch.randn(8, 8)

    def windows(x: torch.Tensor) -> torch.Tensor:
        n, h, w, c = x.shape
        parts = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c) @ weight
        return parts.view(n, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)

    options = {"backends": ("onnxruntime",), "tune": "off", "start": "wait"}
    call: Any = torch.compile(windows, backend="hub", options=options, dynamic=True)
    for size in (16, 24):
        x = torch.randn(2, size, size, 8)
        torch.testing.assert_close(call(x), windows(x), rtol=1e-4, atol=1e-5)
    (plan,) = hub.plans(call)
    assert not [event for event in plan.events if event.kind in TROUBLE]
    assert [cluster.backend for cluster in plan.clusters].count("onnxruntime") == 2
