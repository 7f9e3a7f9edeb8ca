"""Lowers positions of extremes, and sorting."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .call import Call, lowers
from .reduce import with_nan

_BEYOND_FLOAT32 = 1e300


def _position(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        value = call.input("self")
        if call["dim"] is None:
            flat = call.op("Reshape", value, call.ints(-1))
            return call.reshape(_first(call, kind, flat, 0, 0), (), call.out_shape)
        return _first(call, kind, value, call.dim("dim"), int(call["keepdim"]))

    return rule


def _first(call: Call, kind: str, value: str, axis: int, keep: int) -> str:
    """Return the position of the extreme, or of the first NaN if there is one."""
    found = call.op(kind, value, axis=axis, keepdims=keep)
    if not call.dtype("self").is_floating_point:
        return found
    flags = call.builder.cast(call.op("IsNaN", value), torch.bool, torch.int32)
    place = call.op("ArgMax", flags, axis=axis, keepdims=keep)
    is_any = call.builder.cast(call.op("ReduceMax", flags, call.ints(axis), keepdims=keep), torch.int32, torch.bool)
    return call.op("Where", is_any, place, found)


lowers("argmax.default")(_position("ArgMax"))
lowers("argmin.default")(_position("ArgMin"))


@lowers("max.dim", "min.dim")
def extreme_with_position(call: Call) -> tuple[str, str]:
    """Return the extreme and its position along one dim."""
    word = "Max" if ".max." in str(call.node.target) else "Min"
    value, axis, keep = call.input("self"), call.dim("dim"), int(call["keepdim"])
    extreme = call.op(f"Reduce{word}", value, call.ints(axis), keepdims=keep)
    extreme = with_nan(call, extreme, value, lambda flags: call.op("ReduceMax", flags, call.ints(axis), keepdims=keep))
    return extreme, _first(call, f"Arg{word}", value, axis, keep)


@lowers("topk.default")
def topk(call: Call) -> tuple[str, ...]:
    """Return the k largest or smallest elements of one dim, in order, and their positions."""
    return _ordered(call, call.builder.size(call.size(call["k"])), largest=call["largest"])


@lowers("sort.default", "sort.stable")
def sort(call: Call) -> tuple[str, ...]:
    """Return one dim in order, and the positions; equal elements keep their order, which only `sort.stable` guarantees."""
    return _sorted(call)


@lowers("argsort.stable")
def argsort(call: Call) -> str:
    """Return the positions that sort one dim."""
    return _sorted(call)[1]


def _sorted(call: Call) -> tuple[str, ...]:
    return _ordered(call, call.builder.size(call.shape("self")[call.dim("dim")]), largest=call["descending"])


def _ordered(call: Call, count: str, *, largest: bool) -> tuple[str, ...]:
    """Return elements in order and their positions. ORT compares with NaN, which PyTorch sorts as the largest.

    Therefore float32 is sorted as float64, with infinity for NaN and a number beyond float32's range for infinity.
    """
    value, axis = call.input("self"), call.dim("dim")
    if not call.dtype("self").is_floating_point:
        return call.ops("TopK", value, count, n_outputs=2, axis=axis, largest=int(largest), sorted=1)
    key = call.typed("self", torch.float64)
    key = call.op("Min", key, call.constant(_BEYOND_FLOAT32, torch.float64))
    key = call.op("Where", call.op("IsNaN", value), call.constant(float("inf"), torch.float64), key)
    _, places = call.ops("TopK", key, count, n_outputs=2, axis=axis, largest=int(largest), sorted=1)
    return call.op("GatherElements", value, places, axis=axis), places
