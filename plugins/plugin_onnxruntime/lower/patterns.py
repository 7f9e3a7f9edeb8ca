"""Finds compositions that models write out and for which ORT has one operator, but whose ATen form ORT's fusions miss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin import argument, operator_name

from .call import Call


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """The norm weight * (x * rsqrt(mean(x^2) + eps)), with the mean over the last dim."""

    value: fx.Node
    weight: fx.Node
    eps: float


def match_rms_norm(node: fx.Node) -> RmsNorm | None:
    """Return the parts of an RMS norm, as Llama and T5 write it, whose last product is `node`; else None.

    ORT's SimplifiedLayerNormFusion looks for a division by a root; PyTorch models multiply by rsqrt.
    """
    for weight, scaled in _both_ways(node):
        if weight.op == "get_attr" and _is_call(scaled, "aten.mul.Tensor"):
            for value, factor in _both_ways(scaled):
                eps = _inverse_root(value, factor)
                if eps is not None and _is_float_row(weight, value):
                    return RmsNorm(value, weight, eps)
    return None


def rms_normalised(call: Call, found: RmsNorm) -> str:
    """Return the norm as one ORT operator; nodes that only computed its parts are dropped."""
    names = call.name_of(found.value), call.name_of(found.weight)
    return call.op("SimplifiedLayerNormalization", *names, axis=-1, epsilon=found.eps, stash_type=1)


def _both_ways(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    one, other = node.args[:2]
    return [(one, other), (other, one)] if isinstance(one, fx.Node) and isinstance(other, fx.Node) else []


def _is_call(node: Any, operator: str) -> bool:
    return isinstance(node, fx.Node) and operator_name(node) == operator


def _inverse_root(value: fx.Node, factor: fx.Node) -> float | None:
    """Return eps if `factor` is rsqrt(mean(value^2) + eps) over the last dim; else None."""
    if not _is_call(factor, "aten.rsqrt.default"):
        return None
    total: Any = factor.args[0]
    if not _is_call(total, "aten.add.Tensor") or not isinstance(total.args[1], float) or argument(total, "alpha") != 1:
        return None
    mean, eps = total.args
    if not _is_call(mean, "aten.mean.dim") or not _is_over_last(mean):
        return None
    square: Any = mean.args[0]
    is_square = _is_call(square, "aten.pow.Tensor_Scalar") and square.args[0] is value and square.args[1] == 2
    return eps if is_square else None


def _is_over_last(mean: fx.Node) -> bool:
    last = mean.meta["val"].dim() - 1
    dims = [dim % (last + 1) for dim in argument(mean, "dim") or ()]
    return dims == [last] and bool(argument(mean, "keepdim"))


def _is_float_row(weight: fx.Node, value: fx.Node) -> bool:
    scale, tensor = weight.meta["val"], value.meta["val"]
    return tensor.dtype == scale.dtype == torch.float32 and tuple(scale.shape) == (tensor.shape[-1],)
