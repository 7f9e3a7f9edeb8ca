"""Lowers reductions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hub.plugin import value_of

from .call import Call, lowers
from .create import filled


def _axes(call: Call) -> str:
    return call.ints(*(call.dims("dim") if "dim" in call.declared else range(call.rank("self"))))


def _keep(call: Call) -> int:
    return int("keepdim" in call.declared and call["keepdim"])


def reduce(call: Call, kind: str, value: str, keep: int | None = None) -> str:
    """Reduce `value` over the call's dims; a 0-d value is its own sum, product and extreme."""
    if call.rank("self") == 0:
        return value
    return call.op(kind, value, _axes(call), keepdims=_keep(call) if keep is None else keep)


def _reducing(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        return reduce(call, kind, call.typed("self"))

    return rule


lowers("mean.default", "mean.dim")(_reducing("ReduceMean"))
lowers("prod.default", "prod.dim_int")(_reducing("ReduceProd"))

_HALF = 2**32


@lowers("sum.default", "sum.dim_IntList")
def total(call: Call) -> str:
    """Return the sum over dims. ORT adds int64 in double, so halves of numbers are added separately; overflow wraps."""
    value = call.typed("self")
    if call.out_dtype is not torch.int64 or call.dtype("self") is not torch.int64:
        return reduce(call, "ReduceSum", value)
    half = call.constant(_HALF)
    low = call.op("Mod", value, half)
    high = call.op("Div", call.op("Sub", value, low), half)
    return call.op("Add", call.op("Mul", reduce(call, "ReduceSum", high), half), reduce(call, "ReduceSum", low))


def _extreme(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        value = call.typed("self")
        result = reduce(call, kind, value)
        return with_nan(call, result, value, lambda flags: reduce(call, "ReduceMax", flags))

    return rule


def with_nan(call: Call, result: str, value: str, gather: Callable[[str], str]) -> str:
    """Return `result`, or NaN where `value` holds one: ORT's extremes skip NaN, PyTorch's return it."""
    if not call.out_dtype.is_floating_point:
        return result
    return call.op("Where", gather(call.op("IsNaN", value)), call.constant(float("nan")), result)


for _name, _kind in {"amax": "ReduceMax", "amin": "ReduceMin"}.items():
    lowers(f"{_name}.default", f"{_name[1:]}.default")(_extreme(_kind))


def _boolean(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        if "dim" in call.declared and call["dim"] == []:
            return call.typed("self", torch.bool)  # without dims, these two reduce nothing, unlike sums
        if any(isinstance(size, int) and size == 0 for size in call.shape("self")):
            return filled(call, kind == "ReduceMin")  # ORT has no extreme of no elements
        return reduce(call, kind, call.typed("self", torch.bool))

    return rule


for _name, _kind in {"any": "ReduceMax", "all": "ReduceMin"}.items():
    lowers(f"{_name}.default", f"{_name}.dim", f"{_name}.dims")(_boolean(_kind))


@lowers("logsumexp.default")
def logsumexp(call: Call) -> str:
    """Return the largest element plus the logarithm of the sum of exponents of differences, which cannot overflow."""
    value = call.typed("self")
    peak = reduce(call, "ReduceMax", value, keep=1)
    endless = call.op("IsInf", peak)
    peak = call.op("Where", endless, call.constant(0.0), peak)
    total = call.op(
        "Add", call.op("Log", reduce(call, "ReduceSum", call.op("Exp", call.op("Sub", value, peak)), keep=1)), peak
    )
    return total if _keep(call) or call.rank("self") == 0 else call.squeeze(total, *call.dims("dim"))


def _moments(call: Call, correction: float) -> tuple[str, str]:
    """Return the mean, and the variance with n - correction in the divisor, in two passes by differences from the mean."""
    value = call.input("self")
    mean = reduce(call, "ReduceMean", value, keep=1)
    away = call.op("Sub", value, mean)
    squares = call.op("Mul", away, away)
    if correction == 0:
        return mean, reduce(call, "ReduceMean", squares, keep=_keep(call))
    dims = call.dims("dim") if _has_dim(call) else list(range(call.rank("self")))
    count = 1
    for dim in dims:
        count = count * call.shape("self")[dim]
    freedom = call.builder.cast(call.builder.scalar_size(count), torch.int64, call.out_dtype)
    divisor = call.op("Max", call.op("Sub", freedom, call.constant(float(correction))), call.constant(0.0))
    return mean, call.op("Div", reduce(call, "ReduceSum", squares, keep=_keep(call)), divisor)


def _has_dim(call: Call) -> bool:
    return "dim" in call.declared


def _correction(call: Call) -> float:
    if "unbiased" in call.declared:
        return float(call["unbiased"])
    return 1.0 if call["correction"] is None else float(call["correction"])


@lowers("var.default", "var.dim", "var.correction")
def variance(call: Call) -> str:
    """Return the variance over dims."""
    return _moments(call, _correction(call))[1]


@lowers("std.default", "std.dim", "std.correction")
def deviation(call: Call) -> str:
    """Return the standard deviation over dims."""
    return call.op("Sqrt", _moments(call, _correction(call))[1])


@lowers("var_mean.correction")
def variance_and_mean(call: Call) -> tuple[str, str]:
    """Return variance and mean over dims."""
    mean, found = _moments(call, _correction(call))
    mean = call.op("Where", call.op("IsInf", mean), call.constant(float("nan")), mean)  # like eager's running mean
    return found, mean if _keep(call) else call.squeeze(mean, *call.dims("dim"))


@lowers("std_mean.correction")
def deviation_and_mean(call: Call) -> tuple[str, str]:
    """Return standard deviation and mean over dims."""
    found, mean = variance_and_mean(call)
    return call.op("Sqrt", found), mean


@lowers("linalg_vector_norm.default")
def vector_norm(call: Call) -> str:
    """Return the norm of order 1, 2 or infinity over dims."""
    value, order = call.typed("self"), float(call["ord"])
    if order == 2.0:
        return call.op("Sqrt", reduce(call, "ReduceSum", call.op("Mul", value, value)))
    if order == 1.0:
        return reduce(call, "ReduceSum", call.op("Abs", value))
    return with_nan(
        call, reduce(call, "ReduceMax", call.op("Abs", value)), value, lambda flags: reduce(call, "ReduceMax", flags)
    )


@lowers("count_nonzero.default")
def count_nonzero(call: Call) -> str:
    """Return the number of elements that are not zero."""
    flags = call.builder.cast(call.typed("self", torch.bool), torch.bool, torch.int64)
    axes = range(value_of(call["self"]).dim()) if call["dim"] is None else (call.dim("dim"),)
    return flags if call.rank("self") == 0 else call.op("ReduceSum", flags, call.ints(*axes), keepdims=0)
