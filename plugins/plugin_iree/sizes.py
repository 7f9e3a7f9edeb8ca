"""Operators whose clusters one program does not serve at every size, each with the reason. No torch here.

Found by trying operators of `OPERATORS` in one program, up to four sample calls each, at sizes from 0 to 13, with
torch-mlir 20261001 and IREE 3.13.
Conditions on sizes that PyTorch itself sets (`hub.toolkit.open_sizes`) come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hub.plugin import (
    Condition,
    argument,
    operator_name,
    static_dim,
    static_input,
)

if TYPE_CHECKING:
    from torch import fx


def _names(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


def never(reason: str) -> Condition:
    """No call with a symbolic size comes out right."""

    def condition(node: fx.Node) -> str | None:
        return reason if static_input(node) else None

    return condition


def one_index(node: fx.Node) -> str | None:
    """A single tensor of indices."""
    found = sum(index is not None for index in argument(node, "indices"))
    return f"{found} indices, which torch-mlir leaves without rule where sizes are symbols" if found > 1 else None


EACH: Mapping[str, Condition] = {
    **dict.fromkeys(_names("split.Tensor chunk.default"), static_dim("dim")),
    **dict.fromkeys(_names("pad.default constant_pad_nd.default"), never("torch-mlir's decomposition fixes sizes")),
    **dict.fromkeys(
        _names("group_norm.default native_group_norm.default"), never("torch-mlir strides over known sizes alone")
    ),
    **dict.fromkeys(_names("sum.default mean.default"), never("of many numbers the sum is 9 roundings off")),
    "aten._unsafe_view.default": never("torch-mlir takes sizes of the result for those of the input"),
    "aten.index.Tensor": one_index,
    "aten.lstm.input": static_input,  # its steps are written out
}
"""Operators of which each combination of sizes needs a program of its own, unless the condition holds."""

LEAST: Mapping[str, int] = {
    **dict.fromkeys(_names("squeeze.default squeeze.dim squeeze.dims"), 2),  # a symbol is not squeezed, 1 is
    **dict.fromkeys(_names("var.correction std.correction var_mean.correction"), 1),  # of nothing it is NaN, and -0 there
}
"""Operators that come out right only where no size is smaller."""


def needs_each(node: fx.Node) -> str:
    """Return why a call needs a program for each combination of sizes; "" where it does not."""
    condition = EACH.get(operator_name(node))
    return (condition(node) or "") if condition else ""


def least_size(node: fx.Node) -> int:
    """Return the least size for which a call comes out right in a program for all sizes."""
    return LEAST.get(operator_name(node), 0)
