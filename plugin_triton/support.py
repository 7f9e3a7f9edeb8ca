"""Operators that Triton takes: those with a rule that takes them apart into tensors. Imports neither torch nor triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.support import OperatorTable, tensors_of
from plugin_disc.support import OPERATORS as LOWERED

if TYPE_CHECKING:
    from torch import fx


def on_gpu(node: fx.Node) -> str | None:
    """Every tensor lies in the memory of a GPU."""
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type != "cuda"), None)
    return (
        None if bad is None else f"device {bad}, only cuda here: HUB_TRITON_INTERPRET=1 has kernels interpreted on the CPU"
    )


OPERATORS = OperatorTable(LOWERED.rows, everywhere=(on_gpu,))
INTERPRETED = OperatorTable(LOWERED.rows, everywhere=LOWERED.everywhere)
"""The same on the CPU."""
