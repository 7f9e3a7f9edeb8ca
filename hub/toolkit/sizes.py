"""Sizes: plain ints if they are known, otherwise sympy expressions over the cluster's symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy

from hub.torch_private import FloorDiv, PythonPrinter

_sympy: Any = sympy
_printer: Any = PythonPrinter()
"""PyTorch's printer of sizes, which has no type annotations."""
Size = Any
"""int or sympy.Expr."""


def size_of(value: Any) -> Size:
    """Return the size of an int or SymInt."""
    return int(value) if isinstance(value, int) else settled(value.node.expr)


def settled(value: Any) -> Size:
    """Return an expression as an int if it is one, otherwise multiplied out, so that equal sizes are equal values."""
    if isinstance(value, int):
        return value
    plain: Any = _sympy.expand(value)
    return int(plain) if plain.is_Integer else plain


def plus(left: Size, right: Size) -> Size:
    """Return the sum."""
    return settled(left + right)


def minus(left: Size, right: Size) -> Size:
    """Return the difference."""
    return settled(left - right)


def at_least_zero(size: Size) -> Size:
    """Return the size, clamped to at least 0."""
    return max(size, 0) if isinstance(size, int) else settled(_sympy.Max(0, size))


def from_front(place: Size, size: Size) -> Size:
    """Return a position along a dim, counted from its front: negative ones count from the end.

    The sign may be known only at the call, for example of a symbol such as the number of last rows that a model is asked
    for.
    """
    if is_at_least_zero(place):
        return place
    if is_at_least_zero(-1 - place):
        return plus(size, place)
    is_negative = _sympy.Min(1, at_least_zero(-place))
    return plus(place, times(size, is_negative))


def slice_start(start: Size, size: Size) -> Size:
    """Return where a slice begins, counted from the front. Beyond the end, where slices are empty, any position will do."""
    return start if is_at_least_zero(start) else at_least_zero(from_front(start, size))


def is_at_least_zero(size: Size) -> bool:
    """Return whether a size is known to be nonnegative."""
    return size >= 0 if isinstance(size, int) else bool(size.is_nonnegative)


def at_most(size: Size, limit: Size) -> Size:
    """Return the smaller of two sizes."""
    return min(size, limit) if isinstance(size, int) and isinstance(limit, int) else settled(_sympy.Min(size, limit))


def times(left: Size, right: Size) -> Size:
    """Return the product."""
    return settled(left * right)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of all sizes; 1 if there are none."""
    result: Size = 1
    for size in sizes:
        result = times(result, size)
    return result


def floor_div(size: Size, by: Size) -> Size:
    """Return the quotient, rounded down."""
    if isinstance(size, int) and isinstance(by, int):
        return size // by
    return settled(FloorDiv(_sympy.sympify(size), _sympy.sympify(by)))


def ceil_div(size: Size, by: Size) -> Size:
    """Return the number of blocks of `by`, which is at least 1, that cover a size."""
    return floor_div(plus(size, by - 1), by)


def differs(one: Size, other: Size) -> bool:
    """Return whether two sizes are known to differ; sizes known only at the call may be equal."""
    return isinstance(one, int) and isinstance(other, int) and one != other


def is_multiple(whole: Size, part: Size) -> bool:
    """Return whether a size is known to be a multiple of another: then it is not smaller, unless it is 0."""
    if isinstance(whole, int) and isinstance(part, int):
        return part > 0 and whole % part == 0
    numerator, denominator = (_sympy.sympify(whole) / part).as_numer_denom()
    return bool(denominator == 1 and numerator.is_integer)


def strides_of(shape: Iterable[Size]) -> tuple[Size, ...]:
    """Return the strides of packed row-major elements."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step = times(step, size)
    return tuple(reversed(strides))


def is_static(size: Size) -> bool:
    """Return whether a size is known at compile time."""
    return isinstance(size, int)


def printed(expression: Any) -> str:
    """Return a sympy expression as Python, with PyTorch's own functions on sizes written out."""
    return _printer.doprint(expression)


def python_text(size: Size, known: Mapping[Any, str]) -> str:
    """Return the Python expression of a size, in terms of the texts that read symbols and other parts shown by inputs.

    Raise ValueError if it depends on a symbol that no input shows.
    """
    if isinstance(size, int):
        return str(size)
    if size in known:
        return known[size]
    stand_ins = {shown: sympy.Symbol(f"_{place}_", integer=True) for place, shown in enumerate(known)}
    replaced = size.xreplace(stand_ins)
    if unknown := replaced.free_symbols - set(stand_ins.values()):
        raise ValueError(f"size {size} depends on {', '.join(map(str, unknown))}, which no input shows")
    text = printed(replaced)
    for shown, stand_in in stand_ins.items():
        text = text.replace(stand_in.name, known[shown])
    return f"int({text})"


def parts_shown(known: Mapping[Any, str]) -> dict[Any, str]:
    """Return the texts of the parts of sizes of the form c * part + d: other sizes may need only the part."""
    found = dict(known)
    for size, text in known.items():
        if size.is_Symbol:
            continue
        extra, rest = _sympy.expand(size).as_coeff_Add()
        factor, part = rest.as_coeff_Mul()
        if factor.is_Integer and extra.is_Integer and not part.is_Add and not part.is_Mul:
            found.setdefault(part, f"(({text} - {int(extra)}) // {int(factor)})")
    while solved := _solved(found):
        found |= solved
    return found


def _solved(known: Mapping[Any, str]) -> dict[Any, str]:
    """Return the text of one more symbol, if a size is its sum with, or its difference from, what is known."""
    for size, text in known.items():
        unknown = [symbol for symbol in size.free_symbols if symbol not in known]
        factor = size.coeff(unknown[0]) if len(unknown) == 1 else 0
        rest = settled(size - factor * unknown[0]) if factor in (1, -1) else None
        if rest is None or unknown[0] in _sympy.sympify(rest).free_symbols:
            continue
        other = python_text(rest, known)
        return {unknown[0]: f"({text} - {other})" if factor == 1 else f"({other} - {text})"}
    return {}
