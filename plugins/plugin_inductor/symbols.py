"""Symbolic sizes: a cluster's inputs in a shape environment of their own, and the guards that compiling adds to it.

Dynamo writes its guards before the hub compiles a cluster, so a guard that Inductor adds to Dynamo's own shape environment
would never be checked. Here Inductor gets a fresh environment; the hub reads the guards back from it and checks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from hub.plugin import (
    ScalarSpec,
    Spec,
    TensorSpec,
    hint,
)
from hub.toolkit.sizes import printed
from plugin_inductor.torch_private import ConstantSource, FakeTensorMode, ValueRanges, bound_sympy, int_oo

_UNSEEN_SIZE = 64
"""Stand-in for a data-dependent size when Inductor compares choices; any value is correct."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The position of a symbol's value in a call's inputs."""

    symbol: str
    position: int
    kind: str
    """"number", "size" or "stride"."""
    dim: int = 0

    @property
    def text(self) -> str:
        """The Python expression that reads the value from the inputs `i`."""
        return f"i[{self.position}]" if self.kind == "number" else f"i[{self.position}].{self.kind}({self.dim})"


@dataclass(frozen=True)
class SizeGuards:
    """A compiled program's assumptions about sizes beyond the guards of capture, as Python over symbols."""

    bindings: tuple[Binding, ...] = ()
    conditions: tuple[str, ...] = ()

    @cached_property
    def read(self) -> Callable[[Sequence[Any]], tuple[int, ...]] | None:
        """The function that reads the symbols' values from a call's inputs; None if nothing has to be checked."""
        if not self.conditions:
            return None
        return self._evaluator("(" + "".join(f"{binding.text}, " for binding in self.bindings) + ")", "i")

    def broken(self, values: tuple[int, ...]) -> str | None:
        """Return the first condition that does not hold, with the values, or None."""
        if self._all_hold(*values):
            return None
        names = self._names
        failed = next(text for text in self.conditions if not self._evaluator(text, *names)(*values))
        return f"{failed}, with {', '.join(f'{name}={value}' for name, value in zip(names, values, strict=True))}"

    def evaluate(self, expressions: Sequence[str], inputs: Sequence[Any]) -> tuple[int, ...]:
        """Evaluate expressions over the symbols for one call's inputs."""
        values = [self._evaluator(binding.text, "i")(inputs) for binding in self.bindings]
        return tuple(self._evaluator(text, *self._names)(*values) for text in expressions)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(binding.symbol for binding in self.bindings)

    @cached_property
    def _all_hold(self) -> Callable[..., bool]:
        return self._evaluator(" and ".join(f"({text})" for text in self.conditions) or "True", *self._names)

    @staticmethod
    def _evaluator(text: str, *parameters: str) -> Callable[..., Any]:
        # The texts come from sympy's printer over integer symbols, or from a saved folder whose digest the hub has checked.
        return eval(f"lambda {', '.join(parameters)}: {text}", {"math": math, "torch": torch})


class FreshSizes:
    """The symbols of a cluster's inputs, recreated in a new shape environment with their ranges and known guards.

    A symbol that stands alone somewhere (a size, a stride, a number) keeps its identity, so that sizes computed from it
    stay related. Any other expression becomes a symbol of its own, which is more general, and which Inductor can read from
    the inputs.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.env = ShapeEnv()
        self._specs = specs
        self._symbols: dict[sympy.Expr, sympy.Symbol] = {}
        self._hints: dict[sympy.Symbol, int] = {}
        self._bindings: list[Binding] = []
        self._bind(only_alone=True)
        self._bind(only_alone=False)
        self._adopt_known_guards()
        self._n_known = len(self.env.guards)

    def fake_inputs(self, mode: FakeTensorMode) -> tuple[Any, ...]:
        """Return the inputs as fake tensors and SymInts of the new environment. Every guard that this adds is reported."""
        return tuple(self._fake(spec, mode) for spec in self._specs)

    def guards(self) -> SizeGuards:
        """Return every condition that was added to the environment since its creation."""
        texts = [printed(guard.expr) for guard in self.env.guards[self._n_known :]]
        return SizeGuards(tuple(self._bindings), tuple(dict.fromkeys(texts)))

    def strides(self) -> tuple[tuple[str, ...], ...]:
        """Return every input's strides as Python over the new symbols; empty for numbers."""
        return tuple(self._texts(spec.stride) if isinstance(spec, TensorSpec) else () for spec in self._specs)

    def _texts(self, sizes: Sequence[Any]) -> tuple[str, ...]:
        return tuple(printed(self._translate(expression(size))) for size in sizes)

    def _fake(self, spec: Spec, mode: FakeTensorMode) -> Any:
        if isinstance(spec, ScalarSpec):
            return self._value(spec.value) if spec.kind == "int" else spec.value
        with mode:
            shape, stride = map(self._value, spec.shape), map(self._value, spec.stride)
            return torch.empty_strided(tuple(shape), tuple(stride), dtype=spec.dtype, device=spec.device)

    def _value(self, size: Any) -> int | torch.SymInt:
        translated = self._translate(expression(size))
        if translated.is_number:
            return int(translated)
        return self.env.create_symintnode(translated, hint=int(_replaced(translated, self._hints)))

    def _translate(self, expr: sympy.Expr) -> sympy.Expr:
        if expr.is_number or expr in self._symbols:
            return self._symbols.get(expr, expr)
        return _replaced(expr, self._symbols)

    def _bind(self, *, only_alone: bool) -> None:
        for position, kind, dim, size in _places(self._specs):
            expr = expression(size)
            if expr.is_number or expr in self._symbols or (only_alone and not expr.is_Symbol):
                continue
            if not only_alone and expr.free_symbols <= self._symbols.keys():
                continue
            symbol = self._create(size, expr)
            self._symbols[expr] = symbol
            self._bindings.append(Binding(str(symbol), position, kind, dim))

    def _create(self, size: torch.SymInt, expr: sympy.Expr) -> sympy.Symbol:
        node: Any = size.node
        bounds = _range(expr, node.shape_env.var_to_range)
        seen = _seen(size, bounds)
        symbol = self.env.create_symbol(
            seen,
            ConstantSource(f"hub_size_{len(self._symbols)}"),
            dynamic_dim=DimDynamic.DYNAMIC,
            positive=True if bounds.lower >= 1 else None,
            do_not_specialize_zero_one=True,
        )
        self.env.constrain_symbol_range(symbol, compiler_min=bounds.lower, compiler_max=bounds.upper)
        self._hints[symbol] = sympy.Integer(seen)  # pyright: ignore[reportArgumentType]
        return symbol  # pyright: ignore[reportReturnType]

    def _adopt_known_guards(self) -> None:
        """Add the guards of capture to the new environment: Dynamo checks those guards before every call."""
        for env in {
            id(size.node.shape_env): size.node.shape_env for *_, size in _places(self._specs) if not isinstance(size, int)
        }.values():
            for guard in env.guards:
                if guard.expr.free_symbols and guard.expr.free_symbols <= self._symbols.keys():
                    self.env.evaluate_expr(guard.expr.xreplace(self._symbols))


def expression(size: Any) -> sympy.Expr:
    """Return a size's expression over the symbols of the environment it was captured in."""
    return sympy.Integer(int(size)) if isinstance(size, int) else size.node.expr


def _replaced(expr: Any, values: Mapping[Any, Any]) -> Any:
    return expr.xreplace(values)


def _places(specs: Sequence[Spec]) -> Iterator[tuple[int, str, int, Any]]:
    """Yield every integer in the inputs: numbers and sizes first, because Inductor reads symbols from strides last."""
    tensors = [(position, spec) for position, spec in enumerate(specs) if isinstance(spec, TensorSpec)]
    for position, spec in enumerate(specs):
        if isinstance(spec, ScalarSpec) and spec.kind == "int":
            yield position, "number", 0, spec.value
    for position, spec in tensors:
        yield from ((position, "size", dim, size) for dim, size in enumerate(spec.shape))
    for position, spec in tensors:
        yield from ((position, "stride", dim, size) for dim, size in enumerate(spec.stride))


def _range(expr: sympy.Expr, ranges: Mapping[sympy.Symbol, ValueRanges[Any]]) -> ValueRanges[Any]:
    symbols: Any = expr.free_symbols
    known = {symbol: ranges[symbol] for symbol in symbols if symbol in ranges}
    if len(known) < len(symbols):
        return ValueRanges(0, int_oo)
    return bound_sympy(expr, known)


def _seen(size: torch.SymInt, bounds: ValueRanges[Any]) -> int:
    try:
        return hint(size)
    except ValueError:
        return int(min(max(_UNSEEN_SIZE, bounds.lower), bounds.upper))
