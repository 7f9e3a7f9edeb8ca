"""Lowers a cluster's ATen nodes to one ONNX graph, operator by operator, from a table of small functions.

`torch.onnx.export` is not used: it takes seconds, gives no verdict on single nodes, and cannot start from an ATen graph cut
out of a larger one.
"""

from __future__ import annotations

from . import (
    activations,
    arithmetic,
    attention,
    backward,
    conv,
    create,
    index,
    join,
    linear,
    logic,
    norm,
    order,
    pad,
    pointwise,
    pool,
    recurrent,
    reduce,
    resample,
    scan,
    shape,
)
from .call import RULES
from .cluster import lower

__all__ = ["RULES", "lower"]

_FAMILIES = (
    *(activations, arithmetic, attention, backward, conv, create, index, join, linear, logic, norm, order, pad, pointwise),
    *(pool, recurrent, reduce, resample, scan, shape),
)
"""Modules that fill the table of rules when they are imported."""
