"""A graph for one combination of sizes is the same program: eager's results, and no symbol left in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from hub.capture.specialize import specialized
from hub.errors import CaptureError
from hub.frontend.ownership import graphs_of
from hub.plugin.graph import Graph
from hub.workers.transfer import dump_module


class Encoder(nn.Module):
    """Attention by hand, with sizes in views, a mask, and a result that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        batch, tokens = ids.shape
        parts = self.qkv(self.embed(ids)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, tokens, 4, 4).transpose(1, 2) for part in parts)
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(attended.transpose(1, 2).reshape(batch, tokens, 16)), batch * tokens // 2


class Pooler(nn.Module):
    """A strided convolution, and images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(self.norm(self.conv(image)).relu(), size=image.shape[-2:]).mean((2, 3))


def tail(x: torch.Tensor) -> torch.Tensor:
    """Return a part whose size is arithmetic on the input's, written to in place."""
    y = x[: x.shape[0] // 2].clone()
    y[0] = 1.0
    return torch.cat([y, y.flip(0)]) * x.shape[0]


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Return a sum with a tensor that the program holds itself."""
    return x + torch.tensor([1.0, 2.0, 3.0]) * x.shape[0]


def ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, tokens))


CASES: dict[str, tuple[Any, Callable[..., torch.Tensor], Sequence[tuple[int, ...]]]] = {
    "encoder": (Encoder(), ids, [(2, 5), (3, 8), (7, 11)]),
    "pooler": (Pooler(), lambda batch, side: torch.randn(batch, 3, side, side + 2), [(2, 8), (3, 9), (5, 16)]),
    "constant": (shifted, lambda rows: torch.randn(rows, 3), [(4,), (5,)]),
    "function": (tail, lambda rows: torch.randn(rows, 3), [(6,), (9,), (14,)]),
}


def captured(model: Any, x: torch.Tensor) -> tuple[Graph, list[Any]]:
    """Return the graph for any sizes, and the arguments with which a call reaches it."""
    call = torch.compile(model, backend="hub", dynamic=True, options={"backends": ["eager"], "start": "wait"})
    seen: list[Sequence[Any]] = []
    call(x)
    (graph,) = (one for one in graphs_of(call) if not one.is_body)
    graph.observer = lambda _, args, __: seen.append(args)
    call(x)
    return graph.graph, list(seen[0])


@pytest.mark.parametrize("name", CASES)
def test_a_graph_for_one_size_gives_eagers_results(name: str) -> None:
    """At each size, with numbers in the place of symbols, under the same names of inputs, weights and pinned nodes."""
    model, make, sizes = CASES[name]
    model = model.eval() if isinstance(model, nn.Module) else model
    for size in sizes:
        torch._dynamo.reset()
        x = make(*size)
        with torch.no_grad():
            graph, args = captured(model, x)
            found = specialized(graph, args)
            torch.testing.assert_close(found.module(*args), graph.module(*args))
        assert graph.is_dynamic
        assert not found.is_dynamic
        assert [node.name for node in found.placeholders] == [node.name for node in graph.placeholders]
        assert (found.weights, found.mutated) == (graph.weights, graph.mutated)
        assert {name: graph.pinned[name] for name in found.pinned} == found.pinned
        values = [value for node in found.nodes for value in torch.utils._pytree.tree_leaves(node.meta["val"])]
        assert all(isinstance(value, torch.Tensor) for value in values)
        assert not any(isinstance(size, torch.SymInt) for value in values for size in (*value.shape, *value.stride()))
        assert dump_module(found.module), "it is planned in another process"


def test_pinned_nodes_keep_their_reasons() -> None:
    """Random numbers stay eager's, whatever the size."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + x * x.shape[0]

    graph, args = captured(noisy, torch.randn(5, 3))
    found = specialized(graph, args)
    assert set(found.pinned.values()) <= set(graph.pinned.values())
    random = [node.name for node in found.nodes if "rand" in str(node.target)]
    assert random
    assert all(found.pinned[name] is graph.pinned[name] for name in random)


def test_sizes_that_depend_on_data_are_refused() -> None:
    """No graph of its own can know how many there will be."""

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum() + x.shape[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph, args = captured(chosen, torch.randn(6))
        with pytest.raises(CaptureError, match="no separate graph"):
            specialized(graph, args)


def test_operators_with_programs_are_refused() -> None:
    """Their programs have plans for any sizes."""

    def either(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    graph, args = captured(either, torch.randn(6, 3))
    with pytest.raises(CaptureError, match="an operator calls other programs"):
        specialized(graph, args)


def test_the_graph_for_any_sizes_is_left_alone() -> None:
    """It goes on serving."""
    model = Encoder().eval()
    with torch.no_grad():
        graph, args = captured(model, ids(3, 7))
        digest, values = graph.digest, [node.meta["val"] for node in graph.nodes]
        specialized(graph, args)
    assert graph.is_dynamic
    assert [node.meta["val"] for node in graph.nodes] == values
    assert graph.digest == digest
