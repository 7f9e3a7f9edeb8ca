"""What stands before a product is computed on the tiles that it reads, where that moves less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.source import file_of
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.cases import random
from tests.plugin_triton.test_kernels import assert_right

Inputs = tuple[torch.Tensor, ...]


def integers(*shape: int) -> torch.Tensor:
    """Return numbers of 8 bits."""
    return torch.randint(-128, 128, shape).to(torch.int8)


def dequantised(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Compute a linear layer with weights of 8 bits."""
    return x @ ((q.to(x.dtype) - 3.0) * scale[:, None]).t()


def wide_layer(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return a product of what was computed along three dims."""
    return ((x.relu() + x) * s).view(-1, x.shape[-1]) @ w


CASES: Mapping[str, tuple[Callable[..., Any], Callable[[int], Inputs]]] = {
    "activation": (lambda x, w: x.relu() @ w, lambda n: (random(5, n), random(n, 19))),
    "shift": (lambda x, w: (x + 1.0) @ (w - 2.0), lambda n: (random(5, n), random(n, 19))),
    "scale of columns": (lambda x, s, w: (x * s) @ w, lambda n: (random(n, 19), random(19), random(19, 7))),
    "scale alone": (lambda s, w: (s + 1.0).expand(5, -1) @ w, lambda n: (random(n), random(n, 7))),
    "quantised weights": (dequantised, lambda n: (random(5, n), integers(23, n), random(23))),
    "exponential": (lambda x, w: x.exp() @ w, lambda n: (random(n, 19), random(19, 7))),
    "columns first": (lambda x, w: x.t().neg() @ w.t().abs(), lambda n: (random(n, 5), random(7, n))),
    "sliced": (lambda x, w: (x[::2] * 2.0) @ w, lambda n: (random(10, n), random(n, 7))),
    "batch": (lambda x, y, s: torch.bmm(x.relu(), y * s), lambda n: (random(2, 3, n), random(2, n, 5), random(5))),
    "three dims": (lambda x, w, b: F.linear(x.relu(), w, b), lambda n: (random(2, 5, n), random(19, n), random(19))),
    "three dims as two": (wide_layer, lambda n: (random(2, 5, n), random(n), random(n, 19))),
    "rows cut apart": (
        lambda x, y: torch.bmm((x + 1.0).view(2, 5, -1), y),
        lambda n: (random(10, n), random(2, n, 7)),
    ),
    "part of three dims": (
        lambda x, w: (x[:, 1:] * 2.0).view(-1, x.shape[-1]) @ w,
        lambda n: (random(1, 5, n), random(n, 7)),
    ),
    "with an epilogue": (lambda x, w, b: (x.relu() @ w + b).tanh(), lambda n: (random(5, n), random(n, 19), random(19))),
}


def case_of(name: str, size: int, dtype: torch.dtype = torch.float32) -> tuple[Cluster, Inputs]:
    """Return a case as a cluster."""
    function, inputs = CASES[name]
    values = tuple(value.to(dtype) if value.is_floating_point() else value for value in inputs(size))
    cluster, given = whole_cluster(Wrapped(function), values)
    return cluster, tuple(given)


def kernels_of(cluster: Cluster) -> int:
    """Return how many kernels a GPU would run."""
    return len(file_of(cluster, lower(cluster), is_interpreted=False).kernels)


@pytest.mark.parametrize("size", [1, 7, 129])
@pytest.mark.parametrize("name", CASES)
def test_products_take_along_what_stands_before_them(name: str, size: int) -> None:
    """At ragged sizes: what a function makes of nothing beyond the depth is not added up."""
    cluster, inputs = case_of(name, size)
    assert kernels_of(cluster) == 1
    assert_right(cluster, inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["shift", "quantised weights", "batch", "three dims", "three dims as two"])
def test_halves(name: str, dtype: torch.dtype) -> None:
    """Rounded where eager rounds, before they are multiplied."""
    cluster, inputs = case_of(name, 129, dtype)
    assert kernels_of(cluster) == 1
    assert_right(cluster, inputs)


def test_attention_reads_such_a_product() -> None:
    """Queries and biases come from products of their own, which take along what stands before them."""

    def attend(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x.relu() @ w, k, v, attn_mask=b.neg() @ k.t())

    inputs = (random(7, 8), random(8, 8), random(9, 8), random(9, 8), random(7, 8))
    cluster, values = whole_cluster(Wrapped(attend), inputs)
    assert kernels_of(cluster) == 3
    assert_right(cluster, values)


@pytest.mark.parametrize("name", ["shift", "three dims as two"])
def test_symbolic_sizes(name: str) -> None:
    """Sizes are parameters."""
    function, inputs = CASES[name]
    cluster, values = whole_cluster(Wrapped(function), inputs(7), dynamic=True)
    assert kernels_of(cluster) == 1
    assert_right(cluster, values)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w, v: ((y := x.relu()) @ w, y @ v), (random(5, 9), random(9, 7), random(9, 8))),
        (lambda x, w: ((y := x.relu()) @ w, y), (random(5, 9), random(9, 7))),
        (lambda x, w: x.exp() @ w, (random(5, 9), random(9, 700))),
        (lambda x, w: x.to(torch.bfloat16) @ w, (random(5, 9), random(9, 700).to(torch.bfloat16))),
        (lambda x, w: (x[::3, ::3] * 2.0) @ w, (random(15, 27), random(9, 7))),
        (lambda x, s, w: (x * s[:, None, None]) @ w, (random(2, 5, 9), random(2), random(9, 7))),
        (lambda x, w: (x[:, 1:] * 2.0) @ w, (random(2, 5, 9), random(9, 7))),
        (lambda x, w, v: ((y := x.relu()) @ w, y @ v), (random(2, 5, 9), random(9, 7), random(9, 8))),
        (lambda x, w: ((y := x.relu()) @ w, y.view(10, 9)), (random(2, 5, 9), random(9, 7))),
    ],
    ids=[
        *("read by two", "an output", "expensive in many tiles", "twice the bytes in many tiles", "neighbours far apart"),
        *("a factor for each batch", "rows with gaps between batches", "three dims read by two", "an output of two dims"),
    ],
)
def test_what_is_better_in_memory_goes_there(function: Callable[..., Any], inputs: Inputs) -> None:
    """Read elsewhere too, or again by many tiles at a price."""
    cluster, given = whole_cluster(Wrapped(function), inputs)
    names = [tensor.parameters for tensor in file_of(cluster, lower(cluster), is_interpreted=False).kernels]
    assert len(names) > 1
    assert_right(cluster, given)


REAL: Mapping[str, tuple[Callable[..., Any], Inputs]] = {
    "activation": (lambda x, w: x.relu() @ w, (random(2048, 1024), random(1024, 4096))),
    "activation of three dims": (lambda x, w: F.linear(x.relu(), w), (random(4, 512, 1024), random(4096, 1024))),
    "shift at ragged sizes": (lambda x, w: (x + 1.0) @ (w - 2.0), (random(1999, 333), random(333, 777))),
    "quantised weights": (dequantised, (random(2048, 1024), integers(4096, 1024), random(4096))),
    "quantised weights of one row": (dequantised, (random(1, 4096), integers(4096, 4096), random(4096))),
    "batch": (lambda x, y, s: torch.bmm(x.neg(), y * s), (random(16, 512, 64), random(16, 64, 512), random(512))),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REAL)
def test_real_sizes_compile_without_spilling(name: str, dtype: torch.dtype, target: str) -> None:
    """At sizes that divide into tiles, at others, and where the depth is cut into parts."""
    function, inputs = REAL[name]
    values = tuple(value.to(dtype) if value.is_floating_point() else value for value in inputs)
    cluster, _ = whole_cluster(Wrapped(function), values)
    found = compiled(file_of(cluster, lower(cluster), is_interpreted=False), Target.parse(target))
    assert len(found) == (2 if "one row" in name else 1)
    for each in found:
        assert each.stages["cubin" if target == "cuda:90" else "hsaco"]
        assert target != "cuda:90" or each.needs.spilled == 0, each.needs
