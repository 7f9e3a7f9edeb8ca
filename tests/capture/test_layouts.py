"""Results have eager's strides where the functional form of an in-place operator has others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.functions import Of


def filled(x: torch.Tensor) -> torch.Tensor:
    """Write to a transposed input, and return what is computed from it."""
    x.masked_fill_(x > 0, 0.5)
    return x.sin()


def put(x: torch.Tensor) -> torch.Tensor:
    """Write rows, then compute element by element."""
    y = x + 1
    y[torch.tensor([0, 2])] = 3.0
    return y.exp() * 2


def scattered(x: torch.Tensor) -> torch.Tensor:
    """Scatter in place."""
    y = x.clone()
    y.scatter_(1, torch.zeros(x.shape, dtype=torch.long), 1.5)
    return y.abs()


def viewed(x: torch.Tensor) -> torch.Tensor:
    """Return a view of what follows an in-place operator."""
    y = x + 1
    y.masked_fill_(y > 0, 0.5)
    return y.sin().transpose(0, 1)


@pytest.mark.parametrize("backend", ["eager", "onnxruntime", "disc"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [filled, put, scattered, viewed])
def test_results_have_eagers_strides(function: Callable[..., torch.Tensor], dynamic: bool, backend: str) -> None:
    """Layout is part of the answer: a later `view` works or fails by it."""
    options = {"tune": "off", "start": "wait", **({"backends": [backend]} if backend != "eager" else {"backends": []})}
    run = torch.compile(Of(function), backend="hub", options=options, dynamic=dynamic)
    for shape in ((4, 6), (5, 7)):
        x = torch.randn(shape[::-1]).t()
        with torch.no_grad():
            expected, mine = function(x.clone()), run(x.clone())
        torch.testing.assert_close(mine, expected, check_stride=True)


def test_the_gradient_of_a_transform_of_any_size_runs() -> None:
    """Capture does not know that its padding crops, and declares other strides than the result has."""
    torch.manual_seed(0)
    linear = nn.Linear(16, 16)

    def mixed(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(linear(x), dim=1)[:, :9]
        return torch.fft.irfft(spectrum @ linear.weight.to(torch.complex64), n=x.shape[1], dim=1)

    run = torch.compile(mixed, backend="hub", options={"tune": "off", "start": "wait", "backends": ["disc"]})
    for size in (64, 50, 40):
        x = torch.randn(2, size, 16)
        expected, found = (torch.autograd.grad(call(x).square().sum(), linear.weight)[0] for call in (mixed, run))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", ["eager", "disc"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [put, scattered])
def test_results_in_training_have_eagers_strides(
    function: Callable[..., torch.Tensor], dynamic: bool, backend: str
) -> None:
    """So do results with gradients, which are eager's too."""
    options = {"tune": "off", "start": "wait", "backends": [backend] if backend != "eager" else []}
    run = torch.compile(Of(function), backend="hub", options=options, dynamic=dynamic)
    for shape in ((4, 6), (5, 7)):
        x = torch.randn(shape[::-1]).t().requires_grad_()
        expected, mine = function(x), run(x)
        torch.testing.assert_close(mine, expected, check_stride=True)
        gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in (mine, expected)]
        torch.testing.assert_close(*gradients)
