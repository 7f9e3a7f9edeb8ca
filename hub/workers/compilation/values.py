"""Eager run of a graph that keeps chosen values, on which clusters are verified and timed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Generator, Iterable, Sequence
from typing import Any, cast

import torch
from torch import fx

from hub.plugin.graph import Graph, Pin
from hub.process.accelerators import random_state, set_random_state
from hub.torch_private import OpOverload


def values_at(graph: Graph, inputs: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the named nodes on these inputs (in placeholder order), freeing all others during the run.

    The states of the random number generators, CUDA's included, are restored if the graph may draw.
    """
    wanted = frozenset(names)
    given = {node.name: value for node, value in zip(graph.placeholders, inputs, strict=True) if node.name in wanted}
    if given.keys() == wanted:
        return given
    keeper = _Keeper(graph.module, wanted)
    with torch.no_grad(), _generators_kept() if may_draw(graph) else contextlib.nullcontext():
        keeper.run(*inputs)
    return keeper.kept


def may_draw(graph: Graph) -> bool:
    """Return whether a run of the graph may draw random numbers: by PyTorch's operators, or anybody else's, which need not
    declare it."""
    return any(_may_draw(node, graph.pinned.get(node.name)) for node in graph.nodes)


def _may_draw(node: fx.Node, pin: Pin | None) -> bool:
    if pin in (Pin.RANDOM, Pin.ORDERED_PROGRAMS):
        return True
    if pin in (Pin.SIZES, Pin.PROGRAMS) or node.target is operator.getitem:
        return False
    target = cast("Any", node.target)  # PyTorch types its operators in part
    return not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims")


@contextlib.contextmanager
def _generators_kept() -> Generator[None]:
    """Restore the random generators afterwards. What other threads draw meanwhile, they will draw again."""
    state, state_of_accelerators = torch.get_rng_state(), random_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        set_random_state(state_of_accelerators)


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
