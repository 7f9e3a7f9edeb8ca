"""Places in memory of 2^31 elements or more are computed in 64 bits, however small the result is; others in 32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.source import File, file_of
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import Wrapped

HUGE = 2_200_000
"""Rows of 1,024 elements of which 32 bits count no places."""


def of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor that takes no memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def places(*shape: int) -> torch.Tensor:
    """Return indices into another tensor."""
    return of(*shape, dtype=torch.int64)


Case = tuple[Callable[..., Any], Sequence[torch.Tensor]]
CASES: dict[str, Case] = {
    "a product's left operand": (torch.matmul, (of(4_000_000, 1024), of(1024, 16))),
    "a product's right operand": (torch.matmul, (of(16, 1024), of(1024, HUGE))),
    "what is read on a product's way out": (
        lambda x, w, b: torch.relu(x @ w + b[:, ::512]),
        (of(HUGE, 16), of(16, 2), of(HUGE, 1024)),
    ),
    "attention's keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        (of(1, 64, 128, 64), of(1, 64, 1 << 20, 64), of(1, 64, 1 << 20, 64)),
    ),
    "attention's mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m[::2]),
        (of(1, 8, 4096, 16), of(1, 8, 1 << 18, 16), of(1, 8, 1 << 18, 16), of(8192, 1 << 18)),
    ),
    "a part of a source": (lambda x: x[::1000] * 2.0, (of(HUGE, 1024),)),
    "rows that are summed up": (lambda x: x.sum(0), (of(HUGE, 1024),)),
    "a table": (lambda i, w: F.embedding(i, w) * 2.0, (places(5), of(HUGE, 1024))),
    "running totals": (lambda x: x.cumsum(0), (of(HUGE, 1024),)),
    "what is put into": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (of(HUGE, 1024), places(3), of(3, 1024)),
    ),
    "rows that end where 32 bits do": (lambda x: x * 2.0, (of((1 << 31) - 5),)),
}
SMALL: dict[str, Case] = {
    "product": (lambda x, w, b: torch.relu(x @ w + b), (of(4, 100, 64), of(64, 48), of(48))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (of(2, 2, 128, 64), of(2, 2, 128, 64), of(2, 2, 128, 64)),
    ),
    "sum": (lambda x: x.sum(0), (of(100, 1024),)),
    "table": (lambda i, w: F.embedding(i, w) * 2.0, (places(5), of(9, 1024))),
    "running": (lambda x: x.cumsum(0), (of(9, 1024),)),
}


def file_for(case: Case) -> File:
    """Return a case's file for a GPU."""
    function, inputs = case
    cluster, _ = whole_cluster(Wrapped(function), inputs)
    return file_of(cluster, lower(cluster), is_interpreted=False)


def counted(file: File) -> list[str]:
    """Return the lines of the kernel with the most memory in which indices start."""
    kernel = file.kernels[-1].text
    return [line for line in kernel.splitlines() if "tl.arange(" in line or "tl.program_id(" in line]


@pytest.mark.parametrize("name", CASES)
def test_places_in_huge_memory_are_counted_in_64_bits(name: str) -> None:
    """Every index along which a kernel walks: a product of two of 32 bits would not fit."""
    lines = counted(file_for(CASES[name]))
    assert lines
    for line in lines:
        assert line.count("tl.int64") == line.count("tl.arange(") + line.count("tl.program_id("), line


@pytest.mark.parametrize("name", SMALL)
def test_places_in_other_memory_are_counted_in_32_bits(name: str) -> None:
    """Which take half the registers."""
    assert not any("tl.int64" in line for line in counted(file_for(SMALL[name])))


@pytest.mark.parametrize("name", ["a product's left operand", "attention's keys", "running totals", "a table"])
def test_64_bits_compile(name: str) -> None:
    """Loops over such places have one type from the first round on."""
    assert all(each.needs.registers for each in compiled(file_for(CASES[name]), Target.parse("cuda:90")))


def test_batches_have_no_limit_of_their_own() -> None:
    """A second axis of a grid would end at 65,535 programs."""
    many = 70_000
    heads = of(many, 1, 32, 16)
    product = file_for((torch.bmm, (of(many, 2, 3), of(many, 3, 4))))
    attention = file_for((lambda q: F.scaled_dot_product_attention(q, q, q), (heads,)))
    assert [len(kernel.grid) for file in (product, attention) for kernel in file.kernels] == [1, 1]
    assert all(f"* {many}" in kernel.grid[0] for file in (product, attention) for kernel in file.kernels)
