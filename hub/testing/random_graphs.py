"""Random small graphs, for property tests of grouping and covering. Needs hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import fx

from hub.plugin.graph import Graph


def graph_of(wiring: Sequence[tuple[int, int]]) -> Graph:
    """Return a graph of additions: node i adds the values of two earlier ones, with the input as number 0."""
    program = fx.Graph()
    values = [program.placeholder("x")]
    for left, right in wiring:
        values.append(program.call_function(torch.ops.aten.add.Tensor, (values[left], values[right])))
    unread = [value for value in values[1:] if not value.users]
    program.output(tuple(unread))
    for value in values:
        value.meta["val"] = torch.empty(2, device="meta")
    return Graph(fx.GraphModule({}, program), "random")


@st.composite
def graphs(draw: st.DrawFn, most_nodes: int = 12) -> Graph:
    """Draw a graph of 1 to `most_nodes` nodes."""
    size = draw(st.integers(1, most_nodes))
    return graph_of([(draw(st.integers(0, index)), draw(st.integers(0, index))) for index in range(size)])
