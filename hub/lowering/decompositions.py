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


def said_by_pytorch(*names: str) -> Decompositions:
    """Gives PyTorch's own way to say operators in others."""
    pytorchs: Any = _decomp  # whose annotations leave the functions' types open
    return pytorchs.get_decompositions([_overload(name) for name in names])


def keeping_nan() -> Decompositions:
    """Gives the larger and the smaller of two, and clamps, in comparisons that keep NaN: torch-mlir's linalg loses it."""
    found: dict[Any, Callable[..., Any]] = {}
    for name in ("maximum.default", "max.other"):
        found[_overload(name)] = _larger
    for name in ("minimum.default", "min.other"):
        found[_overload(name)] = _smaller
    for name in ("clamp.default", "clamp.Tensor", "hardtanh.default"):
        found[_overload(name)] = _clamped if name.startswith("clamp") else _hardtanh
    for form in ("default", "Tensor"):
        found[_overload(f"clamp_min.{form}")] = _larger
        found[_overload(f"clamp_max.{form}")] = _smaller
    return found


def _larger(value: torch.Tensor, other: Any) -> torch.Tensor:
    bound = _tensor(other, value)
    return torch.where((value > bound) | (value != value), value, bound)


def _smaller(value: torch.Tensor, other: Any) -> torch.Tensor:
    bound = _tensor(other, value)
    return torch.where((value < bound) | (value != value), value, bound)


def _clamped(value: torch.Tensor, least: Any = None, most: Any = None) -> torch.Tensor:
    raised = value if least is None else _larger(value, least)
    return raised if most is None else _smaller(raised, most)


def _hardtanh(value: torch.Tensor, least: Any = -1, most: Any = 1) -> torch.Tensor:
    return _clamped(value, least, most)


def _tensor(number: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(number, torch.Tensor):
        return number
    return torch.full((), number, dtype=torch.result_type(like, number), device="cpu")  # whatever is the user's default


@cache
def _further() -> Decompositions:
    found = dict(said_by_pytorch(*UNKNOWN, *WRONG))
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
            *(
                item if isinstance(item, torch.Tensor) else torch.full((), item, dtype=dtype, device="cpu")
                for item in (left, right)
            )
        )

    return taken


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)
