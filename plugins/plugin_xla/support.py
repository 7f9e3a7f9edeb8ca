"""Operators that XLA takes: those of the core's table that came out right, with what was found beside them. No torch here.

Found by the conformance suite with torch-mlir 20261001 and jaxlib 0.10.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hub.conditions import has_dims, not_empty, on_cpu, one_of
from hub.lowering.operators import ROWS
from hub.support import Condition, OperatorTable, argument, attribute, dtypes, rank, tensors_of

if TYPE_CHECKING:
    from torch import fx

_SMALL = ("int32", "int16", "int8", "uint8")
_WHOLE = dtypes("int64", *_SMALL, "bool")


def whole_bounds(node: fx.Node) -> str | None:
    """Integers are clamped between integers."""
    bounds = [argument(node, name) for name in ("min", "max")]
    is_float = next(tensors_of(node)).dtype.is_floating_point
    return None if is_float or not any(isinstance(bound, float) for bound in bounds) else "integers between floats"


def _all_one(sizes: Any) -> bool:
    return all(size == 1 for size in sizes)


def _names(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


_NEGATIVE = _names(
    "index.Tensor _unsafe_index.Tensor index_put.default _unsafe_index_put.default "
    "index_fill.int_Scalar index_fill.int_Tensor"
)
_UNKNOWN = _names(
    "cumprod.default diagonal.default erfc.default fmod.Scalar hypot.default copysign.Tensor fmax.default fmin.default "
    "rms_norm.default unfold.default scatter.reduce scatter.value_reduce scatter_reduce.two"
)
_ARGUMENTS = _names("argmax.default argmin.default max.dim min.dim")
_LOGICAL = _names("logical_not.default logical_and.default logical_or.default logical_xor.default")
_RIGHT = _names(
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor "
    "__rshift__.Tensor __rshift__.Scalar"
)
_SOFTMAX = _names("softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default")

DECLINED: Mapping[str, str] = {
    **dict.fromkeys(_NEGATIVE, "indices may be negative, which torch-mlir reads as they are"),
    **dict.fromkeys(_UNKNOWN, "torch-mlir makes no StableHLO of it"),
    **dict.fromkeys(_names("remainder.Scalar remainder.Tensor"), "torch-mlir gives the sign of the dividend"),
    "aten.slice_scatter.default": "torch-mlir runs out of memory over an end beyond the size",
    "aten.isfinite.default": "torch-mlir takes NaN for finite",
}
"""Operators of the core's table that are left out, and why."""

FURTHER: Mapping[str, tuple[Condition, ...]] = {
    # NaN is lost among floats.
    **dict.fromkeys(_ARGUMENTS, (_WHOLE,)),
    # XLA takes the smallest floats (denormals) for zero.
    **dict.fromkeys(_LOGICAL, (_WHOLE,)),
    # torch-mlir shifts signs in, also into uint8.
    **dict.fromkeys(_RIGHT, (dtypes("int64", "int32", "int16", "int8"),)),
    # torch-mlir ends the process over a tensor without dims.
    **dict.fromkeys(_SOFTMAX, (has_dims,)),
    # torch-mlir divides in float64, where large int64 lose bits and floors of quotients round up.
    "aten.floor_divide.default": (dtypes(*_SMALL),),
    "aten.floor_divide.Scalar": (dtypes(*_SMALL),),
    "aten.div.Tensor_mode": (one_of("rounding_mode", "trunc"),),
    "aten.div.Scalar_mode": (one_of("rounding_mode", "trunc"),),
    # torch-mlir makes no StableHLO of other calls.
    "aten.adaptive_avg_pool3d.default": (attribute("output_size", _all_one, "only 1s"),),
    "aten.clamp.default": (whole_bounds,),
    "aten.cumsum.default": (has_dims,),
    "aten.matmul.default": (rank("self", 2, 9),),
    "aten.reciprocal.default": (dtypes("float32", "float64", "float16", "bfloat16"),),
    "aten.roll.default": (attribute("dims", bool, "some"),),
}
"""Conditions beside those of the core's table."""

OPERATORS = OperatorTable(
    {name: (*conditions, *FURTHER.get(name, ())) for name, conditions in ROWS.items() if name not in DECLINED},
    everywhere=(on_cpu, not_empty),
)
