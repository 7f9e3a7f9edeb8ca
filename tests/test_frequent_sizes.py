"""Frequent sizes get plans of their own, made while the model runs, with eager's results before and after."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.dispatch import frequent_sizes
from hub.frontend.ownership import graphs_of

BACKENDS = ("onnxruntime", "disc")
WAIT_S = 300.0
TRIALS = 2


class Encoder(nn.Module):
    """One layer of attention, with sizes in views."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.norm = nn.Embedding(50, 16), nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, tokens = ids.shape
        q, k, v = (part.view(batch, tokens, 4, 4).transpose(1, 2) for part in self.qkv(self.embed(ids)).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(attended.transpose(1, 2).reshape(batch, tokens, 16))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start plans after a few calls, however short these are, and choose them after a few more, whatever a clock says."""
    monkeypatch.setattr(frequent_sizes, "MIN_CALLS", 3)
    monkeypatch.setattr(frequent_sizes, "EXPECTED_GAIN", 1e9)
    monkeypatch.setattr(frequent_sizes, "N_TRIALS", TRIALS)
    falling = count(0, -1)  # the general plan's time is looked at first
    monkeypatch.setattr(frequent_sizes, "statistics", SimpleNamespace(median=lambda _: next(falling)))


def served(way: str, model: nn.Module, **options: Any) -> Any:
    """Return the model for any sizes, with a finished plan."""
    given = {"backends": BACKENDS, "tune": "off", "background": True, "start": "eager", **options}
    compile_it: Callable[..., Any] = hub.compile if way == "hub.compile" else torch.compile
    more = {} if way == "hub.compile" else {"backend": "hub"}
    call = compile_it(model, dynamic=True, options=given, **more)
    for size in ((3, 6), (5, 7), (3, 6)):
        call(ids(*size))
    assert hub.wait(call, WAIT_S)
    return call


def ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, tokens))


def agree(call: Any, model: nn.Module, size: tuple[int, int], times: int) -> None:
    """Raise AssertionError unless each of so many calls of one size returns eager's result."""
    for _ in range(times):
        x = ids(*size)
        torch.testing.assert_close(call(x), model(x), rtol=2e-5, atol=2e-5)


def settle(call: Any, model: nn.Module, size: tuple[int, int]) -> None:
    """Call one size until its plan is made and tried."""
    n_before = len(chosen(call))
    for _ in range(200):
        agree(call, model, size, 1)
        if len(chosen(call)) > n_before:
            return
        hub.wait(call, WAIT_S)
    raise AssertionError(f"no plan was chosen for {size}: {hub.plans(call)}")


def chosen(call: Any) -> list[str]:
    """Return what plans say about single sizes."""
    return [event.message for plan in hub.plans(call) for event in plan.events if event.message.startswith("sizes ")]


@pytest.mark.parametrize("way", ["hub.compile", "torch.compile"])
def test_sizes_that_come_often_get_plans_of_their_own(way: str) -> None:
    """Two sizes get one each, all others run the general plan, and every call returns eager's result."""
    model = Encoder().eval()
    with torch.no_grad():
        call = served(way, model)
        for size in ((3, 6), (5, 7)):
            settle(call, model, size)
            agree(call, model, size, 5)
        agree(call, model, (4, 9), 3)
    names = [plan.graph for plan in hub.plans(call)]
    assert len(names) == 3
    assert [name.partition(", ")[2] for name in names] == ["", "sizes 3x6", "sizes 5x7"]
    assert all(set(plan.backends) & {*BACKENDS} for plan in hub.plans(call))


def test_weights_that_change_reach_plans_of_single_sizes() -> None:
    """After a write, no plan runs that holds the old weights as constants."""
    model = Encoder().eval()
    with torch.no_grad():
        call = served("hub.compile", model)
        settle(call, model, (3, 6))
        for _ in range(3):
            model.qkv.weight.mul_(-1.5)
            agree(call, model, (3, 6), 4)


def test_weights_that_became_inputs_are_inputs_of_plans_of_single_sizes() -> None:
    """The general plan takes them as inputs after three changes, and so must a plan for one size that is made later."""
    model = Encoder().eval()
    with torch.no_grad():
        call = served("hub.compile", model)
        for _ in range(4):
            model.qkv.weight.mul_(1.1)
            agree(call, model, (5, 7), 1)
            assert hub.wait(call, WAIT_S)
        settle(call, model, (3, 6))
        model.qkv.weight.mul_(-2)
        agree(call, model, (3, 6), 4)


def test_a_model_that_goes_takes_them_along() -> None:
    """Nothing keeps the weights alive."""
    model = Encoder().eval()
    with torch.no_grad():
        call = served("hub.compile", model)
        settle(call, model, (3, 6))
    ended = [weakref.ref(weight) for weight in model.parameters()]
    graphs = [weakref.ref(graph) for graph in graphs_of(call)]
    assert len(graphs) == 2
    del model, call
    torch._dynamo.reset()
    gc.collect()
    assert [ref() is None for ref in (*ended, *graphs)] == [True] * (len(ended) + 2)


@pytest.mark.parametrize("options", [{"start": "wait"}, {"background": False}], ids=str)
def test_whoever_wants_no_work_beside_the_model_gets_none(options: dict[str, Any]) -> None:
    """One plan serves all sizes then."""
    model = Encoder().eval()
    with torch.no_grad():
        call = served("torch.compile", model, **options)
        agree(call, model, (3, 6), 40)
    assert len(hub.plans(call)) == 1
