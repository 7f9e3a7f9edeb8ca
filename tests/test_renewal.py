"""Kept plans: replayed until the user requests a new decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hub
from hub.config.options import Options, resolve
from hub.errors import CompileError, HubWarning
from hub.planning import measure
from hub.planning.building import Builder, ClusterFailed
from hub.planning.decision import Decision

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:`torch.jit.:DeprecationWarning")
"""Parts of torch that an export imports warn about each other."""


def planned(**options: Any) -> hub.Plan:
    """Return the plan that a new process would run for one small model, between eager and one backend."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval(), torch.randn(8, 64)
    given = {"exclude": ["inductor", "openvino"], "threads": 1, "budget_s": 2.0, **options}
    compiled = torch.compile(model, backend="hub", options=given)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    return hub.plans(compiled)[-1]


def evidence(plan: hub.Plan) -> Any:
    """Return what the race measured, which no two races share."""
    return plan.contenders


def test_a_kept_plan_is_decided_anew_only_on_request() -> None:
    """`renew` times again and replaces what was kept; without it, the kept evidence is used."""
    first, again = planned(), planned()
    assert (first.decided_by, again.decided_by) == ("measured whole plans", "replayed")
    assert evidence(again) == evidence(first)
    renewed, after = planned(renew=True), planned()
    assert (renewed.decided_by, after.decided_by) == ("measured whole plans", "replayed")
    assert evidence(renewed) != evidence(first)
    assert evidence(after) == evidence(renewed)


def test_a_plan_that_was_timed_beside_other_work_is_decided_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process decides again, and that plan stays, because the machine may always be busy."""
    monkeypatch.setattr(measure, "MAX_DISTURBED", -1.0)
    plans = [planned() for _ in range(3)]
    assert [str(plan.decided_by) for plan in plans] == ["measured whole plans", "measured whole plans", "replayed"]
    assert [plan.is_provisional for plan in plans] == [True, False, False]
    assert ["asks for as much decides again" in str(plan) for plan in plans] == [True, False, False]
    assert evidence(plans[2]) == evidence(plans[1]) != evidence(plans[0])


def test_a_fully_tuned_plan_is_not_replaced_by_a_quick_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even timed beside other work it knows more than "fast" would find; only `tune="full"` decides it again."""
    monkeypatch.setattr(measure, "MAX_DISTURBED", -1.0)
    full, fast, again, last = planned(tune="full"), planned(), planned(tune="full"), planned(tune="full")
    assert [plan.is_provisional for plan in (full, fast, again, last)] == [True, True, False, False]
    assert evidence(fast) == evidence(full)
    assert evidence(again) != evidence(full)
    assert evidence(last) == evidence(again)


def test_the_next_best_plan_of_the_race_replaces_one_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is known, unlike that of a plan by prices; what failed is reported."""
    build = Builder.build
    decisions: list[Decision] = []

    def build_but_the_first(builder: Builder, decision: Decision) -> Any:
        decisions.append(decision)
        if len(decisions) > 1:
            return build(builder, decision)
        group = decision.assignment.groups[0]
        raise ClusterFailed(group, CompileError("no"), is_whole=False)

    monkeypatch.setattr(Builder, "build", build_but_the_first)
    with pytest.warns(HubWarning, match="no"):
        plan = planned(backends=["onnxruntime", "disc"], exclude=[])
    first, second = decisions
    usable = [one for one in first.others if one.assignment.groups[0].backend != first.assignment.groups[0].backend]
    assert second.assignment == usable[0].assignment
    assert plan.decided_by == "measured whole plans"
    assert plan.measured_s == next(item.median_s for item in plan.contenders if item.won)
    assert any(event.kind == "fallback" and event.message == "no" for event in plan.events)


def test_a_fully_tuned_plan_serves_who_asks_for_less() -> None:
    """The result of `tune="full"` is replayed under "fast"; that of "fast" does not serve "full"."""
    fast, full = planned(), planned(tune="full")
    assert full.decided_by == "measured whole plans"
    assert evidence(full) != evidence(fast)
    assert evidence(planned()) == evidence(full)


@pytest.mark.parametrize(("text", "wanted"), [("1", True), ("yes", True), ("off", False), ("", False)])
def test_renewal_may_be_asked_for_by_a_variable(text: str, wanted: bool) -> None:
    """`HUB_RENEW` is read as every boolean is."""
    assert resolve(None, {"HUB_RENEW": text}, Path("/"), home=Path("/nobody")).renew is wanted


def test_nothing_is_renewed_unasked() -> None:
    """A second process replays by default."""
    assert not Options().renew
