"""Bounds for the indices at which a program reads and writes, for compilers that do not check them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx

from hub.plugin.table import operator_name


def _names(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


_ALONG = _names(
    "index_select.default gather.default scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add.default "
    "scatter_reduce.two index_add.default index_copy.default index_fill.int_Scalar index_fill.int_Tensor"
)
"""Operators whose first arguments are a tensor, a dim and an index along it."""
_IN_EACH = _names("index.Tensor _unsafe_index.Tensor index_put.default _unsafe_index_put.default")
"""Operators whose first arguments are a tensor and a list with an index, or None, for each dim."""


def bounded(module: fx.GraphModule) -> None:
    """Make a program count negative indices from the end, and clamp out-of-range ones to the last position.

    In eager an index out of range is an error; a compiler that neither checks nor clamps reads foreign memory.
    """
    graph = module.graph
    for node in tuple(graph.nodes):
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        name, given = operator_name(node), cast("tuple[Any, ...]", node.args)
        with graph.inserting_before(node):
            if name in _ALONG:
                node.update_arg(2, _inside(graph, given[2], given[0], given[1]))
            elif name == "aten.embedding.default":
                node.update_arg(1, _inside(graph, given[1], given[0], 0))
            elif name in _IN_EACH:
                indices = [index and _inside(graph, index, given[0], dim) for dim, index in enumerate(given[1])]
                node.update_arg(1, indices)
    module.recompile()


def _inside(graph: fx.Graph, index: Any, source: Any, dim: int) -> fx.Node:
    return graph.call_function(cast("Callable[..., Any]", within), (index, source, dim))


def within(index: torch.Tensor, source: torch.Tensor, dim: int) -> torch.Tensor:
    """Return positions along a dim of a tensor, all of them in range."""
    if not source.dim():
        return index
    size = source.shape[dim]
    return torch.where(index < 0, index + size, index).clamp(0, size - 1)
