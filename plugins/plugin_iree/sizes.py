"""Operators whose clusters one program cannot serve at every size, each with the reason. Imports no torch.

Found by testing operators of `OPERATORS` in one program, with up to four sample calls each, at sizes from 0 to 13, with
torch-mlir 20261001 and IREE 3.13. PyTorch's own conditions on sizes (`hub.toolkit.open_sizes`) apply in addition.
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
    """Require known sizes, with a reason: no call with a symbolic size is correct."""

    def condition(node: fx.Node) -> str | None:
        return reason if static_input(node) else None

    return condition


def one_index(node: fx.Node) -> str | None:
    """Require a single index tensor."""
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
    "aten.lstm.input": static_input,  # its steps are unrolled
}
"""Operators that need a program for each combination of sizes, unless the condition holds."""

LEAST: Mapping[str, int] = {
    **dict.fromkeys(_names("squeeze.default squeeze.dim squeeze.dims"), 2),  # unlike 1, a symbol is not squeezed
    **dict.fromkeys(_names("var.correction std.correction var_mean.correction"), 1),  # of no elements: NaN, -0 in IREE
}
"""Smallest size for which an operator is correct."""


def needs_each(node: fx.Node) -> str:
    """Return why a call needs a program for each combination of sizes; "" if it does not."""
    condition = EACH.get(operator_name(node))
    return (condition(node) or "") if condition else ""


def least_size(node: fx.Node) -> int:
    """Return the smallest size for which a call is correct in a program for all sizes."""
    return LEAST.get(operator_name(node), 0)
