"""Matrix products and convolutions: floats by PyTorch's BLAS, integers in loops."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.builders import FLOATS, cast, matrix_product, padded, permuted, pointwise, reduced, reshaped, without
from hub.toolkit.rules.windows import convolved
from hub.toolkit.sizes import Size, product
from hub.toolkit.tensors import Tensor

from ..addresses import has
from ..bindings import bindings
from ..loops.products import MIXED_PRODUCT
from .elementwise import accumulating
from .values import Op, Rule, same_size
from .windows import pairs_of


def _product(op: Op) -> Tensor:
    """Return a product, with batch dims in front and contracted dims merged into one.

    As in StableHLO, the remaining dims of both operands follow in order.
    """
    numbers = bindings("_mlir_libs._stablehlo").DotDimensionNumbers(op.attribute("dot_dimension_numbers"))
    left, right = (accumulating(op, each) for each in op.tensors())
    batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    inner = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    for dims in zip(*batch, strict=True), zip(*inner, strict=True):
        for one, other in dims:
            same_size(left.shape[one], right.shape[other])
    return cast(_contracted(op, left, right, batch, inner), op.kind)


def _plain_product(op: Op) -> Tensor:
    left, right = (accumulating(op, each) for each in op.tensors())
    inner = [len(left.shape) - 1], [0]
    same_size(left.shape[-1], right.shape[0])
    return cast(_contracted(op, left, right, ([], []), inner), op.kind)


def _contracted(
    op: Op, left: Tensor, right: Tensor, batch: tuple[list[int], list[int]], inner: tuple[list[int], list[int]]
) -> Tensor:
    free = tuple(
        [dim for dim in range(len(each.shape)) if dim not in batch[side] and dim not in inner[side]]
        for side, each in enumerate((left, right))
    )
    lead = [left.shape[dim] for dim in batch[0]]
    rows, columns = ([each.shape[dim] for dim in dims] for each, dims in zip((left, right), free, strict=True))
    depth = product(left.shape[dim] for dim in inner[0])
    left = reshaped(permuted(left, [*batch[0], *free[0], *inner[0]]), (*lead, product(rows), depth))
    right = reshaped(permuted(right, [*batch[1], *inner[1], *free[1]]), (*lead, depth, product(columns)))
    return reshaped(_multiplied(op, left, right), (*lead, *rows, *columns))


def _multiplied(op: Op, left: Tensor, right: Tensor) -> Tensor:
    if left.dtype not in FLOATS:
        return _in_loops(left, right)
    if op.enable_amp and left.dtype == "f32":
        left, right = (cast(each, "bf16") for each in (left, right))
        if not has(MIXED_PRODUCT):
            left, right = (cast(each, "f32") for each in (left, right))
    return matrix_product(left, right, "f32" if left.dtype == "bf16" else None)


def _in_loops(left: Tensor, right: Tensor) -> Tensor:
    """Return a product of integers, which BLAS lacks."""
    *lead, rows, depth = left.shape
    columns = right.shape[-1]
    turned = permuted(right, [*range(len(lead)), len(lead) + 1, len(lead)])
    left, turned = reshaped(left, (*lead, rows, 1, depth)), reshaped(turned, (*lead, 1, columns, depth))
    dims = [len(lead) + 2]
    return without(reduced("sum", pointwise("mul", left, turned), dims), dims)


def _convolution(op: Op) -> Tensor:
    numbers = bindings("_mlir_libs._stablehlo").ConvDimensionNumbers(op.attribute("dimension_numbers"))
    source, weight = (accumulating(op, each) for each in op.tensors())
    space = len(source.shape) - 2
    ones = [1] * space
    if op.has("batch_group_count") and int(op.attribute("batch_group_count")) != 1:
        raise op.refused("groups of the batch")
    if any(step != 1 for step in op.integers("lhs_dilation", ones)):
        raise op.refused("elements spread before windows are taken, as in transposed convolutions")
    if op.has("window_reversal") and any(bool(value) for value in op.attribute("window_reversal")):
        raise op.refused("reversed windows")
    if source.dtype not in FLOATS:
        raise op.refused(f"of {source.dtype}, floats here")
    groups = int(op.attribute("feature_group_count"))
    source = permuted(
        source, [numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions]
    )
    weight = permuted(
        weight,
        [
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ],
    )
    pairs = pairs_of(op.attribute("padding"), space) if op.has("padding") else [(0, 0)] * space
    source = padded(source, [0, 0, *(low for low, _ in pairs)], [0, 0, *(high for _, high in pairs)], 0.0)
    steps, spread = op.integers("window_strides", ones), op.integers("rhs_dilation", ones)
    shape = (source.shape[0], weight.shape[0], *_counts(op, source.shape[2:], weight.shape[2:], steps, spread))
    result = convolved(source, weight, shape, steps, spread, groups)
    order = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions]
    return cast(permuted(result, [order.index(dim) for dim in range(len(order))]), op.kind)


def _counts(
    op: Op, sizes: Sequence[Size], windows: Sequence[Size], steps: Sequence[int], spread: Sequence[int]
) -> list[int]:
    if not all(isinstance(size, int) for size in (*sizes, *windows)):
        raise op.refused("windows with open sizes in space")
    return [
        (int(size) - apart * (int(window) - 1) - 1) // step + 1
        for size, window, step, apart in zip(sizes, windows, steps, spread, strict=True)
    ]


RULES: dict[str, Rule] = {
    "stablehlo.dot_general": _product,
    "stablehlo.dot": _plain_product,
    "stablehlo.convolution": _convolution,
}
