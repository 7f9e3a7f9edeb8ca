"""Operators that combine elements along dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hub.toolkit.builders import (
    FLOATS,
    broadcast,
    cast,
    count_of,
    fill,
    iota,
    normal_dims,
    pointwise,
    reduced,
    reshaped,
    scanned,
    select,
)
from hub.toolkit.rules.call import Call, Rule, computing
from hub.toolkit.rules.elementwise import add, div, eq, exp, log, maximum, mul, ne, number, sqrt, sub
from hub.toolkit.sizes import Size
from hub.toolkit.tensors import Number, Tensor


def _dims(call: Call, source: Tensor, name: str = "dim") -> tuple[int, ...]:
    """Return the dims of an argument; all if it is None or empty."""
    value = call.raw(name) if call.has(name) else None
    rank = len(source.shape)
    if value is None or value == []:
        return tuple(range(rank))
    return normal_dims([value] if isinstance(value, int) else value, rank)


def as_number(size: Size, like: Tensor) -> Tensor:
    """Return a size as a number in a tensor's dtype."""
    return fill(size, like.dtype) if isinstance(size, int) else cast(Number((), "i64", size), like.dtype)


def total(source: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the sum along dims, which are kept with size 1."""
    return reduced("sum", source, dims)


def mean_of(source: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the mean along dims, which are kept with size 1."""
    return div(total(source, dims), as_number(count_of(source, dims), source))


def spread_of(source: Tensor, dims: Sequence[int], correction: float) -> tuple[Tensor, Tensor]:
    """Return variance and mean; the count minus the correction is clamped to at least 0."""
    mean = mean_of(source, dims)
    away = sub(source, mean)
    return div(total(mul(away, away), dims), _left(count_of(source, dims), correction, source)), mean


def _left(count: Size, correction: float, like: Tensor) -> Tensor:
    if isinstance(count, int):
        return number(max(count - correction, 0.0), like)
    return maximum(sub(as_number(count, like), number(correction, like)), number(0.0, like))


def log_total(source: Tensor, dims: Sequence[int]) -> Tensor:
    """Return log(sum(exp(x))), computed without overflow."""
    top = reduced("max", source, dims)
    safe = select(eq(pointwise("abs", top), number(math.inf, top)), number(0.0, top), top)
    return add(log(total(exp(sub(source, safe)), dims)), safe)


def softmax(source: Tensor, dim: int) -> Tensor:
    """Return exp(x) over its sum."""
    powers = exp(sub(source, reduced("max", source, (dim,))))
    return div(powers, total(powers, (dim,)))


def safe_softmax(source: Tensor, dim: int) -> Tensor:
    """Return the softmax, and 0 for a row of minus infinity only."""
    top = reduced("max", source, (dim,))
    is_empty = eq(top, number(-math.inf, top))
    powers = exp(sub(source, top))
    return select(broadcast(is_empty, source.shape), number(0.0, source), div(powers, total(powers, (dim,))))


def log_softmax(source: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the softmax."""
    away = sub(source, reduced("max", source, (dim,)))
    return sub(away, log(total(exp(away), (dim,))))


def first_place(source: Tensor, dim: int, extreme: Tensor) -> Tensor:
    """Return the first index along a dim where an element equals the extreme; NaN counts as equal."""
    hit = eq(source, extreme)
    if source.dtype in FLOATS:
        hit = pointwise("or", hit, ne(source, source))
    return reduced("min", select(hit, iota(source.shape, dim), fill(2**62, "i64")), (dim,))


# --- Rules ------------------------------------------------------------------------------------------------------------


def _shaped(tensor: Tensor, call: Call, place: int | None = None) -> Tensor:
    shape, dtype = call.result(place)
    return reshaped(cast(tensor, dtype), shape)


def _summed(function: str) -> Rule:
    def rule(call: Call) -> Tensor:
        source = computing(cast(call.first(), call.dtype))
        return _shaped(reduced(function, source, _dims(call, source)), call)

    return rule


def _mean(call: Call) -> Tensor:
    """Unlike a sum, a mean in half precision is one of float32."""
    source = cast(call.first(), call.dtype if call.dtype not in ("f16", "bf16") else "f32")
    return _shaped(mean_of(source, _dims(call, source)), call)


def _extreme(function: str) -> Rule:
    def rule(call: Call) -> Tensor:
        source = computing(call.first())
        return _shaped(reduced(function, source, _dims(call, source)), call)

    return rule


def _extreme_with_place(function: str) -> Rule:
    def rule(call: Call) -> tuple[Tensor, Tensor]:
        source = computing(call.first())
        dim = call.raw("dim") % len(source.shape)
        top = reduced(function, source, (dim,))
        return _shaped(top, call, 0), _shaped(first_place(source, dim, top), call, 1)

    return rule


def _place_of(function: str) -> Rule:
    def rule(call: Call) -> Tensor:
        source = computing(call.first())
        if call.raw("dim") is None:
            source = reshaped(source, (count_of(source, range(len(source.shape))),))
        dim = (call.raw("dim") or 0) % len(source.shape)
        return _shaped(first_place(source, dim, reduced(function, source, (dim,))), call)

    return rule


def _truth(function: str) -> Rule:
    def rule(call: Call) -> Tensor:
        source = cast(call.first(), "i1")
        dims = () if call.has("dim") and call.raw("dim") == [] else _dims(call, source)  # no dims are none, not all
        return _shaped(reduced(function, source, dims), call)

    return rule


def _count(call: Call) -> Tensor:
    source = cast(cast(call.first(), "i1"), "i64")
    return _shaped(total(source, _dims(call, source)), call)


def _correction(call: Call) -> float:
    if call.has("unbiased"):
        return 1.0 if call.raw("unbiased") else 0.0
    return float(call.raw("correction")) if call.has("correction") else 1.0


def _variance(*, is_root: bool, with_mean: bool = False) -> Rule:
    def rule(call: Call) -> Tensor | tuple[Tensor, Tensor]:
        source = cast(call.first(), "f64")  # so that equal values have variance 0, as in PyTorch
        spread, mean = spread_of(source, _dims(call, source), _correction(call))
        spread = sqrt(spread) if is_root else spread
        return (_shaped(spread, call, 0), _shaped(mean, call, 1)) if with_mean else _shaped(spread, call)

    return rule


def _log_sum(call: Call) -> Tensor:
    source = computing(call.first())
    return _shaped(log_total(source, _dims(call, source)), call)


def _norm(call: Call) -> Tensor:
    source = computing(cast(call.first(), call.dtype))
    order = call.raw("ord")
    dims = _dims(call, source)
    size = pointwise("abs", source)
    if order in (math.inf, -math.inf):
        found = reduced("max" if order > 0 else "min", size, dims)
    elif order == 0:
        found = total(cast(ne(source, number(0.0, source)), source.dtype), dims)
    elif order == 1:
        found = total(size, dims)
    else:
        found = sqrt(total(mul(source, source), dims))
    return _shaped(found, call)


def _soft(function: object) -> Rule:
    def rule(call: Call) -> Tensor:
        source = computing(cast(call.first(), call.dtype))
        if not source.shape:
            return cast(reshaped(function(reshaped(source, (1,)), 0), ()), call.dtype)  # type: ignore[operator]
        return cast(function(source, call.raw("dim") % len(source.shape)), call.dtype)  # type: ignore[operator]

    return rule


def _running(function: str) -> Rule:
    def rule(call: Call) -> Tensor:
        source = cast(call.first(), call.dtype)
        if not source.shape:
            return source
        kind = "f32" if call.dtype in ("f16", "bf16") else call.dtype
        return cast(scanned(function, cast(source, kind), call.raw("dim") % len(source.shape)), call.dtype)

    return rule


RULES: dict[str, Rule] = {
    **{f"aten.sum.{form}": _summed("sum") for form in ("default", "dim_IntList")},
    **{f"aten.prod.{form}": _summed("prod") for form in ("default", "dim_int")},
    **{f"aten.mean.{form}": _mean for form in ("default", "dim")},
    **{f"aten.{name}.default": _extreme("max") for name in ("amax", "max")},
    **{f"aten.{name}.default": _extreme("min") for name in ("amin", "min")},
    "aten.max.dim": _extreme_with_place("max"),
    "aten.min.dim": _extreme_with_place("min"),
    "aten.argmax.default": _place_of("max"),
    "aten.argmin.default": _place_of("min"),
    **{f"aten.any.{form}": _truth("any") for form in ("default", "dim", "dims")},
    **{f"aten.all.{form}": _truth("all") for form in ("default", "dim", "dims")},
    **{f"aten.count_nonzero.{form}": _count for form in ("default", "dim_IntList")},
    **{f"aten.var.{form}": _variance(is_root=False) for form in ("default", "dim", "correction")},
    **{f"aten.std.{form}": _variance(is_root=True) for form in ("default", "dim", "correction")},
    "aten.var_mean.correction": _variance(is_root=False, with_mean=True),
    "aten.std_mean.correction": _variance(is_root=True, with_mean=True),
    "aten.logsumexp.default": _log_sum,
    "aten.linalg_vector_norm.default": _norm,
    **{f"aten.{name}": _soft(softmax) for name in ("softmax.int", "_softmax.default")},
    **{f"aten.{name}": _soft(log_softmax) for name in ("log_softmax.int", "_log_softmax.default")},
    "aten._safe_softmax.default": _soft(safe_softmax),
    "aten.cumsum.default": _running("sum"),
    "aten.cumprod.default": _running("prod"),
}
