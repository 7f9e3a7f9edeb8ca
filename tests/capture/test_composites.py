"""Operators that PyTorch composes of others, and copies into parts of tensors: captured as what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional

import hub
from hub.capture.composites import COMPOSED
from hub.frontend.ownership import graphs_of

A, B = torch.rand(2, 3, 4) + 0.1, torch.rand(2, 4, 5)
OPTIONS = {"backends": [], "tune": "off", "start": "wait"}

COMPOSITES: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "einsum": lambda a: torch.einsum("bij,bjk->bik", a, B),
    "einsum of one": lambda a: torch.einsum("bij->bj", a),
    "tensordot": lambda a: torch.tensordot(a, B, ([2], [1])),
    "inner": lambda a: torch.inner(a, a),
    "kron": lambda a: torch.kron(a[0], a[1]),
    "similarity": lambda a: functional.cosine_similarity(a, a.flip(-1), -1),
    "distance": lambda a: functional.pairwise_distance(a, a.flip(-1)),
    "deviation": lambda a: a.std(-1, keepdim=True) + a.std() + torch.std_mean(a, 1)[1].sum(),
    "variance": lambda a: a.var(-1, unbiased=False).sum() + a.var() + torch.var_mean(a)[0],
    "other names": lambda a: torch.multiply(torch.subtract(torch.divide(a, 3), 2), torch.negative(a)),
    "comparisons": lambda a: torch.greater(a, 0.3) & torch.less_equal(a, 0.8) & torch.not_equal(a, 0.5),
    "clips": lambda a: torch.absolute(torch.clip(a - 0.5, -0.2, 0.3)),
    "special": lambda a: torch.special.expit(a) + torch.special.softmax(a, -1),
    "joins": lambda a: torch.hstack([torch.vstack([a, a]), torch.concatenate([a, a])]),
    "orders": lambda a: torch.movedim(torch.swapaxes(a, 0, 1), 0, 2) * 2,
    "repeated": lambda a: a.tile(1, 2, 1),
    "grids": lambda a: torch.stack(torch.meshgrid(a[0, 0], a[0, 1], indexing="xy")),
}


def written(a: torch.Tensor) -> torch.Tensor:
    """Fill halves."""
    z = torch.zeros(2, 3, 8)
    z[:, :, :4] = a
    z[..., 4:] = a * 2
    return z * 2


def selected(a: torch.Tensor) -> torch.Tensor:
    """Fill rows, one with a number."""
    z = torch.zeros(2, 3, 4)
    z[:, 0] = a[:, 1]
    z[:, -1] = a[0, 0]
    z[0] = 1.5
    return z * 2


def converted(a: torch.Tensor) -> torch.Tensor:
    """Fill a part of another dtype, by values of fewer dims."""
    z = torch.zeros(2, 3, 8, dtype=torch.float64)
    z[..., 2:6] = a[0, 0]
    return z * 2


def returned(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a copy, which must not be the input."""
    z = torch.zeros(2, 3, 4)
    z.copy_(a)
    return z, a * 2


WRITES = (written, selected, converted, returned)


def captured(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> tuple[fx.Graph, Any]:
    """Return the graph that is captured of a call, and its result."""
    run: Any = torch.compile(function, backend="hub", options=OPTIONS, dynamic=dynamic)
    with torch.no_grad():
        result = run(*args)
    (graph,) = graphs_of(run)
    return graph.graph.module.graph, result


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_are_captured_as_their_parts(name: str, dynamic: bool) -> None:
    """None is left, and results are eager's, bit by bit: eager computes the same parts."""
    graph, found = captured(COMPOSITES[name], A, dynamic=dynamic)
    assert not [node for node in graph.nodes if node.target in COMPOSED]
    torch.testing.assert_close(found, COMPOSITES[name](A), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_to_a_part_is_no_copy(write: Callable[..., Any], dynamic: bool) -> None:
    """Unless the copy itself is a result."""
    graph, found = captured(write, A, dynamic=dynamic)
    copies = [node for node in graph.nodes if node.target in (torch.ops.aten.copy.default, torch.ops.aten.fill.Tensor)]
    assert bool(copies) == (write is returned)
    torch.testing.assert_close(found, write(A), rtol=0, atol=0)
    if write is returned:
        assert found[0].data_ptr() != A.data_ptr()


@pytest.mark.parametrize("function", [*COMPOSITES.values(), *WRITES], ids=[*COMPOSITES, *(one.__name__ for one in WRITES)])
def test_backends_run_the_parts(function: Callable[..., Any]) -> None:
    """In worker processes, which the graph is sent to."""
    options = {**OPTIONS, "backends": ["onnxruntime"]}
    run: Any = torch.compile(function, backend="hub", options=options)
    with torch.no_grad():
        torch.testing.assert_close(run(A), function(A))
    assert "onnxruntime" in hub.plans(run)[0].backends
