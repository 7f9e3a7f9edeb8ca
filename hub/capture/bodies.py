"""Extract the bodies of control-flow operators from a captured graph, as graphs of their own."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from torch import fx

from hub.capture.hidden import hidden_write
from hub.capture.pins import pins
from hub.capture.simplify import simplify
from hub.plugin.graph import Graph, output_arguments
from hub.plugin.table import elements
from hub.torch_private import HigherOrderOperator, OpOverload

_ROLES: Mapping[str, Mapping[int, str]] = {
    "associative_scan": {0: "combine"},
    "cond": {1: "true", 2: "false"},
    "invoke_subgraph": {0: "body"},
    "map_impl": {0: "body"},
    "scan": {0: "combine"},
    "while_loop": {0: "cond", 1: "body"},
    "while_loop_stack_output": {0: "cond", 1: "body"},
}
"""Control-flow operators by name: the positions of arguments that are programs, and the role of each.

Programs that are called under a transform of `torch.func` (those of `flex_attention`) are not included: executables take
no batched tensors.
"""
_NO_ROLES: Mapping[int, str] = {}
_OPERANDS = {"cond": 3, "invoke_subgraph": 2, "while_loop": 2, "while_loop_stack_output": 2}
"""Operators that call their bodies with exactly their operands: the position of the first operand.

A weight among the operands is a weight of the body.
"""


@dataclass(frozen=True, slots=True)
class Body:
    """A program inside a captured graph that a control-flow operator calls."""

    target: str
    """Name of the attribute of the graph's module that holds it."""
    graph: Graph
    is_single: bool
    """True if it returns one value, False if it returns a tuple."""


def bodies_of(graph: Graph) -> tuple[Body, ...]:
    """Return the bodies in a graph that can be planned, in order of first use. Nested bodies belong to their own body.

    A body that writes to its inputs, or in which a mode changes, is left out. It runs unplanned.
    """
    reads = Counter(source for node in graph.nodes for source in node.all_input_nodes if source.op == "get_attr")
    found: dict[str, Body] = {}
    for node in graph.nodes:
        for role, source in _programs(node):
            target = str(source.target)
            module = getattr(graph.module, target, None)
            if target in found or not isinstance(module, fx.GraphModule) or not _is_functional(module):
                continue
            operands = _operands(node) if reads[source] == 1 else ()
            found[target] = _body(graph, f"{graph.name}.{node.name}.{role}", target, module, operands)
    return tuple(found.values())


def _programs(node: fx.Node) -> Iterator[tuple[str, fx.Node]]:
    if not isinstance(node.target, HigherOrderOperator):
        return
    for position, role in _ROLES.get(node.target.name(), _NO_ROLES).items():
        if position < len(node.args) and isinstance(source := node.args[position], fx.Node) and source.op == "get_attr":
            yield role, source


def _operands(node: fx.Node) -> Sequence[Any]:
    """Return the operator's operands if its bodies are called with exactly these; else ()."""
    first = _OPERANDS.get(cast("Any", node.target).name(), len(node.args))
    return tuple(chain.from_iterable(map(elements, node.args[first:])))


def _body(graph: Graph, name: str, target: str, program: fx.GraphModule, operands: Sequence[Any]) -> Body:
    module, is_single = _with_flat_output(program)
    simplify(module)
    placeholders = [node.name for node in module.graph.find_nodes(op="placeholder")]
    pairs = zip(placeholders, operands, strict=True) if len(placeholders) == len(operands) else ()
    weights = tuple(own for own, outer in pairs if isinstance(outer, fx.Node) and outer.name in graph.weights)
    returned = range(len(output_arguments(module)))
    pinned = pins(module, n_mutated=0, returned=returned)
    body = Graph(module, name, weights=weights, pinned=pinned, is_training=graph.is_training, is_part=True)
    return Body(target, body, is_single=is_single)


def _with_flat_output(program: fx.GraphModule) -> tuple[fx.GraphModule, bool]:
    """Return a copy whose output is a tuple, and whether the original output is a single value."""
    flat = fx.Graph()
    given = flat.graph_copy(program.graph, {})
    is_single = not isinstance(given, (tuple, list))
    flat.output((given,) if is_single else tuple(cast("Sequence[Any]", given)))
    for node in flat.find_nodes(op="placeholder"):
        node.meta = copy.copy(node.meta)  # it may be a weight in only one of the two graphs
    return fx.GraphModule(program, flat), is_single


def _is_functional(program: fx.GraphModule) -> bool:
    calls = [node for node in program.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    return hidden_write(program) is None and all(map(_is_known, calls)) and all(map(_has_value, program.graph.nodes))


def _is_known(node: fx.Node) -> bool:
    if isinstance(node.target, OpOverload):
        return not cast("Any", node.target)._schema.is_mutable
    return isinstance(node.target, HigherOrderOperator) or node.meta.get("val") is not None


def _has_value(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "call_function") or "val" in node.meta


def as_called(run: Callable[..., Sequence[Any]], *, is_single: bool) -> Callable[..., Any]:
    """Return the callable that an operator calls in place of its body. It returns values in the body's own form."""
    return (lambda *args: run(*args)[0]) if is_single else run
