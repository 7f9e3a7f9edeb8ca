"""What too few programs would compute is cut into parts that are added up, always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.backend import create
from plugin_triton.program import for_kernels
from plugin_triton.settings import Settings
from plugin_triton.source import file_of
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
BACKEND = create(Settings(interpret=True))


def right(function: Callable[..., Any], *inputs: torch.Tensor) -> Cluster:
    """Return a function as a cluster whose results are eager's, twice with the same bits."""
    cluster, given = whole_cluster(Wrapped(function), inputs)
    executable = BACKEND.compile(cluster, ONE)
    found = executable(*given)
    assert value_problem(found, eager(cluster, given), exact(cluster, given)) == ""
    assert all(map(torch.equal, found, executable(*given)))
    return cluster


def kernels_of(cluster: Cluster) -> Sequence[tuple[str, tuple[str, ...]]]:
    """Return names of kernels on a GPU, and how many programs each has."""
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    return [(", ".join(kernel.nodes), kernel.grid) for kernel in file.kernels]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_deep_product_with_few_tiles(dtype: torch.dtype) -> None:
    """16 parts of 256, whose sum takes along what follows."""
    inputs = (torch.randn(4, 4096), torch.randn(4096, 48), torch.randn(48))
    cluster = right(lambda x, w, b: torch.relu(x @ w + b), *(each.to(dtype) for each in inputs))
    (_, (programs,)), (last, _) = kernels_of(cluster)
    assert programs == "triton.cdiv(4, 16) * triton.cdiv(48, 64) * 16"
    assert last == "matmul, add, relu"


def test_a_transposed_operand_and_a_batch() -> None:
    """Parts are views: nothing is copied."""
    cluster = right(lambda x, w: x.transpose(1, 2) @ w, torch.randn(2, 1024, 3), torch.randn(2, 1024, 5))
    (_, (programs,)), _ = kernels_of(cluster)
    assert programs.endswith(" * 8")  # 2 products of 4 parts


@pytest.mark.parametrize("shapes", [((512, 1024), (1024, 1024)), ((4, 300), (300, 48)), ((4, 4099), (4099, 48))], ids=str)
def test_products_that_stay_whole(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Those with tiles for all, those that are not deep, and those whose depth nothing divides."""
    cluster, _ = whole_cluster(Wrapped(torch.matmul), tuple(map(torch.randn, shapes)))
    assert len(kernels_of(cluster)) == 1


def test_a_sum_of_few_long_rows() -> None:
    """64 parts of each row first."""
    cluster = right(lambda x: (x * x).sum(1).sqrt(), torch.randn(2, 1 << 18))
    first, last = kernels_of(cluster)
    assert first[1] == ("triton.cdiv(128, 1)",)
    assert "sqrt" in last[0]


def test_parts_keep_their_nodes() -> None:
    """What was made on the way is said to be computed for the node that it is a part of."""
    cluster, _ = whole_cluster(Wrapped(lambda x, w: (x @ w).exp()), (torch.randn(4, 4096), torch.randn(4096, 48)))
    lowered = for_kernels(lower(cluster))
    assert set(lowered.origins.values()) == {"matmul", "exp"}


def test_tiles_that_share_what_they_read_are_neighbours() -> None:
    """Every tile of a product is computed once, in whatever order."""
    right(torch.matmul, torch.randn(2600, 16), torch.randn(16, 530))
