"""The user's weights, inputs and random numbers while plans are built beside the model: theirs alone."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hub
from hub.dispatch.assemble import _meet
from hub.errors import AccuracyError
from hub.frontend.bindings import MAX_BINDINGS
from hub.frontend.compiled import CompiledGraph
from hub.frontend.ownership import graphs_of
from hub.plan import DecidedBy, Event, EventKind, Stage
from hub.planning import building
from hub.planning.aside import Aside
from hub.planning.building import Builder
from hub.planning.make import Made

WAIT_S = 240.0


class Net(nn.Module):
    """Two products with something between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def served(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    """Return the model after a first call that did not wait for the plan."""
    given = {"backends": ["onnxruntime"], "tune": "off", "start": "eager", **options}
    run = torch.compile(model, backend="hub", options=given)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    return run


def arguments(graph: Any, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the arguments with which a call of the model calls its graph, by their shapes."""
    values = {tuple(value.shape): value for value in (*model.parameters(), x)}
    return [values[tuple(node.meta["val"].shape)] for node in graph.graph.placeholders]


def check(run: Any, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


def test_after_a_change_of_weights_calls_run_in_eager_until_the_plan_is_built_again() -> None:
    """As the first calls do: no request waits for a compiler."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = served(model, x)
    assert hub.wait(run, WAIT_S)
    check(run, model, x)
    with torch.no_grad():
        model.first.weight.mul_(-3)
    check(run, model, x)
    assert hub.plans(run)[-1].decided_by is DecidedBy.PENDING
    assert hub.wait(run, WAIT_S)
    check(run, model, x)
    plan = hub.plans(run)[-1]
    assert plan.backends == ("onnxruntime",)
    assert not [event for event in plan.events if event.kind in ("failed", "fallback")]


def test_a_weight_that_goes_while_a_plan_is_built_leaves_no_model_in_eager() -> None:
    """`load_state_dict(assign=True)` twice: the plan from before comes back, for the weights of now."""
    model, x = Net().eval(), torch.randn(4, 32)
    run = served(model, x)
    assert hub.wait(run, WAIT_S)
    for _ in range(2):
        model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()}, assign=True)
        check(run, model, x)
    assert hub.wait(run, WAIT_S)
    check(run, model, x)
    assert hub.wait(run, WAIT_S)
    check(run, model, x)
    (graph,) = graphs_of(run)
    assert hub.plans(run)[-1].backends == ("onnxruntime",)
    assert graph._bindings.current is not None
    assert graph._bindings.current.is_final


def test_a_model_of_the_same_class_waits_for_no_plan_and_delays_none() -> None:
    """Models of one class share a captured graph: while one is planned, the other keeps its plan."""
    first, second, x = Net().eval(), Net().eval(), torch.randn(4, 32)
    with torch.no_grad():
        second.first.weight.mul_(-2)
    run = served(first, x)
    assert hub.wait(run, WAIT_S)
    check(run, first, x)
    (graph,) = graphs_of(run)
    (planned,) = graph._bindings._all
    other = served(second, x)
    ran: list[int] = []
    planned.run = (lambda real: lambda args: (ran.append(1), real(args))[1])(planned.run)
    for _ in range(3):
        check(run, first, x)
        check(other, second, x)
    assert len(ran) == 3
    assert hub.wait(other, WAIT_S)
    for _ in range(2):
        check(run, first, x)
        check(other, second, x)
    assert len(ran) == 5
    assert [binding.is_final for binding in graph._bindings._all] == [True, True]


def test_models_are_found_by_whatever_weights_they_run_with_now() -> None:
    """Also by those of a plan that takes any weights, while others that it ran with are kept elsewhere."""
    x, models = torch.randn(4, 32), [Net().eval() for _ in range(6)]  # more than have executables of their own
    compiled = [served(model, x, start="wait") for model in models]
    assert [len(hub.plans(one)) for one in compiled] == [1] * 6
    (graph,) = graphs_of(compiled[0])
    for model, run in zip(models, compiled, strict=True):
        check(run, model, x)
        found = graph._bindings.find(arguments(graph, model, x))
        assert found is not None
        assert found.takes_any == (model in models[MAX_BINDINGS:])  # the first ones keep theirs
    kept = list[Any]()
    for _ in range(5):  # more than a plan is built for
        kept.append(models[0].state_dict(keep_vars=True))
        models[0].load_state_dict({name: value * 1.5 for name, value in models[0].state_dict().items()}, assign=True)
        check(compiled[0], models[0], x)
        assert len(hub.plans(compiled[0])) == 1
    kept.append(models[5].state_dict(keep_vars=True))
    models[5].load_state_dict(models[0].state_dict(), assign=True)
    check(compiled[5], models[5], x)
    assert len(hub.plans(compiled[5])) == 1


def test_parts_of_two_models_of_a_class_are_found() -> None:
    """Dynamo keeps what follows a graph break by the code of the class, which both models share."""

    class Parts(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(torch.relu(y))

    x, models = torch.randn(4, 32), [Parts().eval() for _ in range(2)]
    runs = [hub.compile(one, options={"backends": ["onnxruntime"], "tune": "off", "start": "wait"}) for one in models]
    for run, model in zip(runs * 2, models * 2, strict=True):
        check(run, model, x)
    assert [len(hub.plans(run)) for run in runs] == [2, 2]
    models[1].second.weight.detach().numpy()[:] *= 3
    hub.refresh(runs[1])
    for run, model in zip(runs * 2, models * 2, strict=True):
        check(run, model, x)


def test_functions_and_trained_models_of_the_same_code_are_found() -> None:
    """PyTorch captures for the first of them alone, and no weights tell whose a graph is."""
    options = {"backends": ["onnxruntime"], "tune": "off", "start": "wait"}

    def made(model: nn.Module) -> Any:
        return torch.compile(lambda x: torch.relu(model(x)), backend="hub", options=options)

    x, models = torch.randn(4, 32), [Net().eval() for _ in range(2)]
    runs = [made(model) for model in models]
    for run, model in zip(runs, models, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(run(x), torch.relu(model(x)))
        assert len(hub.plans(run)) == 1
    models[1].second.weight.detach().numpy()[:] *= 3
    hub.refresh(runs[1])
    with torch.no_grad():
        torch.testing.assert_close(runs[1](x), torch.relu(models[1](x)))
    trained: list[Any] = [torch.compile(Net(), backend="hub", options=options) for _ in range(2)]
    for model in trained:
        model(x).sum().backward()
        assert sorted(plan.mode for plan in hub.plans(model)) == ["backward", "forward"]


def test_what_is_found_wrong_later_serves_no_model_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification after the first answer looks at the plan for one set of weights; those for others hold it, too."""
    made = list[Made]()
    assembled = CompiledGraph._assembled

    def noted(self: CompiledGraph, graph: Any, one: Made, held: Any, **rest: Any) -> Any:
        made.append(one)
        return assembled(self, graph, one, held, **rest)

    monkeypatch.setattr(CompiledGraph, "_assembled", noted)
    x, models = torch.randn(4, 32), [Net().eval() for _ in range(2)]
    runs = [served(model, x, start="wait") for model in models]
    (graph,) = graphs_of(runs[0])
    before = list(graph._bindings._all)
    assert len(before) == 2
    error = AccuracyError("wrong for denormal numbers", backend="onnxruntime", cluster="c0")
    event = Event(kind=EventKind.FALLBACK, stage=Stage.RUN, backend="onnxruntime", cluster="c0", message=error.message)
    graph.learn_later(made[0].served["c0"], event, error)
    with pytest.warns(hub.HubWarning, match="denormal"):
        check(runs[1], models[1], x)
    check(runs[0], models[0], x)
    assert not set(before) & set(graph._bindings._all)
    assert hub.plans(runs[1])[-1].backends == ("eager",)


def test_a_thread_that_cannot_be_started_breaks_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call plans itself, and the plan says why."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name == Aside.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    model, x = Net().eval(), torch.randn(4, 32)
    run = served(model, x)
    assert hub.wait(run, WAIT_S)
    (plan,) = hub.plans(run)
    assert plan.backends == ("onnxruntime",)
    assert any("can't start new thread" in event.message for event in plan.events)
    check(run, model, x)


def test_a_model_is_found_while_the_plan_for_its_earlier_weights_is_made() -> None:
    model, x = Net().eval(), torch.randn(4, 32)
    run, kept = served(model, x), model.state_dict(keep_vars=True)
    model.load_state_dict({name: value * 1.5 for name, value in kept.items()}, assign=True)
    check(run, model, x)
    assert len(hub.plans(run)) == 1
    assert hub.wait(run, WAIT_S)


def test_no_plugin_is_blamed_for_weights_that_change_while_a_plan_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on after an evaluation that was shorter than planning: the plan is kept, and built for the next."""
    model, x = Net().eval(), torch.randn(4, 32)
    build, steps = Builder.build, [1]

    def build_beside_training(builder: Builder, decision: Any) -> Any:
        if steps:
            steps.pop()
            with torch.no_grad():
                model.first.weight.add_(0.5)
        return build(builder, decision)

    monkeypatch.setattr(Builder, "build", build_beside_training)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hub.HubWarning)
        run = served(model, x)
        assert hub.wait(run, WAIT_S)
        assert not steps
        assert "onnxruntime" in hub.plans(run)[-1].backends
        check(run, model, x)
        assert hub.wait(run, WAIT_S)
        check(run, model, x)
    plan = hub.plans(run)[-1]
    assert plan.backends == ("onnxruntime",)
    assert not [event for event in plan.events if event.kind in ("failed", "fallback")]


class Drawing(Net):
    """A product that reads drawn numbers: its input in a plan."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.dropout(torch.relu(self.first(x)), 0.5))


def test_building_a_plan_draws_no_numbers_in_the_users_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads draw from the same generator: it is never advanced and set back beside them."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the graph was run in the user's process")

    monkeypatch.setattr(building, "values_at", refuse)
    model, x = Drawing(), torch.randn(4, 32)
    run = torch.compile(model, backend="hub", options={"backends": ["onnxruntime"], "tune": "off", "start": "eager"})
    with torch.no_grad():
        run(x)
        assert hub.wait(run, WAIT_S)
        torch.manual_seed(7)
        got = run(x)
        torch.manual_seed(7)
        torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-5)
    assert "onnxruntime" in hub.plans(run)[-1].backends


def test_draws_of_a_checkpoint_keep_their_place() -> None:
    """The first draw is the first in the program, although only the second belongs to what a plan runs first."""

    def step(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(x @ x.T, 0.5)
        block = checkpoint(lambda y: nn.functional.dropout(y.sin(), 0.5), z, use_reentrant=False)
        return dropped.sum() + (block * z).sum()

    x, z = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    run = torch.compile(step, backend="hub", options={"backends": ["onnxruntime"], "tune": "off", "start": "wait"})
    found = []
    for function in (run, run, step):
        torch.manual_seed(3)
        value = function(x, z)
        found.append((value.detach(), *torch.autograd.grad(value, (x, z))))
    for got in found[:2]:
        torch.testing.assert_close(got, found[2], rtol=1e-5, atol=1e-5)


def test_halves_of_one_allocation_are_apart() -> None:
    """Both caches of a decoder, say: the plan runs although they share a storage."""

    def step(k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        k.mul_(0.5).add_(new)
        return (k @ v.T).relu()

    run = torch.compile(step, backend="hub", options={"backends": ["onnxruntime"], "tune": "off", "start": "wait"})
    one, other = torch.zeros(2, 16, 16), torch.zeros(2, 16, 16)
    new = torch.randn(16, 16)
    with torch.no_grad():
        for _ in range(2):
            got, want = run(*one.unbind(0), new), step(*other.unbind(0), new)
            torch.testing.assert_close((got, one), (want, other))
        (graph,) = graphs_of(run)
        assert graph._bindings.current is not None
        ran: list[int] = []
        names = graph._bindings.current.run.__globals__
        real = names["original"]
        names["original"] = lambda *args: (ran.append(1), real(*args))[1]
        run(*one.unbind(0), new)
        assert not ran
        whole = torch.zeros(20, 16)
        run(whole[:16], whole[4:], new)
        assert ran


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [((0, 4), (4, 8), False), ((0, 5), (4, 8), True), ((4, 8), (0, 4), False), ((2, 3), (0, 8), True)],
)
def test_ranges_of_bytes_meet_or_do_not(first: tuple[int, int], second: tuple[int, int], wanted: bool) -> None:
    """Rows of one matrix."""
    whole = torch.zeros(8, 3)
    assert _meet(whole[slice(*first)], whole[slice(*second)]) is wanted
