"""Which backends are called about a graph: of many installed ones, those that are expected to win."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hub.config.options import Options
from hub.partition.verdicts import Verdicts, before_asking
from hub.plan import DecidedBy
from hub.planning.asking import AT_ONCE, ask_until_sure, ask_until_taken
from hub.planning.context import PlanningContext
from hub.planning.decide import decide
from hub.plugin.table import ACCEPTED
from tests.planning.conftest import Stage

REAL = ("onnxruntime", "openvino", "inductor", "disc", "xla", "iree", "tvm")
"""Backends that the shipped table knows."""
MANY = dict.fromkeys((*(f"unknown{number}" for number in range(93)), *REAL), "")


class Listener:
    """Workers that record which backends were called."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: list[str] = []

    def answers(self, backend: str, options: Options) -> Any:
        self.asked.append(backend)
        return self.inner.answers(backend, options)

    def eager_prices(self) -> dict[str, float]:
        return {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def listening(stage: Stage) -> tuple[PlanningContext, Listener, Verdicts]:
    """Return a context in which no backend has been called yet, and a listener that records each call."""
    listener = Listener(stage.context.workers)
    context = replace(stage.context, workers=listener)  # pyright: ignore[reportArgumentType]
    return context, listener, before_asking(context.graph, context.registry, context.options)


@pytest.fixture
def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)), (torch.randn(32, 256),)


def test_of_a_hundred_backends_three_are_asked(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """Backends that are known to be fast come first, not those about which nothing is known."""
    stage = set_stage(*perceptron, MANY)
    context, listener, verdicts = listening(stage)
    found = ask_until_taken(context, verdicts, stage.book)
    assert len(listener.asked) == AT_ONCE
    assert set(listener.asked) <= set(REAL)
    assert set(found.backends) == set(listener.asked)
    assert len(found.unasked) == len(MANY) - AT_ONCE


def test_refusals_bring_the_next_ones(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """If the backends called first support nothing, others are called until one does, or none is left."""
    stage = set_stage(*perceptron, {**dict.fromkeys(REAL, "aten"), "toy": ""})
    context, listener, verdicts = listening(stage)
    found = ask_until_taken(context, verdicts, stage.book)
    assert found.backends == ("toy",)
    assert listener.asked[-AT_ONCE:].count("toy") == 1
    nobody = set_stage(*perceptron, dict.fromkeys(REAL, "aten"))
    context, listener, verdicts = listening(nobody)
    assert ask_until_taken(context, verdicts, nobody.book).backends == ()
    assert sorted(listener.asked) == sorted(REAL)


def test_whoever_could_be_faster_at_best_is_asked(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """By prices alone, the choice is as if all backends were called; one that is slower even at best is not called."""
    names = [f"slow{number}" for number in range(9)]
    stage = set_stage(*perceptron, {"refusing": "gelu", "taking": "", **dict.fromkeys(names, "")})
    stage.slow_eager()
    nodes = [node.name for node in stage.context.graph.nodes]
    for name, run_s in {"refusing": 1e-6, "taking": 2e-6, **dict.fromkeys(names, 1e-3)}.items():
        stage.price(name, nodes, run_s, busy_wait=True)
    context, listener, verdicts = listening(stage)
    assert decide(context, verdicts, may_measure=False).assignment.name == "taking"
    assert len(listener.asked) == AT_ONCE
    everybody = ask_until_sure(stage.context, stage.verdicts, stage.book)
    assert decide(stage.context, everybody, may_measure=False).assignment.name == "taking"


def test_forced_operators_name_who_is_asked(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """A backend that an operator is forced to is called, however slow it is expected to be."""
    options = Options(force={"aten.gelu": "unknown7"})
    stage = set_stage(*perceptron, MANY, options=options)
    context, listener, verdicts = listening(stage)
    assert "unknown7" in ask_until_taken(context, verdicts, stage.book).by_backend
    assert listener.asked[0] == "unknown7"


def test_what_was_lost_before_the_question_stays_lost(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """A backend that failed on a node, by a plan that an earlier process kept, does not get it back by being called."""
    stage = set_stage(*perceptron, {"toy": ""})
    context, _, verdicts = listening(stage)
    node = next(node.name for node in context.graph.nodes if "gelu" in str(node.target))
    found = ask_until_taken(context, verdicts.without("toy", [node], "it fell over"), stage.book)
    assert not found.takes("toy", node)
    assert found.refusals("toy", [node]) == ("it fell over",)
    others = [name for name, support in found.by_backend["toy"].items() if name != node]
    assert all(found.by_backend["toy"][name] == ACCEPTED for name in others)


def test_answers_are_in_the_order_of_registration(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """Regardless of which backend is called first, plans and messages list backends in the order of installation."""
    stage = set_stage(*perceptron, {"one": "", "two": "", "three": "", "four": "", **dict.fromkeys(REAL, "aten")})
    context, _, verdicts = listening(stage)
    found = ask_until_taken(context, verdicts, stage.book)
    places = [list(context.registry.entries).index(name) for name in found.by_backend]
    assert places == sorted(places)


def test_whoever_lost_everything_is_not_asked(set_stage: Callable[..., Stage], perceptron: Any) -> None:
    """If no backend is left that could support anything, the search ends, and the graph runs in eager."""
    stage = set_stage(*perceptron, {"toy": ""})
    context, listener, verdicts = listening(stage)
    lost = verdicts.without("toy", [node.name for node in context.graph.nodes], "it fell over")
    assert decide(context, lost, may_measure=False).assignment.clusters == ()
    assert not listener.asked


def test_whoever_could_only_have_views_is_not_asked(set_stage: Callable[..., Stage]) -> None:
    """A graph that computes nothing is offered to no backend."""
    stage = set_stage(Turned(), (torch.randn(3, 4),), MANY)
    context, listener, verdicts = listening(stage)
    assert decide(context, verdicts, may_measure=False).decided_by is DecidedBy.NO_TAKER
    assert not listener.asked


class Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()
