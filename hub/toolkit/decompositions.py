"""Decompositions of operators that torch-mlir does not know or gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import inf
from typing import Any, cast

import torch
from torch import fx

from hub.plugin.table import is_symbolic, overload_of
from hub.toolkit.arguments import Decompositions
from hub.toolkit.functions import halved
from hub.toolkit.sizes import size_of
from hub.torch_private import get_decompositions, infer_size

UNKNOWN = (
    "addmv.default",
    "all.dims",
    "any.dims",
    "native_batch_norm.default",
    "logaddexp.default",
    "eye.default",
    "eye.m",
)
"""Operators without a rule in torch-mlir 20261001, or whose rule fails in a later stage; decomposed as in PyTorch."""
WRONG = ("clamp.Tensor",)
"""Operators in which torch-mlir 20261001 loses NaN; decomposed as in PyTorch."""
SHIFTS = {"left": "__lshift__", "right": "__rshift__"}
_HALVES: Mapping[torch.dtype, str] = {torch.float16: "f16", torch.bfloat16: "bf16"}
_GPU = ("cuda",)
_EVERYWHERE = ("cpu", *_GPU)


def _overload(name: str) -> Any:
    return overload_of(f"aten.{name}")


def completed(table: Decompositions) -> Decompositions:
    """Return torch-mlir's table extended by what it lacks or gets wrong."""
    return layered(table, _further())


def layered(*tables: Decompositions) -> Decompositions:
    """Return the tables as one, in which a later table's entry leaves to an earlier one's what it has no answer for."""
    found: dict[Any, Callable[..., Any]] = {}
    for table in tables:
        for operator, function in table.items():
            found[operator] = _first_of(function, found[operator]) if operator in found else function
    return found


def _first_of(function: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    def said(*args: Any, **options: Any) -> Any:
        found = function(*args, **options)
        return other(*args, **options) if found is NotImplemented else found

    return said


def composites_said(module: fx.GraphModule) -> None:
    """Replace operators that PyTorch would decompose before consulting any table by functions of ours."""
    for name, function in _COMPOSITES.items():
        for node in module.graph.find_nodes(op="call_function", target=_overload(name)):
            node.target = function
    module.recompile()


def said_by_pytorch(*names: str) -> Decompositions:
    """Return PyTorch's own decompositions of the named operators."""
    return get_decompositions([_overload(name) for name in names])


def keeping_nan() -> Decompositions:
    """Return maximum, minimum and clamps as comparisons that keep NaN, which torch-mlir's linalg loses."""
    found: dict[Any, Callable[..., Any]] = {}
    for name in ("maximum.default", "max.other"):
        found[_overload(name)] = _larger
    for name in ("minimum.default", "min.other"):
        found[_overload(name)] = _smaller
    for name in ("clamp.default", "clamp.Tensor", "hardtanh.default"):
        found[_overload(name)] = _clamped if name.startswith("clamp") else _hardtanh
    for form in ("default", "Tensor"):
        found[_overload(f"clamp_min.{form}")] = _larger
        found[_overload(f"clamp_max.{form}")] = _smaller
    return found


def keeping_zeros() -> Decompositions:
    """Return clamps to zero as comparisons that keep minus zero, as PyTorch does on a CPU."""
    return {
        _overload("relu.default"): partial(_limited, least=0),
        _overload("relu6.default"): partial(_limited, least=0, most=6),
        _overload("hardtanh.default"): _hard,
        _overload("clamp.default"): _limited,
        _overload("clamp_min.default"): _limited,
        _overload("clamp_max.default"): _limited_above,
    }


def views_through_one_dim() -> Decompositions:
    """Return changes of shape with symbolic sizes in steps that torch-mlir 20261001 gets right.

    Each step makes one dim of several, or several of one, next to dims that stay. From [a, b] as [a * b / 3, 3] torch-mlir
    makes [a, 3].
    """
    return {_overload("view.default"): _in_steps, _overload("_unsafe_view.default"): _in_steps}


def _in_steps(value: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    if not any(map(is_symbolic, (*value.shape, *shape))):
        return NotImplemented
    wanted = infer_size(tuple(shape), value.numel())
    return value.reshape(-1).reshape(wanted) if _is_mixed(value.shape, wanted) else NotImplemented


def _is_mixed(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Return whether several dims become several others."""
    before, after = list(map(size_of, old)), list(map(size_of, new))
    for end in (0, -1):
        while before and after and before[end] == after[end]:
            del before[end], after[end]
    return len(before) > 1 and len(after) > 1


def by_elements() -> Decompositions:
    """Return correct decompositions of elementwise functions that torch-mlir 20261001 gets wrong.

    These are remainders and floors of quotients, which it derives from rounded quotients; square roots written as powers;
    equality of a tensor with itself, which it also reports for NaN; hardshrink, where NaN becomes 0; comparisons of a known
    float with an integer, which it folds wrongly (2.0 < 0); argmax and argmin, in which it skips NaN; sizes of integers,
    none of which compilers take for negative; and half precision with other dtypes, which it rounds at other points.
    """
    found: dict[Any, Callable[..., Any]] = {
        _overload("abs.default"): _size,
        _overload("hardshrink.default"): _shrunk,
        _overload("mean.default"): _mean,
        _overload("mean.dim"): _mean,
        _overload("fmax.default"): _passing_over_nan(_larger),
        _overload("fmin.default"): _passing_over_nan(_smaller),
    }
    for form in ("Tensor", "Scalar"):
        for name in ("lt", "le", "gt", "ge", "eq", "ne"):
            found[_overload(f"{name}.{form}")] = _compared(_overload(f"{name}.{form}"))
        for name in ("add", "sub", "rsub"):
            found[_overload(f"{name}.{form}")] = _of_halves(_overload(f"{name}.{form}"), _GPU)
        for name in ("mul", "div"):
            found[_overload(f"{name}.{form}")] = _of_halves(_overload(f"{name}.{form}"), _EVERYWHERE)
    found[_overload("eq.Tensor")] = _equal
    for form in ("Tensor", "Scalar"):
        found[_overload(f"fmod.{form}")] = _fmod
        found[_overload(f"remainder.{form}")] = _remainder
        found[_overload(f"div.{form}_mode")] = _divided
    found[_overload("pow.Tensor_Scalar")] = _root
    for form in ("default", "Scalar"):
        found[_overload(f"floor_divide.{form}")] = _floor_divided
    for name, extreme in (("max", "amax"), ("min", "amin")):
        found[_overload(f"arg{name}.default")] = _place_of(_overload(f"{extreme}.default"))
        found[_overload(f"{name}.dim")] = _value_and_place_of(_overload(f"{extreme}.default"))
    return found


def _equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    is_itself = left is right and left.dtype.is_floating_point
    return torch.logical_not(torch.isnan(left)) if is_itself else _compared(_overload("eq.Tensor"))(left, right)


def _compared(operator: Any) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    rounded = _of_halves(operator)

    def said(value: torch.Tensor, other: Any) -> torch.Tensor:
        is_other = value.dtype.is_floating_point and isinstance(other, int)
        return rounded(value, float(other) if is_other else other, is_changed=is_other)

    return said


def _of_halves(operator: Any, exact: Sequence[str] = ()) -> Callable[..., Any]:
    """Return an operator that rounds operands to half precision first, as PyTorch does.

    On devices of the types `exact`, it leaves a right operand that is one number as it is, and computes in float32.
    """

    def said(left: Any, right: Any, *factor: Any, is_changed: bool = False, **options: Any) -> Any:
        dtype = torch.result_type(left, right)
        if dtype not in _HALVES:
            return operator(left, right, *factor, **options) if is_changed else NotImplemented
        device = (left if isinstance(left, torch.Tensor) else right).device
        if device.type in exact and _is_one_number(right):
            if not _is_rounded(right, dtype):
                return operator(_single(left), _single(right), *factor, **options).to(dtype)
        elif not (_is_rounded(left, dtype) and _is_rounded(right, dtype)):
            return operator(_rounded(left, dtype), _rounded(right, dtype), *factor, **options)
        return operator(left, right, *factor, **options) if is_changed else NotImplemented

    return said


def _is_one_number(item: Any) -> bool:
    """Return whether PyTorch's kernels take an operand for a number."""
    if not isinstance(item, torch.Tensor):
        return True
    return item.device.type == "cpu" and all(not is_symbolic(size) and size == 1 for size in item.shape)


def _is_rounded(item: Any, dtype: torch.dtype) -> bool:
    """Return whether an operand has a half-precision dtype, or is a number that has the same value there."""
    if isinstance(item, torch.Tensor):
        return item.dtype == dtype
    return not isinstance(item, (int, float)) or halved(item, _HALVES[dtype]) == item


def _rounded(item: Any, dtype: torch.dtype) -> Any:
    """Return an operand rounded to half precision."""
    if isinstance(item, torch.Tensor):
        return item.to(dtype)
    return halved(item, _HALVES[dtype]) if isinstance(item, (int, float)) else item


def _single(item: Any) -> Any:
    return item.to(torch.float32) if isinstance(item, torch.Tensor) else item


def _size(value: torch.Tensor) -> torch.Tensor:
    is_whole = not value.dtype.is_floating_point and value.dtype.is_signed
    return torch.where(value < 0, -value, value) if is_whole else NotImplemented


def _shrunk(value: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    limit = _rounded(lambd, value.dtype) if value.dtype in _HALVES else lambd
    return torch.where((value >= -limit) & (value <= limit), _tensor(0, value), value)


def _mean(value: torch.Tensor, *rest: Any, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Return a mean; in half precision, it is the rounded one of wider numbers."""
    if dtype not in _HALVES or value.dtype == dtype:
        return NotImplemented
    return value.to(torch.float32).mean(*rest, **options).to(dtype)


def _passing_over_nan(chosen: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    def said(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left, right, dtype = _alike(left, right)
        found = torch.where(left != left, right, torch.where(right != right, left, chosen(left, right)))
        return found.to(dtype)

    return said


def _root(value: torch.Tensor, exponent: Any) -> torch.Tensor:
    """Return a root as PyTorch computes it: that of minus infinity is NaN, whereas as a power it is infinity.

    PyTorch computes float16 to the power of a half like any other power.
    """
    if exponent not in (0.5, -0.5) or not value.dtype.is_floating_point:
        return NotImplemented
    if value.dtype == torch.float16:
        wide = value.to(torch.float32)
        wide = torch.where((wide == 0) | (wide == -inf), wide.abs(), wide)
        return (wide.sqrt() if exponent > 0 else wide.rsqrt()).to(value.dtype)
    return value.sqrt() if exponent > 0 else value.rsqrt()


def _fmod(left: Any, right: Any) -> torch.Tensor:
    """Return the exact remainder, with the dividend's sign."""
    left, right, dtype = _alike(left, right)
    return _rest(left, right).to(dtype)


def _remainder(left: Any, right: Any) -> torch.Tensor:
    """Return the remainder, with the divisor's sign."""
    if _taken_as_it_is:
        return NotImplemented
    left, right, dtype = _alike(left, right)
    rest = _rest(left, right)
    return torch.where(_has_wrong_sign(rest, right), rest + right, rest).to(dtype)


def _floor_divided(left: Any, right: Any) -> torch.Tensor:
    is_exact = _is_one_number(right)
    left, right, dtype = _alike(left, right, is_exact=is_exact)

    def kept(value: torch.Tensor) -> torch.Tensor:
        return value if is_exact else value.to(dtype).to(left.dtype)

    rest = _rest(left, right)
    if not dtype.is_floating_point:
        whole = torch.div(left, right, rounding_mode="trunc")
        return torch.where(_has_wrong_sign(rest, right), whole - 1, whole)
    # As in PyTorch (`div_floor_floating`): without the remainder, the quotient is whole except for rounding.
    quotient = kept(kept(left - rest) / right)
    quotient = torch.where(_has_wrong_sign(rest, right), kept(quotient - 1), quotient)
    floor = quotient.floor()
    floor = torch.where(kept(quotient - floor) > 0.5, floor + 1, floor)
    floor = torch.where(quotient == 0, (left / right) * 0, floor)
    return torch.where(right == 0, left / right, floor).to(dtype)


def _divided(left: Any, right: Any, *, rounding_mode: str | None) -> torch.Tensor:
    if rounding_mode is None:
        return torch.true_divide(left, right)
    if rounding_mode == "floor":
        return _floor_divided(left, right)
    return _of_halves(_overload("div.Tensor_mode"), _EVERYWHERE)(left, right, rounding_mode=rounding_mode)


def _has_wrong_sign(rest: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return whether a remainder is nonzero and its sign differs from the divisor's."""
    return (rest != 0) & ((rest < 0) ^ (right < 0))


_taken_as_it_is: list[bool] = []
"""Nonempty while an operator that is decomposed into itself is left alone; only one thread traces at a time."""


def _rest(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the remainder with the dividend's sign.

    For floats, torch-mlir turns `remainder` into one exact operator, with the dividend's sign for StableHLO and the
    divisor's for linalg: for positive operands both are the same.
    """
    if not left.dtype.is_floating_point:
        return left - torch.div(left, right, rounding_mode="trunc") * right
    _taken_as_it_is.append(True)
    try:
        rest = torch.remainder(left.abs(), right.abs())
    finally:
        _taken_as_it_is.pop()
    return torch.where(left < 0, -rest, rest)


def _place_of(extreme: Any) -> Callable[..., torch.Tensor]:
    """Return `argmax` or `argmin` for floats: the first position of NaN, otherwise of the extreme."""

    def said(value: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
        if not value.dtype.is_floating_point:
            return NotImplemented
        best = extreme(value, [] if dim is None else [dim], True)
        is_best = ((value == best) | (value != value)).to(torch.int32)
        return torch.argmax(is_best, dim, keepdim)

    return said


def _value_and_place_of(extreme: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    place = _place_of(extreme)

    def said(value: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        if not value.dtype.is_floating_point:
            return NotImplemented
        return extreme(value, [dim], keepdim), place(value, dim, keepdim)

    return said


def _alike(left: Any, right: Any, *, is_exact: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    """Return two tensors of one dtype, either of which may have been a number, and the dtype of the result.

    Half precision becomes float32, in which PyTorch computes it; operands are rounded to half precision first, as in
    PyTorch, the right one not if `is_exact`.
    """
    dtype = torch.result_type(left, right)
    computed = torch.float32 if dtype in _HALVES else dtype
    kinds = (dtype, computed if is_exact else dtype)
    first, second = (
        (item.to(kind) if isinstance(item, torch.Tensor) else torch.full((), item, dtype=kind, device="cpu")).to(computed)
        for item, kind in zip((left, right), kinds, strict=True)
    )
    return first, second, dtype


def _rms_norm(
    value: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Return the result of `rms_norm`; half precision is computed in float32."""
    wide = value.to(torch.float32) if value.dtype in (torch.float16, torch.bfloat16) else value
    dims = list(range(-len(shape), 0))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    normed = wide * torch.rsqrt((wide * wide).mean(dims, True) + least)
    return (normed if weight is None else normed * weight).to(value.dtype)


def _larger(value: torch.Tensor, other: Any) -> torch.Tensor:
    bound = _tensor(other, value)
    if _keeps_zeros(value, other):
        return torch.where(value < bound, bound, value)
    return torch.where((value > bound) | (value != value), value, bound)


def _smaller(value: torch.Tensor, other: Any) -> torch.Tensor:
    bound = _tensor(other, value)
    if _keeps_zeros(value, other):
        return torch.where(value > bound, bound, value)
    return torch.where((value < bound) | (value != value), value, bound)


def _clamped(value: torch.Tensor, least: Any = None, most: Any = None) -> torch.Tensor:
    raised = value if least is None else _larger(value, least)
    return raised if most is None else _smaller(raised, most)


def _keeps_zeros(value: torch.Tensor, limit: Any) -> bool:
    """Return whether zeros keep their sign at a limit: at zero, and if it is not a tensor. On a GPU they do not."""
    return value.dtype.is_floating_point and value.device.type == "cpu" and isinstance(limit, (int, float)) and limit == 0


def _limited(value: torch.Tensor, least: Any = None, most: Any = None) -> torch.Tensor:
    if not (_keeps_zeros(value, least) or _keeps_zeros(value, most)):
        return NotImplemented
    if least is not None:
        value = _larger(value, least) if least == 0 else value.clamp_min(least)
    return value if most is None else _smaller(value, most) if most == 0 else value.clamp_max(most)


def _hard(value: torch.Tensor, least: Any = -1, most: Any = 1) -> torch.Tensor:
    return _limited(value, least, most)


def _limited_above(value: torch.Tensor, most: Any) -> torch.Tensor:
    return _limited(value, None, most)


def _hardtanh(value: torch.Tensor, least: Any = -1, most: Any = 1) -> torch.Tensor:
    return _clamped(value, least, most)


def _tensor(number: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(number, torch.Tensor):
        return number
    return torch.full((), number, dtype=torch.result_type(like, number), device="cpu")  # not the user's default device


def _averaged_to(name: str) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor]:
    """Return an adaptive average pooling. An average of everything is a mean.

    PyTorch also makes it a mean, but sets the result's strides in place if channels are last in memory, which torch-mlir
    has no rule for.
    """
    operator, rank = _overload(f"adaptive_avg_pool{name}.default"), int(name[0])

    def said(value: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
        is_whole = all(size == 1 for size in output_size)
        return value.mean(list(range(-rank, 0)), True) if is_whole else operator(value, output_size)

    return said


_COMPOSITES = {
    "rms_norm.default": _rms_norm,
    **{f"adaptive_avg_pool{name}.default": _averaged_to(name) for name in ("1d", "2d", "3d")},
}


@cache
def _further() -> Decompositions:
    found = {**said_by_pytorch(*UNKNOWN, *WRONG), **by_elements(), **keeping_zeros()}
    found[overload_of("prims.copy_strided.default")] = _copied  # in PyTorch's index_fill of a transposed tensor
    for name in ("and", "or", "xor"):
        found[_overload(f"bitwise_{name}.Scalar")] = _between(_overload(f"bitwise_{name}.Tensor"))
    for side, short in SHIFTS.items():
        shift = _between(_overload(f"bitwise_{side}_shift.Tensor"))
        for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
            found[_overload(f"bitwise_{side}_shift.{form}")] = shift
        found[_overload(f"{short}.Scalar")] = found[_overload(f"{short}.Tensor")] = shift
    return found


def _copied(value: torch.Tensor, _: Sequence[int]) -> torch.Tensor:
    """Copy without the strides asked for: tensors of compilers have none."""
    return value.clone()


def _between(operator: Any) -> Callable[[Any, Any], Any]:
    """Return an operator on two tensors that also takes numbers and other shapes: torch-mlir's shifts do not broadcast.

    It may be decomposed into itself: tensors of one shape and dtype are then left alone.
    """

    def taken(left: Any, right: Any) -> Any:
        if _taken_as_it_is:
            return NotImplemented
        dtype = torch.result_type(left, right)
        found = [
            item.to(dtype) if isinstance(item, torch.Tensor) else torch.full((), item, dtype=dtype, device="cpu")
            for item in (left, right)
        ]
        first, second = cast("Any", torch).broadcast_tensors(*found)
        _taken_as_it_is.append(True)
        try:
            return operator(first, second)
        finally:
            _taken_as_it_is.pop()

    return taken
