"""Structure digests: equal for equal pieces of graphs, whatever their position and node names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch.fx.node import map_arg

from hub.plugin.canonical import canonical_text
from hub.plugin.graph import Graph
from hub.plugin.table import elements, is_symbolic


def structure_digest(graph: Graph, nodes: Sequence[str]) -> str:
    """Return a digest of the named nodes as a program: equal for repeated layers, and for equal layers of two models.

    It covers operators, attributes, wiring, every value's shape, strides, dtype and device, which inputs are weights, which
    nodes must run in eager, and which values are read outside. It leaves out names and weights' values. Symbolic sizes
    count by their relations and by the sizes first seen, which prices depend on. Raises KeyError for a name that the graph
    lacks.
    """
    members = sorted(graph.by_name[name] for name in nodes)
    text = "\n".join(_Printer(graph, members).lines())
    return hashlib.sha256(text.encode()).hexdigest()


class _Printer:
    """Printer for one piece, which numbers values and symbols in the order of their first appearance."""

    def __init__(self, graph: Graph, members: Sequence[fx.Node]) -> None:
        self.graph = graph
        self.members = members
        self.weights = frozenset(graph.weights)
        self.inside = frozenset(members)
        self.number: dict[fx.Node, str] = {}
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self.found: list[str] = []

    def lines(self) -> Sequence[str]:
        """Return one line per value, with inputs where they are first read."""
        for node in self.members:
            arguments = map_arg((node.args, node.kwargs), self._reference)
            leaves = any(user not in self.inside for user in node.users)
            marks = f"{' out' if leaves else ''}{' pinned' if node.name in self.graph.pinned else ''}"
            self._add(node, f"{node.op} {node.target} {arguments!r} -> {self._value(node.meta.get('val'))}{marks}")
        return self.found

    def _reference(self, source: fx.Node) -> str:
        if source not in self.number:
            self._add(source, self._input(source))
        return self.number[source]

    def _add(self, node: fx.Node, text: str) -> None:
        self.number[node] = f"%{len(self.number)}"
        self.found.append(text)

    def _input(self, source: fx.Node) -> str:
        if source.op == "get_attr":
            value = getattr(self.graph.module, str(source.target), None)
            return f"{{{canonical_text(value)}}}" if isinstance(value, fx.GraphModule) else f"weight {self._value(value)}"
        kind = "weight" if source.name in self.weights else "input"
        return f"{kind} {self._value(source.meta.get('val'))}"

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            form = self._sizes(value.stride()) if value.layout is torch.strided else value.layout
            return f"{value.dtype} {self._sizes(value.shape)} {form} {value.device}"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self._value, elements(value)))})"
        return f"{type(value).__name__} {self._size(value)}"

    def _sizes(self, sizes: Sequence[Any]) -> str:
        return f"[{','.join(map(self._size, sizes))}]"

    def _size(self, size: Any) -> str:
        """Print "12" for a number, and "d0*d1=12" for a symbolic size that was 12 when captured."""
        if not is_symbolic(size) or not hasattr(size, "node"):
            return str(size)
        expression = cast("sympy.Basic", size.node.expr)
        if not expression.free_symbols:
            return str(expression)
        for symbol in self._unknown(expression):
            self.symbols[symbol] = _renamed(symbol, len(self.symbols))
        renamed = cast("Any", expression).xreplace(self.symbols)  # sympy's types are incomplete
        return f"{renamed}={size.node.hint}"

    def _unknown(self, expression: sympy.Basic) -> Sequence[sympy.Symbol]:
        """Return new symbols in a canonical order; names decide only inside one expression, which has no other order."""
        found = [cast("sympy.Symbol", symbol) for symbol in expression.free_symbols if symbol not in self.symbols]
        return sorted(found, key=str)


def _renamed(symbol: sympy.Symbol, position: int) -> sympy.Symbol:
    """Return a symbol that prints by its position and, because of its assumptions, simplifies as the old one does."""
    return sympy.Symbol(f"d{position}", integer=symbol.is_integer, positive=symbol.is_positive)
