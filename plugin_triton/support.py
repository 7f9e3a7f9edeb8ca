"""Operators that Triton takes: those with a rule that takes them apart into tensors. Imports neither torch nor triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.conditions import on_cpu
from hub.lowering.operators import ROWS as LOWERED
from hub.support import Condition, OperatorTable, argument, dtypes, tensors_of

if TYPE_CHECKING:
    from torch import fx


def on_gpu(node: fx.Node) -> str | None:
    """Every tensor lies in the memory of a GPU."""
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type != "cuda"), None)
    return (
        None if bad is None else f"device {bad}, only cuda here: HUB_TRITON_INTERPRET=1 has kernels interpreted on the CPU"
    )


_SINGLE = dtypes("float32", "float16", "bfloat16", "bool")
"""Not float64, in which another order of additions is more than some roundings away."""
_ADDED = dtypes("float32", "float64", "float16", "bfloat16", "int32", "int64")
"""What memory adds up by itself."""
_COMPARED = dtypes("int32", "int64")
"""Not floats, of which memory's own extremes lose NaN."""


def _narrowed(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    """Gives rows with further conditions."""
    return {f"aten.{name}": (*conditions, *LOWERED[f"aten.{name}"]) for name in names.split()}


def _combined_in_memory(node: fx.Node) -> str | None:
    """Values that meet at a place are added up, or the larger or smaller one stays: what memory does by itself."""
    reduce = argument(node, "reduce")
    if reduce in ("add", "sum"):
        return _ADDED(node)
    return _COMPARED(node) if reduce in ("amax", "amin") else f"reduce {reduce!r}, only sums and extremes here"


def _added_in_memory(node: fx.Node) -> str | None:
    """Values are put in, or added up where memory does that."""
    return _ADDED(node) if argument(node, "accumulate") else None


ROWS = {
    **LOWERED,
    **_narrowed("scaled_dot_product_attention.default", _SINGLE),
    **_narrowed("scatter_add.default index_add.default", _ADDED),
    **_narrowed("scatter.reduce scatter.value_reduce", _combined_in_memory),
    **_narrowed("scatter_reduce.two", _combined_in_memory),
    **_narrowed("index_put.default _unsafe_index_put.default", _added_in_memory),
}

OPERATORS = OperatorTable(ROWS, everywhere=(on_gpu,))
INTERPRETED = OperatorTable(ROWS, everywhere=(on_cpu,))
"""The same on the CPU."""
