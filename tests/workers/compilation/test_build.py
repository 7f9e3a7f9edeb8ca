"""What an executable does while it is verified."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hub.discovery.registry import Registry
from hub.errors import AccuracyError, ContractError
from hub.plugin.backend import Backend, BackendInfo, CompileSettings
from hub.plugin.entry import Entry
from hub.plugin.graph import Cluster
from hub.plugin.table import ACCEPTED, Support
from hub.testing.single import whole_cluster
from hub.verification import endurance
from hub.verification.compare import Judge
from hub.verification.endurance import Leisure
from hub.verification.verify import Trial
from hub.workers.compilation.build import build_cluster, verify_cluster


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
        verify_cluster(cluster, "toggling", executable, inputs, None, budget_s=budget_s)
    assert torch.is_grad_enabled() == before


def test_any_error_on_nan_guards_the_executable(doubling: tuple[Cluster, Sequence[Any]]) -> None:
    """It need not be a RunError: usual values are computed, and calls with NaN run in eager."""
    cluster, inputs = doubling

    def executable(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if bool(values.isnan().any()):
            raise ValueError("no number")
        return (values + values,)

    verified = verify_cluster(cluster, "careful", executable, inputs, None, budget_s=60.0)
    assert verified.is_finite_only
    assert any("raises on generated inputs (NaN)" in note and "no number" in note for note in verified.notes)


@pytest.mark.parametrize("saturates", [True, False])
def test_what_saturates_is_no_error_after_the_first_answer_either(
    doubling: tuple[Cluster, Sequence[Any]], saturates: bool
) -> None:
    """A backend whose settings accept saturation is compared on real inputs only, whenever it is compared."""
    cluster, inputs = doubling
    trial = Trial(Judge.of(cluster, "clipping", None), lambda x: [(x + x).clamp(-8, 8)], tuple(inputs), saturates=saturates)
    leisure = Leisure(trial)
    assert leisure.prepare("large")
    with contextlib.nullcontext() if saturates else pytest.raises(AccuracyError):
        assert leisure.compare("large") is None


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


@pytest.mark.parametrize(("call_s", "n_calls"), [(30.0, 2), (4.0, 5), (0.3, 20), (0.001, 200)])
def test_slow_executables_make_fewer_calls_in_a_row(
    doubling: tuple[Cluster, Sequence[Any]], call_s: float, n_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not answer in time counts as hanging, and a model of seconds a call hangs as little as others."""
    cluster, inputs = doubling
    clock = [0.0]

    def executable(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        clock[0] += call_s
        return (values + values,)

    trial = Trial(Judge.of(cluster, "slow", None), executable, tuple(inputs))
    monkeypatch.setattr(endurance, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert Leisure(trial).endure() == n_calls
