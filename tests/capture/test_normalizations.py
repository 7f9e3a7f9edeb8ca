"""What a graph captured under autocast announces is what eager gives: dtypes of every node, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn

from hub.capture.training import capture_with_autograd
from hub.plugin.graph import Graph

NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "batch, evaluated": lambda: nn.BatchNorm2d(4).eval(),
    "batch, no parameters": lambda: nn.BatchNorm2d(4, affine=False),
    "batch, no statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "group": lambda: nn.GroupNorm(2, 4),
    "layer": lambda: nn.LayerNorm(6),
    "layer, no parameters": lambda: nn.LayerNorm(6, elementwise_affine=False),
}


class Compared(fx.Interpreter):
    """An interpreter of a graph that records every node whose dtype differs from its declared one."""

    def __init__(self, module: fx.GraphModule, found: list[str]) -> None:
        super().__init__(module)
        self.found = found

    def run_node(self, n: fx.Node) -> Any:
        result, announced = super().run_node(n), n.meta.get("val")
        pairs = zip(*((each if isinstance(each, (tuple, list)) else (each,)) for each in (result, announced)), strict=False)
        self.found += [
            f"{n.target}: {one.dtype}, announced {other.dtype}"
            for one, other in pairs
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype is not other.dtype
        ]
        return result


def comparing(found: list[str], modes: list[str]) -> Callable[..., Any]:
    """Return a Dynamo backend whose graphs run in eager, node by node."""

    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def compile_graph(graph: Graph, mode: str) -> Callable[..., Any]:
            modes.append(mode)
            return Compared(graph.module, found).run

        return capture_with_autograd(module, inputs, compile_graph)

    return backend


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("norm", NORMS)
def test_announced_dtypes_are_eagers(norm: str, dtype: torch.dtype) -> None:
    """A normalization between convolutions, under autocast, gives the announced dtypes in training and in inference."""
    torch._dynamo.reset()
    found: list[str] = []
    modes: list[str] = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), NORMS[norm](), nn.Conv2d(4, 2, 3))
    compiled = torch.compile(model, backend=comparing(found, modes))
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=dtype):
        compiled(x).float().square().sum().backward()
        with torch.no_grad():
            compiled(x)
    assert not found
    assert {"forward", "backward", "inference"} <= {*modes}
