"""The device in the hub's plans: bids only where error is allowed, mixes with the CPU, and says why it does not."""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry


def net() -> nn.Module:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(128, 10), nn.Softmax(-1)).eval()


X = torch.linspace(-2, 2, 192).reshape(1, 3, 8, 8)


def compiled(model: nn.Module, **options: Any) -> tuple[torch.Tensor, Any, Any]:
    """Return the first result, the plan, and what was compiled."""
    found = torch.compile(model, backend="hub", options={"tune": "off", **options})
    with torch.no_grad():
        result = found(X)
    return result, hub.plans(found)[0], found


def test_a_mixed_plan_runs(installed: None) -> None:
    """Convolutions go to the device and the softmax head stays on the CPU, within the error that was granted."""
    model = net()
    result, plan, found = compiled(model, backends=["mdla"], accuracy=0.05, isolate=False)
    assert [(cluster.backend, len(cluster.nodes)) for cluster in plan.clusters][-1] == ("eager", 1)
    assert plan.clusters[0].backend == "mdla"
    assert 0 < (result - model(X)).abs().max() < 0.05 * model(X).max()
    with torch.no_grad(), pytest.warns(hub.HubWarning, match="fixed point cannot hold this call's values: 192 elements"):
        assert torch.equal(found(X * 1000), model(X * 1000)), "values beyond the formats run in eager, exactly"


def test_accepted_saturation_reaches_the_user(installed: None, caplog: pytest.LogCaptureFixture) -> None:
    """With `saturate`, NaN, infinities and values beyond the formats give the device's numbers, and the log says so."""
    model = net()
    settings = {"device": "simulator", "saturate": True}
    _, plan, found = compiled(model, backends=["mdla"], accuracy=0.05, mdla=settings)
    assert plan.clusters[0].backend == "mdla"
    assert any("which its settings accept" in event.message for event in plan.events)
    broken = X.clone()
    broken[0, 0, 0, 0] = torch.nan
    with torch.no_grad(), caplog.at_level("WARNING", "hub.mdla"):
        assert model(broken).isnan().any()
        assert found(broken).isfinite().all()
        assert found(X * torch.inf).isfinite().all()
        assert not torch.allclose(found(X * 1000), model(X * 1000), atol=0.05)
    assert "NaN or infinite" in caplog.text


def test_workers_compile_and_the_cache_serves(installed: None) -> None:
    """Isolated workers give the same plan; a second compilation loads what was saved, ranges included."""
    model = net()
    first, plan, _ = compiled(model, backends=["mdla"], accuracy=0.05)
    assert plan.clusters[0].backend == "mdla"
    torch._dynamo.reset()
    again, plan, _ = compiled(model, backends=["mdla"], accuracy=0.05)
    assert plan.clusters[0].backend == "mdla"
    assert torch.equal(first, again)


def test_it_does_not_bid_where_exactness_is_asked(installed: None) -> None:
    """Without an error budget the device gets nothing, and the plan says what budget would let it in."""
    _, plan, _ = compiled(net(), backends=None, exclude=[name for name in registry().available() if name != "mdla"])
    assert all(cluster.backend == "eager" for cluster in plan.clusters)
    assert any(event.backend == "mdla" and "accuracy" in event.message for event in plan.events)


def test_one_layer_that_overflows_costs_that_layer(installed: None) -> None:
    """A weight beyond every format runs in eager, what is before and behind it on the device; good weights are unharmed."""

    def plan_of(scale: float) -> list[str]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        three = [nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Sigmoid(), nn.Conv2d(3, 3, 1), nn.Tanh(), nn.Conv2d(3, 3, 1)]
        model = nn.Sequential(*three).eval()
        model[3].weight.data *= scale
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hub.HubWarning)
            result, plan, _ = compiled(model, backends=["mdla"], accuracy=0.05)
        assert (result - model(X)).abs().max() <= 0.05 * model(X).abs().max()
        events = [event.message for event in plan.events if event.kind in ("failed", "fallback", "refused")]
        assert all("beyond every 16-bit format" in text and "conv2d_2" in text for text in events), events
        return [cluster.backend for cluster in plan.clusters]

    assert plan_of(1e6)[0] == "mdla"
    assert "eager" in plan_of(1e6)
    assert plan_of(1.0) == ["mdla"], "what was refused for its weights is not disabled"


def test_explain_shows_what_fixed_point_costs_by_layer(installed: None) -> None:
    """`hub explain`: by layer the formats of value and weight, saturation, mean and max error in per cent, and dB."""
    (plan,) = hub.explain(net(), X, options={"backends": ["mdla"], "accuracy": 0.05})
    report = plan.clusters[0].report.splitlines()
    assert "ms predicted on the board" in report[0]
    assert report[1].startswith("ranges: these inputs")
    assert " ".join(report[2].split()) == "value operator format weights saturated mean % max % SNR dB"
    conv = next(line.split() for line in report if " Conv " in line)
    kind, form, weights, saturated, mean, largest, ratio = conv[1:]
    assert (kind, form[0], weights[0], saturated) == ("Conv", "Q", "Q", "0")
    assert 0 < float(mean) < float(largest) < 0.1
    assert float(ratio) > 60
    assert "SNR dB" in str(plan)


def test_options_choose_the_software_device(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any variable: `options={"mdla": {"device": "simulator"}}`, here and in workers."""
    monkeypatch.delenv("HUB_MDLA_SIMULATOR")
    registry.cache_clear()
    coarse = {"device": "simulator", "format": "q8.8"}
    _, plan, _ = compiled(net(), backends=["mdla"], accuracy=0.5, mdla=coarse)
    assert plan.clusters[0].backend == "mdla"
    _, plan, _ = compiled(net(), accuracy=0.05, exclude=["onnxruntime", "openvino", "inductor"], mdla=coarse)
    assert any(event.backend == "mdla" and "12.0%" in event.message for event in plan.events)


def test_without_a_device_it_is_listed_with_the_remedy(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither library nor simulator: unavailable, with both remedies, and no plan is disturbed."""
    monkeypatch.delenv("HUB_MDLA_SIMULATOR")
    registry.cache_clear()
    entry = registry().entries["mdla"]
    assert not entry.status.accepted
    assert "HUB_MDLA_LIBRARY" in entry.info.install
    assert "HUB_MDLA_SIMULATOR" in entry.info.install
    _, plan, _ = compiled(net(), accuracy=0.5, exclude=["onnxruntime", "openvino", "inductor"])
    assert not [event for event in plan.events if event.backend == "mdla"]


# --- The board, by a stand-in -----------------------------------------------------------------------------------------


class Gated(nn.Module):
    """relu on the board, softmax in eager, relu on the board."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.softmax(torch.relu(x), 1) - 0.01)


ROW = torch.linspace(-2, 2, 8).reshape(2, 4)


def on_board(library_path: Path, **options: Any) -> tuple[torch.Tensor, Any, Any]:
    """Return the same as `compiled`, of two relus on the stand-in's board."""
    board = {"library": str(library_path), "format": "q8.8", "timeout_s": 0.5}
    force = {"aten.sub": "eager", "aten.softmax": "eager"}  # the stand-in computes one operator a program
    given = {"backends": ["mdla"], "force": force, "accuracy": 0.1, "tune": "off", "mdla": board, **options}
    found = torch.compile(Gated(), backend="hub", options=given)
    with torch.no_grad():
        result = found(ROW)
    return result, hub.plans(found)[0], found


def test_a_plan_runs_on_the_board(no_simulator: None, library_path: Path) -> None:
    """Two clusters on the board with softmax between them; workers try them first, the user's process runs them."""
    result, plan, _ = on_board(library_path)
    assert [cluster.backend for cluster in plan.clusters] == ["mdla", "eager", "mdla"]
    assert 0 < (result - Gated()(ROW)).abs().max() < 0.01


@pytest.mark.parametrize(("fault", "text"), [("hang", "did not answer within 0.5 s"), ("run", "ie_run returned -1")])
def test_a_board_that_fails_later_costs_its_clusters(
    fault: str, text: str, no_simulator: None, library_path: Path, stand_in: ctypes.CDLL
) -> None:
    """A board that hangs, or answers -1, in a later call: eager's results from then on, one warning a cluster."""
    _, plan, found = on_board(library_path, isolate=False)
    assert plan.backends == ("mdla", "eager")
    stand_in.stand_in_fault(fault.encode())
    with torch.no_grad(), pytest.warns(hub.HubWarning, match=text):
        assert torch.equal(found(ROW), Gated()(ROW))
    stand_in.stand_in_fault(b"")
    with torch.no_grad():
        assert torch.equal(found(ROW), Gated()(ROW)), "a board that failed is not used again"
    assert [event.stage for event in hub.plans(found)[0].events if event.kind == "fallback"] == ["run", "run"]


@pytest.mark.parametrize(("fault", "text"), [("hang", "did not answer"), ("compile", "ie_compile failed")])
def test_a_board_that_fails_at_once_is_found_in_a_worker(
    fault: str, text: str, no_simulator: None, library_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the model nothing but a warning: eager computes, and the plan says why."""
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with pytest.warns(hub.HubWarning, match=text):
        result, plan, _ = on_board(library_path)
    assert plan.backends == ("eager",)
    assert torch.equal(result, Gated()(ROW))
