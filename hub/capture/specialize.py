"""Specialize a captured graph with symbolic sizes for one combination of sizes, without another capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from hub.capture.fold import fold_constants
from hub.errors import CaptureError, text_of
from hub.plugin.graph import Graph
from hub.torch_private import FakeTensorMode, pytree

_NUMBERS = (int, float, bool)


def specialized(graph: Graph, args: Sequence[Any]) -> Graph:
    """Return the graph for calls with the sizes of these arguments. It takes the same arguments.

    Arithmetic on sizes becomes numbers. Raise CaptureError if a size depends on data, or an operator calls programs.
    """
    if any(isinstance(getattr(graph.module, str(node.target)), fx.GraphModule) for node in _constants(graph)):
        raise CaptureError("an operator calls other programs")
    mode = FakeTensorMode()
    try:
        with mode, torch.no_grad():
            made = _Writer(graph, mode).written(args)
    except Exception as error:
        raise CaptureError(f"no separate graph can be made for these sizes: {text_of(error)}") from error
    fold_constants(made)
    names = {node.name for node in made.graph.nodes}
    sizes = "x".join(str(value) for node, value in zip(graph.placeholders, args, strict=True) if is_size(node))
    return Graph(
        module=made,
        name=f"{graph.name}, sizes {sizes}",
        mutated=graph.mutated,
        weights=graph.weights,
        is_part=graph.is_part,
        pinned={name: pin for name, pin in graph.pinned.items() if name in names},
    )


def is_size(node: fx.Node) -> bool:
    """Return whether a placeholder stands for a symbolic size."""
    return isinstance(node.meta.get("val"), torch.SymInt)


def size_places(graph: Graph) -> list[int]:
    """Return the positions of the symbolic sizes on which a graph depends, among its arguments.

    Dynamo also passes what nothing depends on, such as the offset of a view, which may be another in every call.
    """
    values = [node.meta.get("val") for node in graph.placeholders]
    shapes = (value.shape for value in values if isinstance(value, torch.Tensor))
    known = {symbol for shape in shapes for size in shape for symbol in _symbols_of(size)}
    found = enumerate(zip(graph.placeholders, values, strict=True))
    return [at for at, (node, value) in found if is_size(node) and (node.users or known & _symbols_of(value))]


def _symbols_of(size: Any) -> set[Any]:
    return set(cast("Any", size).node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def _constants(graph: Graph) -> list[fx.Node]:
    return list(graph.module.graph.find_nodes(op="get_attr"))


class _Writer:
    """A rewriter that copies the nodes of a graph with their present values, except arithmetic on sizes."""

    def __init__(self, graph: Graph, mode: FakeTensorMode) -> None:
        self._graph, self._mode = graph, mode
        self._new = fx.Graph()
        self._known: dict[fx.Node, Any] = {}
        """The copy or the number of each node of the graph."""

    def written(self, args: Sequence[Any]) -> fx.GraphModule:
        given = iter(args)
        for node in self._graph.module.graph.nodes:
            if node.op == "placeholder":
                self._known[node] = self._input(node, next(given))
            elif node.op == "get_attr":
                self._known[node] = self._copy(node, node.meta.get("val"))
            elif node.op == "call_function":
                self._known[node] = self._call(node)
            else:
                self._new.output(fx.map_arg(node.args[0], self._known.__getitem__))
        return fx.GraphModule(self._graph.module, self._new)

    def _input(self, node: fx.Node, value: Any) -> Any:
        fake = self._mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
        copy = self._copy(node, fake)
        return value if isinstance(value, _NUMBERS) else copy

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: _value(self._known[one]))
        found = cast("Callable[..., Any]", node.target)(*args, **kwargs)
        return found if isinstance(found, _NUMBERS) else self._copy(node, found)

    def _copy(self, node: fx.Node, value: Any) -> fx.Node:
        copy = self._new.node_copy(node, self._known.__getitem__)
        copy.meta = {**node.meta, "val": pytree.tree_map_only(torch.Tensor, _alone, value)}
        return copy


def _value(known: Any) -> Any:
    return known.meta["val"] if isinstance(known, fx.Node) else known


def _alone(value: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor of the same form that is not a view: views cannot be sent to other processes."""
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
