"""Structure: equal for equal pieces of graphs wherever they stand, different where anything that a price depends on is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hub.partition.structure import structure_digest
from hub.plugin.graph import Graph, hint
from hub.testing.single import capture


def graph_of(module: nn.Module | Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Graph:
    """Capture a module or a function."""
    return capture(module, inputs, dynamic=dynamic).graph  # pyright: ignore[reportArgumentType] - a function will do


def digest_of(module: nn.Module | Callable[..., Any], *inputs: Any, dynamic: bool = False) -> str:
    """Return the digest of all nodes."""
    graph = graph_of(module, *inputs, dynamic=dynamic)
    return structure_digest(graph, [node.name for node in graph.nodes])


X = torch.ones(2, 8)


class Attention(nn.Module):
    """Scores of queries and keys, in the order that `swapped` selects."""

    def __init__(self, *, swapped: bool = False) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, B]."""
        q, k = self.q(x), self.k(x)
        return k @ q.T if self.swapped else q @ k.T


def test_weights_values_and_names_do_not_count() -> None:
    """Two models with the same layers, other weights and other names are equal."""
    first = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Linear(8, 8)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.projection(features).relu()

    assert digest_of(first, X) == digest_of(Other(), X) != digest_of(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), X)


def test_equal_layers_at_different_places_are_equal() -> None:
    """The second and the third of three equal layers have one structure."""
    graph = graph_of(nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4))), X)
    names = [node.name for node in graph.nodes]
    assert structure_digest(graph, names[2:4]) == structure_digest(graph, names[4:6])


def test_a_layer_of_another_model_is_equal() -> None:
    """A layer between others equals the same layer standing alone in a second model."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    deep = graph_of(nn.Sequential(nn.Tanh(), layer, nn.Tanh()), X)
    names = [node.name for node in deep.nodes]
    assert structure_digest(deep, names[1:3]) == digest_of(layer, X)


def test_the_order_of_names_does_not_count() -> None:
    """Nodes may be named in any order."""
    graph = graph_of(nn.Sequential(nn.Linear(8, 8), nn.GELU()), X)
    names = [node.name for node in graph.nodes]
    assert structure_digest(graph, names) == structure_digest(graph, names[::-1])


IMAGE = torch.ones(1, 4, 8, 8)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((nn.Linear(8, 8), X), (nn.Linear(8, 8), torch.ones(3, 8))),
        ((nn.Linear(8, 8), X), (nn.Linear(8, 8).double(), X.double())),
        ((nn.LayerNorm(8), X), (nn.LayerNorm(8, eps=1e-6), X)),
        ((nn.Conv2d(4, 4, 3), IMAGE), (nn.Conv2d(4, 4, 3), IMAGE.to(memory_format=torch.channels_last))),
        ((Attention(), X), (Attention(swapped=True), X)),
        ((lambda a, b: a.exp() - a * b, X, X + 1), (lambda a, b: a * b - a.exp(), X, X + 1)),
        ((lambda a, b: a + b, X, X + 1), (lambda a, b: a + b, X, torch.ones(8))),
        ((lambda a: a * 2, X), (lambda a: a * 2.0, X)),
        ((lambda a: a.relu().tanh(), X), (lambda a: (a.relu().tanh(), a.relu()), X)),
        ((lambda a, b: (a + b).relu(), X, X + 1), (lambda a, b: (a + a).relu(), X, X + 1)),
    ],
    ids=["shape", "dtype", "eps", "layout", "q-k", "operands", "broadcast", "literal", "outputs", "sharing"],
)
def test_what_a_price_depends_on_counts(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    """Shapes, dtypes, attributes, strides, wiring and the set of outputs tell structures apart."""
    assert digest_of(*one) != digest_of(*two)


def test_which_values_leave_counts() -> None:
    """The same nodes differ where one more of them is read outside."""
    alone = graph_of(lambda x: x.relu().tanh().sin(), X)
    shared = graph_of(lambda x: (lambda y: y.tanh().sin() + y)(x.relu()), X)
    pieces = [[node.name for node in graph.nodes][:2] for graph in (alone, shared)]
    assert structure_digest(alone, pieces[0]) != structure_digest(shared, pieces[1])


def test_a_weight_is_no_input() -> None:
    """A backend may fold a weight, so a weight and an input in its place differ."""
    layer = nn.Linear(8, 8)
    assert digest_of(layer, X) != digest_of(lambda x, w, b: F.linear(x, w, b), X, torch.ones(8, 8), torch.ones(8))


def test_symbols_are_named_by_first_appearance() -> None:
    """A layer deep in a dynamic model, where other symbols came first, equals the layer alone; other sizes seen do not."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    deep = graph_of(lambda a, x: (a * 2, layer(x)), torch.ones(5, 6), torch.ones(3, 8), dynamic=True)
    names = [node.name for node in deep.nodes if "linear" in node.name or "gelu" in node.name]
    alone, small, large = (
        structure_digest(graph, [node.name for node in graph.nodes if "linear" in node.name or "gelu" in node.name])
        for graph in (graph_of(layer, torch.ones(n, 8), dynamic=True) for n in (3, 3, 4))
    )
    assert len(names) == 2
    assert structure_digest(deep, names) == alone == small != large


def test_relations_between_symbols_count() -> None:
    """A size that is twice another one differs from one that only happens to be."""
    twice = graph_of(lambda x: torch.cat([x, torch.cat([x, x]).relu()]), torch.ones(3, 8), dynamic=True)
    free = graph_of(lambda x, y: torch.cat([x, y.relu()]), torch.ones(3, 8), torch.ones(6, 8), dynamic=True)
    last = [[node.name for node in graph.nodes if "cat" in node.name][-1:] for graph in (twice, free)]
    shapes = [
        tuple(map(hint, graph.by_name[names[0]].meta["val"].shape))
        for graph, names in zip((twice, free), last, strict=True)
    ]
    assert shapes[0] == shapes[1] == (9, 8)
    assert structure_digest(twice, last[0]) != structure_digest(free, last[1])


def test_pinned_nodes_are_told_apart() -> None:
    """A node that must run in eager has other candidates than a free one."""
    graph = graph_of(nn.Tanh(), X)
    names = [node.name for node in graph.nodes]
    pinned = replace(graph, pinned={names[0]: "has a side effect"})
    assert structure_digest(graph, names) != structure_digest(pinned, names)


def test_submodules_count_by_their_programs() -> None:
    """The branches of a `cond` are part of the structure."""

    def branching(last: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        return lambda flag, x: torch.cond(flag, lambda x: x.sin() * 1, last, (x,))

    flag = torch.tensor(True)
    digests = [digest_of(branching(last), flag, X) for last in (torch.cos, torch.cos, torch.tan)]
    assert digests[0] == digests[1] != digests[2]
