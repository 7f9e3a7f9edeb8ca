"""Sizes: plain ints where they are known, sympy expressions over the cluster's symbols where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.printers import PythonPrinter

Size = Any
"""int or sympy.Expr."""


def size_of(value: Any) -> Size:
    """Gives the size behind an int or SymInt."""
    return int(value) if isinstance(value, int) else settled(value.node.expr)


def settled(value: Any) -> Size:
    """Gives an expression as an int where it is one, else multiplied out, so that equal sizes are equal values."""
    if isinstance(value, int):
        return value
    plain = sympy.expand(value)
    return int(plain) if plain.is_Integer else plain


def plus(left: Size, right: Size) -> Size:
    """Gives the sum."""
    return settled(left + right)


def times(left: Size, right: Size) -> Size:
    """Gives the product."""
    return settled(left * right)


def product(sizes: Iterable[Size]) -> Size:
    """Gives the product of all; 1 of none."""
    result: Size = 1
    for size in sizes:
        result = times(result, size)
    return result


def ceil_div(size: Size, by: int) -> Size:
    """Gives how many blocks of `by` cover a size."""
    return -(-size // by) if isinstance(size, int) else settled(FloorDiv(size + (by - 1), sympy.Integer(by)))


def strides_of(shape: Iterable[Size]) -> tuple[Size, ...]:
    """Gives the strides of packed row-major elements."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step = times(step, size)
    return tuple(reversed(strides))


def is_static(size: Size) -> bool:
    """True for a size known while compiling."""
    return isinstance(size, int)


def python_text(size: Size, known: Mapping[Any, str]) -> str:
    """Gives the Python expression of a size, over the texts that read its symbols. Raises KeyError for unknown ones."""
    if isinstance(size, int):
        return str(size)
    if size in known:
        return known[size]
    stand_ins = {symbol: sympy.Symbol(f"_{place}_", integer=True) for place, symbol in enumerate(size.free_symbols)}
    text = PythonPrinter().doprint(size.xreplace(stand_ins))
    for symbol, stand_in in stand_ins.items():
        text = text.replace(stand_in.name, known[symbol])
    return f"int({text})"
