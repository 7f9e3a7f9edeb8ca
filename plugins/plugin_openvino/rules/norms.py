"""Rules for normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openvino import Output

from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output
from plugin_openvino.rules.elementwise import Rule

_F32 = torch.float32
_FLOAT32_EPSILON = torch.finfo(_F32).eps


def _affine(call: Call, value: Any, shape: Sequence[int] | None = None) -> Output:
    """Multiply by `weight` and add `bias`, if given, each first reshaped to `shape`."""
    for name, operation in (("weight", ops.multiply), ("bias", ops.add)):
        factor = call.optional(name)
        if factor is not None:
            value = operation(value, factor if shape is None else ops.reshape(factor, indices(shape), False))
    return output(value)


def _layer_norm(call: Call) -> Output:
    axes = indices(range(-len(call.raw("normalized_shape")), 0))
    return _affine(call, ops.mvn(call.tensor("input"), axes.get_node(), True, float(call.raw("eps")), "inside_sqrt"))


def _rms_norm(call: Call) -> Any:
    value, axes = call.tensor("input"), indices(range(-len(call.raw("normalized_shape")), 0))
    epsilon = _FLOAT32_EPSILON if call.raw("eps") is None else float(call.raw("eps"))
    mean = ops.reduce_mean(ops.multiply(value, value), axes, True)
    scale = ops.divide(constant(1, _F32), ops.sqrt(ops.add(mean, constant(epsilon, _F32))))
    result = output(ops.multiply(value, scale))
    weight = call.optional("weight")
    return result if weight is None else ops.multiply(result, weight)


def _group_norm_of(call: Call, groups: int) -> Output:
    channels = int(call.fake("input").shape[1])
    ones, zeros = constant([1.0] * channels, _F32), constant([0.0] * channels, _F32)
    weight, bias = call.optional("weight"), call.optional("bias")
    return output(
        ops.group_normalization(
            call.tensor("input"),
            ones if weight is None else weight,
            zeros if bias is None else bias,
            groups,
            float(call.raw("eps")),
        )
    )


def _group_norm(call: Call) -> Output:
    return _group_norm_of(call, int(call.raw("num_groups")))


def _native_group_norm(call: Call) -> Any:
    return _group_norm_of(call, int(call.raw("group"))), None, None


def _instance_norm(call: Call) -> Output:
    if not call.raw("use_input_stats"):
        return _batch_norm(call)
    value, count = call.tensor("input"), call.fake("input").dim() - 2
    axes = indices(range(2, 2 + count))
    normal = ops.mvn(value, axes.get_node(), True, float(call.raw("eps")), "inside_sqrt")
    return _affine(call, normal, [1, -1, *[1] * count])


def _batch_norm(call: Call) -> Output:
    """Lower inference only, as a multiply and an add, folded at compile time, which fuse into a convolution before them."""
    channels = int(call.fake("input").shape[1])
    weight, bias = call.optional("weight"), call.optional("bias")
    return output(
        ops.batch_norm_inference(
            call.tensor("input"),
            constant([1.0] * channels, _F32) if weight is None else weight,
            constant([0.0] * channels, _F32) if bias is None else bias,
            call.tensor("running_mean"),
            call.tensor("running_var"),
            float(call.raw("eps")),
        )
    )


def _native(rule: Rule) -> Rule:
    """Return a rule for the form that also returns mean and deviation; these are not read, which the table checks."""
    return lambda call: (rule(call), None, None)


def _weight_norm(call: Call) -> Any:
    """Divide by the norm over every dim but one; dim -1 stands for none."""
    value, dim, rank = call.tensor("v"), int(call.raw("dim")), call.fake("v").dim()
    axes = indices([axis for axis in range(rank) if dim == -1 or axis != dim % rank])
    return ops.multiply(value, ops.divide(call.tensor("g"), ops.reduce_l2(value, axes, True)))


RULES: Mapping[str, Rule] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": _native(_layer_norm),
    "aten.rms_norm.default": _rms_norm,
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": _native_group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _native(_batch_norm),
    "aten._weight_norm.default": _weight_norm,
}
