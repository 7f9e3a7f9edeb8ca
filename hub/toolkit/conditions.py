"""Conditions on single nodes under which an operator is supported. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hub.plugin.conditions import heads_match, one_of, only_output
from hub.plugin.table import (
    Condition,
    argument,
    declared_arguments,
    elements,
    is_symbolic,
    value_of,
)
from hub.toolkit.functions import single

if TYPE_CHECKING:
    from torch import fx


def real_division(node: fx.Node) -> str | None:
    """Refuse integer division except by a known number other than 0 and -1: dividing by those may kill the process."""
    if node.meta["val"].dtype.is_floating_point:
        return None
    by = argument(node, "other")
    is_known = isinstance(by, int) and by not in (0, -1)
    return None if is_known else "integer division by something other than a known number apart from 0 and -1"


def small_power(node: fx.Node) -> str | None:
    """Refuse integer powers other than 0 to 64, which are computed by multiplication."""
    exponent = argument(node, "exponent")
    is_float = node.meta["val"].dtype.is_floating_point
    return None if is_float or exponent in range(65) else f"integers to the power {exponent}, 0 to 64 here"


def static_space(count: int) -> Condition:
    """Return a condition that refuses symbolic dims of the input and the first result, after the first `count`."""

    def condition(node: fx.Node) -> str | None:
        result = elements(node.meta["val"])[0]
        shape = (*value_of(node.args[0]).shape[count:], *result.shape[count:])
        return f"symbolic dims {list(shape)}" if any(map(is_symbolic, shape)) else None

    return condition


def whole_factors(node: fx.Node) -> str | None:
    """Refuse nearest-neighbour resizing unless it repeats each element by a whole factor known at compile time.

    PyTorch finds places by a rounded factor: the given one, which may be 2.1 where the sizes are 4 and 8.
    """
    source, result = value_of(node.args[0]).shape[2:], node.meta["val"].shape[2:]
    for old, new, factor in zip(source, result, _factors(node, len(source)), strict=True):
        if is_symbolic(old) or is_symbolic(new) or not old or new % old:
            return f"nearest neighbours from {old} to {new}, only whole factors here"
        if factor is not None and factor != new // old:
            return f"nearest neighbours by a factor of {factor}, only whole factors here"
        if not _repeats(old, new):
            return f"nearest neighbours from {old} to {new}, where places are rounded down to those before"
    return None


def _factors(node: fx.Node, space: int) -> Sequence[Any]:
    """Return the factor given for each spatial dim, or None where there is only a size."""
    given = {each.name for each in declared_arguments(node)}
    if "scale_factors" in given:
        return argument(node, "scale_factors") or [None] * space
    names = ("scales",) if "scales" in given else ("scales_d", "scales_h", "scales_w")[-space:]
    return [argument(node, name) for name in names]


def _repeats(old: int, new: int) -> bool:
    """Return whether every place that PyTorch finds, in float32 or float64, lies in the element that is repeated there."""
    count = new // old
    step = single(1 / count)
    return all(
        int(single(place * step)) == place // count == int(place * (1 / count))
        for start in range(0, new, count)
        for place in (start, start + count - 1)
    )


def counts_padding(node: fx.Node) -> str | None:
    """Refuse averages that leave out padding: each average divides by the whole window."""
    padding = argument(node, "padding")
    is_padded = any(elements(padding))
    return "padding that does not count" if is_padded and not argument(node, "count_include_pad") else None


def some_differences(node: fx.Node) -> str | None:
    """Refuse `diff` if no difference remains."""
    shape, count = node.meta["val"].shape, argument(node, "n")
    return f"{count} differences give {list(shape)}" if count < 1 or any(size == 0 for size in shape) else None


def group_matches(node: fx.Node) -> str | None:
    """Refuse attention whose parts differ in rank, symbolic head sizes, and heads that cannot be grouped evenly."""
    query, key, value = (value_of(argument(node, name)).shape for name in ("query", "key", "value"))
    if not len(query) == len(key) == len(value):
        return f"query of {len(query)} dims with key of {len(key)} and value of {len(value)}"
    if is_symbolic(query[-1]):
        return "symbolic head size"
    return heads_match(node)


def no_masked_rows(node: fx.Node) -> str | None:
    """Refuse attention over no keys: its result is 0 or empty, depending on the kernel."""
    sizes = value_of(argument(node, "key")).shape[-2:-1]
    return "no keys" if any(not is_symbolic(size) and size == 0 for size in sizes) else None


def sums_without_mask(node: fx.Node) -> str | None:
    """Refuse reading the log-sum-exps if there is a mask, which may leave a row empty."""
    return (only_output(0, 1) if argument(node, "attn_mask") is None else only_output(0))(node)


usual_norm = one_of("ord", 0, 1, 2, float("inf"), float("-inf"))


def wide_mean(node: fx.Node) -> str | None:
    """Refuse means of integers below 32 bits: the count of values could wrap to 0 or -1 in that dtype."""
    kind = str(node.meta["val"].dtype).removeprefix("torch.")
    is_narrow = argument(node, "reduce") == "mean" and kind in ("int16", "int8", "uint8")
    return f"means of {kind}" if is_narrow else None


def known_floats(node: fx.Node) -> str | None:
    """Refuse sizes that depend on a float known only at run time; whole numbers may be known only at run time."""
    values = (value_of(item) for item in node.args)
    is_known = not any(type(value).__name__ == "SymFloat" for value in values)
    return None if is_known else "its size depends on a float that is known only at run time"
