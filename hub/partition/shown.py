"""Copies of a graph for plugins, whose changes do not affect the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from hub.plugin.graph import Graph


class Shown:
    """One plugin's copy of a graph. Node names, values and constants are the graph's own."""

    def __init__(self, graph: Graph) -> None:
        self._original = graph
        self._program = fx.Graph(owning_module=graph.module)
        self._copies: dict[fx.Node, fx.Node] = {}
        for node in graph.module.graph.nodes:
            self._copies[node] = self._program.node_copy(node, self._copies.__getitem__)
            self._copies[node].name = node.name
        self._before = self._facts()

    def node(self, node: fx.Node) -> fx.Node:
        """Return the copy of a node."""
        return self._copies[node]

    def graph(self) -> Graph:
        """Return the copy as a graph."""
        module = fx.GraphModule(self._original.module, self._program)
        module.meta.update(self._original.module.meta)
        return replace(self._original, module=module)

    @property
    def is_changed(self) -> bool:
        """Return whether the plugin has changed its copy."""
        return self._facts() != self._before

    def _facts(self) -> list[Any]:
        return [(node, node.op, node.target, node.args, node.kwargs) for node in self._program.nodes]
