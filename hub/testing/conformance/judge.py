"""Comparison of executables' results with eager: problems in words, none if the results are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hub.errors import InputRefused
from hub.plugin.canonical import as_bytes
from hub.plugin.graph import Cluster
from hub.testing.conformance.finding import trouble
from hub.testing.conformance.layouts import copied
from hub.testing.operators import Reference, check_close
from hub.testing.operators.close import ROUNDINGS, distance, moved
from hub.verification.reference import float64_outputs

Tensors = tuple[torch.Tensor, ...]
Outputs = Sequence[Any]


_granted: list[float] = [0.0]
"""Error class of the backend that this process examines; there is one backend in each process."""


def grant(max_relative_error: float) -> None:
    """Allow results, from now on, to be off by the examined backend's declared error, relative to the largest value."""
    _granted[0] = max_relative_error


def granted() -> float:
    """Return the error class last passed to `grant`."""
    return _granted[0]


def run(executable: Callable[..., Outputs], cluster: Cluster, inputs: Sequence[Any]) -> Outputs:
    """Run one call on copies of the inputs, as the dispatcher does: in eager if the executable refuses the values."""
    try:
        return executable(*copied(inputs))
    except InputRefused:
        return eager(cluster, inputs)


def eager(cluster: Cluster, inputs: Sequence[Any]) -> Tensors:
    """Return eager's outputs. Raise what its operators raise."""
    with torch.no_grad():
        return tuple(cluster.module(*copied(inputs)))


def exact(cluster: Cluster, inputs: Sequence[Any]) -> tuple[Reference | None, ...]:
    """Return float64 references of a cluster's outputs; nothing if an operator has no float64 form."""
    found = float64_outputs(cluster, copied(inputs))
    if found is None:
        return ()
    others = [float64_outputs(cluster, moved(copied(inputs), step)) for step in ROUNDINGS]
    return tuple(
        Reference(value.double(), max(distance(value, other[index]) for other in others if other))
        if value.is_floating_point()
        else None
        for index, value in enumerate(found)
    )


def form_problem(got: Outputs, wanted: Tensors) -> str:
    """Return where count, shape, dtype or device differ from eager's; "" if they agree."""
    return _assertion(lambda: check_close(got, wanted, has_values=False))


def value_problem(got: Outputs, wanted: Tensors, references: Sequence[Reference | None] = ()) -> str:
    """Return which output is off and by how much, or differs in form; "" if all are as exact as required.

    Against float64 `references` the declared error class is allowed; without, `wanted` is the backend's own result.
    """
    return _assertion(lambda: check_close(got, wanted, references, max_relative_error=_granted[0] if references else 0.0))


def answer_problem(executable: Callable[..., Outputs], cluster: Cluster, inputs: Sequence[Any]) -> str:
    """Run one call and return what is wrong with the result, an exception included; "" if nothing is."""
    try:
        got = run(executable, cluster, inputs)
    except Exception as error:  # noqa: BLE001 - anything a plugin raises is the finding
        return trouble(error)
    return value_problem(got, eager(cluster, inputs), exact(cluster, inputs))


def same_bits(these: Outputs, those: Outputs) -> bool:
    """Return whether all tensors agree in shape, dtype and every bit; other values are compared by `==`."""
    return len(these) == len(those) and all(
        _same_tensor(this, that) if isinstance(this, torch.Tensor) else this == that
        for this, that in zip(these, those, strict=True)
    )


def storages(values: Sequence[Any]) -> set[int]:
    """Return the addresses of the memory of all nonempty tensors."""
    return {value.untyped_storage().data_ptr() for value in values if isinstance(value, torch.Tensor) and value.numel()}


def _same_tensor(this: torch.Tensor, that: Any) -> bool:
    if not isinstance(that, torch.Tensor) or this.shape != that.shape or this.dtype != that.dtype:
        return False
    if not this.numel():
        return True
    left, right = (as_bytes(value.detach()) for value in (this, that))
    return torch.equal(left, right)


def _assertion(check: Callable[[], None]) -> str:
    try:
        check()
    except AssertionError as error:
        return str(error)
    return ""
