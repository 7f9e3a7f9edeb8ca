"""Indices that are kept inside of their tensors, or reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hub.errors import InputRefused
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from hub.toolkit.arguments import captured_sizes, specialised, with_weights
from hub.toolkit.indices import bounded
from plugin_disc.backend import create as create_disc
from plugin_triton.backend import create as create_triton
from plugin_triton.settings import Settings
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


BACKENDS: dict[str, Any] = {"disc": create_disc(), "triton": create_triton(Settings(interpret=True))}
COUNTED = {
    "index": lambda x, i: x[i] + 1,
    "index_put": lambda x, i: x.index_put((i,), x.sum()),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
}
"""Negative indices count from the end: in eager, too."""
NOT_COUNTED = {
    "index_select": lambda x, i: x.index_select(0, i) + 1,
    "embedding": lambda x, i: nn.functional.embedding(i, x) + 1,
    "gather": lambda x, i: x.gather(0, i[:, None]) + 1,
    "scatter": lambda x, i: x.scatter(0, i[:, None], 2.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x, "amax"),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2] + 1),
    "one_hot": lambda x, i: nn.functional.one_hot(i, 3) * x,
}
"""Negative indices are errors."""


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("function", (*COUNTED.values(), *NOT_COUNTED.values()), ids=(*COUNTED, *NOT_COUNTED))
def test_an_index_that_eager_refuses_is_refused(name: str, function: Callable[..., Any]) -> None:
    """Eager then raises its own error; each index that it takes gives its result."""
    x = torch.arange(6.0).reshape(3, 2) if function is not NOT_COUNTED["one_hot"] else torch.arange(3.0)
    cluster, _ = whole_cluster(Of(function), (x, torch.tensor([0, 1])))
    assert all(BACKENDS[name].supports(node).accepted for node in cluster.nodes)
    executable = BACKENDS[name].compile(cluster, CompileSettings(threads=1))
    for last in (0, 2, -1, -3, -4, 3):
        places = torch.tensor([1, last])
        inputs = [places if spec.dtype == torch.int64 else x for spec in cluster.inputs]
        if (-3 <= last < 0 and function in COUNTED.values()) or 0 <= last < 3:
            assert torch.equal(executable(*inputs)[0], function(x, places))
            continue
        with pytest.raises((IndexError, RuntimeError)):
            function(x, places)
        with pytest.raises(InputRefused, match="out of range"):
            executable(*inputs)
