"""Operators said in others."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from hub.lowering.decompositions import keeping_nan

VALUES = torch.tensor([nan, inf, -inf, -7.0, 0.0, 3.0, 9.0])
OTHERS = torch.tensor([1.0, nan, 2.0, -8.0, nan, 3.0, 4.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.maximum(x, OTHERS),
        lambda x: torch.minimum(x, OTHERS),
        lambda x: torch.max(x, OTHERS),
        lambda x: x.clamp(0, 6),
        lambda x: x.clamp(min=0.5),
        lambda x: x.clamp(max=2),
        lambda x: x.clamp(OTHERS, None),
        lambda x: x.clamp_min(1),
        lambda x: x.clamp_max(OTHERS),
        lambda x: torch.nn.functional.hardtanh(x, -2.0, 2.5),
        lambda x: torch.nn.functional.relu6(x),
        lambda x: x[3:].to(torch.int64).clamp(0, 5),
        lambda x: x[3:].to(torch.int64).clamp(0.5, 5.0),
    ],
)
def test_nan_is_kept(function: Callable[..., Any]) -> None:
    """Nothing but comparisons and choices is left, and the result is eager's, NaN included."""
    program = make_fx(function, decomposition_table=dict(keeping_nan()))(VALUES)
    left = {str(node.target) for node in program.graph.nodes}
    assert not [name for name in left if any(word in name for word in ("clamp", "maximum", "minimum", "hardtanh"))]
    torch.testing.assert_close(program(VALUES), function(VALUES), equal_nan=True, rtol=0, atol=0)
