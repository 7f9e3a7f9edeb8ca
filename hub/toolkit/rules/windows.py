"""Operators over windows: convolutions, pooling, nearest-neighbour resizing."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.affine import Affine, identity, variable
from hub.toolkit.builders import (
    broadcast,
    cast,
    copied,
    fill,
    iota,
    matrix_product,
    padded,
    permuted,
    pointwise,
    reduced,
    reshaped,
    select,
    view,
)
from hub.toolkit.functions import neutral
from hub.toolkit.rules.call import Call, Rule, computing
from hub.toolkit.rules.elementwise import add, div, eq, mul, ne, number
from hub.toolkit.rules.indexing import along
from hub.toolkit.rules.puts import put
from hub.toolkit.rules.reductions import mean_of
from hub.toolkit.sizes import Size, product
from hub.toolkit.tensors import Tensor


def windows_of(
    source: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], counts: Sequence[Size]
) -> Tensor:
    """Return the windows over the last dims of [..., sizes] as [..., counts, kernel]."""
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
    """Return the convolution of a padded input, computed as products of the windows with the weights.

    If each channel has its own filter, windows are multiplied and summed in loops.
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


def _pool_settings(call: Call, space: int) -> tuple[list[int], ...]:
    """Return kernel, stride, padding and dilation, a number for each spatial dim."""
    kernel = _each(call.raw("kernel_size"), space)
    stride = _each(call.raw("stride") or kernel, space)
    dilation = _each(call.raw("dilation"), space) if call.has("dilation") else [1] * space
    return kernel, stride, _each(call.raw("padding"), space), dilation


def _pool_windows(call: Call, space: int, value: float, counts: Sequence[Size]) -> Tensor:
    """Return the windows [..., count, kernel]; those that begin in the padding after the input extend beyond it."""
    source = computing(call.tensor("self"))
    kernel, stride, padding, dilation = _pool_settings(call, space)
    ends = [
        (count - 1) * step + gap * (size - 1) + 1
        for count, step, gap, size in zip(counts, stride, dilation, kernel, strict=True)
    ]
    sizes = source.shape[-space:]
    after = [max(end - size - low, 0) for end, size, low in zip(ends, sizes, padding, strict=True)]
    return windows_of(_padded_space(source, padding, value, after), kernel, stride, dilation, counts)


def _max_pool(space: int) -> Rule:
    def rule(call: Call) -> Tensor:
        windows = _pool_windows(call, space, neutral("max", call.dtype), call.shape[-space:])
        return cast(reshaped(_over_windows("max", windows, space), call.shape), call.dtype)

    return rule


def _over_windows(function: str, windows: Tensor, space: int) -> Tensor:
    rank = len(windows.shape)
    return reduced(function, windows, range(rank - space, rank))


def _max_pool_with_places(space: int) -> Rule:
    """Return the rule of the largest element and its position in the input: the first, or the last NaN, as in eager."""

    def rule(call: Call) -> tuple[Tensor, Tensor]:
        shape, dtype = call.result(0)
        windows = _pool_windows(call, space, neutral("max", dtype), shape[-space:])
        top = _over_windows("max", windows, space)
        place, is_inside = _places(call, space, windows.shape)
        hit = pointwise("and", eq(windows, top), is_inside)
        found = _over_windows("min", select(hit, place, fill(2**62, "i64")), space)
        if dtype.startswith(("f", "b")):
            last = _over_windows("max", select(ne(windows, windows), place, fill(-1, "i64")), space)
            found = select(pointwise("ge", last, fill(0, "i64")), last, found)
        return cast(reshaped(top, shape), dtype), reshaped(found, shape)

    return rule


def _places(call: Call, space: int, shape: Sequence[Size]) -> tuple[Tensor, Tensor]:
    """Return the position of each window element in the input's space, row by row, and whether it lies inside."""
    _, stride, padding, dilation = _pool_settings(call, space)
    sizes = call.tensor("self").shape[-space:]
    lead = len(shape) - 2 * space
    place, is_inside = Affine(), fill(True, "i1")
    for dim, size in enumerate(sizes):
        outer, inner = lead + dim, lead + space + dim
        at = Affine(-padding[dim])
        at += Affine() if shape[outer] == 1 else variable(outer, stride[dim])
        at += Affine() if shape[inner] == 1 else variable(inner, dilation[dim])
        place = place.scaled(size) + at
        each = view(iota((size,), 0), shape, (at,))
        is_inside = pointwise("and", is_inside, pointwise("ge", each, fill(0, "i64")))
        is_inside = pointwise("and", is_inside, pointwise("lt", each, fill(size, "i64")))
    return view(iota((product(sizes),), 0), shape, (place,)), is_inside


def _max_pool_backward(space: int) -> Rule:
    """Return the rule that sends each gradient to the largest element; where windows overlap in it, gradients add up."""

    def rule(call: Call) -> Tensor:
        grad, places = call.tensor("grad_output"), call.tensor("indices")
        lead, area = call.shape[:-space], product(call.shape[-space:])
        flat = (*lead, product(grad.shape[-space:]))
        values, places = reshaped(grad, flat), reshaped(places, flat)
        index = (*(along(flat, dim) for dim in range(len(lead))), places)
        return reshaped(put("sum", fill(0.0, call.dtype, (*lead, area)), values, index), call.shape)

    return rule


def _avg_pool(space: int) -> Rule:
    def rule(call: Call) -> Tensor:
        windows = _pool_windows(call, space, 0.0, call.shape[-space:])
        added = reshaped(_over_windows("sum", windows, space), call.shape)
        return cast(div(added, number(product(windows.shape[-space:]), added)), call.dtype)

    return rule


def _adaptive_avg_pool(call: Call) -> Tensor:
    source = computing(call.tensor("self"))
    space = len(call.raw("output_size"))
    sizes, counts = source.shape[-space:], call.shape[-space:]
    if all(count == 1 for count in counts):
        return cast(mean_of(source, range(len(source.shape) - space, len(source.shape))), call.dtype)
    kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
    windows = windows_of(source, kernel, kernel, [1] * space, counts)
    rank = len(windows.shape)
    added = reshaped(reduced("sum", windows, range(rank - space, rank)), call.shape)
    return cast(div(added, number(product(kernel), added)), call.dtype)


def _nearest(call: Call) -> Tensor:
    """Repeat every element by whole factors along each spatial dim."""
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
    **{f"aten.max_pool{space}d.default": _max_pool(space) for space in (1, 2, 3)},
    **{f"aten.max_pool{space}d_with_indices.default": _max_pool_with_places(space) for space in (2, 3)},
    **{f"aten.max_pool{space}d_with_indices_backward.default": _max_pool_backward(space) for space in (2, 3)},
    **{f"aten.avg_pool{space}d.default": _avg_pool(space) for space in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{space}d.default": _adaptive_avg_pool for space in (1, 2, 3)},
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool,
    **{
        f"aten.upsample_nearest{space}d.{form}": _nearest
        for space, form in ((1, "vec"), (1, "default"), (2, "vec"), (2, "default"), (3, "vec"))
    },
}
