"""Whole programs: right at sizes that fill no register and at sizes that fill many, fixed and symbolic, on threads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch.utils import _pytree as pytree

from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import FIXED_SIZES, PROGRAMS, Wrapped, inputs_of

ONE = CompileSettings(threads=1)
SIZES = ((3, 8), (5, 72), (33, 520))
"""Less than a register, several with a rest, more than one step of unrolled loops."""


def captured(name: str, inputs: Sequence[torch.Tensor], *, dynamic: bool) -> tuple[Cluster, tuple[object, ...]]:
    """Return a program as one cluster, all of whose nodes DISC supports."""
    cluster, values = whole_cluster(Wrapped(PROGRAMS[name]), inputs, dynamic=dynamic)
    refusals = [create().supports(node).reason for node in cluster.nodes if "getitem" not in str(node.target)]
    assert [reason for reason in refusals if reason] == []
    return cluster, values


def assert_as_exact(got: Sequence[torch.Tensor], name: str, inputs: Sequence[torch.Tensor]) -> None:
    """Assert that results are about as close to float64 as eager's."""
    wide = [value.double() if value.is_floating_point() else value for value in inputs]
    expected, truth = (pytree.tree_leaves(PROGRAMS[name](*values)) for values in (inputs, wide))
    for mine, theirs, right in zip(got, expected, truth, strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        largest = float(right.abs().max()) if right.numel() else 0.0
        allowed = 4 * float((theirs - right).abs().max()) + 4e-7 * largest if right.numel() else 0.0
        assert not right.numel() or float((mine - right).abs().max()) <= allowed


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_fixed_sizes(name: str, size: tuple[int, int]) -> None:
    """A program compiled for its sizes gives what eager gives, as exactly."""
    inputs = inputs_of(name, *size)
    cluster, values = captured(name, inputs, dynamic=False)
    assert_as_exact(create().compile(cluster, ONE)(*values), name, inputs)


DYNAMIC = [name for name in PROGRAMS if name not in FIXED_SIZES]
INDEXED = ("cross_entropy_rows", "embedding_norm")
"""Their indices go up to 50, so sizes stay larger."""
EVEN = 8
"""Sizes that programs cut in halves stay multiples of this."""


@pytest.mark.parametrize("name", DYNAMIC)
def test_symbolic_sizes(name: str) -> None:
    """One executable gives what eager gives at all sizes, small and large and in any order."""
    cluster, inputs = captured(name, inputs_of(name, 6, 24), dynamic=True)
    executable = create().compile(cluster, ONE)
    symbols = symbols_of(cluster)
    for factor in (7, 9, 8) if name in INDEXED else (1, 3, 2, 9):
        sizes = {symbol: EVEN * factor * (1 + place) for place, symbol in enumerate(symbols)}
        values = with_sizes(cluster, inputs, sizes)
        assert value_problem(executable(*values), eager(cluster, values), exact(cluster, values)) == ""


@pytest.mark.parametrize("name", ["masked_softmax", "residual_norm", "gelu_bias", "column_statistics"])
def test_several_threads(name: str) -> None:
    """Work shared among threads gives the very numbers of one thread."""
    inputs = inputs_of(name, 120, 520)
    cluster, values = captured(name, inputs, dynamic=False)
    alone = create().compile(cluster, ONE)(*values)
    shared = create().compile(cluster, CompileSettings(threads=3))(*values)
    assert [torch.equal(one, other) for one, other in zip(alone, shared, strict=True)] == [True] * len(alone)


COLUMNS = {
    "sums of float64": lambda x: x.double().sum(0),
    "sums of integers": lambda x: (x * 10).long().sum(0),
    "truth": lambda x: ((x > 2).any(0), (x > -3).all(0)),
    "extremes of halves": lambda x: x.bfloat16().amax(0),
    "a library's function": lambda x: torch.log1p(x.abs()).mean(0),
    "softmax": lambda x: torch.softmax(x, 0),
    "places": lambda x: x.argmax(0),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns(name: str) -> None:
    """Columns are reduced several registers at a time, and those that are left over one by one, in every dtype."""
    inputs = (torch.randn(50, 200, generator=torch.Generator().manual_seed(1)),)
    cluster, values = whole_cluster(Wrapped(COLUMNS[name]), inputs)
    assert value_problem(create().compile(cluster, ONE)(*values), eager(cluster, values), exact(cluster, values)) == ""
