"""Whatever can be written compiles for GPUs of both makers: halves, integers, parts of sums, symbolic sizes, gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hub.frontend.ownership import graphs_of
from hub.partition.extract import extract
from hub.partition.group import group_alone
from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.runtime import NAME
from plugin_triton.source import file_of
from plugin_triton.support import INTERPRETED
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import FIXED_SIZES, PROGRAMS, Wrapped, inputs_of
from tests.plugin_triton.cases import HALF, placed
from tests.plugin_triton.real import BRAIN, of
from tests.plugin_triton.test_training import Language

NVIDIA, AMD = "cuda:90", "hip:gfx942"
EAGER = {"backends": ("eager",), "tune": "off"}
Case = tuple[Callable[..., Any], Sequence[torch.Tensor]]


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return integers."""
    return of(*shape, dtype=dtype)


INTEGERS: Mapping[str, Case] = {
    "arithmetic": (lambda x, y: (x * 3 + y) // (y.abs() + 1) % 7, (whole(5, 300), whole(300))),
    "narrow": (
        lambda x, y: (x + y, x.float() * 0.5, x > y),
        (whole(9, 100, dtype=torch.int32), whole(100, dtype=torch.int32)),
    ),
    "bytes": (lambda x: (x.float() - 3.0) * 0.1, (whole(9, 100, dtype=torch.int8),)),
    "unsigned": (lambda x, y: (x // y, x & y, x.float()), (whole(9, dtype=torch.uint8), whole(9, dtype=torch.uint8))),
    "bits": (lambda x: ((x << 2) ^ (x >> 1)) | 5, (whole(300),)),
    "reductions": (lambda x: (x.sum(1), x.amax(1), x.prod(1), (x > 3).all(1)), (whole(9, 300),)),
    "running": (lambda x: (x.cumsum(1), (x > 0).cumsum(0)), (whole(9, 300),)),
    "added": (lambda x, i, v: x.scatter_add(1, i, v), (whole(9, 30), whole(9, 5), whole(9, 5))),
    "largest": (lambda x, i, v: x.scatter_reduce(1, i, v, "amax"), (whole(9, 30), whole(9, 5), whole(9, 5))),
    "bool": (lambda x, y: (x & ~y | (x ^ y)).any(0), (whole(9, 30, dtype=torch.bool), whole(9, 30, dtype=torch.bool))),
}
PARTS: Mapping[str, Case] = {
    "deep product": (torch.matmul, (of(16, 8192), of(8192, 64))),
    "deep product of halves": (lambda x, w: (x @ w).relu(), (of(1, 8192, dtype=BRAIN), of(8192, 64, dtype=BRAIN))),
    "few long rows": (lambda x: (x * x).sum(1).sqrt(), (of(2, 1 << 18),)),
    "few queries": (F.scaled_dot_product_attention, (of(1, 4, 1, 64), of(1, 4, 8192, 64), of(1, 4, 8192, 64))),
}
SYMBOLIC = [name for name in PROGRAMS if name not in FIXED_SIZES]


def slowly(names: Sequence[str], quick: Sequence[str]) -> list[Any]:
    """Return names as parameters, all but some marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def assert_compiles(cluster: Cluster, target: str) -> None:
    """Assert that every kernel compiles to a binary, with nothing spilled."""
    found = compiled(file_of(cluster, lower(cluster), is_interpreted=False), Target.parse(target))
    assert found
    for each in found:
        assert each.stages["cubin" if target == NVIDIA else "hsaco"]
        assert each.needs.spilled == 0, each.needs


@pytest.mark.parametrize("target", [NVIDIA, pytest.param(AMD, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slowly(list(INTEGERS), ("arithmetic",)))
def test_integers(name: str, target: str) -> None:
    """Of every width that there is, and truth."""
    function, inputs = INTEGERS[name]
    assert_compiles(whole_cluster(Wrapped(function), inputs)[0], target)


@pytest.mark.parametrize("target", [NVIDIA, pytest.param(AMD, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slowly(list(PARTS), ("deep product",)))
def test_what_is_cut_into_parts(name: str, target: str) -> None:
    """And then added up."""
    function, inputs = PARTS[name]
    cluster, _ = whole_cluster(Wrapped(function), inputs)
    assert len(file_of(cluster, lower(cluster), is_interpreted=False).kernels) > 1
    assert_compiles(cluster, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", [NVIDIA, AMD])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_halves(name: str, dtype: torch.dtype, target: str) -> None:
    """Of both kinds."""
    function, inputs = HALF[name]
    values = placed(inputs(1000), dtype)
    assert_compiles(whole_cluster(Wrapped(function), values)[0], target)


@pytest.mark.parametrize("target", [NVIDIA, AMD])
@pytest.mark.parametrize("name", slowly(list(PROGRAMS), ("mamba_step",)))
def test_programs_of_real_models(name: str, target: str) -> None:
    """What DISC's loops are tested on."""
    assert_compiles(whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 6, 24))[0], target)


@pytest.mark.parametrize("target", [NVIDIA, pytest.param(AMD, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slowly(SYMBOLIC, ("masked_softmax",)))
def test_symbolic_sizes(name: str, target: str) -> None:
    """Sizes are parameters."""
    assert_compiles(whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 6, 24), dynamic=True)[0], target)


@pytest.mark.slow
@pytest.mark.parametrize("target", [NVIDIA, AMD])
@pytest.mark.parametrize("kind", ["product", "attention"])
def test_symbolic_products(kind: str, target: str) -> None:
    """Rows and columns are parameters, tiles are not."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.relu(x @ y)

    def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = x.new_ones(64, 3)
        return F.scaled_dot_product_attention(F.linear(x, weight), F.linear(y, weight), F.linear(y, weight))

    inputs = (of(90, 30), of(30, 70)) if kind == "product" else (of(9, 3), of(7, 3))
    cluster, _ = whole_cluster(Wrapped(product if kind == "product" else attention), inputs, dynamic=True)
    assert_compiles(cluster, target)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
@pytest.mark.parametrize("target", [NVIDIA, AMD])
def test_gradients_of_a_language_model(target: str) -> None:
    """Every cluster that Triton takes of the forward and of the backward graph."""
    torch._dynamo.reset()
    model = Language()
    compiled_model: Any = torch.compile(model, backend="hub", options=EAGER)
    compiled_model(torch.randint(0, 11, (2, 7))).backward()
    graphs = [found.graph for found in graphs_of(compiled_model)]
    assert len(graphs) == 2
    for graph in graphs:
        groups, _ = group_alone(graph, NAME, INTERPRETED.supports)
        mine = [group for group in groups if group.backend == NAME]
        assert mine
        for place, group in enumerate(mine):
            assert_compiles(extract(graph, group.nodes, f"c{place}", {}), target)
