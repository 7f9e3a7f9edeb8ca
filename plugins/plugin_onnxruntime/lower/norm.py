"""Lowers normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .call import Call, lowers


@lowers("layer_norm.default", "native_layer_norm.default")
def layer_norm(call: Call) -> str | tuple[str, ...]:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last dims; natively also mean and 1 / deviation."""
    axis = -len(call["normalized_shape"])
    weight = call.input("weight") or _constant_like(call, 1.0)
    bias = [call.input("bias")] if call["bias"] is not None else []
    found = call.ops(
        "LayerNormalization", call.input("input"), weight, *bias,
        n_outputs=len(call.outs), axis=axis, epsilon=float(call["eps"]),
    )  # fmt: skip
    return found[0] if len(call.outs) == 1 else found


@lowers("rms_norm.default")
def rms_norm(call: Call) -> str:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dims, as ORT's one-pass operator."""
    eps = torch.finfo(call.out_dtype).eps if call["eps"] is None else float(call["eps"])
    weight = call.input("weight") or _constant_like(call, 1.0)
    axis = -len(call["normalized_shape"])
    return call.op("SimplifiedLayerNormalization", call.input("input"), weight, axis=axis, epsilon=eps, stash_type=1)


def _constant_like(call: Call, value: float) -> str:
    shape = [call.size(size) for size in call["normalized_shape"]]
    return call.builder.weight(torch.full(shape, value, dtype=call.out_dtype))


@lowers("_native_batch_norm_legit_no_training.default", "batch_norm.default", "native_batch_norm.default")
def batch_norm(call: Call) -> str | tuple[str, ...]:
    """Return x normalised by running statistics along dim 1; ORT folds this into the convolution before."""
    running = call.input("running_mean"), call.input("running_var")
    channels = call.shape("running_mean")
    weight, bias = (call.input(name) or call.builder.weight(torch.full(channels, fill, dtype=call.dtype("running_mean")))
                    for name, fill in (("weight", 1.0), ("bias", 0.0)))  # fmt: skip
    result = call.op("BatchNormalization", call.input("input"), weight, bias, *running, epsilon=float(call["eps"]))
    return result if len(call.outs) == 1 else (result, *[""] * (len(call.outs) - 1))


@lowers("group_norm.default", "native_group_norm.default")
def group_norm(call: Call) -> str | tuple[str, ...]:
    """Return each of `groups` runs of channels normalised by its own statistics; only the native form's first output."""
    native = len(call.outs) == 3
    groups = call["group" if native else "num_groups"]
    result = _grouped_norm(call, groups, call.shape("input"))
    return (result, "", "") if native else result


@lowers("instance_norm.default")
def instance_norm(call: Call) -> str:
    """Return every channel of every sample normalised by its own statistics."""
    weight, bias = (call.input(name) or call.builder.weight(torch.full((call.shape("input")[1],), fill))
                    for name, fill in (("weight", 1.0), ("bias", 0.0)))  # fmt: skip
    return call.op("InstanceNormalization", call.input("input"), weight, bias, epsilon=float(call["eps"]))


def _grouped_norm(call: Call, groups: int, shape: Sequence[int]) -> str:
    """Apply InstanceNormalization over [B, groups, rest], then scale and shift by channel."""
    value = call.op("Reshape", call.input("input"), call.ints(0, groups, -1))
    scale, shift = (call.builder.weight(torch.full((groups,), fill)) for fill in (1.0, 0.0))
    value = call.op("InstanceNormalization", value, scale, shift, epsilon=float(call["eps"]))
    value = call.reshape(value, shape[:1], shape)
    for name, kind in (("weight", "Mul"), ("bias", "Add")):
        if call[name] is not None:
            value = call.op(
                kind, value, call.reshape(call.input(name), call.shape(name), (shape[1], *[1] * (len(shape) - 2)))
            )
    return value
