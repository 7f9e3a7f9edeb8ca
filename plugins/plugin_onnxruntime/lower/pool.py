"""Lowers pooling and resampling."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call, lowers
from .conv import spread


@lowers("max_pool1d.default", "max_pool2d.default", "max_pool3d.default", "max_pool2d_with_indices.default")
def max_pool(call: Call) -> str | tuple[str, ...]:
    """Largest element of each window; positions are not given."""
    result = call.op("MaxPool", call.input("self"), **_windows(call), dilations=spread(call["dilation"], _dims(call)))
    return result if len(call.outs) == 1 else (result, "")


@lowers("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(call: Call) -> str:
    """Mean of each window."""
    return call.op("AveragePool", call.input("self"), **_windows(call), count_include_pad=int(call["count_include_pad"]))


def _dims(call: Call) -> int:
    return int(next(letter for letter in str(call.node.target) if letter.isdigit()))


def _windows(call: Call) -> dict[str, Any]:
    dims = _dims(call)
    kernel = spread(call["kernel_size"], dims)
    padding = spread(call["padding"], dims)
    strides = spread(call["stride"], dims) if call["stride"] else kernel
    return {"kernel_shape": kernel, "strides": strides, "pads": padding * 2, "ceil_mode": int(call["ceil_mode"])}


@lowers(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
)
def adaptive_average_pool(call: Call) -> str:
    """Mean of equal windows, as many as asked for."""
    sizes = list(call["output_size"])
    if all(size == 1 for size in sizes):
        return call.op("GlobalAveragePool", call.input("self"))
    kernel = [old // new for old, new in zip(call.shape("self")[-len(sizes) :], sizes, strict=True)]
    return call.op("AveragePool", call.input("self"), kernel_shape=kernel, strides=kernel)


# --- Resampling -------------------------------------------------------------------------------------------------------


@lowers(
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.default",
)
def nearest(call: Call) -> str:
    """Each new element is the old one at or before its place."""
    return _resize(call, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@lowers(
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bilinear2d.default",
)  # fmt: skip
def linear(call: Call) -> str:
    """Linear interpolation along each dim."""
    return _resize(call, mode="linear", coordinate_transformation_mode=_corners(call))


@lowers("upsample_bicubic2d.vec", "upsample_bicubic2d.default")
def cubic(call: Call) -> str:
    """Cubic interpolation along both dims."""
    return _resize(call, mode="cubic", coordinate_transformation_mode=_corners(call), cubic_coeff_a=-0.75)


def _corners(call: Call) -> str:
    return "align_corners" if call["align_corners"] else "half_pixel"


def _resize(call: Call, **attributes: Any) -> str:
    """By factors where they were given, which then decide the places, else by sizes."""
    name = call.declared[0]
    factors = _factors(call)
    if factors and attributes["coordinate_transformation_mode"] != "align_corners":
        scales = call.constant([1.0, 1.0, *factors], torch.float32)
        return call.op("Resize", call.input(name), "", scales, **attributes)
    return call.op("Resize", call.input(name), "", "", call.builder.sizes(call.out_shape), **attributes)


def _factors(call: Call) -> list[float] | None:
    names = call.declared
    if "scale_factors" in names:
        return call["scale_factors"]
    given = [call[name] for name in names if name.startswith("scales")]
    return given if all(factor is not None for factor in given) else None
