"""Kept plans: replayed until the user requests a new decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hub
from hub.config.options import Options, resolve

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
