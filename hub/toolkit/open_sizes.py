"""One program for all sizes of a cluster, and the condition on sizes under which it is correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from hub.plugin.graph import Cluster, ScalarSpec, TensorSpec
from hub.plugin.table import is_symbolic
from hub.toolkit.arguments import Decompositions, Specialised, captured_sizes, fake, traced
from hub.toolkit.sizes import python_text, size_of
from hub.toolkit.symbols import symbol_texts
from hub.torch_private import ConstantSource, FakeTensorMode


@dataclass(frozen=True)
class Open:
    """A program with symbolic sizes. It takes number inputs where the cluster does."""

    program: Specialised
    condition: str
    """A Python expression over a call's inputs i0, i1, ..., true if they agree on sizes, if every assumption that tracing
    made about sizes holds, and if no size is below `least`. For `condition_of`."""


def opened(
    cluster: Cluster,
    table: Decompositions,
    *,
    least: int = 2,
    prepare: Callable[[fx.GraphModule], None] | None = None,
) -> Open:
    """Return a cluster's program for all sizes, as `hub.toolkit.arguments.specialised` does for given ones.

    Its symbols are its own, so that what tracing assumes about them affects nothing else: assumptions leave guards, which
    the condition contains. PyTorch always assumes that symbols are at least 2, which leaves no guard; a `least` below 2 is
    for operators that are known to be correct all the same. Raise ValueError if inputs do not show all symbols, or if a
    symbol was below 2 or is fixed by tracing. Propagate exceptions of tracing.
    """
    known = symbol_texts(cluster)
    environment = ShapeEnv(duck_shape=False)
    own = _symbols(cluster, known, environment)
    captured: tuple[Any, ...] = captured_sizes(cluster)

    def size(value: Any, seen: Any) -> Any:
        return environment.create_symintnode(size_of(value).xreplace(own), hint=seen) if is_symbolic(value) else value

    def inputs() -> list[Any]:
        return [
            fake(spec, tuple(map(size, spec.shape, seen)) if isinstance(spec, TensorSpec) else size(spec.value, seen))
            for spec, seen in zip(cluster.inputs, captured, strict=True)
        ]

    program = traced(cluster, FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True), inputs, table, prepare)
    if fixed := [str(theirs) for theirs, symbol in own.items() if environment.replace(symbol).is_number]:
        raise ValueError(f"tracing leaves {', '.join(fixed)} one value only")
    texts = {symbol: known[theirs] for theirs, symbol in own.items()}
    guards = [python_text(guard.expr, texts) for guard in environment.guards]
    return Open(program, " and ".join(dict.fromkeys((*_agreements(cluster, known, own, least), *guards))))


def is_open(cluster: Cluster) -> bool:
    """Return whether a size among a cluster's inputs is symbolic."""
    return any(is_symbolic(size) for _, size in _sizes(cluster) if not isinstance(size, float))


def condition_of(text: str, inputs: int) -> Callable[..., bool]:
    """Return the function of a call's inputs, `inputs` in number, that evaluates a condition's text.

    It returns False if the text cannot be computed: a guard may divide by a size of 0.
    """
    names = ", ".join(f"i{position}" for position in range(inputs))
    said = eval(f"lambda {names}: {text}", {"math": math, "torch": torch})  # our own text, over shapes and numbers

    def holds(*values: Any) -> bool:
        try:
            return bool(said(*values))
        except ArithmeticError:
            return False

    return holds


def _symbols(cluster: Cluster, known: Mapping[Any, str], environment: ShapeEnv) -> dict[Any, Any]:
    """Return a symbol of an environment for each symbol in the sizes of a cluster's inputs."""
    found: dict[Any, Any] = {}
    for size in (size for _, size in _sizes(cluster) if is_symbolic(size)):
        for symbol in sorted(getattr(size_of(size), "free_symbols", ()), key=str):
            if symbol not in known:
                raise ValueError(f"size {size} depends on {symbol}, which no input shows")
            if symbol not in found:
                if (seen := _seen(known[symbol], cluster)) < 2:
                    raise ValueError(f"size {symbol} was {seen}, of which PyTorch makes no symbol")
                source = ConstantSource(f"size{len(found)}")
                found[symbol] = environment.create_symbol(seen, source, DimDynamic.DYNAMIC)
    return found


def _seen(text: str, cluster: Cluster) -> int:
    """Return the value of a text that reads a size, for the inputs with which a cluster was captured."""
    seen = [SimpleNamespace(shape=size) if isinstance(size, tuple) else size for size in captured_sizes(cluster)]
    return eval(text, {f"i{position}": value for position, value in enumerate(seen)})


def _agreements(cluster: Cluster, known: Mapping[Any, str], symbols: Iterable[Any], least: int) -> Iterator[str]:
    """Yield the lower bounds of symbols, and that each size of an input equals its expression over the symbols."""
    texts = {symbol: known[symbol] for symbol in symbols}
    yield from (f"{text} >= {least}" for text in texts.values())
    for text, size in _sizes(cluster):
        if is_symbolic(size) and (wanted := python_text(size_of(size), texts)) != text:
            yield f"{text} == {wanted}"


def _sizes(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """Yield each size among a cluster's inputs, with the text that reads it."""
    for position, spec in enumerate(cluster.inputs):
        if isinstance(spec, ScalarSpec):
            yield f"i{position}", spec.value
        else:
            yield from ((f"i{position}.shape[{dim}]", size) for dim, size in enumerate(spec.shape))
