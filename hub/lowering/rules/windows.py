"""Operators over windows: convolutions, pooling, nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hub.lowering.affine import Affine, identity, variable
from hub.lowering.builders import broadcast, cast, copied, matrix_product, padded, reduced, reshaped, view
from hub.lowering.rules.call import Call, Rule, computing
from hub.lowering.rules.elementwise import add, div, mul, number
from hub.lowering.sizes import Size, product
from hub.lowering.tensors import Tensor


def windows_of(
    source: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], counts: Sequence[Size]
) -> Tensor:
    """Gives the windows over the last dims of [..., sizes] as [..., counts, kernel]."""
    space = len(kernel)
    lead = len(source.shape) - space
    shape = (*source.shape[:lead], *counts, *kernel)
    index = list(identity(source.shape[:lead]))
    for place in range(space):
        start = Affine() if counts[place] == 1 else variable(lead + place, stride[place])
        inside = Affine() if kernel[place] == 1 else variable(lead + space + place, dilation[place])
        index.append(start + inside)
    return view(source, shape, tuple(index))


def _each(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _padded_space(source: Tensor, padding: Sequence[int], value: float, after: Sequence[int] | None = None) -> Tensor:
    lead = [0] * (len(source.shape) - len(padding))
    return padded(source, [*lead, *padding], [*lead, *(after or padding)], value)


# --- Convolutions -----------------------------------------------------------------------------------------------------


def convolved(
    source: Tensor,
    weight: Tensor,
    shape: Sequence[Size],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Gives the convolution of an input that is padded: as products of the windows with the weights.

    Where each channel has a filter of its own, windows are multiplied and added up in loops.
    """
    batch = source.shape[0]
    out, each, *kernel = weight.shape
    counts = shape[2:]
    space = len(kernel)
    windows = windows_of(source, kernel, stride, dilation, counts)
    if each == 1 and out == groups:
        filters = reshaped(weight, (out, *([1] * space), *kernel))
        dims = range(2 + space, 2 + 2 * space)
        return reshaped(reduced("sum", mul(windows, filters), dims), shape)
    is_pointwise = all(size == 1 for size in kernel) and all(step == 1 for step in stride)
    area, taps = product(counts), product(kernel)
    if is_pointwise:
        columns = reshaped(source, (batch, groups, each, area))
    else:
        order = (0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space))
        from hub.lowering.builders import permuted

        columns = reshaped(copied(permuted(windows, order)), (batch, groups, each * taps, area))
    filters = reshaped(weight, (groups, out // groups, each * taps))
    if groups == 1:
        filters, columns = reshaped(filters, (out, each * taps)), reshaped(columns, (batch, each * taps, area))
    return reshaped(matrix_product(filters, columns), tuple(shape))


def _convolution(call: Call) -> Tensor:
    source, weight = computing(call.tensor("input")), computing(call.tensor("weight"))
    space = len(weight.shape) - 2
    stride, dilation = (_each(call.raw(name), space) for name in ("stride", "dilation"))
    padding = call.raw("padding")
    if isinstance(padding, str):
        totals = [
            step * (size - 1) if padding == "same" else 0 for step, size in zip(dilation, weight.shape[2:], strict=True)
        ]
        before = [whole // 2 for whole in totals]
        after = [whole - low for whole, low in zip(totals, before, strict=True)]
    else:
        before = after = _each(padding, space)
    ready = _padded_space(source, before, 0.0, after)
    result = convolved(ready, weight, call.shape, stride, dilation, call.raw("groups"))
    if call.has("bias"):
        bias = computing(call.tensor("bias"))
        result = add(result, reshaped(bias, (bias.shape[0], *([1] * space))))
    return cast(result, call.dtype)


# --- Pooling ----------------------------------------------------------------------------------------------------------


def _pool_windows(call: Call, value: float, place: int | None = None) -> tuple[Tensor, int]:
    source = computing(call.tensor("self"))
    shape, _ = call.result(place)
    kernel = call.raw("kernel_size")
    space = len(shape) - 2 if isinstance(kernel, int) or len(kernel) == 1 else len(kernel)
    kernel = _each(kernel, space)
    stride = _each(call.raw("stride") or kernel, space)
    dilation = _each(call.raw("dilation"), space) if call.has("dilation") else [1] * space
    ready = _padded_space(source, _each(call.raw("padding"), space), value)
    return windows_of(ready, kernel, stride, dilation, shape[-space:]), space


def _max_pool(place: int | None = None) -> Rule:
    def rule(call: Call) -> Tensor | tuple[Tensor]:
        shape, dtype = call.result(place)
        lowest = -math.inf if dtype.startswith(("f", "b")) else -(2**63)
        windows, space = _pool_windows(call, lowest, place)
        rank = len(windows.shape)
        found = cast(reshaped(reduced("max", windows, range(rank - space, rank)), shape), dtype)
        return found if place is None else (found,)

    return rule


def _avg_pool(call: Call) -> Tensor:
    windows, space = _pool_windows(call, 0.0)
    rank = len(windows.shape)
    dims = range(rank - space, rank)
    added = reshaped(reduced("sum", windows, dims), call.shape)
    count: Size = product(windows.shape[dim] for dim in dims)
    return cast(div(added, number(count, added)), call.dtype)


def _adaptive_avg_pool(call: Call) -> Tensor:
    source = computing(call.tensor("self"))
    space = len(call.raw("output_size"))
    sizes, counts = source.shape[-space:], call.shape[-space:]
    if all(count == 1 for count in counts):
        from hub.lowering.rules.reductions import mean_of

        return cast(mean_of(source, range(len(source.shape) - space, len(source.shape))), call.dtype)
    kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
    windows = windows_of(source, kernel, kernel, [1] * space, counts)
    rank = len(windows.shape)
    added = reshaped(reduced("sum", windows, range(rank - space, rank)), call.shape)
    return cast(div(added, number(product(kernel), added)), call.dtype)


def _nearest(call: Call) -> Tensor:
    """Whole factors: every element is repeated along each dim of space."""
    source = call.first()
    space = len(source.shape) - 2
    factors = [new // old for new, old in zip(call.shape[2:], source.shape[2:], strict=True)]
    parts = [size for old in source.shape[2:] for size in (old, 1)]
    spread = reshaped(source, (*source.shape[:2], *parts))
    whole = [size for place in range(space) for size in (source.shape[2 + place], factors[place])]
    return reshaped(broadcast(spread, (*source.shape[:2], *whole)), call.shape)


RULES: dict[str, Rule] = {
    **{f"aten.conv{space}d.{form}": _convolution for space in (1, 2, 3) for form in ("default", "padding")},
    "aten.convolution.default": _convolution,
    **{f"aten.max_pool{space}d.default": _max_pool() for space in (1, 2, 3)},
    "aten.max_pool2d_with_indices.default": _max_pool(0),
    **{f"aten.avg_pool{space}d.default": _avg_pool for space in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{space}d.default": _adaptive_avg_pool for space in (1, 2, 3)},
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool,
    **{
        f"aten.upsample_nearest{space}d.{form}": _nearest
        for space, form in ((1, "vec"), (1, "default"), (2, "vec"), (2, "default"), (3, "vec"))
    },
}
