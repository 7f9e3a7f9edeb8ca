"""Eager run of a graph that keeps chosen values, on which clusters are verified and timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from hub.plugin.graph import Graph
from hub.process.accelerators import random_state, set_random_state


def values_at(graph: Graph, inputs: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the named nodes on these inputs (in placeholder order), freeing all others during the run.

    The states of the random number generators, CUDA's included, are restored.
    """
    wanted = frozenset(names)
    given = {node.name: value for node, value in zip(graph.placeholders, inputs, strict=True) if node.name in wanted}
    if given.keys() == wanted:
        return given
    state, state_of_accelerators = torch.get_rng_state(), random_state()
    try:
        keeper = _Keeper(graph.module, wanted)
        with torch.no_grad():
            keeper.run(*inputs)
    finally:
        torch.set_rng_state(state)
        set_random_state(state_of_accelerators)
    return keeper.kept


class _Keeper(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, names: frozenset[str]) -> None:
        super().__init__(module)
        self.names = names
        self.kept: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self.names:
            self.kept[n.name] = value
        return value
