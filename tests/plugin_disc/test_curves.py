"""exp and tanh as DISC writes them out, over all of float32; and acosh of large numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

STEP = 4099
"""Between the bit patterns that are tried; it shares no factor with their number."""
SMALLEST = 2.0**-126
ULP = 2.0**-23
EDGES = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.72, 88.73, -87.4, -103.9, -104.0, 0.624999, 0.625, -0.625)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("function", [torch.exp, torch.tanh], ids=lambda each: each.__name__)
def test_curves(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """At most two units in the last place off; NaN, infinities and signed zeros are eager's."""
    patterns = torch.arange(0, 2**32, STEP, dtype=torch.int64).to(torch.int32).view(torch.float32)
    inputs = torch.cat((patterns, torch.tensor(EDGES)))
    cluster, values = whole_cluster(Wrapped(function), (inputs,))
    (found,) = create().compile(cluster, CompileSettings(threads=1))(*values)
    expected, exact = function(inputs), function(inputs.double())
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    numbers = ~found.isnan()
    assert torch.equal(found.signbit()[numbers], expected.signbit()[numbers])
    finite = found.isfinite()
    away = (found.double() - exact).abs() / exact.abs().clamp(min=SMALLEST)
    assert float(away[finite].max()) <= 2 * ULP


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_areas_of_large_numbers(dtype: torch.dtype) -> None:
    """What is finite in eager is finite: acosh does not square its input."""
    powers = torch.arange(0.0, math.log2(torch.finfo(dtype).max), 0.25, dtype=torch.float64).exp2()
    inputs = torch.cat((powers, -powers, torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0]))).to(dtype)
    cluster, values = whole_cluster(Wrapped(torch.acosh), (inputs,))
    (found,) = create().compile(cluster, CompileSettings(threads=1))(*values)
    torch.testing.assert_close(found, torch.acosh(inputs), rtol=4 * torch.finfo(dtype).eps, atol=0.0, equal_nan=True)
