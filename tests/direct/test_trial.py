"""Calls that need Dynamo are compared with eager as a whole, and take the faster way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.capture.call import program_behind
from hub.frontend.direct import program as program_module
from hub.frontend.direct import trial
from hub.frontend.direct.trial import Trial

OPTIONS = {"exclude": ["inductor"], "budget_s": 1.0, "threads": 1, "start": "wait"}


class Broken(nn.Module):
    """Two graphs with Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(x)


def tried(monkeypatch: pytest.MonkeyPatch, eager_s: float, compiled_s: float, **options: Any) -> tuple[Any, nn.Module]:
    """Return a compiled model after its trials, of which a clock would have said this, and the model."""
    monkeypatch.setattr(trial, "N_TRIALS", 2)
    monkeypatch.setattr(Trial, "eager_s", property(lambda _: eager_s))
    monkeypatch.setattr(Trial, "compiled_s", property(lambda _: compiled_s))
    model = Broken().eval()
    run = hub.compile(model, options={**OPTIONS, **options})
    for _ in range(30):
        check(run, model)
    return run, model


def check(run: Any, model: nn.Module) -> None:
    x = torch.randn(4, 16)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


def calls_compiled(run: Any, model: nn.Module) -> bool:
    """Return whether a call goes through Dynamo."""
    program: Any = program_behind(run)
    assert program is not None
    real, calls = program.compiled, list[int]()
    program.compiled = lambda *given: (calls.append(1), real(*given))[1]
    check(run, model)
    program.compiled = real
    return bool(calls)


def test_calls_that_are_faster_in_eager_run_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said in the plan, and by what tells why calls need Dynamo."""
    run, model = tried(monkeypatch, 1e-3, 2e-3)
    assert not calls_compiled(run, model)
    said = [event.message for plan in hub.plans(run) for event in plan.events]
    assert any("a call takes 1 ms in eager, 2 ms through Dynamo" in text for text in said)
    assert "eager, which is faster" in program_behind(run).why_dynamo


@pytest.mark.parametrize(("eager_s", "compiled_s"), [(2e-3, 1e-3), (0.97e-3, 1e-3)])
def test_calls_that_are_faster_through_dynamo_stay(
    monkeypatch: pytest.MonkeyPatch, eager_s: float, compiled_s: float
) -> None:
    """And so do those that eager would hardly improve."""
    run, model = tried(monkeypatch, eager_s, compiled_s)
    assert calls_compiled(run, model)


@pytest.mark.parametrize("options", [{"backends": ["onnxruntime"]}, {"tune": "off"}, {"strict": True}], ids=str)
def test_who_chose_what_runs_is_not_overruled(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Nor is anything timed for those who want no timing."""
    run, model = tried(monkeypatch, 1e-3, 2e-3, **options)
    assert calls_compiled(run, model)


def test_ways_alternate_until_one_is_chosen() -> None:
    """Both get the same number of calls, and the choice stays."""
    compared, ways = Trial(), list[str]()
    for _ in range(2 * trial.N_TRIALS + 10):
        compared.run(lambda: ways.append("compiled"), lambda: ways.append("eager"), lambda: True)
    assert ways[: 2 * trial.N_TRIALS] == ["compiled", "eager", "eager", "compiled"] * (trial.N_TRIALS // 2)
    assert len({*ways[2 * trial.N_TRIALS :]}) == 1


def test_calls_count_only_while_all_plans_are_there() -> None:
    """A graph that waits for its plan runs in eager: that says nothing about the plan."""
    compared, ways = Trial(), list[str]()
    for _ in range(4 * trial.N_TRIALS):
        compared.run(lambda: ways.append("compiled"), lambda: ways.append("eager"), lambda: False)
    assert {*ways} == {"compiled"}
    assert compared.is_eager is None


def test_training_between_evaluations_leaves_them_their_fast_path() -> None:
    """Training steps need Dynamo, and may try to go without at long intervals; calls without gradients are others."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    run = hub.compile(model, options=OPTIONS)
    program: Any = program_behind(run)
    for _ in range(40):
        run(torch.randn(4, 16)).sum().backward()
    assert program._pauses[True].n_calls > 4
    for _ in range(5):
        check(run, model)
    assert program.why_dynamo == ""
    assert not program._trials
    assert not calls_compiled(run, model)


def test_forms_beyond_the_first_go_as_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of each of a hundred lengths would never end."""
    monkeypatch.setattr(program_module, "MAX_TRIALS", 2)
    run, model = tried(monkeypatch, 1e-3, 2e-3)
    program: Any = program_behind(run)
    for n_rows in (5, 6, 7, 8, 9, 10):
        for _ in range(30):
            with torch.no_grad():
                run(torch.randn(n_rows, 16))
    assert len(program._trials) == 2
    assert any(one.is_eager for one in program._trials.values())
    calls = list[int]()
    program.compiled = lambda *_: calls.append(1)
    with torch.no_grad():
        x = torch.randn(11, 16)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    assert not calls
