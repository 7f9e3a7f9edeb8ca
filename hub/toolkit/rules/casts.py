"""Operators that change only the dtype or nothing, and those that create tensors."""

from __future__ import annotations

from hub.toolkit.builders import FLOATS, broadcast, cast, fill, iota, pointwise
from hub.toolkit.rules.call import Call, Rule
from hub.toolkit.tensors import Tensor


def _cast(call: Call) -> Tensor:
    return cast(call.first(), call.dtype)


def _same(call: Call) -> Tensor:
    return call.first()


def _filled(value: float) -> Rule:
    return lambda call: fill(value, call.dtype, call.shape)


def _full(call: Call) -> Tensor:
    return broadcast(cast(call.tensor("fill_value"), call.dtype), call.shape)


def _fill(call: Call) -> Tensor:
    return broadcast(cast(call.tensor("value"), call.dtype), call.shape)


def _range(call: Call) -> Tensor:
    """Return start + index * step, computed in float64 if any of them or the result is a float, as in PyTorch."""
    shape, dtype = call.result()
    start = call.tensor("start") if call.has("start") else fill(0, "i64")
    step = call.tensor("step") if call.has("step") else fill(1, "i64")
    kind = "f64" if dtype in FLOATS else "i64"
    index = cast(iota(shape, 0), kind)
    return cast(pointwise("add", pointwise("mul", index, cast(step, kind)), cast(start, kind)), dtype)


def _scalar(call: Call) -> Tensor:
    return cast(call.first(), call.dtype)


def _eye(call: Call) -> Tensor:
    rows, columns = (iota(call.shape, dim) for dim in (0, 1))
    return cast(pointwise("eq", rows, columns), call.dtype)


_CASTS = "_to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default"
_COPIES = "clone.default alias.default contiguous.default detach.default lift_fresh_copy.default"

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _cast for name in _CASTS.split()},
    **{f"aten.{name}": _same for name in _COPIES.split()},
    **{f"aten.{name}.default": _filled(0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.{name}.default": _filled(1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": _full for name in ("full", "full_like", "new_full")},
    **{f"aten.fill.{form}": _fill for form in ("Scalar", "Tensor")},
    **{f"aten.arange.{form}": _range for form in ("default", "start", "start_step")},
    "aten.scalar_tensor.default": _scalar,
    **{f"aten.eye.{form}": _eye for form in ("default", "m")},
}
