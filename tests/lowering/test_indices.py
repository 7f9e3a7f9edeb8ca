"""Indices that are kept inside of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hub.testing.single import whole_cluster
from hub.toolkit.arguments import captured_sizes, specialised, with_weights
from hub.toolkit.indices import bounded
from tests.functions import Of

PLACES = torch.tensor([0, -1, 2, -3])
CALLS = {
    "index": lambda x, i: x[i],
    "index of two": lambda x, i: x[i, i],
    "index of the second": lambda x, i: x[:, i],
    "index_put": lambda x, i: x.index_put((i,), torch.ones(4, 3)),
    "index_fill": lambda x, i: x.index_fill(1, i, 2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_negative_indices_count_from_the_end(name: str) -> None:
    """The program gives eager's result, and none of its operators sees a negative index."""
    x = torch.arange(9.0).reshape(3, 3)
    cluster, values = whole_cluster(Of(CALLS[name]), (x, PLACES))
    found = specialised(cluster, captured_sizes(cluster), {}, prepare=bounded)
    (result,) = found.module(*(values[position] for position in found.fed))
    assert torch.equal(result, CALLS[name](x, PLACES))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: torch.index_select(x, 0, i),
        lambda x, i: nn.functional.embedding(i, x),
        lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 3)),
        lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 3), torch.ones(4, 3)),
        lambda x, i: x.index_add(0, i, torch.ones(4, 3)),
    ],
    ids=["index", "index_select", "embedding", "gather", "scatter_add", "index_add"],
)
def test_indices_beyond_the_end_mean_the_last_place(function: Callable[..., Any]) -> None:
    """Where eager raises, the program reads and writes its own memory."""
    x, inside = torch.randn(3, 3), torch.tensor([0, 1, 2, 1])
    cluster, _ = whole_cluster(Of(function), (x, inside))
    found = specialised(cluster, captured_sizes(cluster), {}, prepare=bounded)
    by_name = dict(zip(("x", "index"), (x, torch.tensor([0, 1, 7, 1])), strict=True))
    ordered = [by_name["index" if cluster.inputs[position].dtype == torch.int64 else "x"] for position in found.fed]
    assert torch.equal(found.module(*ordered)[0], function(x, inside))


def test_programs_without_indices_stay_as_they_are() -> None:
    """Nothing is added."""
    cluster, _ = whole_cluster(Of(lambda x: x.relu() + 1), (torch.randn(3),))
    module = with_weights(cluster).module
    before = [node.target for node in module.graph.nodes]
    bounded(module)
    assert [node.target for node in module.graph.nodes] == before
