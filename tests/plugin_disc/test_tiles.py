"""Transposed reads match eager's numbers, regardless of what remains right of and below whole tiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
SIZES = ((16, 16), (48, 32), (17, 16), (16, 35), (50, 67), (5, 40), (40, 5), (1, 33))
CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "one": lambda x, y: x.mT * 2 + y,
    "two reads": lambda x, y: x.mT * (x + 1).mT - y,
    "two results": lambda x, y: (x.mT + y, x.mT * y),
    "integers": lambda x, y: (x * 9).int().mT + (y * 9).int(),
    "float64, one by one": lambda x, y: x.double().mT + y,
    "a shifted part": lambda x, y: x.mT[..., :-1, :] - y[..., 1:, :],
}


WAYS = [(size, False) for size in SIZES] + [(size, True) for size in SIZES if 1 not in size]
"""Sizes, and whether they are symbols; 1 never is one."""


@pytest.mark.parametrize(("size", "dynamic"), WAYS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_transposed(name: str, size: tuple[int, int], *, dynamic: bool) -> None:
    """Sums and products of transposed reads are exact."""
    rows, columns = size
    inputs = (torch.randn(3, rows, columns), torch.randn(3, columns, rows))
    cluster, values = whole_cluster(Wrapped(CASES[name]), inputs, dynamic=dynamic)
    found = create().compile(cluster, ONE)(*values)
    expected = CASES[name](*inputs)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert [torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True)] == [True] * len(wanted)
