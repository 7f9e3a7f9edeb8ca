"""Lowers convolutions. Attributes are plain numbers, as ONNX requires; the support table refuses symbolic ones."""

from __future__ import annotations

from collections.abc import Sequence

from .call import Call, lowers


@lowers("conv1d.default", "conv2d.default", "conv3d.default")
def convolution(call: Call) -> str:
    """Return the convolution with `padding` on both sides of each dim."""
    padding = spread(call["padding"], _dims(call))
    return _conv(call, padding, padding)


@lowers("conv1d.padding", "conv2d.padding", "conv3d.padding")
def convolution_by_name(call: Call) -> str:
    """Return the convolution with padding "valid" (none) or "same", whose odd element is at the end."""
    if call["padding"] == "valid":
        return _conv(call, [0] * _dims(call), [0] * _dims(call))
    kernel = call.shape("weight")[2:]
    totals = [step * (size - 1) for step, size in zip(spread(call["dilation"], _dims(call)), kernel, strict=True)]
    return _conv(call, [total // 2 for total in totals], [total - total // 2 for total in totals])


@lowers("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed_convolution(call: Call) -> str:
    """Return the transposed convolution."""
    return _conv_transpose(call)


@lowers("convolution.default")
def any_convolution(call: Call) -> str:
    """Return the convolution, transposed or not, in the form after decomposition."""
    if call["transposed"]:
        return _conv_transpose(call)
    padding = spread(call["padding"], _dims(call))
    return _conv(call, padding, padding)


def spread(value: int | Sequence[int], dims: int) -> list[int]:
    """Return one number per dim; PyTorch accepts a single one for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _dims(call: Call) -> int:
    return call.rank("weight") - 2


def _operands(call: Call) -> list[str]:
    return [call.input("input"), call.input("weight"), *([call.input("bias")] if call["bias"] is not None else [])]


def _conv(call: Call, begins: Sequence[int], ends: Sequence[int]) -> str:
    dims = _dims(call)
    return call.op(
        "Conv", *_operands(call), pads=[*begins, *ends], strides=spread(call["stride"], dims),
        dilations=spread(call["dilation"], dims), group=call["groups"], kernel_shape=list(call.shape("weight")[2:]),
    )  # fmt: skip


def _conv_transpose(call: Call) -> str:
    """Return the transposed convolution.

    ORT refuses output padding of the stride or more; instead, less is cut off at the end.
    """
    dims = _dims(call)
    strides, begins, added = (spread(call[name], dims) for name in ("stride", "padding", "output_padding"))
    uncut = [extra if extra >= stride else 0 for extra, stride in zip(added, strides, strict=True)]
    return call.op(
        "ConvTranspose", *_operands(call), strides=strides, dilations=spread(call["dilation"], dims), group=call["groups"],
        pads=[*begins, *(pad - extra for pad, extra in zip(begins, uncut, strict=True))],
        output_padding=[extra - less for extra, less in zip(added, uncut, strict=True)],
        kernel_shape=list(call.shape("weight")[2:]),
    )  # fmt: skip


@lowers("_weight_norm.default", "_weight_norm_interface.default")
def weight_norm(call: Call) -> str | tuple[str, ...]:
    """Return v g / norm(v), with the norm over every dim but one; ORT computes it once if v and g are constants.

    Dim -1 stands for none: the norm is over all of them.
    """
    value = call.input("v")
    kept = None if call["dim"] == -1 else call.dim("dim", "v")
    axes = [dim for dim in range(call.rank("v")) if dim != kept]
    squares = call.op("Mul", value, value)  # a vector has no other dims, and ORT reads none as all
    norm = call.op("Sqrt", call.op("ReduceSum", squares, call.ints(*axes), keepdims=1) if axes else squares)
    result = call.op("Mul", value, call.op("Div", call.input("g"), norm))
    return result if len(call.outs) == 1 else (result, *[""] * (len(call.outs) - 1))
