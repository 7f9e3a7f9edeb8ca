"""Blocks that repeat, compiled by PyTorch's two methods for it, share one program: captured once, with one plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import hub
from hub.plan import Plan

N_BLOCKS = 5
OPTIONS: Mapping[str, Any] = {"tune": "off", "start": "wait", "backends": ("onnxruntime",)}


class Block(nn.Module):
    """Half of a layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Plain(nn.Module):
    """Blocks with weights of their own, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(N_BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


_region = torch.compiler.nested_compile_region(Block.forward)


class Marked(Plain):
    """The same, where the author says that the blocks repeat."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = _region(block, x)
        return x


def test_blocks_that_are_compiled_each_are_captured_once(plans_made: list[Plan]) -> None:
    """The graph of the first serves them all: with some sets of weights bound to it, then with weights as inputs."""
    model, x = Plain().eval(), torch.randn(3, 8, 32)
    with torch.no_grad():
        expected = model(x)
        counters.clear()
        for block in model.blocks:
            block.compile(backend="hub", options=OPTIONS)
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(model(x), expected)
        assert counters["stats"]["unique_graphs"] == 1
        assert {plan.backends for plan in plans_made} == {("onnxruntime",)}
        assert len({plan.graph for plan in plans_made}) == 1
        with torch.no_grad():
            model.blocks[-1].down.weight.mul_(2)
        assert not torch.allclose(model(x), expected, atol=1e-3)


@pytest.mark.parametrize("compiled", [hub.compile, partial(torch.compile, backend="hub")], ids=["hub", "torch"])
def test_a_marked_region_is_planned_once(compiled: Callable[..., Any]) -> None:
    """Its weights are its inputs, and each call of it runs the one plan."""
    model, x = Marked().eval(), torch.randn(3, 8, 32)
    with torch.no_grad():
        expected = model(x)
        fast = compiled(model, options=OPTIONS)
        for _ in range(3):
            torch.testing.assert_close(fast(x), expected)
        plans = [plan for plan in hub.plans(fast) if plan.graph.endswith("body")]
        assert [set(plan.backends) for plan in plans] == [{"onnxruntime"}]


def test_a_marked_region_learns(plans_made: list[Plan]) -> None:
    """Gradients of each block are its own."""
    model, x = Marked(), torch.randn(3, 8, 32)
    model(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    hub.compile(model, options=OPTIONS)(x).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert any("onnxruntime" in plan.backends for plan in plans_made)
