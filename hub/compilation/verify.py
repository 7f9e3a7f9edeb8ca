"""Compares an executable with eager on real inputs before it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_aggregate

from hub.errors import AccuracyError, ContractError
from hub.graph import Cluster, as_bytes
from hub.support import dtype_name

EAGER_FACTOR = 4.0
"""How many times eager's own error against float64 an executable may have, for another order of the same sums."""
ULPS = 32.0
"""Units in the last place of the largest value that are always allowed: one per elementary operation of a short chain."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Outputs of the first trusted call, and how far they were from eager."""

    outputs: tuple[torch.Tensor, ...]
    error: float
    """Largest max|error| / max|reference| over floating outputs."""


def verify(
    cluster: Cluster, backend: str, executable: Callable[..., Sequence[Any]], inputs: Sequence[Any], accuracy: float | None
) -> Verified:
    """Runs an executable once and compares it with eager.

    Without an `accuracy` budget (largest allowed max|error| / max|reference|), floating outputs must be as close to a
    float64 run of the cluster as eager is, within `EAGER_FACTOR` and `ULPS`. Integers and booleans must be equal. Raises
    ContractError for a wrong number of outputs, shape, dtype or device, for inputs written to and for outputs that alias
    inputs; AccuracyError for wrong numbers. Whatever the executable itself raises passes through.
    """
    before = [value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None for value in inputs]
    kept = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    outputs = tuple(executable(*inputs))
    _check_inputs(cluster, backend, inputs, kept, before)
    expected = tuple(cluster.module(*inputs))
    _check_form(cluster, backend, outputs, expected, inputs)
    reference = float64_outputs(cluster, inputs) if accuracy is None else None
    errors = [
        _check_numbers(cluster, backend, index, got, want, None if reference is None else reference[index], accuracy)
        for index, (got, want) in enumerate(zip(outputs, expected, strict=True))
    ]
    return Verified(outputs, max(errors, default=0.0))


def float64_outputs(cluster: Cluster, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...] | None:
    """Gives the cluster's outputs as computed in float64, or None where an operator cannot be run so."""
    try:
        return tuple(_Float64(cluster.module).run(*map(_widened, inputs)))
    except Exception:  # noqa: BLE001 - any operator may refuse float64; the caller then compares with eager alone
        return None


class _Float64(fx.Interpreter):
    def fetch_attr(self, target: str) -> Any:
        return _widened(super().fetch_attr(target))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wide = cast("tuple[Any, Any]", map_aggregate((args, kwargs), _widened))
        return super().call_function(target, *wide)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _check_inputs(
    cluster: Cluster, backend: str, inputs: Sequence[Any], kept: Sequence[Any], before: Sequence[Any]
) -> None:
    for name, value, copy, version in zip(cluster.input_names, inputs, kept, before, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        if (version is not None and value._version != version) or not _same(value, copy):
            value.copy_(copy)
            raise ContractError(f"the executable wrote to its input {name}", backend=backend, cluster=cluster.name)


def _same(value: torch.Tensor, copy: torch.Tensor) -> bool:
    return not value.numel() or torch.equal(as_bytes(value), as_bytes(copy))


def _check_form(
    cluster: Cluster, backend: str, outputs: Sequence[Any], expected: Sequence[torch.Tensor], inputs: Sequence[Any]
) -> None:
    def fail(text: str) -> ContractError:
        return ContractError(text, backend=backend, cluster=cluster.name)

    if len(outputs) != len(expected):
        raise fail(f"{len(outputs)} outputs, {len(expected)} expected")
    taken = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor) and value.numel()}
    for name, got, want in zip(cluster.output_names, outputs, expected, strict=True):
        if not isinstance(got, torch.Tensor):
            raise fail(f"output {name} is a {type(got).__name__}, no tensor")
        for what, found, wanted in (
            ("shape", got.shape, want.shape),
            ("dtype", got.dtype, want.dtype),
            ("device", got.device, want.device),
        ):
            if found != wanted:
                raise fail(f"output {name} has {what} {found}, {wanted} expected")
        if got.numel() and got.untyped_storage().data_ptr() in taken:
            raise fail(f"output {name} shares memory with an input")


def _check_numbers(
    cluster: Cluster,
    backend: str,
    index: int,
    got: torch.Tensor,
    want: torch.Tensor,
    reference: torch.Tensor | None,
    accuracy: float | None,
) -> float:
    if got.numel() == 0:
        return 0.0
    if not want.is_floating_point():
        wrong = got != want
        allowed, error = 0.0, float(wrong.count_nonzero())
        if error:
            raise _wrong(cluster, backend, index, got, want, wrong.to(torch.uint8), error, allowed, 1.0)
        return 0.0
    exact = want.double() if reference is None else reference.double()
    finite = want.isfinite() & exact.isfinite()
    if not torch.equal(got.isfinite() | ~finite, torch.ones_like(finite)) or not _same_specials(got, want, finite):
        raise _wrong(
            cluster, backend, index, got, want, (got.isfinite() != want.isfinite()).to(torch.uint8), float("inf"), 0.0, 1.0
        )
    zero = torch.zeros((), dtype=torch.float64, device=want.device)
    distance = torch.where(finite, (got.double() - exact).abs(), zero)
    scale = float(torch.where(finite, exact.abs(), zero).max())
    eager_error = float(torch.where(finite, (want.double() - exact).abs(), zero).max())
    error = float(distance.max())
    precision = torch.finfo(want.dtype).eps * scale
    allowed = (
        accuracy * scale
        if accuracy is not None
        else _exact_budget(cluster, eager_error, precision, has_reference=reference is not None)
    )
    if error > allowed:
        raise _wrong(cluster, backend, index, got, exact, distance, error, allowed, precision)
    return error / scale if scale else 0.0


def _exact_budget(cluster: Cluster, eager_error: float, precision: float, *, has_reference: bool) -> float:
    if has_reference:
        return EAGER_FACTOR * eager_error + ULPS * precision
    # Without a float64 run, grant each operation half an ULP of its own, which random signs let grow with the square root.
    return ULPS * precision * max(1.0, len(cluster.nodes) ** 0.5)


def _same_specials(got: torch.Tensor, want: torch.Tensor, finite: torch.Tensor) -> bool:
    special = ~finite & ~want.isfinite()
    got, want = got[special], want[special]
    return bool(((got == want) | (got.isnan() & want.isnan())).all())


def _wrong(
    cluster: Cluster,
    backend: str,
    index: int,
    got: torch.Tensor,
    want: torch.Tensor,
    distance: torch.Tensor,
    error: float,
    allowed: float,
    precision: float,
) -> AccuracyError:
    where = tuple(int(position) for position in torch.unravel_index(distance.argmax(), distance.shape))
    ulp = f", {error / precision:.0f} ULP of the largest value" if precision and error != float("inf") else ""
    return AccuracyError(
        f"output {cluster.output_names[index]} ({dtype_name(got.dtype)}) at {list(where)}: expected "
        f"{want[where].item():.9g}, got {got[where].item():.9g}; error {error:.3g}, allowed {allowed:.3g}{ulp}",
        backend=backend,
        cluster=cluster.name,
        hint='grant an error budget with options={"accuracy": ...} if this is acceptable',
    )
