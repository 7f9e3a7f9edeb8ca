"""Conditions on single nodes under which the device takes an operator. Imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hub.plugin import (
    Condition,
    argument,
    elements,
    is_symbolic,
    is_weight,
    operator_name,
    tensors_of,
    value_of,
)

if TYPE_CHECKING:
    from torch import fx

MAX_TERMS = 1 << 16
"""Length of the longest sum of products of 16-bit integers, plus a bias, that fits 48 bits for all values."""


def constant(*names: str) -> Condition:
    """Require these arguments to be weights, or omitted."""

    def condition(node: fx.Node) -> str | None:
        for name in names:
            value = argument(node, name)
            if value is not None and not is_weight(value):
                return f"{name} is computed at run time, only constant weights here"
        return None

    return condition


def image(*names: str) -> Condition:
    """Require these arguments to be images [N, C, H, W]; `on_device` checks that they have elements and fixed sizes."""

    def condition(node: fx.Node) -> str | None:
        for name in names:
            shape = value_of(argument(node, name)).shape
            if len(shape) != 4:
                return f"{name} has {len(shape)} dims, 4 here"
        return None

    return condition


def on_device(node: fx.Node) -> str | None:
    """Require tensors to lie on the CPU, and those other than weights to have elements and fixed sizes."""
    sources = [value for source in node.all_input_nodes if not is_weight(source) for value in elements(value_of(source))]
    for tensor in (*sources, *elements(value_of(node))[:1]):
        shape = getattr(tensor, "shape", ())
        if any(map(is_symbolic, shape)):
            return f"symbolic dims {list(shape)}: the device is compiled for one size"
        if 0 in shape:
            return f"an empty tensor {list(shape)}"
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type != "cpu"), None)
    return None if bad is None else f"device {bad}, only cpu here"


def two_or_four_dims(node: fx.Node) -> str | None:
    """Require activations, inputs and result alike, to be [N, C] or [N, C, H, W]."""
    sources = [value_of(source) for source in node.all_input_nodes if not is_weight(source)]
    for tensor in (*sources, elements(value_of(node))[0]):
        if len(tensor.shape) not in (2, 4):
            return f"{len(tensor.shape)} dims, 2 or 4 here"
    return None


def short_sums(node: fx.Node) -> str | None:
    """Require sums of products to be no longer than the accumulator holds."""
    shape = value_of(argument(node, "weight")).shape
    is_transposed = "transpose" in operator_name(node)
    terms = math.prod(shape[1:]) if not is_transposed else shape[0] * math.prod(shape[2:])
    return None if terms <= MAX_TERMS else f"sums of {terms} products, at most {MAX_TERMS} in the 48-bit accumulator"


def plain_ratio(node: fx.Node) -> str | None:
    """Require the size to grow by a whole factor in both directions."""
    old, new = value_of(node.args[0]).shape[2:], node.meta["val"].shape[2:]
    given = argument(node, "scale_factors") if operator_name(node).endswith(".vec") else None
    factors = tuple(given or ())
    whole = all(large % small == 0 for small, large in zip(old, new, strict=True))
    if not whole or any(float(factor) != large // small for factor, small, large in zip(factors, old, new, strict=False)):
        return f"nearest neighbours from {list(old)} to {list(new)}, only whole ratios here"
    return None


def whole_windows(node: fx.Node) -> str | None:
    """Require all adaptive windows to have one size."""
    old, new = value_of(node.args[0]).shape[2:], node.meta["val"].shape[2:]
    if any(large % small for large, small in zip(old, new, strict=True)):
        return f"adaptive windows from {list(old)} to {list(new)} are of unequal size"
    return None


def floor_sizes(node: fx.Node) -> str | None:
    """Require pooling windows to end inside the padded input: the device's operators have no ceil_mode."""
    return None if not argument(node, "ceil_mode") else "ceil_mode=True, only False here"


def no_dilation(node: fx.Node) -> str | None:
    """Require pooling windows without dilation."""
    value = argument(node, "dilation")
    return None if all(step == 1 for step in elements(value)) else f"dilation={value}, only 1 here"


def whole_image(node: fx.Node) -> str | None:
    """Require the mean to be over both sides of the image."""
    dims = argument(node, "dim")
    rank = len(value_of(argument(node, "self")).shape)
    found = sorted(dim % rank for dim in elements(dims)) if dims is not None else []
    return None if rank == 4 and found == [2, 3] else f"mean over dims {dims} of {rank}, only over [2, 3] of 4 here"


def only_first_read(node: fx.Node) -> str | None:
    """Require the saved statistics to be unread."""
    read = {user.args[1] for user in node.users if len(user.args) == 2 and isinstance(user.args[1], int)}
    bad = sorted(position for position in read if position)
    return f"output {bad[0]} is read, only output 0 here" if bad else None


def addable(node: fx.Node) -> str | None:
    """Require two activations of equal shape, or one with one number per channel; or an activation and a constant."""
    first, second = argument(node, "self"), argument(node, "other")
    if is_weight(first) and is_weight(second):
        return "two constants"
    if not hasattr(second, "meta") and isinstance(second, (int, float)):
        return None if math.isfinite(second) else f"other={second}"
    result = tuple(node.meta["val"].shape)
    for value in (first, second):
        shape = tuple(value_of(value).shape)
        if is_weight(value):
            if _is_weight_of(shape, result):
                continue
            return f"a constant of shape {list(shape)} with {list(result)}"
        per_channel = (*result[:2], *(1 for _ in result[2:]))
        if shape not in (result, per_channel):
            return f"shapes {list(shape)} and {list(result)}: only equal ones, or one number a channel, here"
    return None


def _is_weight_of(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    padded = (*(1 for _ in range(len(result) - len(shape))), *shape)
    return len(padded) == len(result) and all(size in (1, full) for size, full in zip(padded, result, strict=True))


def number(name: str) -> Condition:
    """Require the argument to be a finite number that is known at compile time."""

    def condition(node: fx.Node) -> str | None:
        value = argument(node, name)
        return None if isinstance(value, (int, float)) and math.isfinite(value) else f"{name}={value}, a number here"

    return condition


def relu_shape(node: fx.Node) -> str | None:
    """Require a clamp from 0 to a positive number, as in relu6."""
    low, high = argument(node, "min_val"), argument(node, "max_val")
    if low != 0 or not isinstance(high, (int, float)) or not 0 < high < 32768:
        return f"clamp from {low} to {high}, only from 0 to a positive number here"
    return None


def gentle_slope(node: fx.Node) -> str | None:
    """Require the slope of the negative side to fit Q1.15."""
    slope = argument(node, "negative_slope")
    return None if isinstance(slope, (int, float)) and -1 <= slope < 1 else f"negative_slope={slope}, -1 to 1 here"


def flattens(node: fx.Node) -> str | None:
    """Require a view of [N, C, H, W] as [N, C*H*W] for linear layers, whose weight is then an image-sized filter."""
    old, new = tuple(value_of(node.args[0]).shape), tuple(node.meta["val"].shape)
    if len(old) != 4 or new != (old[0], math.prod(old[1:])):
        return f"from {list(old)} to {list(new)}, only [N, C, H, W] to [N, C*H*W] here"
    if old[2:] == (1, 1):
        return None
    bad = [user for user in node.users if user.op == "call_function" and operator_name(user) != "aten.linear.default"]
    return f"{operator_name(bad[0])} reads the flattened image, only linear may here" if bad else None


def concatenates(node: fx.Node) -> str | None:
    """Require a concatenation of activations along the channels."""
    tensors = argument(node, "tensors")
    if any(map(is_weight, tensors)):
        return "a constant among the parts"
    rank = len(node.meta["val"].shape)
    dim = argument(node, "dim")
    if dim % rank != 1 or any(len(value_of(part).shape) != rank for part in tensors):
        return f"dim={dim} of {rank}, only the channels here"
    return None
