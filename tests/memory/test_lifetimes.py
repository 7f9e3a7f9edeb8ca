"""A compiled model without references is freed, with its weights and everything made of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry
from hub.dispatch.weights import WeightGuard
from hub.errors import PluginLoadError

SIDE = 67
"""Rows of the weights: no tensor of another test has as many."""


def net() -> nn.Sequential:
    """Return two layers, parts of which every backend here supports."""
    return nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, SIDE)).eval()


def compiled(model: Callable[..., Any], *backends: str, **options: Any) -> Any:
    """Compile for some backends, in this process, without measuring."""
    named = {"backends": backends} if backends else {}
    return torch.compile(model, backend="hub", options={"tune": "off", "isolate": False, **named, **options})


def references(model: nn.Module) -> list[weakref.ref[Any]]:
    """Return one reference for each weight of a model."""
    return [weakref.ref(weight) for weight in model.parameters()]


def living(found: list[weakref.ref[Any]]) -> int:
    """Return how many of the weights live once garbage is collected."""
    gc.collect()
    return sum(reference() is not None for reference in found)


def tensors() -> int:
    """Return how many tensors of the weights' size exist, including those over the same memory.

    A weight's memory is freed when the last of them is: executables hold tensors of their own over it, and packed copies.
    """
    gc.collect()
    return sum(type(item) in (torch.Tensor, nn.Parameter) and item.numel() == SIDE * SIDE for item in gc.get_objects())


@pytest.fixture(autouse=True)
def _no_tensors_of_others() -> Iterator[None]:
    assert tensors() == 0
    yield
    assert tensors() == 0, "the test leaves weights behind"


@pytest.mark.parametrize("backend", registry().available())
def test_the_weights_of_a_compiled_model_that_nobody_holds_are_freed(backend: str) -> None:
    """Its executables go with them, whatever PyTorch keeps of what it compiled."""
    model = net()
    found, x = references(model), torch.randn(3, SIDE)
    call = compiled(model, backend)
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
    assert [plan.backends for plan in hub.plans(call)] == [(backend,)]
    del model, call
    assert living(found) == 0
    assert tensors() == 0


def test_weights_are_freed_where_workers_planned() -> None:
    """So do what workers were sent, and what planning knew."""
    model = net()
    found = references(model)
    call = compiled(model, "onnxruntime", isolate=True)
    with torch.no_grad():
        call(torch.randn(3, SIDE))
    assert [plan.backends for plan in hub.plans(call)] == [("onnxruntime",)]
    del model, call
    assert living(found) == 0


def test_weights_are_freed_after_training() -> None:
    """Forward, backward and optimizer steps keep nothing."""
    model = net().train()
    found = references(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = compiled(model, "inductor")
    for _ in range(2):
        call(torch.randn(3, SIDE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {plan.mode: plan.backends for plan in hub.plans(call)} == {"forward": ("inductor",), "backward": ("inductor",)}
    del model, call, optimizer
    assert living(found) == 0


def test_a_frozen_model_is_freed_with_its_weights() -> None:
    """What was frozen holds them until it goes itself."""
    model = net()
    found, x = references(model), torch.randn(3, SIDE)
    with torch.no_grad():
        frozen = hub.freeze(compiled(model, "onnxruntime"), x)
        expected = model(x)
        del model
        torch.compiler.reset()
        assert living(found) == len(found)
        torch.testing.assert_close(frozen(x), expected, rtol=1e-4, atol=1e-4)
    del frozen
    assert living(found) == 0


def test_what_was_built_for_weights_that_were_replaced_is_freed() -> None:
    """The model goes on with its new weights; the old ones, and their executables, are gone."""
    model = net()
    call = compiled(model, "onnxruntime")
    x = torch.randn(3, SIDE)
    with torch.no_grad():
        call(x)
        first = references(model)
        for layer in (model[0], model[2]):
            layer.weight = nn.Parameter(torch.randn(SIDE, SIDE))
            layer.bias = nn.Parameter(torch.randn(SIDE))
        assert living(first) == 0
        assert tensors() == 2
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
    assert [plan.backends for plan in hub.plans(call)] == [("onnxruntime",)]
    del model, call


def test_the_inputs_and_outputs_of_a_finished_call_are_freed() -> None:
    """With the first call, which plans and verifies, as with later ones."""
    model = net()
    call = compiled(model, "inductor")
    for _ in range(3):
        x = torch.randn(5, SIDE)
        with torch.no_grad():
            result = call(x)
        found = [weakref.ref(x), weakref.ref(result)]
        del x, result
        assert living(found) == 0
    del model, call


@pytest.mark.parametrize("backend", ["no", "Missing"])
def test_a_backend_that_cannot_be_loaded_keeps_nothing(install_plugin: Callable[[str, str], None], backend: str) -> None:
    """The error that says so is raised for each model, and knows nothing of the one before."""
    factory = {"no": "hub_broken:create", "Missing": "hub_broken:nothing"}[backend]
    install_plugin(
        "broken",
        f"""
        from hub.plugin.backend import BackendInfo
        from hub.plugin.hooks import hookimpl

        def create():
            raise RuntimeError("not today")

        @hookimpl
        def hub_backends():
            return [BackendInfo(name="broken", factory="{factory}", summary="Fails.")]
        """,
    )
    model = net()
    found = references(model)
    call = compiled(model, "broken", "onnxruntime")
    with torch.no_grad(), pytest.warns(hub.HubWarning, match="broken"):
        call(torch.randn(3, SIDE))
    assert [plan.backends for plan in hub.plans(call)] == [("onnxruntime",)]
    del model, call
    assert living(found) == 0
    for _ in range(2):
        with pytest.raises(PluginLoadError):
            registry().backend("broken")


# --- What notices changes of weights ----------------------------------------------------------------------------------


def test_a_guard_holds_no_weights_and_never_holds_once_one_is_freed() -> None:
    """Another tensor may get the identity, and the memory, of the one that is gone."""
    ended: list[int] = []
    first, second = torch.zeros(2), torch.zeros(3)
    guard = WeightGuard([0, 1], [first, second], lambda: ended.append(1))
    assert guard.holds([first, second])
    assert guard.is_fresh()
    identity = id(first)
    del first
    assert ended == [1]
    assert not guard.is_fresh()
    imposters = [torch.zeros(2) for _ in range(100)]
    same = next((one for one in imposters if id(one) == identity), imposters[0])
    assert not guard.holds([same, second])
    del second
    assert not guard.is_fresh()


def test_a_guard_without_weights_holds_always() -> None:
    """Then there is nothing that could change."""
    guard = WeightGuard([], [torch.zeros(2)])
    assert guard.holds([torch.ones(3)])
    assert guard.is_fresh()
