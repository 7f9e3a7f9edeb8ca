"""What depends on no input is computed at capture, and each call still gets its own results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hub.capture import fold
from hub.capture.specialize import specialized
from hub.discovery.registry import registry
from hub.frontend.ownership import graphs_of
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name
from hub.testing.single import capture
from tests.functions import Of


def captured(function: Callable[..., Any], *inputs: torch.Tensor, **more: Any) -> tuple[Any, Graph]:
    """Return the compiled function, which was checked against eager, and its graph."""
    options = {"tune": "off", "start": "wait", "backends": ["onnxruntime"]}
    run = torch.compile(Of(function), backend="hub", options=options, **more)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(*inputs), function(*inputs), check_stride=True)
    (graph,) = graphs_of(run)
    return run, graph.graph


def operators(graph: Graph) -> list[str]:
    return [operator_name(node).removeprefix("aten.") for node in graph.nodes]


def sines(x: torch.Tensor) -> torch.Tensor:
    """Add the sines of positions, as detection models and diffusion models do."""
    angles = torch.arange(x.shape[0])[:, None] / 100 ** (torch.arange(0, x.shape[1], 2) / x.shape[1])
    return x + torch.cat([angles.sin(), angles.cos()], -1)


def causal(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[0])
    return (x @ x.T).masked_fill(places[None, :] > places[:, None], float("-inf")).softmax(-1)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (sines, ["add.Tensor"]),
        (causal, ["permute.default", "matmul.default", "masked_fill.Scalar", "softmax.int"]),
        (lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).sqrt(), ["mul.Tensor"]),
        (lambda x: x + torch.ones(8, 4), ["ones.default", "add.Tensor"]),  # a fill, which compilers know
        (lambda x: x + torch.rand(8, 4) * 0, None),  # drawn
        (lambda x: x + (torch.arange(4.0) + 1).expand(8, 4), ["expand.default", "add.Tensor"]),  # one row in memory
    ],
)
def test_what_is_left(function: Callable[..., Any], left: list[str] | None) -> None:
    """Operators that read an input, fills and ranges."""
    _, graph = captured(function, torch.randn(8, 4))
    if left is None:
        assert "rand.default" in operators(graph)
    else:
        assert [name if name != "numpy_T.default" else "permute.default" for name in operators(graph)] == left


def test_results_are_the_callers_own() -> None:
    """A mask that a call returns may be written to; the next call returns another one."""

    def masked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.arange(4.0) * 2
        return x + mask, mask, mask[None], torch.tensor([1.0, 2.0]) * 3

    run, _ = captured(masked, torch.randn(8, 4))
    x = torch.randn(8, 4)
    with torch.no_grad():
        for _ in range(3):
            got, want = run(x), masked(x)
            torch.testing.assert_close(got, want)
            assert got[1].data_ptr() == got[2].data_ptr()
            for value in got:
                value.add_(7)


def test_large_ones_are_computed_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is kept for good only for small ones, and not for many."""
    monkeypatch.setattr(fold, "MAX_BYTES", 100)
    _, graph = captured(sines, torch.randn(8, 4))
    assert "cat.default" in operators(graph)
    torch._dynamo.reset()
    monkeypatch.undo()
    monkeypatch.setattr(fold, "MAX_TOTAL_BYTES", 100)
    _, graph = captured(sines, torch.randn(8, 4))
    assert "cat.default" in operators(graph)


def test_errors_stay_where_they_are() -> None:
    """Code that raises in eager raises in each call, too."""
    function = Of(lambda x: x + torch.arange(3).gather(0, torch.tensor([5])))
    options = {"tune": "off", "start": "wait", "exclude": list(registry().available())}
    run = torch.compile(function, backend="hub", options=options)
    for _ in range(2):
        with torch.no_grad(), pytest.raises(RuntimeError, match="out of bounds"):
            run(torch.randn(3))


def test_positions_of_sizes_that_change_are_constants_of_one_combination() -> None:
    """A program for all sizes computes them in each call."""
    graph = capture(Of(sines), (torch.randn(8, 4),), dynamic=True).graph
    assert "sin.default" in operators(graph)
    x = torch.randn(10, 4)
    symbols = {str(node.meta["val"]): node for node in graph.placeholders if isinstance(node.meta["val"], torch.SymInt)}
    (shape,) = [node.meta["val"].shape for node in graph.placeholders if isinstance(node.meta["val"], torch.Tensor)]
    sizes = {symbols[str(symbol)]: size for symbol, size in zip(shape, x.shape, strict=True) if str(symbol) in symbols}
    args = [sizes.get(node, x) for node in graph.placeholders]
    own = specialized(graph, args)
    assert operators(own) == ["add.Tensor"]
    torch.testing.assert_close(own.module(*args)[0], sines(x))
