"""The interpreter is a reference: a user can request it, and no plan chooses it on price."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hub
from hub.cli.app import app
from hub.discovery.registry import registry
from hub.plan import Plan
from hub.plugin.cost import Cost
from plugin_triton import settings
from plugin_triton.backend import Triton

OWN: dict[str, Any] = {"tune": "off", "isolate": False, "triton": {"interpret": True}}
X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Triton estimate no time at all: no rival is cheaper."""
    monkeypatch.setattr(Triton, "estimate", lambda *_: Cost(0.0))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a machine without a GPU, with the variable that makes Triton interpret kernels."""
    monkeypatch.setattr(settings, "_DRIVERS", ())
    monkeypatch.setenv("HUB_TRITON_INTERPRET", "1")
    registry.cache_clear()
    yield
    registry.cache_clear()


def plan_of(**options: Any) -> Plan:
    """Return the plan of a product, a hyperbolic tangent and a sum, after a call of it that returns eager's result."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Softmax(-1)).eval()
    compiled: Any = torch.compile(model, backend="hub", options={**OWN, **options})
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    (plan,) = hub.plans(compiled)
    return plan


@pytest.mark.parametrize(("rival", "tune"), [("eager", "off"), ("eager", "fast"), ("disc", "off")])
def test_the_interpreter_is_never_bought_on_price(rival: str, tune: str) -> None:
    """Not even where it is the cheapest by far; the plan says why."""
    plan = plan_of(backends=("triton", rival), tune=tune)
    assert "triton" not in plan.backends
    bids = [bid for cluster in plan.clusters for bid in cluster.bids if bid.backend == "triton"]
    assert bids
    for bid in bids:
        assert bid.price is None
        assert "on cpu for reference only: name triton alone in `backends`, or force operators to it" in str(bid.refusal)


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_who_asks_for_nothing_else_gets_it(tune: str) -> None:
    """Then there is no price to compare."""
    assert plan_of(backends=("triton",), tune=tune).backends == ("triton",)


def test_forced_operators_go_to_it_and_no_others() -> None:
    """The user asked for these alone."""
    plan = plan_of(backends=("triton", "eager"), force={"aten.tanh": "triton"})
    operators = {cluster.backend: cluster.operators for cluster in plan.clusters if cluster.backend == "triton"}
    assert operators == {"triton": ("aten.tanh.default",)}


def test_a_plan_file_may_give_it_what_it_likes(tmp_path: Path) -> None:
    """It says who runs what, whatever that costs."""
    from hub.plan_file import write_plans

    write_plans(tmp_path / "plan.json", [plan_of(backends=("triton",))])
    assert plan_of(backends=("triton", "eager"), plan=str(tmp_path / "plan.json")).backends == ("triton",)


def test_what_lies_on_a_gpu_is_no_reference() -> None:
    """The setting speaks of the CPU's tensors alone; without it these are refused anyway."""
    assert settings.Settings(interpret=True).reference_on == ("cpu",)
    assert settings.Settings().reference_on == ()


@pytest.mark.usefixtures("no_gpu")
def test_the_listing_says_so() -> None:
    """It is said before any plan chooses it."""
    found = CliRunner().invoke(app, ["list-backends"])
    assert found.exit_code == 0, found.output
    assert "triton: the interpreter: reference only" in found.stdout.splitlines()
    assert "triton (not available)" not in found.stdout
