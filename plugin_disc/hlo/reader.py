"""A reader of a program's function into tensors; dynamic sizes that have to be equal become one symbol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from hub.plugin import CompileError, HubError
from hub.toolkit.sizes import Size
from hub.toolkit.tensors import Source, Tensor

from ..bindings import bindings
from ..compiler import NAME
from . import elementwise, layout, numbers, products, windows
from .text import parsed
from .values import (
    Given,
    Op,
    Rule,
    Sizes,
    UnequalSizesError,
    Value,
    as_tensor,
    is_open,
    shape_and_kind,
)

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **numbers.RULES,
    **products.RULES,
    **windows.RULES,
}
"""Name of an operation -> rule."""
RETURNS = ("func.return", "return", "shape.assuming_yield", "stablehlo.return")
MAX_EQUALITIES = 1000
"""Maximum number of equalities found between sizes; more count as a fault of the reader."""


@dataclass(frozen=True)
class Argument:
    """An input of the program."""

    shape: tuple[Size, ...]
    kind: str


@dataclass(frozen=True)
class HloProgram:
    """A program as a graph of tensors."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Tensor, ...]
    symbols: Mapping[Any, str]
    """Each size known only at the call -> "zN", the N-th of all sizes of inputs, or "nN", the value of input N."""
    constants: Mapping[str, bytes]


def read(text: str, *, enable_amp: bool = False) -> HloProgram:
    """Return the program in a text.

    Two dynamic sizes that an operation needs to be equal are one symbol from the start; calls check that they are equal.
    With `enable_amp`, matrix products take their factors as bfloat16. Raise CompileError, which names the line, if the
    program does not parse or an operation is unsupported.
    """
    ir = bindings("ir")
    with ir.Context() as context, ir.Location.unknown():
        module = parsed(text, context)  # kept alive: it owns the operations
        function = _entry(module)
        equal: dict[Any, Size] = {}
        for _ in range(MAX_EQUALITIES):
            try:
                return _Reader(function, equal, enable_amp=enable_amp).program()
            except UnequalSizesError as error:
                _unite(error, equal)
    raise CompileError("sizes of the program contradict each other", backend=NAME)


def _entry(module: Any) -> Any:
    """Return the function `main`, or the only one."""
    functions = [each for each in module.body.operations if each.operation.name == "func.func"]
    named = [each for each in functions if each.operation.attributes["sym_name"].value == "main"]
    if len(named) != 1 and len(functions) != 1:
        raise CompileError(f"{len(functions)} functions, none called main", backend=NAME)
    return (named or functions)[0]


def _unite(error: UnequalSizesError, equal: dict[Any, Size]) -> None:
    one, other = error.sizes
    if is_open(one) and is_open(other):
        one, other = sorted((one, other), key=lambda size: size.name)
        equal[other] = one
    elif is_open(one) or is_open(other):
        symbol, size = (one, other) if is_open(one) else (other, one)
        if not isinstance(size, int) and symbol in size.free_symbols:
            raise CompileError(f"size {symbol} would have to be {size}", backend=NAME) from error
        equal[symbol] = size
    else:
        raise CompileError(f"sizes {one} and {other} are combined, which are not equal", backend=NAME) from error


class _Reader:
    """A single pass over one function, with the values it has read."""

    def __init__(self, function: Any, equal: Mapping[Any, Size], *, enable_amp: bool) -> None:
        self._block = function.regions[0].blocks[0]
        self._equal = equal
        self._enable_amp = enable_amp
        self._values: dict[Any, Value] = {}
        self._given = Given()
        self._symbols: dict[Any, str] = {}
        self._count = 0
        """The number of input sizes so far."""

    def program(self) -> HloProgram:
        inputs = tuple(self._argument(place, value) for place, value in enumerate(self._block.arguments))
        returned = self._run(self._block)
        if not returned:
            raise CompileError("the program returns nothing", backend=NAME)
        outputs = tuple(as_tensor(value, self._given) for value in returned)
        return HloProgram(inputs, outputs, self._symbols, self._given.data)

    def _argument(self, place: int, argument: Any) -> Argument:
        declared, kind = shape_and_kind(argument.type)
        shape = tuple(self._size(place, dim, size) for dim, size in enumerate(declared))
        source = Source(shape, kind, f"i{place}")
        if str(argument.type).startswith("tensor<"):
            self._values[argument] = source
        else:
            self._values[argument] = Sizes((self._number(place),), ())
        if kind in ("i64", "i32") and not shape:
            self._given.held[source] = self._number(place)
        return Argument(shape, kind)

    def _size(self, place: int, dim: int, size: int | None) -> Size:
        """Return a size of an input: the declared one, or a symbol if it is dynamic."""
        at = self._count
        self._count += 1
        if size is not None:
            return size
        return self._known(sympy.Symbol(f"d{place}_{dim}", integer=True, nonnegative=True), f"z{at}")

    def _number(self, place: int) -> Size:
        """Return the value of an input that is a single integer, which may serve as a size."""
        return self._known(sympy.Symbol(f"n{place}", integer=True), f"n{place}")

    def _known(self, symbol: Any, text: str) -> Size:
        found: Size = symbol
        while not isinstance(found, int) and (free := found.free_symbols & self._equal.keys()):
            found = found.subs({each: self._equal[each] for each in free})
            found = int(found) if getattr(found, "is_Integer", False) else found
        if found == symbol:
            self._symbols[symbol] = text
        return found

    def _run(self, block: Any) -> tuple[Value, ...]:
        """Read the operations of a block and return its results."""
        for each in block.operations:
            operation = each.operation
            operands = tuple(self._operand(value) for value in operation.operands)
            if operation.name in RETURNS:
                return operands
            op = Op(operation, operands, self._given, self._enable_amp)
            if operation.name == "shape.assuming":  # the call checks the assumption
                results = self._run(operation.regions[0].blocks[0])
            elif operation.name.startswith("shape.cstr_"):
                results = (Sizes((1,), (), "i1"),)
            else:
                results = self._results(op)
            for value, result in zip(operation.results, results, strict=True):
                self._values[value] = _as_declared(result, value.type)
        return ()

    def _operand(self, value: Any) -> Value:
        return self._values[value]

    def _results(self, op: Op) -> tuple[Value, ...]:
        rule = RULES.get(op.name)
        if rule is None:
            raise op.refused("this operation is not compiled by DISC")
        try:
            found = rule(op)
        except (HubError, UnequalSizesError):
            raise
        except Exception as error:
            raise op.refused(f"{type(error).__name__}: {error}") from error
        return found if isinstance(found, tuple) else (found,)


def _as_declared(value: Value, type_: Any) -> Value:
    """Check a result against its declared type, which may determine dynamic sizes."""
    if not str(type_).startswith("tensor<"):
        return value
    sizes, _ = shape_and_kind(type_)
    if isinstance(value, Sizes):
        return value
    assert len(sizes) == len(value.shape), f"{len(value.shape)} dims for {type_}"
    for declared, size in zip(sizes, value.shape, strict=True):
        if declared is not None and declared != size:
            raise UnequalSizesError(size, declared)
    return value
