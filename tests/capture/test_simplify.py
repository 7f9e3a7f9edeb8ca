"""Simplification of captured graphs: what is left open in the user's program is defined."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hub.plugin.table import operator_name
from hub.testing.single import capture


class Function(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def inverse(order: torch.Tensor) -> torch.Tensor:
    """Return the inverse of a permutation, written into uninitialised memory."""
    result = torch.empty_like(order)
    result[order] = torch.arange(order.shape[0])
    return result


@pytest.mark.parametrize(
    "function",
    [
        inverse,
        lambda x: torch.empty(x.shape[0], 2, dtype=torch.float64).fill_(3) + x[0],
        lambda x: x.new_empty(4).copy_(x[:4]),
    ],
)
def test_uninitialised_tensors_are_zeros(function: Any) -> None:
    """What may hold anything holds zeros, so that it need not be pinned to eager; what is written to it comes out."""
    order = torch.tensor([2, 0, 3, 1])
    captured = capture(Function(function), (order,))
    assert not captured.graph.pinned
    assert not [node for node in captured.graph.nodes if "empty" in operator_name(node)]
    (found,) = captured.graph.module(*captured.inputs)
    assert torch.equal(found, function(order))


def test_uninitialised_tensors_of_other_layouts_are_pinned() -> None:
    """Those that zeros have no form for stay what they are, and run in eager."""
    captured = capture(Function(lambda x: torch.empty_strided((2, 2), (1, 2)).copy_(x)), (torch.ones(2, 2),))
    assert all("memory" in reason for reason in captured.graph.pinned.values())


def test_uninitialised_tensors_of_other_layouts_stay() -> None:
    """Zeros have no form for a memory format: what is written comes out all the same."""
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    wanted = {"memory_format": torch.channels_last}
    captured = capture(Function(lambda x: torch.empty(x.shape, **wanted).copy_(x)), (image,))
    (found,) = captured.graph.module(*captured.inputs)
    assert torch.equal(found, image)
    assert found.is_contiguous(**wanted)


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (lambda x: torch.cat([torch.tensor([]), x.transpose(1, 2)], -2), False),  # a cache's first keys
        (lambda x: torch.cat([x[0, 0], torch.tensor([]), x[0, 1]], 1), False),
        (lambda x: torch.cat([torch.tensor([]), x.permute(0, 3, 1, 2)]), True),  # it decides on the order in memory
        (lambda x: torch.cat([torch.tensor([]), x.to(torch.int64)]), True),  # and here on the dtype
        (lambda x: torch.cat([torch.tensor([]), x[0, 0, 0]]), False),
        (lambda x: torch.cat([torch.tensor([]), torch.tensor([])]) + x[0, 0, 0, :0], True),
    ],
)
def test_empty_tensors_are_not_joined(function: Any, stays: bool) -> None:
    """What `cat` leaves out is no part of the graph, and results keep dtype and strides."""
    x = torch.randn(2, 3, 4, 5)
    captured = capture(Function(function), (x,))
    (join,) = [node for node in captured.graph.nodes if operator_name(node) in ("aten.cat.default", "aten.concat.default")]
    assert any(tuple(piece.meta["val"].shape) == (0,) for piece in join.args[0]) == stays
    (found,), wanted = captured.graph.module(*captured.inputs), function(x)
    torch.testing.assert_close(found, wanted, check_stride=True)
