"""Operators that Triton takes: those with a rule that takes them apart into tensors. Imports neither torch nor triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.support import OperatorTable, dtypes, tensors_of
from plugin_disc.support import OPERATORS as LOWERED

if TYPE_CHECKING:
    from torch import fx


def on_gpu(node: fx.Node) -> str | None:
    """Every tensor lies in the memory of a GPU."""
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type != "cuda"), None)
    return (
        None if bad is None else f"device {bad}, only cuda here: HUB_TRITON_INTERPRET=1 has kernels interpreted on the CPU"
    )


_ATTENTION = "aten.scaled_dot_product_attention.default"
_SINGLE = dtypes("float32", "float16", "bfloat16", "bool")
"""Not float64, in which another order of additions is more than some roundings away."""
ROWS = {**LOWERED.rows, _ATTENTION: (_SINGLE, *LOWERED.rows[_ATTENTION])}

OPERATORS = OperatorTable(ROWS, everywhere=(on_gpu,))
INTERPRETED = OperatorTable(ROWS, everywhere=LOWERED.everywhere)
"""The same on the CPU."""
