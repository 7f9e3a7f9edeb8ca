"""Programs by sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hub.errors import CompileError, InputRefused, RunError
from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from hub.toolkit import programs as programs_module
from hub.toolkit.arguments import Sizes, captured_sizes
from hub.toolkit.programs import Programs


class _Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def programs(build: Callable[[Sizes], Any]) -> tuple[Cluster, Programs[Any]]:
    """Return programs of a cluster with one input of symbolic size, one of them built."""
    cluster, _ = whole_cluster(_Doubled(), (torch.randn(4, 3),), dynamic=True)
    return cluster, Programs(cluster, {captured_sizes(cluster): "first"}, build)


def given(cluster: Cluster, rows: int, columns: int) -> list[Any]:
    """Return a cluster's inputs for one tensor; numbers are its sizes."""
    x = torch.ones(rows, columns)
    spec = next(spec for spec in cluster.inputs if hasattr(spec, "shape"))
    sizes = {str(symbol): size for symbol, size in zip(spec.shape, x.shape, strict=True)}
    return [x if hasattr(other, "shape") else sizes[str(other.value)] for other in cluster.inputs]


def test_a_program_is_built_once_for_each_combination_of_sizes() -> None:
    """What was built serves all later calls of its sizes."""
    built: list[Sizes] = []
    cluster, found = programs(lambda sizes: built.append(sizes) or f"number {len(built)}")
    asked = [found.of(given(cluster, *shape)) for shape in ((4, 3), (5, 3), (5, 2), (5, 3))]
    assert asked == ["first", "number 1", "number 2", "number 1"]
    assert len(found) == len(list(found)) == 3


def test_no_more_programs_are_built_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further sizes run in eager; those known are served still."""
    monkeypatch.setattr(programs_module, "MAX_SIZES", 1)
    cluster, found = programs(lambda sizes: "further")
    with pytest.raises(InputRefused, match="1 combinations"):
        found.of(given(cluster, 5, 3))
    assert found.of(given(cluster, 4, 3)) == "first"


def test_sizes_that_cannot_be_built_for_run_in_eager() -> None:
    """A compiler that fails at one size costs that call."""

    def fail(sizes: Sizes) -> Any:
        raise CompileError("too large")

    cluster, found = programs(fail)
    with pytest.raises(InputRefused, match="cannot be compiled for: too large"):
        found.of(given(cluster, 5, 3))


def test_calls_without_elements_run_in_eager() -> None:
    """No program is built for a size of 0."""
    cluster, found = programs(lambda sizes: 1 / 0)
    with pytest.raises(InputRefused, match="no elements"):
        found.of(given(cluster, 0, 3))


def test_inputs_that_do_not_fit_are_named() -> None:
    """A missing input and another rank are no sizes to build for."""
    _, found = programs(lambda sizes: 1 / 0)
    with pytest.raises(RunError, match="0 inputs"):
        found.of([])
    cluster, _ = whole_cluster(_Doubled(), (torch.randn(4, 3),))
    with pytest.raises(RunError, match="compiled for"):
        Programs(cluster, {}, lambda sizes: None).of([torch.ones(4, 2)])
