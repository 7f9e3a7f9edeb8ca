"""What an executable does while it is verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hub.compilation.build import verify_cluster
from hub.errors import ContractError
from hub.graph import Cluster
from hub.testing.single import whole_cluster


class _Doubling(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + value


@pytest.fixture
def doubling() -> tuple[Cluster, Sequence[Any]]:
    return whole_cluster(_Doubling(), (torch.ones(3),))


@pytest.mark.parametrize("budget_s", [0.0, 0.05, 1.0])
def test_a_change_that_the_next_call_undoes_is_noticed(doubling: tuple[Cluster, Sequence[Any]], budget_s: float) -> None:
    """However often verification calls an executable: every call of the user's model would change it once."""
    cluster, inputs = doubling

    def executable(*values: Any) -> tuple[torch.Tensor, ...]:
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return (values[0] + values[0],)

    before = torch.is_grad_enabled()
    with pytest.raises(ContractError, match="the executable changed whether gradients are on"):
        verify_cluster(cluster, "toggling", executable, inputs, None, budget_s)
    assert torch.is_grad_enabled() == before
