"""OpenVINO's types, and the small values that rules are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from openvino import Output, Shape, Type, op

from plugin_openvino.library import ops

OV_TYPES: Mapping[torch.dtype, Type] = {
    torch.float32: Type.f32,
    torch.float64: Type.f64,
    torch.int64: Type.i64,
    torch.int32: Type.i32,
    torch.bool: Type.boolean,
}
NUMPY_TYPES: Mapping[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.bool: np.bool_,
}
INT32_MAX = 2**31 - 1
"""Largest integer of OpenVINO's CPU plugin, which computes int64 as int32: larger numbers would wrap."""

Value = Output | tuple[Output | None, ...]
"""Result of a rule: one output, or one for each element of an operator's tuple (None for elements that are not read)."""


def output(node: Any) -> Output:
    """Return the only output of an OpenVINO node, or an Output unchanged."""
    return node if isinstance(node, Output) else node.output(0)


def constant(value: Any, dtype: torch.dtype) -> Output:
    """Return a constant from a number or nested list."""
    return output(op.Constant(np.asarray(value, dtype=NUMPY_TYPES[dtype])))


def indices(values: Sequence[int]) -> Output:
    """Return a vector of int64, clipped to OpenVINO's int32 range: ATen writes "to the end" as 2^63 - 1."""
    return constant([max(-INT32_MAX, min(INT32_MAX, int(value))) for value in values], torch.int64)


def convert(value: Output, dtype: torch.dtype) -> Output:
    """Return the value as another dtype, or unchanged if it has that dtype."""
    wanted, found = OV_TYPES[dtype], value.get_element_type()
    if found == wanted:
        return value
    if dtype is torch.bool:  # NaN is true, but not for OpenVINO's Convert after fusion with its neighbours
        return output(ops.not_equal(value, output(op.Constant(found, Shape([]), [0]))))
    return output(ops.convert(value, wanted.get_type_name()))


def zero(dtype: torch.dtype) -> Output:
    """Return a scalar 0."""
    return constant(0, dtype)


def size_of(value: Output, dim: int) -> Output:
    """Return one size of a value as a vector of one int64; a constant if it is known."""
    shape = value.get_partial_shape()
    if shape[dim].is_static:
        return indices([shape[dim].get_length()])
    return output(ops.gather(ops.shape_of(value), indices([dim]), constant(0, torch.int64)))
