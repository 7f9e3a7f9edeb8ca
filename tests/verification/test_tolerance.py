"""A tolerance follows the dtype, the longest sum in the cluster, and eager's own error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hub.testing.operators import case_cluster
from hub.testing.operators.sample import Sample, at, call, f
from hub.verification.tolerance import EAGER_FACTOR, Tolerance, longest_sum, terms_of

SUMS: dict[str, tuple[str, Sample, int]] = {
    "elementwise": ("aten.add.Tensor", call(f(8, 16), f(8, 16)), 1),
    "linear": ("aten.linear.default", call(f(8, 32), f(64, 32), f(64)), 32),
    "mm": ("aten.mm.default", call(f(8, 24), f(24, 5)), 24),
    "bmm": ("aten.bmm.default", call(f(2, 8, 24), f(2, 24, 5)), 24),
    "addmm": ("aten.addmm.default", call(f(5), f(8, 24), f(24, 5)), 24),
    "baddbmm": ("aten.baddbmm.default", call(f(2, 8, 5), f(2, 8, 24), f(2, 24, 5)), 24),
    "einsum": ("aten.einsum.default", call("bij,bjk->bik", [f(2, 3, 7), f(2, 7, 4)]), 7),
    "conv2d": ("aten.conv2d.default", call(f(1, 6, 8, 8), f(4, 6, 3, 3)), 54),
    "conv_transpose2d": ("aten.conv_transpose2d.input", call(f(1, 6, 8, 8), f(6, 4, 3, 3)), 54),
    "convolution": (
        "aten.convolution.default",
        call(f(1, 6, 8, 8), f(4, 6, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        54,
    ),
    "sum": ("aten.sum.dim_IntList", call(f(8, 16), [1]), 16),
    "sum of all": ("aten.sum.default", call(f(8, 16)), 128),
    "mean": ("aten.mean.dim", call(f(8, 16), [0]), 8),
    "softmax": ("aten.softmax.int", call(f(8, 16), -1), 16),
    "cumsum": ("aten.cumsum.default", call(f(8, 16), 0), 8),
    "layer_norm": ("aten.layer_norm.default", call(f(8, 16), [16]), 16),
    "group_norm": ("aten.group_norm.default", call(f(2, 6, 5), 3), 10),
    "attention": ("aten.scaled_dot_product_attention.default", call(f(1, 2, 9, 4), f(1, 2, 9, 4), f(1, 2, 9, 4)), 9),
    "pool": ("aten.avg_pool2d.default", call(f(1, 2, 6, 6), [3, 3]), 9),
    "gathering adds nothing up": ("aten.embedding.default", call(f(50, 4), at(2, below=50)), 1),
    "scatter_add": ("aten.scatter_add.default", call(f(4, 3), 0, at(7, 3, below=4), f(7, 3)), 7),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_longest_sum_is_found(name: str) -> None:
    """Products count their inner dim, reductions what they reduce, convolutions their window, gathers nothing."""
    operator, sample, wanted = SUMS[name]
    cluster, _ = case_cluster(operator, sample)
    assert longest_sum(cluster) == wanted


def test_unknown_operators_raise_nothing() -> None:
    """A node without the expected arguments counts by how much larger its input is than its output."""
    cluster, _ = case_cluster("aten.sum.dim_IntList", call(f(8, 16), [1]))
    node = cluster.nodes[0]
    node.args = ()
    assert terms_of(node) >= 1


def budget(n_terms: int = 1, dtype: torch.dtype = torch.float32, **given: Any) -> float:
    """Return the allowed error for a largest value of 1."""
    settings = {"eager_error": 0.0, "has_reference": True, "scale": 1.0, "n_nodes": 1, **given}
    return Tolerance(n_terms, settings.pop("n_nodes")).allowed(dtype, settings.pop("scale"), **settings)


def test_the_formula_is_the_documented_one() -> None:
    """4 e + 2 u + (32 + sqrt(n)) v: numbers for n = 256 in float32, where u = v = 2^-23."""
    assert budget(256, eager_error=1e-6) == pytest.approx(4e-6 + (2 + 32 + 16) * 2**-23)


def test_longer_sums_may_err_more() -> None:
    """The budget grows with the square root of the number of terms."""
    eps = torch.finfo(torch.float32).eps
    assert budget(10_000) - budget(1) == pytest.approx(99 * eps)


def test_narrow_dtypes_add_up_in_float32() -> None:
    """bfloat16 sums are float32 sums, rounded once: long ones may not err by more roundings of bfloat16."""
    eps = torch.finfo(torch.bfloat16).eps
    assert budget(1, torch.bfloat16) < 2.01 * eps
    assert budget(10_000, torch.bfloat16) < 2.01 * eps
    assert budget(1, torch.float64) < 1e-14


def test_without_a_reference_each_node_has_roundings_of_its_own() -> None:
    """Eager's error is unknown then."""
    assert budget(n_nodes=100, has_reference=False) == pytest.approx(10 * budget())


def test_longer_sums_may_show_more_roundings_of_the_inputs() -> None:
    """What sums cancel is allowed their own roundings, of which there are as many as the square root of their terms."""
    assert Tolerance(n_terms=1, n_nodes=1).roundings == EAGER_FACTOR + 1
    assert Tolerance(n_terms=10_000, n_nodes=1).roundings == EAGER_FACTOR + 100


def test_flushing_denormals_costs_a_few_smallest_normals() -> None:
    """For a largest value of 0 only the slack is left."""
    tiny = torch.finfo(torch.float32).tiny
    assert tiny < budget(16, scale=0.0) < 1000 * tiny
