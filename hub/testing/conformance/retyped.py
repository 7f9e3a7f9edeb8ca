"""Sample calls of an operator in a dtype: those that are written in it, and others converted to it.

A call can have a dtype in several roles: for the tensors that it computes with, for indices, or as the requested dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import torch

from hub.testing.operators import SAMPLES, Made, Sample
from hub.torch_private import pytree

Role = Literal["values", "indices", "result"]
ROLES: tuple[Role, ...] = ("values", "indices", "result")

_Kind = Literal["floating", "whole", "truth"]
_KINDS: tuple[_Kind, ...] = ("floating", "whole", "truth")
_BOUNDS = {"normal": (-6, 7), "positive": (1, 7), "unit": (-1, 2), "booleans": (0, 2)}
"""Integer ranges, high excluded, that replace the values of a fill."""


def is_in(sample: Sample, role: Role, dtype: torch.dtype) -> bool:
    """Return whether everything that a sample has in a role has this dtype."""
    found = [made.dtype for made in _tensors(sample, role)] or _asked(sample, role)
    return bool(found) and all(each is dtype for each in found)


def calls_in(overload: str, role: Role, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield an operator's samples converted to a dtype in a role, without duplicates: the same kind of dtype comes first.

    This does not check whether eager accepts them.
    """
    given = {str(sample) for sample in SAMPLES[overload] if is_in(sample, role, dtype)}
    for sample in sorted(SAMPLES[overload], key=lambda sample: _kind_of(sample) != _kind(dtype)):
        other = retyped(sample, role, dtype)
        if other is not None and str(other) not in given:
            given.add(str(other))
            yield other


def retyped(sample: Sample, role: Role, dtype: torch.dtype) -> Sample | None:
    """Return a sample with everything that it has in a role converted to a dtype.

    None if it has nothing in that role, or has values that the dtype cannot hold.
    """
    if role == "result":
        return _asking_for(sample, dtype) if _asked(sample, role) else None
    changed = _tensors(sample, role)
    if not changed or (role == "indices" and _kind(dtype) != "whole"):
        return None
    return _mapped(sample, lambda made: _converted(made, dtype) if made in changed else made)


def _asking_for(sample: Sample, dtype: torch.dtype) -> Sample | None:
    """Request a dtype. Floats outside the range of uint8 would convert to undefined values, so they are positive then."""
    asking = _with_arguments(sample, pytree.tree_map_only(torch.dtype, lambda _: dtype, _arguments(sample)))
    return asking if dtype.is_floating_point else _mapped(asking, lambda made: _castable(made, dtype))


def _castable(made: Made, dtype: torch.dtype) -> Made | None:
    if _kind(made.dtype) != "floating":
        return made
    if made.fill == "values":
        return made if all(_fits(value, dtype) for value in made.values) else None
    return replace(made, fill="positive") if made.fill in ("normal", "unit") and not dtype.is_signed else made


# --- What a sample has ------------------------------------------------------------------------------------------------


def _arguments(sample: Sample) -> Any:
    return sample.arguments, dict(sample.keywords)


def _with_arguments(sample: Sample, given: Any) -> Sample:
    return replace(sample, arguments=given[0], keywords=given[1])


def _asked(sample: Sample, role: Role) -> list[torch.dtype]:
    leaves = pytree.tree_leaves(_arguments(sample)) if role == "result" else []
    return [leaf for leaf in leaves if isinstance(leaf, torch.dtype)]


def _tensors(sample: Sample, role: Role) -> list[Made]:
    """Return the tensors in a role; values are the floating-point tensors, else the integers, else the booleans."""
    if role == "result":
        return []
    kind = _kind_of(sample)
    if role == "indices":
        kind = "whole" if kind == "floating" else None
    leaves = pytree.tree_leaves(_arguments(sample))
    return [leaf for leaf in leaves if isinstance(leaf, Made) and _kind(leaf.dtype) == kind]


def _kind_of(sample: Sample) -> _Kind | None:
    found = {_kind(leaf.dtype) for leaf in pytree.tree_leaves(_arguments(sample)) if isinstance(leaf, Made)}
    return next((kind for kind in _KINDS if kind in found), None)


def _kind(dtype: torch.dtype) -> _Kind | None:
    if dtype is torch.bool:
        return "truth"
    if dtype.is_complex:
        return None
    return "floating" if dtype.is_floating_point else "whole"


# --- Conversion -------------------------------------------------------------------------------------------------------


def _mapped(sample: Sample, convert: Callable[[Made], Made | None]) -> Sample | None:
    given = _arguments(sample)
    made = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Made)]
    if any(convert(leaf) is None for leaf in made):
        return None
    return _with_arguments(sample, pytree.tree_map_only(Made, convert, given))


def _converted(made: Made, dtype: torch.dtype) -> Made | None:
    if made.fill == "values":
        fits = all(_fits(value, dtype) and not _is_limit(value, made.dtype) for value in made.values)
        return replace(made, dtype=dtype) if fits else None
    if dtype is torch.bool:
        return replace(made, dtype=dtype, fill="booleans")
    if made.fill == "distinct":
        largest = math.prod(made.shape) // 2
        return replace(made, dtype=dtype) if _fits(-largest, dtype) and largest <= _exact_up_to(dtype) else None
    if dtype.is_floating_point and made.fill != "booleans":
        return replace(made, dtype=dtype)
    return _whole(made, dtype)


def _whole(made: Made, dtype: torch.dtype) -> Made | None:
    low, high = _BOUNDS.get(made.fill, (made.low, made.high))
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        high = min(high, limits.max + 1)
        # In uint8, negative numbers wrap to large ones, which some compilers take for negative.
        low = max(low, limits.min) if dtype.is_signed else low
    return replace(made, dtype=dtype, fill="integers", low=low, high=high) if low < high else None


def _exact_up_to(dtype: torch.dtype) -> float:
    return 1 / torch.finfo(dtype).eps if dtype.is_floating_point else torch.iinfo(dtype).max


def _is_limit(value: Any, dtype: torch.dtype) -> bool:
    """Return whether a value is the least or largest integer of a dtype: in any other dtype it would not be a limit."""
    if _kind(dtype) != "whole":
        return False
    limits = torch.iinfo(dtype)
    return value in (limits.min, limits.max) and value != 0


def _fits(value: Any, dtype: torch.dtype) -> bool:
    """Return whether a dtype can hold a number; integers hold it without its fraction, but not NaN or infinities."""
    if dtype is torch.bool:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return math.isfinite(value) and limits.min <= value <= limits.max
