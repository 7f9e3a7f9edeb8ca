"""Simplification of captured graphs: what is left open in the user's program is defined."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hub.plugin.table import argument, operator_name
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
        (lambda x: torch.cat([torch.tensor([]), x[0, 0, 0, :0]]), True),
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


@pytest.mark.parametrize(
    "given", [(2, 2, 0, True, True), (2, (), 0, True, False), (3, 2, 1, True, True), (3, 3, 0, True, True)]
)
@pytest.mark.parametrize("size", [8, 9, 10, 11, 12])
def test_a_ceiling_that_adds_no_window_is_dropped(given: Any, size: int) -> None:
    """Windows are the same then; few backends support the others."""
    kernel, stride, padding, ceil, counted = given

    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(x, kernel, stride or None, padding, ceil, counted)

    x = torch.randn(1, 2, size, 12)
    graph = capture(Function(pool), (x,)).graph
    (node,) = [node for node in graph.nodes if operator_name(node) == "aten.avg_pool2d.default"]
    with_floor = torch.nn.functional.avg_pool2d(x, kernel, stride or None, padding, False, counted)
    assert argument(node, "ceil_mode") is (with_floor.shape != pool(x).shape)
    assert torch.equal(graph.module(x)[0], pool(x))


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_ceiling_of_the_largest_element_is_dropped_too(dilation: int) -> None:
    """Dilated windows reach further."""
    for size in range(6, 12):
        x = torch.randn(1, 2, size, size)
        pool = torch.nn.MaxPool2d(3, 2, 1, dilation, ceil_mode=True)
        graph = capture(pool, (x,)).graph
        (node,) = [node for node in graph.nodes if "max_pool2d" in operator_name(node)]
        with_floor = torch.nn.MaxPool2d(3, 2, 1, dilation)(x)
        assert argument(node, "ceil_mode") is (with_floor.shape != pool(x).shape)
        assert torch.equal(graph.module(x)[0], pool(x))


@pytest.mark.parametrize(
    ("given", "is_mean"),
    [
        ((1280, 1280, 0, True), True),  # EfficientNet's
        ((7, 1, 0, False), True),
        ((7, 1, 0, False, True, 3), False),  # another divisor
        (((7, 9), 9, 0, True), True),
        ((8, 8, 1, True), False),  # padding counts
        ((6, 9, 0, False), False),  # the last row is left out
        (((8, 2), 2, 0, True), False),
    ],
)
def test_an_average_of_everything_is_a_mean(given: Any, *, is_mean: bool) -> None:
    """Every backend has it."""

    def pool(x: torch.Tensor) -> torch.Tensor:
        kernel, stride, padding, ceil, *more = given
        return torch.nn.functional.avg_pool2d(x, kernel, stride, padding, ceil, *more)

    for x in (torch.randn(2, 3, 7, 7), torch.randn(3, 7, 7), torch.randn(2, 3, 7, 7).to(memory_format=torch.channels_last)):
        graph = capture(Function(pool), (x,)).graph
        assert any(operator_name(node) == "aten.mean.dim" for node in graph.nodes) is is_mean
        torch.testing.assert_close(graph.module(x)[0], pool(x))


def test_a_ceiling_stays_at_sizes_that_change() -> None:
    """It may add a window at another one."""
    pool = torch.nn.AvgPool2d(2, ceil_mode=True)
    graph = capture(pool, (torch.randn(2, 2, 8, 8),), dynamic=True).graph
    (node,) = [node for node in graph.nodes if operator_name(node) == "aten.avg_pool2d.default"]
    assert argument(node, "ceil_mode")
