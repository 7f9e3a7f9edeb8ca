"""Rewrite a tensor program for a GPU: half-precision products on tensor cores, half-precision scatter sums in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from hub.toolkit.builders import reshaped
from hub.toolkit.reading import in_order
from hub.toolkit.tensors import Join, Pointwise, Product, Put, Reshape, Tensor, View

from .functions import HALVES


def for_gpu(outputs: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Return the replacement of each tensor behind some outputs, in the form that is fastest on a GPU.

    Products take operands in half precision if these were cast to float32 for them: a kernel accumulates in float32 anyway,
    and products of two halves are exact in it. Sums that a put accumulates in half precision are accumulated in float32.
    """
    return rebuilt(outputs, _for_gpu)


def _for_gpu(_: Tensor, tensor: Tensor) -> Tensor:
    if isinstance(tensor, Product):
        return _halved(tensor)
    if isinstance(tensor, Put) and tensor.function == "sum" and tensor.dtype in HALVES:
        return _summed_in_single(tensor)
    return tensor


def rebuilt(outputs: Sequence[Tensor], change: Callable[[Tensor, Tensor], Tensor]) -> dict[Tensor, Tensor]:
    """Return the replacement of each tensor behind some outputs: `change(tensor, the same over replaced parts)`."""
    known: dict[Tensor, Tensor] = {}
    for tensor in in_order(outputs):
        parts = {each.name: _rewritten(getattr(tensor, each.name), known) for each in fields(tensor)}
        is_same = all(part is getattr(tensor, name) for name, part in parts.items())
        known[tensor] = change(tensor, tensor if is_same else replace(tensor, **parts))
    return known


def _rewritten(value: Any, known: Mapping[Tensor, Tensor]) -> Any:
    """Return a field with the tensors in it replaced; the field itself if nothing changed."""
    if isinstance(value, Tensor):
        return known[value]
    if not isinstance(value, tuple):
        return value
    before = cast("tuple[Any, ...]", value)
    parts = tuple(_rewritten(each, known) for each in before)
    return before if all(old is new for old, new in zip(before, parts, strict=True)) else parts


def _halved(product: Product) -> Product:
    left, right = before_cast(product.left), before_cast(product.right)
    is_possible = left is not None and right is not None and left.dtype == right.dtype
    return replace(product, left=left, right=right) if is_possible else product


def before_cast(operand: Tensor) -> Tensor | None:
    """Return the half-precision tensor behind a cast, under the same views and reshapes; None if there is none."""
    if isinstance(operand, (View, Reshape)):
        source = before_cast(operand.source)
        if source is None:
            return None
        is_view = isinstance(operand, View)
        return replace(operand, source=source, dtype=source.dtype) if is_view else reshaped(source, operand.shape)
    if isinstance(operand, Join) and operand.fill is None:
        pieces = tuple((found, place) for piece, place in operand.pieces if (found := before_cast(piece)) is not None)
        dtypes = {piece.dtype for piece, _ in pieces}
        is_possible = len(pieces) == len(operand.pieces) and len(dtypes) == 1
        return replace(operand, pieces=pieces, dtype=dtypes.pop()) if is_possible else None
    if isinstance(operand, Pointwise) and operand.function == "cast" and operand.dtype == "f32":
        (source,) = operand.arguments
        return source if source.dtype in HALVES else None
    return None


def _summed_in_single(put: Put) -> Tensor:
    source, values = (Pointwise(each.shape, "f32", "cast", (each,)) for each in (put.source, put.values))
    total = replace(put, dtype="f32", source=source, values=values)
    return Pointwise(put.shape, put.dtype, "cast", (total,))
