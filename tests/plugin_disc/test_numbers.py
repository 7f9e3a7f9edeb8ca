"""Numbers among the inputs: DISC computes with them, or refuses the operator with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hub.testing.single import SETTINGS, whole_cluster
from hub.verification.verify import verify

pytest.importorskip("torch_mlir")

from plugin_disc.backend import create

CALLS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "threshold": lambda x, n: F.threshold(x, n, 0.0),
    "threshold's value": lambda x, n: F.threshold(x, 0.1, n),
    "elu": lambda x, n: F.elu(x, n),
    "celu": lambda x, n: F.celu(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "softplus": lambda x, n: F.softplus(x, n),
    "softplus's threshold": lambda x, n: F.softplus(x, 1.0, n),
    "hardshrink": lambda x, n: F.hardshrink(x, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -n, n),
    "clamp": lambda x, n: x.clamp(-n, n),
    "arange": lambda x, n: torch.arange(0, 3 * n, n) + x[0, 0],
    "addmm": lambda x, n: torch.addmm(x[0], x, x, alpha=n),
    "baddbmm": lambda x, n: torch.baddbmm(x[None], x[None], x[None], beta=n),
    "addmv": lambda x, n: torch.addmv(x[0], x, x[0], alpha=n),
    "arithmetic": lambda x, n: (x * n + n) / (n + 1) - n,
    "comparisons": lambda x, n: torch.where(x > n, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "full": lambda x, n: x.new_full((4,), n) + torch.full_like(x, n),
    "lerp": lambda x, n: torch.lerp(x, x * 2, n),
    "remainder": lambda x, n: x % n,
    "pad": lambda x, n: F.pad(x, (1, 2), value=n),
    "layer_norm": lambda x, n: F.layer_norm(x, (4,), eps=n),
}


class Of(nn.Module):
    """A module made of a function."""

    def __init__(self, function: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, number: Any) -> torch.Tensor:
        return self.function(x, number)


@pytest.mark.parametrize("number", [0.25, 7])
@pytest.mark.parametrize("name", CALLS)
def test_a_number_at_run_time_is_computed_with_or_refused(name: str, number: float) -> None:
    """What is accepted compiles, and gives what eager gives."""
    disc = create()
    cluster, values = whole_cluster(Of(CALLS[name]), (torch.randn(4, 4), number), dynamic=True)
    if not all(disc.supports(node).accepted for node in cluster.nodes):
        assert any("known only at run time" in disc.supports(node).reason for node in cluster.nodes)
        return
    verify(cluster, "disc", disc.compile(cluster, SETTINGS), values, None)
