"""Branches and loops run in eager, what they call has plans of its own, and results and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as control_map

import hub
from hub.plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
T = torch.tensor


class Gated(nn.Module):
    """Two layers, one of which runs; a choice inside the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def chosen(x: torch.Tensor) -> torch.Tensor:
            y = self.other(x).tanh()
            return torch.cond(y.sum() > 0, lambda y: (y * 2).exp(), lambda y: (y * 3).sin(), (y,))

        return torch.cond(flag, lambda x: self.one(x).relu(), chosen, (x,)) + 1


def looped(n: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Run a loop whose number of rounds is data."""
    start = (torch.zeros((), dtype=torch.int64), x)
    return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, (x @ w).tanh() + x), start)[1]


def scanned(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Run a recurrence over the first dim."""

    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = (state @ w + x).tanh()
        return state, state * 2

    return scan(step, torch.zeros(x.shape[1]), x)


def mapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Run the same for each row."""
    return control_map(lambda row, w: (row @ w).relu() * 2, x, w)


def planned(function: Any, backend: str, **options: Any) -> Any:
    """Compile for one backend without measuring."""
    return torch.compile(function, backend="hub", options={"backends": (backend,), "tune": "off", **options})


def users_of(plans: Sequence[Plan], backend: str) -> set[str]:
    """Return the names of the graphs in which a backend runs something, without their numbers."""
    found = (plan for plan in plans if any(cluster.backend == backend for cluster in plan.clusters))
    return {plan.graph.partition(".")[2] for plan in found}


def check(function: Any, calls: Sequence[tuple[Any, ...]], backend: str = "onnxruntime") -> set[str]:
    """Compare with eager on each call; return the programs that the backend ran, by name."""
    model = planned(function, backend)
    with torch.no_grad():
        for inputs in calls:
            torch.testing.assert_close(model(*inputs), torch.compile(function, backend="eager")(*inputs))
    plans = hub.plans(model)
    assert not [event for plan in plans for event in plan.events if event.kind in ("failed", "fallback")]
    return users_of(plans, backend)


def test_each_branch_that_runs_has_a_plan_of_its_own() -> None:
    """Branches are planned when they first run, with their weights as constants, inside other branches too."""
    torch.manual_seed(0)
    x = torch.randn(3, 6)
    ran = check(Gated(), [(T(True), x), (T(False), x), (T(False), -x), (T(False), 4 * x)])
    assert {"cond.true", "cond.false"} <= ran
    assert any(name.startswith("cond.false.cond.") for name in ran)


@pytest.mark.parametrize(
    ("function", "calls", "programs"),
    [
        pytest.param(looped, ((T(3), (5, 4), (4, 4)), (T(0), (5, 4), (4, 4))), {"while_loop.body"}, id="while_loop"),
        pytest.param(scanned, (((5, 4), (4, 4)),), {"scan.combine"}, id="scan"),
        pytest.param(mapped, (((5, 4), (4, 4)), ((7, 4), (4, 4))), {"map_impl.body"}, id="map"),
    ],
)
def test_what_a_loop_repeats_has_a_plan_of_its_own(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], programs: set[str]
) -> None:
    """The body of a loop is a graph that backends support."""
    torch.manual_seed(1)
    values = [tuple(torch.randn(item) if isinstance(item, tuple) else item for item in call) for call in calls]
    assert programs <= check(function, values)


@pytest.mark.filterwarnings("ignore:Pred is a Python constant:UserWarning")
def test_a_choice_by_size_serves_many_sizes() -> None:
    """A predicate over symbolic sizes chooses at each call, and bodies keep sizes symbolic."""

    def chosen(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda x: (x @ w).relu(), lambda x: (x - 1).sin() * 2, (x,))

    torch.manual_seed(2)
    w = torch.randn(4, 4)
    check(chosen, [(torch.randn(n, 4), w) for n in (5, 3, 8, 2)])


@pytest.mark.slow
def test_gradients_go_through_branches() -> None:
    """Forward and backward of both branches are planned, and gradients are eager's."""
    torch.manual_seed(3)
    model = Gated()
    compiled, reference = planned(model, "inductor"), torch.compile(model, backend="eager")
    for flag in (True, False):
        grads = [
            torch.autograd.grad(run(T(flag), torch.ones(2, 6)).square().sum(), tuple(model.parameters()), allow_unused=True)
            for run in (reference, compiled)
        ]
        for want, got in zip(*grads, strict=True):
            assert torch.allclose(*(torch.zeros(()) if grad is None else grad for grad in (want, got)), atol=1e-5)
    assert {plan.mode for plan in hub.plans(compiled) if ".cond" in plan.graph} == {"forward", "backward"}


@pytest.mark.parametrize(
    ("function", "first", "programs"),
    [
        pytest.param(
            looped, (T(3),), {"while_loop_stack_output.body", "while_loop.cond", "while_loop.body"}, id="while_loop"
        ),
        pytest.param(scanned, (), {"scan.combine", "scan_1.combine"}, id="scan", marks=pytest.mark.slow),
        pytest.param(mapped, (), {"map_impl.body"}, id="map", marks=pytest.mark.slow),
    ],
)
def test_gradients_go_through_loops(function: Callable[..., Any], first: tuple[Any, ...], programs: set[str]) -> None:
    """The body of a loop, forward and backward, is planned, and gradients are eager's for all sizes.

    PyTorch alone captures the gradient of `while_loop` only if users allow graphs to hold numbers read from tensors.
    """
    torch.manual_seed(5)
    compiled, reference = planned(function, "onnxruntime"), torch.compile(function, backend="eager")
    w = torch.randn(4, 4, requires_grad=True)
    for rows in (5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        results = []
        for run in (reference, compiled):
            leaves = [value for value in torch.utils._pytree.tree_leaves(run(*first, x, w)) if value.requires_grad]
            loss = torch.stack([value.square().sum() for value in leaves]).sum()
            results.append([loss.detach(), *torch.autograd.grad(loss, (x, w))])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    plans = hub.plans(compiled)
    assert {plan.mode for plan in plans} == {"forward", "backward"}
    assert programs <= users_of(plans, "onnxruntime")


def test_random_numbers_inside_branches_are_eagers() -> None:
    """An operator that calls a program with random numbers keeps its place among others that draw."""

    def draws(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(flag, lambda x: x * torch.rand_like(x), lambda x: x + torch.rand_like(x), (x,))
        return (y.exp() + torch.rand_like(x)).sin() * torch.rand_like(x)

    x = torch.ones(3, 5)
    compiled = planned(draws, "onnxruntime")
    for flag in (T(True), T(False)):
        results = []
        for run in (torch.compile(draws, backend="aot_eager"), compiled):
            torch.manual_seed(4)
            results.append(run(flag, x))
        torch.testing.assert_close(*results)


def test_a_model_with_branches_can_be_frozen() -> None:
    """Freezing uses the one graph that PyTorch calls; bodies follow with it."""
    model = Gated().eval()
    x = torch.randn(2, 6)
    frozen = hub.freeze(planned(model, "onnxruntime"), T(True), x)
    with torch.no_grad():
        for flag in (T(True), T(False)):
            torch.testing.assert_close(frozen(flag, x), torch.compile(model, backend="eager")(flag, x))
