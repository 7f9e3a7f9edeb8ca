"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence

from hub.toolkit.builders import cast, reshaped
from hub.toolkit.rules.call import Call, Rule, computing
from hub.toolkit.rules.elementwise import add, mul, plus, reciprocal, sqrt, sub
from hub.toolkit.rules.reductions import mean_of, spread_of
from hub.toolkit.sizes import floor_div
from hub.toolkit.tensors import Tensor


def normalised(source: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return elements normalised to mean 0 and variance 1 along dims, the mean, and 1 / deviation.

    Float64 has no wider type to sum in, so the mean of what remains is subtracted again: rows of equal values become 0.
    """
    rough = mean_of(source, dims) if source.dtype == "f64" else None
    away = source if rough is None else sub(source, rough)
    spread, mean = spread_of(away, dims, 0.0)
    steepness = reciprocal(sqrt(plus(spread, eps)))
    return mul(sub(away, mean), steepness), mean if rough is None else add(mean, rough), steepness


def _scaled(result: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    result = result if weight is None else mul(result, weight)
    return result if bias is None else add(result, bias)


def _optional(call: Call, name: str) -> Tensor | None:
    return computing(call.tensor(name)) if call.has(name) else None


def _layer_norm(call: Call) -> Tensor:
    source = computing(call.tensor("input"))
    count = len(call.raw("normalized_shape"))
    dims = range(len(source.shape) - count, len(source.shape))
    result, _, _ = normalised(source, dims, call.number("eps"))
    return cast(_scaled(result, _optional(call, "weight"), _optional(call, "bias")), call.dtype)


def _native_layer_norm(call: Call) -> tuple[Tensor, ...]:
    source = computing(call.tensor("input"))
    count = len(call.raw("normalized_shape"))
    dims = range(len(source.shape) - count, len(source.shape))
    result, mean, steepness = normalised(source, dims, call.number("eps"))
    result = _scaled(result, _optional(call, "weight"), _optional(call, "bias"))
    return tuple(cast(each, call.result(place)[1]) for place, each in enumerate((result, mean, steepness)))


def _rms_norm(call: Call) -> Tensor:
    source = computing(call.tensor("input"))
    count = len(call.raw("normalized_shape"))
    dims = range(len(source.shape) - count, len(source.shape))
    eps = (
        call.number("eps")
        if call.has("eps")
        else {"f32": 1.1920928955078125e-07, "f64": 2.220446049250313e-16}[source.dtype]
    )
    steepness = reciprocal(sqrt(plus(mean_of(mul(source, source), dims), eps)))
    return cast(_scaled(mul(source, steepness), _optional(call, "weight"), None), call.dtype)


def _per_channel(tensor: Tensor | None, rank: int) -> Tensor | None:
    return None if tensor is None else reshaped(tensor, (tensor.shape[0], *([1] * (rank - 2))))


def batch_normalised(call: Call) -> Tensor:
    """Return the result of a batch norm with given statistics."""
    source = computing(call.tensor("input"))
    rank = len(source.shape)
    weight, bias, mean, spread = (
        _per_channel(_optional(call, name), rank) for name in ("weight", "bias", "running_mean", "running_var")
    )
    assert mean is not None and spread is not None
    factor = reciprocal(sqrt(plus(spread, call.number("eps"))))
    factor = factor if weight is None else mul(factor, weight)
    return _scaled(mul(sub(source, mean), factor), None, bias)


def _batch_norm(call: Call) -> Tensor:
    return cast(batch_normalised(call), call.dtype)


def _native_batch_norm(call: Call) -> tuple[Tensor, ...]:
    return (cast(batch_normalised(call), call.result(0)[1]),)


def _group_norm_of(call: Call, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    source = computing(call.tensor("input"))
    batch, channels, *space = source.shape
    each = floor_div(channels, groups)
    cut = reshaped(source, (batch, groups, each, *space))
    result, mean, steepness = normalised(cut, range(2, len(cut.shape)), call.number("eps"))
    weight, bias = (_optional(call, name) for name in ("weight", "bias"))
    ones = [1] * len(space)
    weight, bias = (part if part is None else reshaped(part, (groups, each, *ones)) for part in (weight, bias))
    return _scaled(result, weight, bias), mean, steepness


def _group_norm(call: Call) -> Tensor:
    result, _, _ = _group_norm_of(call, call.raw("num_groups"))
    return cast(reshaped(result, call.shape), call.dtype)


def _native_group_norm(call: Call) -> tuple[Tensor, ...]:
    parts = _group_norm_of(call, call.raw("group"))
    return tuple(cast(reshaped(part, call.result(place)[0]), call.result(place)[1]) for place, part in enumerate(parts))


RULES: dict[str, Rule] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": _native_layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.batch_norm.default": _batch_norm,
    **{
        f"aten.{name}.default": _native_batch_norm for name in ("_native_batch_norm_legit_no_training", "native_batch_norm")
    },
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": _native_group_norm,
}
