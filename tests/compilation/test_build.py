"""What an executable does while it is verified."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hub.compilation.build import build_cluster, verify_cluster
from hub.discovery.registry import Registry
from hub.errors import ContractError
from hub.plugin.backend import Backend, BackendInfo, CompileSettings
from hub.plugin.entry import Entry
from hub.plugin.graph import Cluster
from hub.plugin.table import ACCEPTED, Support
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


def test_what_the_first_call_leaves_behind_is_noticed_where_nothing_else_runs() -> None:
    """Later calls need not leave more: a process that a first call forgot would be the user's."""
    left: list[subprocess.Popen[bytes]] = []

    class Leaving(Backend):
        def supports(self, node: Any) -> Support:
            return ACCEPTED

        def compile(self, cluster: Cluster, settings: CompileSettings) -> Any:
            def executable(*values: Any) -> Sequence[torch.Tensor]:
                if not left:
                    left.append(subprocess.Popen(["sleep", "30"]))
                return [value.clone() for value in cluster.module(*values)]

            return executable

    cluster, inputs = whole_cluster(_Doubling(), (torch.ones(3),))
    entry = Entry(BackendInfo(name="leaving", factory="no:where", summary=""), "test", "1", ACCEPTED)
    registry = Registry([entry])
    registry._loaded["leaving"] = Leaving()
    try:
        with pytest.raises(ContractError, match=r"running it leaves .*process behind"):
            build_cluster(cluster, "leaving", CompileSettings(threads=1), inputs=inputs, registry=registry, is_alone=True)
    finally:
        for process in left:
            process.kill()
            process.wait()
