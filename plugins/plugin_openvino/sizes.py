"""Sizes of results before a call runs, so that OpenVINO can write into memory that PyTorch owns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hub.plugin import Cluster, ScalarSpec, is_symbolic
from hub.toolkit.sizes import printed

Shapes = tuple[tuple[int, ...], ...]


def output_shapes(cluster: Cluster) -> Callable[[Sequence[Any]], Shapes] | None:
    """Return a function from a call's inputs to the shapes of its results.

    None if a size is no function of sizes and numbers that enter the cluster; OpenVINO then allocates the results.
    """
    if not any(spec.is_dynamic for spec in cluster.outputs):
        shapes = tuple(tuple(map(int, spec.shape)) for spec in cluster.outputs)
        return lambda inputs: shapes  # noqa: ARG005 - same signature as the dynamic case
    places = _places(cluster)
    expressions = [size.node.expr for spec in cluster.outputs for size in spec.shape if is_symbolic(size)]
    symbols = {symbol for expression in expressions for symbol in expression.free_symbols}
    if any(str(symbol) not in places for symbol in symbols):
        return None
    return _function(cluster, {str(symbol): places[str(symbol)] for symbol in symbols})


def _places(cluster: Cluster) -> dict[str, str]:
    """Return, for each symbol that is itself a size or number of an input, the Python expression that reads its value."""
    found: dict[str, str] = {}
    for position, spec in enumerate(cluster.inputs):
        if isinstance(spec, ScalarSpec):
            _note(found, spec.value, f"inputs[{position}]")
            continue
        for dim, size in enumerate(spec.shape):
            _note(found, size, f"inputs[{position}].shape[{dim}]")
    return found


def _note(found: dict[str, str], size: Any, place: str) -> None:
    if not isinstance(size, torch.SymInt):
        return
    symbolic: Any = size  # its class does not declare its node
    if symbolic.node.expr.is_symbol:
        found.setdefault(str(symbolic.node.expr), place)


def _function(cluster: Cluster, symbols: dict[str, str]) -> Callable[[Sequence[Any]], Shapes]:
    """Compile the function once. Its text has only names of symbols, arithmetic and integers, as sympy prints them."""
    reads = [f"    {symbol} = {place}" for symbol, place in sorted(symbols.items())]
    shapes = [f"({''.join(f'{_printed(size)}, ' for size in spec.shape)})" for spec in cluster.outputs]
    lines = ["def shapes(inputs):", *reads, f"    return ({''.join(f'{shape}, ' for shape in shapes)})"]
    scope: dict[str, Any] = {"math": math, "torch": torch}
    exec(compile("\n".join(lines), f"<sizes of {cluster.name}>", "exec"), scope)
    return scope["shapes"]


def _printed(size: Any) -> str:
    return printed(size.node.expr) if is_symbolic(size) else str(int(size))
