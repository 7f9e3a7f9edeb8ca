"""Lowers padding, and shuffles between channels and space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub.plugin import argument

from .call import Call, lowers, same_size

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@lowers("pad.default", "constant_pad_nd.default")
def pad(call: Call) -> str:
    """Return the tensor with elements added around the last dims; negative amounts cut."""
    mode = call["mode"] if "mode" in call.declared else "constant"
    return _padded(call, call["pad"], mode, call["value"] or 0)


@lowers("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(call: Call) -> str:
    """Return the tensor with elements mirrored at the edges, without repeating the edge itself."""
    return _padded(call, call["padding"], "reflect", 0)


@lowers("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def replication_pad(call: Call) -> str:
    """Return the tensor with edge elements repeated."""
    return _padded(call, call["padding"], "replicate", 0)


def _padded(call: Call, amounts: Sequence[Any], mode: str, fill: Any) -> str:
    amounts = [call.size(amount) for amount in amounts]
    if all(same_size(amount, 0) for amount in amounts):
        return call.input("self")
    rank = call.rank("self")
    begins, ends = [0] * rank, [0] * rank
    for position in range(len(amounts) // 2):
        begins[rank - 1 - position], ends[rank - 1 - position] = amounts[2 * position], amounts[2 * position + 1]
    extra = (call.as_dtype(fill, call.out_dtype),) if mode == "constant" else ()
    return call.op("Pad", call.input("self"), call.builder.sizes([*begins, *ends]), *extra, mode=_PAD_MODES[mode])


@lowers("pixel_shuffle.default")
def pixel_shuffle(call: Call) -> str:
    """Rearrange [B, C r r, H, W] to [B, C, H r, W r]."""
    return call.op("DepthToSpace", call.input("self"), blocksize=call["upscale_factor"], mode="CRD")


@lowers("pixel_unshuffle.default")
def pixel_unshuffle(call: Call) -> str:
    """Rearrange [B, C, H r, W r] to [B, C r r, H, W]."""
    batch, channels, height, width = call.shape("self")
    factor = call["downscale_factor"]
    split = (batch, channels, height // factor, factor, width // factor, factor)
    value = call.reshape(call.input("self"), call.shape("self"), split)
    moved = call.transpose(value, [0, 1, 3, 5, 2, 4])
    return call.reshape(moved, tuple(split[dim] for dim in (0, 1, 3, 5, 2, 4)), call.out_shape)


@lowers("channel_shuffle.default")
def channel_shuffle(call: Call) -> str:
    """Transpose channels as [groups, C / groups]."""
    batch, channels, *rest = call.shape("self")
    groups = argument(call.node, "groups")
    split = (batch, groups, channels // groups, *rest)
    value = call.transpose(call.reshape(call.input("self"), call.shape("self"), split), [0, 2, 1, *range(3, len(split))])
    return call.reshape(value, (batch, split[2], groups, *rest), call.out_shape)
