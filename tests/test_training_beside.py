"""Training with what PyTorch offers beside plain steps: checkpoints, graphs that are kept, autocast, tangents."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import hub
from hub.frontend.ownership import graphs_of

OPTIONS: dict[str, Any] = {"tune": "off", "backends": ["onnxruntime"]}


def dynamo(model: Any) -> Any:
    """Compile as most programs do."""
    return torch.compile(model, backend="hub", options=OPTIONS)


def direct(model: Any) -> Any:
    """Compile so that the first call answers in eager."""
    return hub.compile(model, options={**OPTIONS, "start": "eager"})


WAYS = pytest.mark.parametrize("compiled", [dynamo, direct])


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    """Return copies of the gradients of a model's weights, which are dropped."""
    found = [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    return found


def assert_same(mine: Any, expected: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def small() -> nn.Sequential:
    """Return a model whose tensors all have one shape, so that a mixture of them would not be noticed by their shapes."""
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh())


@WAYS
def test_a_checkpoint_around_a_first_call(compiled: Callable[..., Any]) -> None:
    """The forward and its repetition in the backward save the same tensors, in one order, from the first step on."""
    models = [small(), small()]
    runs, x = [compiled(model) for model in models], torch.randn(8, 8, requires_grad=True)

    def step(blocks: list[Any]) -> list[torch.Tensor | None]:
        y: torch.Tensor = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        y.square().sum().backward()
        return [one for model in models for one in gradients(model)]

    expected = step(models)
    for _ in range(4):
        assert_same(step(runs), expected)


@WAYS
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_that_is_kept_after_others_that_were_not(compiled: Callable[..., Any], dynamic: bool) -> None:
    """Several losses over one forward, or a step with `retain_graph` after plain ones."""
    model = small()
    run = compiled(model)
    for number in range(4):
        x = torch.randn(4 + number * dynamic, 8)
        run(x).sum().backward()
        gradients(model)
        loss = run(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        mine = gradients(model)
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        assert_same(mine, gradients(model))


class Island(nn.Module):
    """A part in float32 in a model under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.weight = nn.Linear(64, 64), nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        with torch.autocast("cpu", enabled=False):
            return x.float() @ self.weight


@WAYS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_part_in_float32_has_a_backward_in_float32(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    """Eager runs the backward outside of autocast. A scaler's large factors are infinite in float16."""
    model, x = Island(), torch.randn(8, 64)
    run = compiled(model)

    def step(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            loss = call(x).sum()
        (loss * 2**17).backward()
        weight_gradient = gradients(model)[0]
        assert weight_gradient is not None
        return weight_gradient

    expected = step(model)
    assert bool(expected.isfinite().all())
    for _ in range(3):
        mine = step(run)
        assert float((mine - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@contextmanager
def tangents(x: torch.Tensor, v: torch.Tensor) -> Iterator[torch.Tensor]:
    """Provide an input with a tangent."""
    with forward_ad.dual_level():
        yield forward_ad.make_dual(x, v)


@WAYS
@pytest.mark.parametrize("is_frozen", [True, False])
@pytest.mark.filterwarnings("ignore:capture. forward-mode differentiation is on")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own formulas for tangents use it
def test_forward_mode_keeps_its_tangents(compiled: Callable[..., Any], is_frozen: bool) -> None:
    """Before there is a plan, and after."""
    model = small().requires_grad_(not is_frozen)
    run, x, v = compiled(model), torch.randn(4, 8), torch.randn(4, 8)
    for number in range(6):
        with tangents(x, v) as dual:
            expected = forward_ad.unpack_dual(model(dual)).tangent
            mine = forward_ad.unpack_dual(run(dual)).tangent
            assert mine is not None
            assert_same(mine, expected)
        if number % 2:
            assert_same(run(x), model(x))


def test_a_checkpoint_in_a_program_without_gradients_may_need_them() -> None:
    """A body may switch them on."""
    model, x = small(), torch.randn(4, 8, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            with torch.enable_grad():
                return checkpoint(model, x + y, use_reentrant=False)

    run = torch.compile(program, backend="hub", options=OPTIONS)
    with torch.no_grad():
        mine, expected = run(x), program(x)
    assert mine.requires_grad == expected.requires_grad
    assert_same(torch.autograd.grad(mine.sum(), x), torch.autograd.grad(expected.sum(), x))


@pytest.mark.parametrize("backends", [[], ["onnxruntime"]])
def test_a_backward_frees_what_was_saved_as_it_goes(backends: list[str]) -> None:
    """Eager frees each activation with the operator that needed it; peaks of memory are those of training."""
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(8, 8), nn.Tanh(), nn.Sigmoid())))
    run, x = torch.compile(model, backend="hub", options={**OPTIONS, "backends": backends}), torch.randn(4, 8)
    for _ in range(2):
        run(x).sum().backward()
    expected = [one.clone() for one in gradients(model) if one is not None]
    (graph,) = [graph for graph in graphs_of(run) if graph.mode == "backward"]
    values = [node.meta["val"] for node in graph.graph.placeholders]
    given = [torch.rand(value.shape, dtype=value.dtype) for value in values]
    kept, alive = [weakref.ref(value) for value in given], list[int]()
    binding = graph.current()
    assert binding is not None
    names = binding.run.__globals__
    for name in [name for name in names if name.startswith("op_") or name == "c0"]:
        names[name] = _counting(names[name], kept, alive)
    graph.take(given)
    assert given == []
    if not backends:
        assert alive[-1] < alive[0] - 6
    run(x).sum().backward()
    for mine, one in zip(gradients(model), expected, strict=True):
        assert_same(mine, one / 2)  # of one step; there were two before


def _counting(function: Callable[..., Any], kept: list[Any], alive: list[int]) -> Callable[..., Any]:
    def counted(*given: Any, **options: Any) -> Any:
        alive.append(sum(one() is not None for one in kept))
        return function(*given, **options)

    return counted
