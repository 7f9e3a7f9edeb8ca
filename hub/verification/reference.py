"""Eager's outputs on one set of inputs, and further runs of the same cluster that show how far eager can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_aggregate

from hub.plugin.graph import Cluster
from hub.verification.parts import parts_of, whole_of

NUDGES = 3
"""Runs with perturbed inputs: enough that an element that is sensitive to roundings changes in one of them."""
MANY_NUDGES = 24
"""Such runs before an infinity or NaN counts as wrong: the root of a difference that should be zero is NaN in half of
them."""
_SEED = 20_011

Outputs = tuple[torch.Tensor, ...]


class Reference:
    """Eager's outputs. The other runs are made on first use, since most results are right without them."""

    def __init__(self, cluster: Cluster, inputs: Sequence[Any]) -> None:
        """Run the cluster in eager. Raises what eager raises on such inputs."""
        self.cluster = cluster
        self.inputs = tuple(inputs)
        with torch.no_grad():
            self.outputs: Outputs = tuple(cluster.module(*inputs))
        self._nudged: dict[float, tuple[Outputs, ...]] = {}

    @property
    def is_finite(self) -> bool:
        """Return whether no output holds an infinity or NaN."""
        return all(bool(output.isfinite().all()) for output in self.outputs if is_floating(output))

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Strides of the outputs, in elements."""
        return tuple(output.stride() for output in self.outputs)

    @cached_property
    def wide(self) -> Outputs | None:
        """The outputs as computed in float64; None if an operator cannot be run in float64 or shapes differ."""
        return float64_outputs(self.cluster, self.inputs)

    @cached_property
    def flushed(self) -> tuple[Outputs, ...]:
        """Eager's outputs with denormal values taken as zero: in all inputs, and in each alone.

        Each alone, because a quotient of denormals may be computed with the reciprocal of the divisor, which is infinite.
        """
        floating = [position for position, value in enumerate(self.inputs) if is_floating(value)]
        found = (self._eager_on(_flushed_to_zero, only) for only in (floating, *([position] for position in floating)))
        return tuple(outputs for outputs in found if outputs is not None)

    def nudged(self, relative: float) -> tuple[Outputs, ...]:
        """Return eager's outputs with each floating input perturbed by up to this fraction, and by at least one rounding.

        Zeros are not perturbed, nor are ties between them, which no rounding breaks.
        """
        if relative not in self._nudged:
            self._nudged[relative] = tuple(self.nudges(relative, NUDGES))
        return self._nudged[relative]

    def nudges(self, relative: float, count: int) -> Iterator[Outputs]:
        """Yield outputs as `nudged` does, `count` times, and keep none."""
        generator = torch.Generator("cpu").manual_seed(_SEED)
        for _ in range(count):
            found = self._eager_on(lambda value: _moved(value, relative, generator))
            if found is not None:
                yield found

    def _eager_on(
        self, change: Callable[[torch.Tensor], torch.Tensor], only: Collection[int] | None = None
    ) -> Outputs | None:
        """Return eager's outputs on changed floating inputs, or None if eager raises; `only` are the inputs' positions."""
        changed = [
            whole_of(change(parts_of(value)), value) if is_floating(value) and (only is None or position in only) else value
            for position, value in enumerate(self.inputs)
        ]
        try:
            with torch.no_grad():
                return _of_equal_shapes(tuple(self.cluster.module(*changed)), self.outputs)
        except Exception:  # noqa: BLE001 - any operator may reject other values; the comparison then does without
            return None


def is_floating(value: Any) -> bool:
    """Return True for a tensor of a floating or complex dtype."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def float64_outputs(cluster: Cluster, inputs: Sequence[Any]) -> Outputs | None:
    """Return the cluster's outputs as computed in float64, or None if an operator cannot be run in float64."""
    try:
        with torch.no_grad():
            return tuple(_Float64(cluster.module).run(*map(_widened, inputs)))
    except Exception:  # noqa: BLE001 - any operator may reject float64; the caller then compares with eager only
        return None


class _Float64(fx.Interpreter):
    def fetch_attr(self, target: str) -> Any:
        return _widened(super().fetch_attr(target))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wide = cast("tuple[Any, Any]", map_aggregate((args, kwargs), _widened))
        return super().call_function(target, *wide)


def _widened(value: Any) -> Any:
    if is_floating(value):
        return value.to(torch.complex128) if value.is_complex() else value.double()
    if isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex):
        return torch.complex128 if value.is_complex else torch.float64
    return value


def _moved(value: torch.Tensor, relative: float, generator: torch.Generator) -> torch.Tensor:
    step = max(relative, torch.finfo(value.dtype).eps)
    signs = (torch.rand(value.shape, generator=generator, dtype=torch.float64, device="cpu") * 2 - 1).to(value.device)
    return (value.double() * (1 + step * signs)).to(value.dtype)


def _flushed_to_zero(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.abs() < torch.finfo(value.dtype).tiny, value * 0, value)  # * 0 keeps the sign


def _of_equal_shapes(found: Outputs, wanted: Outputs) -> Outputs | None:
    """Return `found`, or None if shapes differ: in some programs values decide shapes, which cannot be compared."""
    shapes = [value.shape for value in found]
    return found if shapes == [value.shape for value in wanted] else None
