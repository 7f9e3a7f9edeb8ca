"""Operations that combine elements: along dims, and over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub.toolkit.builders import cast, padded, pointwise, reduced, without
from hub.toolkit.functions import neutral
from hub.toolkit.rules.windows import windows_of
from hub.toolkit.sizes import Size, ceil_div, plus
from hub.toolkit.tensors import Tensor

from ..loops.combine import FUNCTION
from .elementwise import accumulating
from .values import Op, Rule, number_of, padding_of

_FUNCTIONS = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "prod",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.or": "any",
    "stablehlo.and": "all",
}


def _function(op: Op, kind: str) -> str:
    """Return the function by which a region combines two elements. Raise CompileError if it is not supported."""
    operations = [each.operation for each in op.raw.regions[0].blocks[0].operations]
    found = _FUNCTIONS.get(operations[0].name)
    arguments = list(op.raw.regions[0].blocks[0].arguments)
    is_plain = len(operations) == 2 and sorted(map(str, operations[0].operands)) == sorted(map(str, arguments))
    if found is None or not is_plain:
        raise op.refused(f"elements combined by something other than {', '.join(_FUNCTIONS)} alone")
    if kind == "i1":
        found = {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(found, found)
    elif found in ("any", "all"):
        raise op.refused(f"{operations[0].name} of {kind}")
    return found


def _with_first(function: str, result: Tensor, first: Tensor) -> Tensor:
    """Combine a result with the initial value, unless that is the neutral one."""
    if number_of(first) == neutral(function, first.dtype):
        return result
    return pointwise(FUNCTION[function], result, first)


def _reduced(op: Op) -> Tensor:
    if len(op.operands) != 2:
        raise op.refused("several tensors at once")
    source, first = (accumulating(op, each) for each in op.tensors())
    function = _function(op, source.dtype)
    dims = op.integers("dimensions")
    result = without(reduced(function, source, dims), dims)
    return cast(_with_first(function, result, first), op.kind)


def _windows(op: Op) -> Tensor:
    if len(op.operands) != 2:
        raise op.refused("several tensors at once")
    source, first = (accumulating(op, each) for each in op.tensors())
    rank = len(source.shape)
    ones = [1] * rank
    if any(step != 1 for step in op.integers("base_dilations", ones)):
        raise op.refused("elements spread before windows are taken")
    function = _function(op, source.dtype)
    sizes, steps, spread = (op.integers(name, ones) for name in ("window_dimensions", "window_strides", "window_dilations"))
    before, after = _widths(op, rank)
    if any(before) or any(after):
        source = padded(source, before, after, padding_of(op, first))
    counts = [
        _count(size, window, step, apart)
        for size, window, step, apart in zip(source.shape, sizes, steps, spread, strict=True)
    ]
    windows = windows_of(source, sizes, steps, spread, counts)
    dims = range(rank, 2 * rank)
    return cast(_with_first(function, without(reduced(function, windows, dims), dims), first), op.kind)


def _count(size: Size, window: int, step: int, apart: int) -> Size:
    """Return the number of windows."""
    free = plus(size, -apart * (window - 1))
    return max(ceil_div(free, step), 0) if isinstance(free, int) else ceil_div(free, step)


def _widths(op: Op, rank: int) -> tuple[list[int], list[int]]:
    """Return the padding before and after each dim."""
    pairs = pairs_of(op.attribute("padding"), rank) if op.has("padding") else [(0, 0)] * rank
    return [low for low, _ in pairs], [high for _, high in pairs]


def pairs_of(attribute: Any, count: int) -> list[tuple[int, int]]:
    """Return an attribute of shape [count, 2] as pairs."""
    if attribute.is_splat:
        value = int(attribute.get_splat_value().value)
        return [(value, value)] * count
    values: Sequence[int] = [int(value) for value in attribute]
    return [(values[2 * place], values[2 * place + 1]) for place in range(count)]


RULES: dict[str, Rule] = {
    "stablehlo.reduce": _reduced,
    "stablehlo.reduce_window": _windows,
}
