"""Find where an answer differs from eager's by more than eager's own error against float64 allows."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from hub.errors import type_of
from tests.models.closeness import FLOOR

WITHOUT_FLOAT64 = 1e-4
"""max|error| / max|reference| that is allowed where there is no run in float64 to tell eager's own error."""


def difference(mine: Any, eager: Any, exact: Any, factor: float) -> str:
    """Return how an answer differs from eager's, in words; empty if it does not differ."""
    left, structure = _flat(mine)
    right, wanted = _flat(eager)
    if structure != wanted:
        return f"the structure is {structure}, eager's is {wanted}"[:300]
    ideal = _flat(exact)[0] if exact is not None else []
    for place, (one, other) in enumerate(zip(left, right, strict=True)):
        if isinstance(other, torch.Tensor):
            best = ideal[place] if len(ideal) == len(right) and isinstance(ideal[place], torch.Tensor) else None
            why = _tensor(one, other, best, factor)
        else:
            why = "" if _is_equal(one, other) else f"{one!r} instead of {other!r}"[:200]
        if why:
            return f"output {place}: {why}"
    return ""


def _flat(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of an answer, including those of caches."""
    leaves, structure = pytree.tree_flatten(value)
    found: list[Any] = []
    for leaf in leaves:
        layers = getattr(leaf, "layers", None) if type(leaf).__name__.endswith("Cache") else None
        found += [tensor for layer in layers for tensor in _tensors(layer)] if layers is not None else [leaf]
    return found, structure if len(found) == len(leaves) else f"{structure} {len(found)}"


def _tensors(layer: Any) -> list[torch.Tensor]:
    return [value for _, value in sorted(vars(layer).items()) if isinstance(value, torch.Tensor)]


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(other, (int, float, str, bool, type(None))):
        return one == other or (one != one and other != other)
    return type(one) is type(other)


def _tensor(mine: Any, eager: torch.Tensor, exact: torch.Tensor | None, factor: float) -> str:
    if not isinstance(mine, torch.Tensor):
        return f"{type_of(mine)} instead of a tensor"
    for name in ("shape", "dtype", "device"):
        if (got := getattr(mine, name)) != (wanted := getattr(eager, name)):
            return f"{name} {got} instead of {wanted}"
    if not (eager.is_floating_point() or eager.is_complex()):
        return "" if torch.equal(mine, eager) else f"{int((mine != eager).sum())} of {eager.numel()} integers differ"
    kind = torch.complex128 if eager.is_complex() else torch.float64
    left, right = mine.detach().to(kind), eager.detach().to(kind)
    finite = torch.isfinite(right)
    if not torch.equal(torch.isfinite(left), finite):
        return "other elements are infinite or NaN"
    left, right = left[finite], right[finite]
    if not left.numel():
        return ""
    scale = float(right.abs().max()) or 1.0
    error = float((left - right).abs().max()) / scale
    allowed = _allowed(right, exact, finite, scale, factor, WITHOUT_FLOAT64 if eager.dtype == torch.float32 else 0.02)
    return "" if error <= allowed else f"relative error {error:.1e}, {allowed:.1e} allowed"


def _allowed(
    eager: torch.Tensor, exact: torch.Tensor | None, finite: torch.Tensor, scale: float, factor: float, otherwise: float
) -> float:
    if exact is None or exact.shape != finite.shape:
        return otherwise
    own = float((exact.to(eager.dtype)[finite] - eager).abs().max()) / scale
    return (factor + 1) * own + FLOOR if own == own else otherwise
