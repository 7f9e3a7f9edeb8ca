"""Rules for convolution, pooling and resampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openvino import Output

from hub.plugin import elements
from plugin_openvino.call import Call
from plugin_openvino.library import ops
from plugin_openvino.operands import constant, indices, output
from plugin_openvino.rules.elementwise import Rule

_F32 = torch.float32


def _spatial(given: Any, count: int) -> list[int]:
    """Return one number for each spatial dim; ATen accepts one for all."""
    values = [int(value) for value in elements(given)]
    return values * count if len(values) == 1 else values


def _with_bias(call: Call, value: Any, count: int) -> Any:
    bias = call.optional("bias")
    if bias is None:
        return value
    return ops.add(value, ops.reshape(bias, indices([1, -1, *[1] * count]), False))


def _grouped(weight: Output, groups: int) -> Output:
    """Return weights [O, I/G, ..] as [G, O/G, I/G, ..], the form that GroupConvolution requires."""
    shape = [dim.get_length() for dim in weight.get_partial_shape()]
    return output(ops.reshape(weight, indices([groups, shape[0] // groups, *shape[1:]]), False))


def convolved(call: Call, before: Sequence[int], after: Sequence[int]) -> Any:
    """Return the convolution of `input` with explicit padding, with the bias added."""
    count = call.fake("weight").dim() - 2
    groups = int(call.raw("groups"))
    stride, dilation = (_spatial(call.raw(name), count) for name in ("stride", "dilation"))
    value, weight = call.tensor("input"), call.tensor("weight")
    if groups == 1:
        result = ops.convolution(value, weight, stride, list(before), list(after), dilation)
    else:
        result = ops.group_convolution(value, _grouped(weight, groups), stride, list(before), list(after), dilation)
    return _with_bias(call, result, count)


def _convolution(call: Call) -> Any:
    padding = _spatial(call.raw("padding"), call.fake("weight").dim() - 2)
    return convolved(call, padding, padding)


def _convolution_named_padding(call: Call) -> Any:
    """Apply padding="same", with the odd element at the end, or padding="valid", which pads nothing."""
    sizes = [int(size) for size in call.fake("weight").shape[2:]]
    if call.raw("padding") == "valid":
        return convolved(call, [0] * len(sizes), [0] * len(sizes))
    dilation = _spatial(call.raw("dilation"), len(sizes))
    totals = [step * (size - 1) for step, size in zip(dilation, sizes, strict=True)]
    return convolved(call, [total // 2 for total in totals], [total - total // 2 for total in totals])


def _transposed_convolution(call: Call) -> Any:
    count = call.fake("weight").dim() - 2
    groups = int(call.raw("groups"))
    stride, padding, extra, dilation = (
        _spatial(call.raw(name), count) for name in ("stride", "padding", "output_padding", "dilation")
    )
    value, weight = call.tensor("input"), call.tensor("weight")
    options = {
        "pads_begin": padding,
        "pads_end": padding,
        "dilations": dilation,
        "output_padding": extra,
        "auto_pad": "explicit",
    }
    if groups == 1:
        result = ops.convolution_backprop_data(value, weight, stride, **options)
    else:
        result = ops.group_convolution_backprop_data(value, _grouped(weight, groups), stride, **options)
    return _with_bias(call, result, count)


def _general_convolution(call: Call) -> Any:
    return _transposed_convolution(call) if call.raw("transposed") else _convolution(call)


def _batched(call: Call, count: int) -> tuple[Output, bool]:
    """Return `self` with a batch dim, and whether it was added."""
    value = call.tensor("self")
    is_single = call.fake("self").dim() == count + 1
    return (output(ops.unsqueeze(value, indices([0]))), True) if is_single else (value, False)


def _pooled(call: Call, count: int) -> tuple[list[int], list[int], list[int], str]:
    kernel, padding = (_spatial(call.raw(name), count) for name in ("kernel_size", "padding"))
    stride = _spatial(call.raw("stride"), count) if call.raw("stride") else kernel
    return kernel, stride, padding, "ceil_torch" if call.raw("ceil_mode") else "floor"


def max_pool(count: int, *, gives_indices: bool = False) -> Rule:
    """Return a rule for max pooling over `count` dims; the indices are not read, which the table checks."""

    def rule(call: Call) -> Any:
        value, is_single = _batched(call, count)
        kernel, stride, padding, rounding = _pooled(call, count)
        dilation = _spatial(call.raw("dilation"), count)
        result = output(ops.max_pool(value, stride, dilation, padding, padding, kernel, rounding, "explicit", axis=2))
        result = output(ops.squeeze(result, indices([0]))) if is_single else result
        return (result, None) if gives_indices else result

    return rule


def average_pool(count: int) -> Rule:
    """Return a rule for average pooling over `count` dims.

    Without dilations opset16's AvgPool crashes the process (2026.4).
    """

    def rule(call: Call) -> Any:
        value, is_single = _batched(call, count)
        kernel, stride, padding, rounding = _pooled(call, count)
        leaves_pads_out = not call.raw("count_include_pad")
        result = ops.avg_pool(value, stride, padding, padding, kernel, leaves_pads_out, rounding, "explicit", [1] * count)
        return ops.squeeze(result, indices([0])) if is_single else result

    return rule


def adaptive_average_pool(count: int) -> Rule:
    """Return a rule for average pooling to a given size. Size 1 is a mean, for which OpenVINO's kernels are fast."""

    def rule(call: Call) -> Any:
        sizes = _spatial(call.raw("output_size"), count)
        if all(size == 1 for size in sizes):
            return ops.reduce_mean(call.tensor("self"), indices(range(-count, 0)), True)
        value, is_single = _batched(call, count)
        result = ops.adaptive_avg_pool(value, indices(sizes))
        return ops.squeeze(result, indices([0])) if is_single else result

    return rule


def interpolated(mode: str, transform: str, *, nearest: str = "round_prefer_floor") -> Rule:
    """Return a rule for resampling to the result's spatial size, or by the given factors if that size is unknown."""

    def rule(call: Call) -> Any:
        count = call.fake("input").dim() - 2
        axes = indices(range(2, 2 + count))
        aligned = mode != "nearest" and call.raw("align_corners")
        options: dict[str, Any] = {"coordinate_transformation_mode": "align_corners" if aligned else transform}
        if call.raw("scale_factors") is not None:
            factors = constant([float(factor) for factor in call.raw("scale_factors")], _F32)
            return ops.interpolate(
                call.tensor("input"), factors, mode, "scales", nearest_mode=nearest, axes=axes, **options
            )
        sizes = call.vector(call.raw("output_size"))
        return ops.interpolate(call.tensor("input"), sizes, mode, "sizes", nearest_mode=nearest, axes=axes, **options)

    return rule


def _grid_sampled(call: Call) -> Any:
    """Return bilinear samples at given places, with zeros outside of the image."""
    options = {"align_corners": bool(call.raw("align_corners")), "mode": "bilinear", "padding_mode": "zeros"}
    return ops.grid_sample(call.tensor("input"), call.tensor("grid"), options)


_NEAREST = interpolated("nearest", "asymmetric", nearest="floor")
_LINEAR = interpolated("linear_onnx", "half_pixel")

RULES: Mapping[str, Rule] = {
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.conv1d.padding": _convolution_named_padding,
    "aten.conv2d.padding": _convolution_named_padding,
    "aten.conv3d.padding": _convolution_named_padding,
    "aten.convolution.default": _general_convolution,
    "aten.conv_transpose1d.default": _transposed_convolution,
    "aten.conv_transpose2d.input": _transposed_convolution,
    "aten.conv_transpose3d.input": _transposed_convolution,
    "aten.max_pool1d.default": max_pool(1),
    "aten.max_pool2d.default": max_pool(2),
    "aten.max_pool3d.default": max_pool(3),
    "aten.max_pool2d_with_indices.default": max_pool(2, gives_indices=True),
    "aten.avg_pool1d.default": average_pool(1),
    "aten.avg_pool2d.default": average_pool(2),
    "aten.avg_pool3d.default": average_pool(3),
    "aten.adaptive_avg_pool1d.default": adaptive_average_pool(1),
    "aten.adaptive_avg_pool2d.default": adaptive_average_pool(2),
    "aten._adaptive_avg_pool2d.default": adaptive_average_pool(2),
    "aten.adaptive_avg_pool3d.default": adaptive_average_pool(3),
    "aten.upsample_nearest1d.vec": _NEAREST,
    "aten.upsample_nearest2d.vec": _NEAREST,
    "aten.upsample_nearest3d.vec": _NEAREST,
    "aten.upsample_linear1d.vec": _LINEAR,
    "aten.upsample_bilinear2d.vec": _LINEAR,
    "aten.upsample_trilinear3d.vec": _LINEAR,
    "aten.upsample_bicubic2d.vec": interpolated("cubic", "half_pixel"),
    "aten.grid_sampler.default": _grid_sampled,
    "aten.grid_sampler_2d.default": _grid_sampled,
}
