"""The check that results are as exact as required, based on float64 references instead of fixed tolerances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hub.errors import type_of
from hub.plugin.table import overload_of
from hub.testing.operators.case import read_outputs
from hub.testing.operators.sample import Sample
from hub.torch_private import pytree

EAGER_FACTOR = 4.0
"""Allowed error as a multiple of eager's own largest error: backends sum in another order."""
ULPS = 8.0
"""Roundings allowed in any case, relative to the result: a fused or decomposed operator rounds at other points."""
_SEED = 11
SMOOTH = 1e-2
"""Share of a smooth operator's result below which one rounding of its inputs moves it; more is a jump, not noise."""


ROUNDINGS = (1.0, -1.0, 0.5)
"""Numbers of roundings by which inputs are moved."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One output in float64, and how far it moves if each input moves by one rounding of its dtype."""

    values: torch.Tensor
    noise: float


def references(name: str, sample: Sample) -> tuple[Reference | None, ...]:
    """Return the reference of each output that the sample reads; None if it is exact by nature or has no float64 form.

    Integers from which floats are computed count as float32, because eager treats them so, and a backend may too.
    """
    for has_whole in dict.fromkeys((_is_whole(sample), False)):
        exact = _in_float64(name, sample, move=0.0, has_whole=has_whole)
        if exact is None or (has_whole and not all(map(_is_wide, exact))):
            continue  # for example, a view in another dtype computes nothing with the numbers
        moved = [_in_float64(name, sample, move=move, has_whole=has_whole) for move in ROUNDINGS]
        return tuple(
            Reference(values.double(), max(distance(values, other[index]) for other in moved if other))
            if values.is_floating_point()
            else None
            for index, values in enumerate(exact)
        )
    return ()


def _is_wide(value: torch.Tensor) -> bool:
    return value.dtype is torch.float64 or not value.is_floating_point()


def _is_whole(sample: Sample) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(sample.build()) if isinstance(leaf, torch.Tensor)]
    return not any(tensor.is_floating_point() for tensor in tensors)


def check_close(
    got: Sequence[Any],
    wanted: Sequence[torch.Tensor],
    reference64: Sequence[Reference | None] = (),
    *,
    has_values: bool = True,
    max_relative_error: float = 0.0,
) -> None:
    """Raise AssertionError, naming output, index, values and ULPs, if results break eager's contract.

    Count, shape, dtype and device must be equal. Integers and booleans must be equal. In floating point, NaN and infinities
    must be at the same positions; elsewhere the error against float64 may be at most `EAGER_FACTOR` times eager's own, plus
    `ULPS` roundings, plus the reference's noise, plus `max_relative_error` times the largest value.
    Without a reference, eager is the reference. With `has_values=False` only count, shape, dtype and device matter.
    """
    assert len(got) == len(wanted), f"{len(got)} outputs, {len(wanted)} expected"
    for index, (mine, eager) in enumerate(zip(got, wanted, strict=True)):
        _check_kind(f"output {index}", mine, eager)
        if not has_values:
            continue
        reference = reference64[index] if index < len(reference64) else None
        if eager.is_floating_point():
            _check_floats(f"output {index}", mine, eager, reference, max_relative_error)
        else:
            _check_equal(f"output {index}", mine, eager)


def _check_kind(where: str, got: Any, wanted: torch.Tensor) -> None:
    assert isinstance(got, torch.Tensor), f"{where}: {type_of(got)}, a tensor expected"
    assert got.shape == wanted.shape, f"{where}: shape {list(got.shape)}, {list(wanted.shape)} expected"
    assert got.dtype == wanted.dtype, f"{where}: {got.dtype}, {wanted.dtype} expected"
    assert got.device == wanted.device, f"{where}: on {got.device}, {wanted.device} expected"


def _check_equal(where: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    if not torch.equal(got, wanted):
        _fail(where, got, wanted, (got != wanted).double())


def _check_floats(
    where: str, got: torch.Tensor, wanted: torch.Tensor, reference: Reference | None, max_relative_error: float
) -> None:
    mine, eager = got.double(), wanted.double()
    special = ~torch.isfinite(eager) | ~torch.isfinite(mine)
    agree = (mine == eager) | (torch.isnan(mine) & torch.isnan(eager))
    if bool((special & ~agree).any()):
        _fail(f"{where}: NaN or infinity", got, wanted, (special & ~agree).double())
    truth = eager if reference is None else torch.where(torch.isfinite(reference.values), reference.values, eager)
    allowed = _allowed(eager, truth, special, torch.finfo(wanted.dtype), 0.0 if reference is None else reference.noise)
    if max_relative_error and truth.numel():
        allowed = allowed + max_relative_error * torch.where(special, 0.0, truth.abs()).max()
    excess = torch.where(special, torch.zeros_like(eager), (mine - truth).abs() - allowed)
    if bool((excess > 0).any()):
        _fail(where, got, wanted, excess)


def _allowed(
    eager: torch.Tensor, truth: torch.Tensor, special: torch.Tensor, kind: torch.finfo, noise: float
) -> torch.Tensor:
    own = torch.where(special, torch.zeros_like(eager), (eager - truth).abs())
    largest = float(own.max()) if own.numel() else 0.0
    return EAGER_FACTOR * largest + ULPS * kind.eps * truth.abs() + noise + kind.tiny


def _fail(where: str, got: torch.Tensor, wanted: torch.Tensor, badness: torch.Tensor) -> None:
    flat = int(badness.reshape(-1).argmax())
    index = [int(part) for part in torch.unravel_index(torch.tensor(flat), badness.shape)]
    mine, eager = got[tuple(index)].item(), wanted[tuple(index)].item()
    count = f"{int((badness > 0).sum())} of {badness.numel()} elements wrong"
    apart = _ulps(mine, eager, wanted.dtype)
    raise AssertionError(f"{where}: {count}; at {index} got {mine!r}, expected {eager!r}{apart}")


def _ulps(got: Any, wanted: Any, dtype: torch.dtype) -> str:
    if not dtype.is_floating_point:
        return ""
    step = torch.finfo(dtype).eps * max(abs(wanted), torch.finfo(dtype).tiny)
    return f", {abs(got - wanted) / step:.1f} ULP apart"


def _in_float64(name: str, sample: Sample, move: float, *, has_whole: bool) -> tuple[torch.Tensor, ...] | None:
    """Return the results with every float tensor in float64, each moved by `move` roundings; None if that call fails.

    With `has_whole` integers are in float64 too, moved by roundings of float32.
    """
    generator = torch.Generator().manual_seed(_SEED)
    arguments, keywords = pytree.tree_map_only(
        torch.Tensor, lambda tensor: _widened(tensor, move, generator, has_whole=has_whole), sample.build()
    )
    try:
        with torch.no_grad():
            return read_outputs(overload_of(name)(*arguments, **keywords), sample)
    except (RuntimeError, NotImplementedError, IndexError, TypeError):
        return None


def _widened(tensor: torch.Tensor, move: float, generator: torch.Generator, *, has_whole: bool) -> torch.Tensor:
    is_whole = not tensor.is_floating_point()
    if is_whole and not (has_whole and tensor.dtype is not torch.bool):
        return tensor
    signs = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
    wide = tensor.double()
    kind = torch.float32 if is_whole else tensor.dtype
    return wide + wide * signs * move * torch.finfo(kind).eps if move else wide


def moved(values: Sequence[Any], move: float) -> tuple[Any, ...]:
    """Return values with each float tensor in float64, moved by up to `move` roundings of its own dtype."""
    generator = torch.Generator().manual_seed(_SEED)
    return tuple(
        _widened(value, move, generator, has_whole=False) if isinstance(value, torch.Tensor) else value for value in values
    )


def distance(values: torch.Tensor, moved: torch.Tensor) -> float:
    """Return the largest difference; 0 if it is a jump, which no rounding explains."""
    difference = torch.nan_to_num((values - moved).abs().double(), nan=0.0, posinf=0.0)
    largest = float(difference.max()) if difference.numel() else 0.0
    scale = torch.nan_to_num(values.abs().double(), nan=0.0, posinf=0.0)
    return largest if scale.numel() and largest <= SMOOTH * float(scale.max()) else 0.0
