"""Inputs as callers have them: in any layout, with nothing in them, with values beyond the range of half precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.layouts import LAYOUTS, expanded, laid_out
from hub.testing.single import whole_cluster
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.cases import CASES, EMPTY, LARGE, Inputs

ONE = CompileSettings(threads=1)
BACKEND = create(Settings(interpret=True))
NEED_ELEMENTS = ("all", "cross entropy")
"""Cases for which eager has no result of nothing at all, or NaN."""
CALLED = {**LAYOUTS, "expanded": expanded}


def cluster_of(name: str, inputs: Inputs) -> tuple[Cluster, Sequence[Any]]:
    """Return a case of these inputs as one cluster."""
    return whole_cluster(Wrapped(CASES[name][0]), inputs)


def assert_right(cluster: Cluster, *calls: Sequence[Any]) -> None:
    """Assert that results of one executable are as accurate as plugins' must be."""
    executable = BACKEND.compile(cluster, ONE)
    for inputs in calls:
        assert value_problem(executable(*inputs), eager(cluster, inputs), exact(cluster, inputs)) == ""


# --- Strides ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout", ["transposed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("strided", "expanded"))]
)
@pytest.mark.parametrize("name", CASES)
def test_every_template_is_compiled_for_inputs_in_any_layout(name: str, layout: str) -> None:
    """What is known of their order in memory while compiling, and of elements that repeat."""
    cluster, inputs = cluster_of(name, laid_out(CASES[name][1](7), CALLED[layout]))
    assert_right(cluster, inputs)


@pytest.mark.parametrize("name", CASES)
def test_every_template_is_called_with_inputs_in_any_layout(name: str) -> None:
    """Whatever they were compiled for."""
    cluster, inputs = cluster_of(name, CASES[name][1](7))
    assert_right(cluster, *(laid_out(inputs, layout) for layout in CALLED.values()))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 129])
@pytest.mark.parametrize("layout", CALLED)
@pytest.mark.parametrize("name", CASES)
def test_every_template_in_any_layout_at_other_sizes(name: str, layout: str, size: int) -> None:
    """Of one element a row, and of several blocks."""
    cluster, inputs = cluster_of(name, laid_out(CASES[name][1](size), CALLED[layout]))
    assert_right(cluster, inputs)


# --- Nothing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name not in NEED_ELEMENTS])
def test_empty_tensors(name: str) -> None:
    """No program runs, or one with nothing in it."""
    cluster, inputs = cluster_of(name, EMPTY[name] if name in EMPTY else CASES[name][1](0))
    assert_right(cluster, inputs)


# --- Values beyond half precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LARGE)
def test_values_beyond_the_range_of_half_precision(name: str) -> None:
    """On the way they are what they are in float32; as results they are infinite where eager's are."""
    function, inputs = LARGE[name]
    values = tuple(value.to(torch.float16) if value.is_floating_point() else value for value in inputs(129))
    cluster, given = whole_cluster(Wrapped(function), values)
    assert_right(cluster, given)
