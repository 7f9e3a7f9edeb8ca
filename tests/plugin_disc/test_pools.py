"""Pools: the largest elements, where they lie, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)


def places_agree(x: torch.Tensor, **settings: Any) -> None:
    """Assert that results and indices have eager's bits, NaN counting as equal."""

    def pool(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(value, return_indices=True, **settings)

    cluster, values = whole_cluster(Wrapped(pool), (x,))
    found, wanted = create().compile(cluster, ONE)(*values), pool(x)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("ceil_mode", [False, True], ids=["floor", "ceil"])
@pytest.mark.parametrize("dilation", [1, 2], ids="dilation {}".format)
@pytest.mark.parametrize("padding", [0, 1], ids="padding {}".format)
@pytest.mark.parametrize("stride", [1, (2, 3)], ids="stride {}".format)
def test_places_are_eagers(stride: Any, padding: int, dilation: int, ceil_mode: bool) -> None:
    """Of equal elements the first one counts; windows that begin in the padding after the input have none there."""
    x = torch.randn(2, 3, 9, 8).relu()
    places_agree(x, kernel_size=(3, 2), stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode)


def test_places_of_nan_and_of_nothing_but_minus_infinity() -> None:
    """The last NaN, and the first element."""
    x = torch.randn(1, 2, 9, 8)
    x[0, 0, 3, 3] = x[0, 0, 4, 4] = torch.nan
    x[0, 1] = -torch.inf
    places_agree(x, kernel_size=3, stride=1, padding=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Unbatched, with more equal elements."""
    places_agree((torch.randn(3, 9, 8) * 3).to(dtype), kernel_size=3, stride=2, padding=1, ceil_mode=True)


def test_gradients_of_windows_that_overlap() -> None:
    """They meet in the largest element."""
    x = torch.randn(2, 3, 9, 8)
    _, places = F.max_pool2d(x, 3, 1, 1, return_indices=True)

    def gradient(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(grad, x, [3, 3], [1, 1], [1, 1], [1, 1], False, places)

    given = (torch.randn(2, 3, 9, 8), x, places)
    cluster, values = whole_cluster(Wrapped(gradient), given)
    (found,) = create().compile(cluster, ONE)(*values)
    torch.testing.assert_close(found, gradient(*given), rtol=1e-6, atol=1e-6)
