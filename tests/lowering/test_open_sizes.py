"""One program for all sizes, and where it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hub.plugin.graph import Cluster
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import whole_cluster
from hub.toolkit.decompositions import views_through_one_dim
from hub.toolkit.open_sizes import Open, condition_of, is_open, opened
from tests.functions import Of


def cluster_of(function: Callable[..., Any], *shapes: tuple[int, ...], dynamic: bool = True) -> Cluster:
    """Return the cluster of a function over tensors."""
    return whole_cluster(Of(function), tuple(torch.randn(shape) for shape in shapes), dynamic=dynamic)[0]


def inputs_at(cluster: Cluster, *sizes: int) -> tuple[Any, ...]:
    """Return a cluster's inputs for sizes of its symbols, in order of appearance."""
    drawn = tuple(torch.randn(3) for _ in cluster.inputs)
    return with_sizes(cluster, drawn, dict(zip(symbols_of(cluster), sizes, strict=True)))


def holds(cluster: Cluster, found: Open, *inputs: Any) -> bool:
    """Return whether a program is right for a call's inputs."""
    return condition_of(found.condition, len(cluster.inputs))(*inputs)


def test_one_program_computes_every_size() -> None:
    """Sizes are arguments or read from tensors; results follow them."""
    cluster = cluster_of(lambda x: x.reshape(-1) * x.shape[0], (3, 4))
    found = opened(cluster, {})
    for sizes in ((3, 4), (5, 2), (2, 9)):
        inputs = inputs_at(cluster, *sizes)
        assert holds(cluster, found, *inputs)
        got = found.program.module(*(inputs[position] for position in found.program.fed))
        assert torch.equal(got[0], cluster.module(*inputs)[0])


def test_sizes_below_the_least_are_left_out() -> None:
    """PyTorch takes for granted that a symbol is at least 2; who knows better says so."""
    cluster = cluster_of(lambda x: x * 2, (3,))
    for least, wanted in ((2, [False, False, True]), (1, [False, True, True]), (0, [True, True, True])):
        found = opened(cluster, {}, least=least)
        assert [holds(cluster, found, *inputs_at(cluster, size)) for size in (0, 1, 2)] == wanted


def test_inputs_have_to_agree() -> None:
    """One symbol in two inputs has one value."""
    cluster = cluster_of(lambda x, y: x + y, (4,), (4,))
    found = opened(cluster, {})
    inputs = list(inputs_at(cluster, 5))
    place = next(place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    assert holds(cluster, found, *inputs)
    inputs[place] = torch.randn(6)
    assert not holds(cluster, found, *inputs)


def _in_pairs(x: torch.Tensor, two: int) -> torch.Tensor:
    return x.reshape(-1, two) * two


def _times_its_size(x: torch.Tensor, _: int) -> torch.Tensor:
    return x * int(x.shape[0])


def test_what_tracing_takes_for_granted_is_a_condition() -> None:
    """A view in pairs holds for even sizes; the cluster's own symbols learn nothing of it."""
    cluster = cluster_of(lambda x: x * 2, (6,))
    environment = next(size for spec in cluster.inputs if hasattr(spec, "shape") for size in spec.shape).node.shape_env
    before = len(environment.guards)

    def in_pairs(module: Any) -> None:
        (call,) = (node for node in module.graph.nodes if node.op == "call_function")
        call.target = _in_pairs
        module.recompile()

    found = opened(cluster, {}, prepare=in_pairs)
    assert [holds(cluster, found, *inputs_at(cluster, size)) for size in (8, 7)] == [True, False]
    assert len(environment.guards) == before


def test_a_size_with_one_value_is_no_symbol() -> None:
    """A program that is right at the captured size alone is none for all sizes."""
    cluster = cluster_of(lambda x: x * 2, (6,))

    def fixed(module: Any) -> None:
        (call,) = (node for node in module.graph.nodes if node.op == "call_function")
        call.target = _times_its_size
        module.recompile()

    with pytest.raises(ValueError, match="one value only"):
        opened(cluster, {}, prepare=fixed)


def test_a_condition_that_cannot_be_computed_does_not_hold() -> None:
    """A guard may divide by a size of 0."""
    assert condition_of("6 % i0 == 0", 1)(3)
    assert not condition_of("6 % i0 == 0", 1)(0)


def test_clusters_are_open_by_their_inputs() -> None:
    """A cluster without symbols has one combination of sizes."""
    assert is_open(cluster_of(lambda x: x * 2, (3,)))
    assert not is_open(cluster_of(lambda x: x * 2, (3,), dynamic=False))


@pytest.mark.parametrize(
    ("function", "views"),
    [
        (lambda x: (x * 2).reshape(2, -1) + 1, 2),
        (lambda x: (x * 2).reshape(-1) + 1, 1),
        (lambda x: (x.reshape(-1) * 2).reshape(x.shape) + 1, 2),
    ],
    ids=["several to several", "several to one", "and back"],
)
def test_views_of_several_dims_as_several_go_through_one(function: Callable[..., Any], views: int) -> None:
    """torch-mlir mixes up dims where neither side is one dim."""
    cluster = cluster_of(function, (4, 6))
    found = opened(cluster, views_through_one_dim())
    made = [node for node in found.program.module.graph.nodes if "view" in str(node.target)]
    assert len(made) == views
    inputs = inputs_at(cluster, 8, 3)
    assert holds(cluster, found, *inputs)
    got = found.program.module(*(inputs[position] for position in found.program.fed))
    assert torch.equal(got[0], cluster.module(*inputs)[0])
