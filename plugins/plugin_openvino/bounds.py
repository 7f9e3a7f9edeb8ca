"""Bounds on the integers of a node, as far as its graph shows them: OpenVINO computes some integers through float32."""

from __future__ import annotations

from typing import Any

from torch import fx

from hub.plugin import argument, operator_name, value_of
from hub.toolkit.intervals import MOVES

EXACT_IN_FLOAT32 = 2**24
"""Largest integer up to which float32 represents every integer."""
INT32 = 2**31
_SIZE = 2**20
"""Bound of a size known only at run time, for positions along it: they fill memory, so few sizes are larger."""

_SUMS = frozenset(f"aten.{name}.{form}" for name in ("add", "sub", "rsub") for form in ("Tensor", "Scalar"))


def largest(value: Any) -> float:
    """Return a bound of the absolute values of an argument; int32's if nothing is known."""
    if not isinstance(value, fx.Node):
        return abs(value) if isinstance(value, (int, float)) else INT32
    found = value_of(value)
    if not hasattr(found, "dtype"):
        return INT32  # a size, or a number that the user passes
    if str(found.dtype) == "torch.bool":
        return 1
    name = operator_name(value)
    if name.startswith("aten.arange."):
        ends = [value_of(item) for item in value.args]
        return max(abs(end) if isinstance(end, (int, float)) else _SIZE for end in ends)
    source: Any = value.args[0] if value.args else None
    if name in MOVES and not getattr(value_of(source), "is_floating_point", bool)():
        return largest(source)
    if name in _SUMS and isinstance(argument(value, "alpha"), int):
        factor = max(1, abs(argument(value, "alpha")))
        return min(INT32, factor * (largest(argument(value, "self")) + largest(argument(value, "other"))))
    return INT32
