"""Reductions: the accumulator's dtype, how two tiles are combined, and how a tile becomes a column. NaN propagates."""

from __future__ import annotations

from hub.toolkit.tensors import Reduce

from .functions import HALVES

_COMBINING = {
    "prod": "a * b",
    "max": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
}
_HELPERS = {
    **{f"combine_{name}": (f"combine_{name}(a, b)", text) for name, text in _COMBINING.items()},
    **{f"row_{name}": (f"row_{name}(tile)", f"tl.reduce(tile, 1, combine_{name})") for name in _COMBINING},
    "row_sum": ("row_sum(tile)", "tl.sum(tile, 1).to(tile.dtype)"),
    "row_any": ("row_any(tile)", "tl.max(tile, 1)"),
    "row_all": ("row_all(tile)", "tl.min(tile, 1)"),
    "running_sum": ("running_sum(tile)", "tl.cumsum(tile, 1).to(tile.dtype)"),
    "running_prod": ("running_prod(tile)", "tl.cumprod(tile, 1)"),
}
"""Functions of tiles that kernels call: head and result. Triton's own extremes lose NaN; its sums widen small integers."""
INTERPRETED = {
    **{"row_sum": "sum", "row_prod": "prod", "row_max": "amax", "row_min": "amin", "row_any": "amax", "row_all": "amin"},
    **{"running_sum": "cumsum", "running_prod": "cumprod"},
}
"""NumPy's functions that replace them in the interpreter, which would compute them element by element."""


def helpers(text: str) -> str:
    """Return the definitions of the functions that some kernels' text calls, and of those that these call."""
    used = [name for name in _HELPERS if f"{name}(" in text or f"row_{name.removeprefix('combine_')}(" in text]
    return "".join(f"\n\n@triton.jit\ndef {_HELPERS[name][0]}:\n    return {_HELPERS[name][1]}\n" for name in used)


def accumulator_dtype(reduce: Reduce) -> str:
    """Return the dtype of totals: float32 for half precision, int32 for bool, else the source's."""
    kind = reduce.source.dtype
    return "f32" if kind in HALVES else "i32" if kind == "i1" else kind


def combined(function: str, left: str, right: str) -> str:
    """Return the expression that combines two tiles element by element."""
    if function == "sum":
        return f"{left} + {right}"
    if function in ("any", "all"):
        return f"tl.maximum({left}, {right})" if function == "any" else f"tl.minimum({left}, {right})"
    return f"combine_{function}({left}, {right})"


def reduced(function: str, tile: str) -> str:
    """Return the expression that reduces each row of a tile to one element."""
    return f"row_{function}({tile})[:, None]"
