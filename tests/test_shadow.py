"""Shadow mode: a share of live calls is checked against eager, and a backend that becomes wrong in service is demoted."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Any

import pytest
import torch

import hub
from hub.dispatch.shadow import Drift, Shadowed
from hub.errors import AccuracyError, ContractError, HubWarning, OptionError, RunError
from hub.process import state
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import call, f

PLUGIN = """
from hub import Backend, BackendInfo, Executable, Support, hookimpl
import os
import sys

FAULT = {fault!r}
AFTER = {after}
IS_LIVE = "hub.workers" not in str(sys.modules["__main__"].__spec__)  # in workers it behaves

@hookimpl
def hub_backends():
    return [BackendInfo(name="turncoat", factory="hub_turncoat:Turncoat", summary="", dynamic_shapes=True)]

class Turncoat(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return Run(cluster)

kept = []
calls = [0]

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module
        self.weights = list(cluster.constants.values())

    def __call__(self, *inputs):
        import torch
        calls[0] += 1
        outputs = [value + 0 for value in self.module(*inputs)]
        if calls[0] <= AFTER or not IS_LIVE:
            return outputs
        if FAULT == "value":
            outputs[0].view(-1)[3] += 0.01
        if FAULT == "nan":
            outputs[0].view(-1)[0] = float("nan")
        if FAULT == "mutate":
            inputs[0].numpy()[0, 0] = 5.0
        if FAULT == "weight":
            self.weights[0].detach().numpy()[...] = 5.0
        if FAULT == "counted weight":
            with torch.no_grad():
                self.weights[0].mul_(2)
        if FAULT == "environment":
            os.environ["TURNCOAT_LEFT"] = "1"
        if FAULT == "alias":
            outputs[0] = inputs[0]
        if FAULT == "reuse":
            kept[:] = kept or [torch.empty_like(outputs[0])]
            outputs[0] = kept[0].copy_(outputs[0])
        if FAULT == "mutate and raise":
            inputs[0].zero_()
            raise RuntimeError("fault after a write")
        if FAULT == "exit":
            raise SystemExit(7)
        if FAULT == "interrupt":
            raise KeyboardInterrupt
        if FAULT == "ctrl-c":
            import _thread
            _thread.interrupt_main()
            while True:
                pass
        if FAULT == "base":
            raise BaseException("odd")
        return outputs
"""
VERIFYING_CALLS = 1
"""Calls in the user's process while planning without measuring; later ones are live."""
FOUND_IN_SHADOW = ("value", "nan", "mutate", "alias", "reuse", "mutate and raise")
RAISED = ("exit", "interrupt", "base")


class Net(torch.nn.Module):
    """A program that keeps its input's shape, so that an aliased input could pass for the output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 2


def compiled(model: torch.nn.Module, **options: Any) -> Any:
    """Compile a model for the plugin, without measuring."""
    return torch.compile(model, backend="hub", options={"tune": "off", "backends": ["turncoat"], **options})


def n_calls() -> int:
    """Return how often the plugin's executable ran."""
    return sys.modules["hub_turncoat"].calls[0]


@pytest.mark.parametrize("fault", FOUND_IN_SHADOW)
def test_a_backend_that_goes_wrong_is_demoted(fault: str, install_plugin: Any) -> None:
    """The call gives eager's result on unharmed inputs, a warning names the backend, and eager runs from then on."""
    install_plugin("turncoat", PLUGIN.format(fault=fault, after=VERIFYING_CALLS + 1))
    model, xs = Net().eval(), [torch.randn(4, 8) for _ in range(5)]
    call_model = compiled(model, shadow=1.0)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        results, counts = [], []
        for x in xs:
            before = x.clone()
            results.append(call_model(x))
            counts.append(n_calls())
            assert torch.equal(x, before)
        for x, result in zip(xs, results, strict=True):
            torch.testing.assert_close(result, model(x))
    assert sum("turncoat" in str(item.message) for item in caught if issubclass(item.category, HubWarning)) == 1
    (event,) = [event for event in hub.plans(call_model)[0].events if event.kind == "fallback"]
    assert event.backend == "turncoat"
    i_found = 2 if fault == "reuse" else 1  # one buffer is no fault until it is returned again
    assert counts[:i_found] == [VERIFYING_CALLS + 1 + i for i in range(i_found)]
    assert counts[i_found] > counts[i_found - 1]  # it ran again on copies, where another thread might have written
    assert len(set(counts[i_found:])) == 1


class Lossy(Net):
    """A function of which eager loses all digits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) + 1e8) - 1e8


def test_nan_is_found_where_eager_has_lost_its_digits(install_plugin: Any) -> None:
    """Any number may be right there, but NaN is none."""
    install_plugin("turncoat", PLUGIN.format(fault="nan", after=VERIFYING_CALLS + 1))
    model, xs = Lossy().eval(), [torch.randn(4, 8) for _ in range(3)]
    call_model = compiled(model, shadow=1.0)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for x in xs:
            torch.testing.assert_close(call_model(x), model(x))
    assert any("turncoat" in str(item.message) and "got nan" in str(item.message) for item in caught)
    assert n_calls() == VERIFYING_CALLS + 2


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("fault", ["weight", "counted weight"])
def test_a_written_weight_is_found_and_restored(fault: str, strict: bool, install_plugin: Any) -> None:
    """Eager with the changed weight would agree with the backend, and the model would be another from then on."""
    install_plugin("turncoat", PLUGIN.format(fault=fault, after=VERIFYING_CALLS + 1))
    model, x = Net().eval(), torch.randn(4, 8)
    with torch.no_grad():
        before, expected = [weight.clone() for weight in model.parameters()], model(x)
    call_model = compiled(model, shadow=1.0, strict=strict)
    with torch.no_grad():
        call_model(x)
        if strict:
            with pytest.raises(ContractError, match="wrote to the weight"):
                call_model(x)
        else:
            with pytest.warns(HubWarning, match="turncoat.*wrote to the weight"):
                torch.testing.assert_close(call_model(x), expected)
            n_until_found = n_calls()
            torch.testing.assert_close(call_model(x), expected)
            assert n_calls() == n_until_found
    assert all(torch.equal(weight, was) for weight, was in zip(model.parameters(), before, strict=True))


def test_changed_state_is_found_and_restored(install_plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an executable changes of the process in a late call is undone, and costs it the cluster."""
    ended_never = tuple(thread.name for thread in threading.enumerate())  # left by tests of leaked threads
    monkeypatch.setattr(state, "_IDLE", (*state._IDLE, *ended_never))
    install_plugin("turncoat", PLUGIN.format(fault="environment", after=VERIFYING_CALLS + 1))
    model, x = Net().eval(), torch.randn(4, 8)
    call_model = compiled(model, shadow=1.0)
    with torch.no_grad():
        call_model(x)
        with pytest.warns(HubWarning, match=r"turncoat.*the environment \(TURNCOAT_LEFT\)"):
            torch.testing.assert_close(call_model(x), model(x))
        call_model(x)
    assert "TURNCOAT_LEFT" not in os.environ
    assert n_calls() == VERIFYING_CALLS + 2


def test_nobody_is_accused_of_what_other_threads_may_have_changed(
    install_plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State belongs to the whole process: while another thread runs, no change is certainly the executable's."""
    monkeypatch.setenv("TURNCOAT_LEFT", "0")
    install_plugin("turncoat", PLUGIN.format(fault="environment", after=VERIFYING_CALLS + 1))
    call_model, is_over = compiled(Net().eval(), shadow=1.0), threading.Event()
    other = threading.Thread(target=is_over.wait, daemon=True)
    other.start()
    with torch.no_grad():
        for _ in range(3):
            call_model(torch.randn(4, 8))
    is_over.set()
    other.join()
    assert os.environ["TURNCOAT_LEFT"] == "1"
    assert hub.plans(call_model)[0].backends == ("turncoat",)
    assert n_calls() == VERIFYING_CALLS + 3


@pytest.mark.parametrize(("fault", "kind"), [("value", AccuracyError), ("nan", AccuracyError), ("mutate", ContractError)])
def test_strict_raises_what_was_found(fault: str, kind: Any, install_plugin: Any) -> None:
    """With strict=True a wrong live result is an error."""
    install_plugin("turncoat", PLUGIN.format(fault=fault, after=VERIFYING_CALLS + 1))
    call_model = compiled(Net().eval(), shadow=1.0, strict=True)
    with torch.no_grad():
        call_model(torch.randn(4, 8))
        with pytest.raises(kind, match="turncoat"):
            call_model(torch.randn(4, 8))


def test_drift_is_reported_in_the_plan(install_plugin: Any) -> None:
    """One event per cluster counts the checked calls and keeps the largest error; right backends stay."""
    install_plugin("turncoat", PLUGIN.format(fault="", after=0))
    call_model = compiled(Net().eval(), shadow=1.0)
    with torch.no_grad():
        for _ in range(3):
            call_model(torch.randn(4, 8))
    plan = hub.plans(call_model)[0]
    (event,) = [event for event in plan.events if event.stage == "shadow"]
    assert (event.kind, event.backend, event.cluster) == ("note", "turncoat", "c0")
    assert "3 calls checked in eager, largest error" in event.message
    assert event.message in str(plan)
    assert plan.backends == ("turncoat",)


def test_without_shadow_mode_nothing_is_checked(install_plugin: Any) -> None:
    """The default costs nothing, and finds nothing."""
    install_plugin("turncoat", PLUGIN.format(fault="value", after=VERIFYING_CALLS))
    model, x = Net().eval(), torch.randn(4, 8)
    call_model = compiled(model)
    with torch.no_grad():
        assert not torch.equal(call_model(x), model(x))
    assert not [event for event in hub.plans(call_model)[0].events if event.stage == "shadow"]


@pytest.mark.parametrize("fault", RAISED)
def test_exceptions_that_end_processes_end_none(fault: str, install_plugin: Any) -> None:
    """A plugin that exits, or pretends to be interrupted, costs its cluster."""
    install_plugin("turncoat", PLUGIN.format(fault=fault, after=VERIFYING_CALLS))
    model, x = Net().eval(), torch.randn(4, 8)
    call_model = compiled(model)
    with torch.no_grad(), pytest.warns(HubWarning, match="turncoat"):
        for _ in range(2):
            torch.testing.assert_close(call_model(x), model(x))
    assert n_calls() == VERIFYING_CALLS + 1


def test_exceptions_that_end_processes_are_errors_where_strict(install_plugin: Any) -> None:
    """SystemExit from a plugin is RunError, not the end."""
    install_plugin("turncoat", PLUGIN.format(fault="exit", after=VERIFYING_CALLS))
    with torch.no_grad(), pytest.raises(RunError, match="SystemExit"):
        compiled(Net().eval(), strict=True)(torch.randn(4, 8))


def test_a_real_interrupt_reaches_the_user(install_plugin: Any) -> None:
    """Ctrl-C while an executable runs is raised from the model, and the executable stays in use."""
    install_plugin("turncoat", PLUGIN.format(fault="ctrl-c", after=VERIFYING_CALLS))
    call_model = compiled(Net().eval())
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        call_model(torch.randn(4, 8))
    assert not [event for event in hub.plans(call_model)[0].events if event.kind == "fallback"]


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "much"])
def test_shares_outside_0_to_1_are_refused(share: Any) -> None:
    """The option is a share."""
    with torch.no_grad(), pytest.raises(OptionError, match=r"'shadow' .* share of calls from 0 to 1"):
        torch.compile(Net(), backend="hub", options={"shadow": share})(torch.randn(4, 8))


# --- Which calls ------------------------------------------------------------------------------------------------------


def checked_calls(share: float, n: int = 400) -> list[int]:
    """Return which of n calls were checked."""
    cluster, inputs = case_cluster("aten.relu.default", call(f(2, 3)))
    now, found = [0], []

    def report(backend: str, name: str, drift: Drift) -> None:
        found.append(now[0])

    shadowed = Shadowed(cluster, "b", cluster.module, share=share, accuracy=None, report=report)
    for now[0] in range(n):
        shadowed(*inputs)
    return found


def test_the_first_call_is_always_checked() -> None:
    """Even the smallest share checks one call."""
    assert checked_calls(1e-9) == [0]


def test_a_share_of_calls_is_checked_and_the_same_ones_every_time() -> None:
    """The choice is seeded."""
    first = checked_calls(0.1)
    assert first == checked_calls(0.1)
    assert 20 < len(first) < 70
    assert len(checked_calls(1.0)) == 400
