"""Operators that torch-mlir does not know or gets wrong, said in others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import _decomp

from hub.lowering.arguments import Decompositions

UNKNOWN = (
    "addmv.default",
    "all.dims",
    "any.dims",
    "native_batch_norm.default",
    "logaddexp.default",
    "eye.default",
    "eye.m",
)
"""No rule in torch-mlir 20261001, or one that fails in a later stage; said as PyTorch does."""
WRONG = ("clamp.Tensor",)
"""NaN is lost in torch-mlir 20261001; said as PyTorch does."""
SHIFTS = {"left": "__lshift__", "right": "__rshift__"}


def completed(table: Decompositions) -> Decompositions:
    """Gives a table of torch-mlir's with what it leaves out or gets wrong."""
    return {**table, **_further()}


@cache
def _further() -> Decompositions:
    pytorchs: Any = _decomp  # whose annotations leave the functions' types open
    found: dict[Any, Callable[..., Any]] = pytorchs.get_decompositions([_overload(name) for name in (*UNKNOWN, *WRONG)])
    for name in ("and", "or", "xor"):
        found[_overload(f"bitwise_{name}.Scalar")] = _between(_overload(f"bitwise_{name}.Tensor"))
    for side, short in SHIFTS.items():
        shift = _between(_overload(f"bitwise_{side}_shift.Tensor"))
        found[_overload(f"bitwise_{side}_shift.Tensor_Scalar")] = shift
        found[_overload(f"{short}.Scalar")] = found[_overload(f"{short}.Tensor")] = shift
    return found


def _between(operator: Any) -> Callable[[Any, Any], Any]:
    """Gives an operator between two tensors that takes numbers, too."""

    def taken(left: Any, right: Any) -> Any:
        dtype = torch.result_type(left, right)
        return operator(
            *(item if isinstance(item, torch.Tensor) else torch.full((), item, dtype=dtype) for item in (left, right))
        )

    return taken


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)
