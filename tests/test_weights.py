"""Weights are constants for backends in inference, and yet every change of a weight counts from the next call."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry
from hub.frontend.bindings import MAX_BINDINGS, MAX_CHANGES
from hub.plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

every_backend = pytest.mark.parametrize("backend", registry().available())


class Net(nn.Module):
    """Weights, a bias and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)) + self.shift)


class Tied(nn.Module):
    """One matrix as embedding and as head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids).tanh())


def compiled(model: nn.Module, backend: str, **options: Any) -> Any:
    """Compile a model for one backend, without measuring."""
    return torch.compile(model, backend="hub", options={"backends": (backend,), "tune": "off", **options})


def check(model: nn.Module, call: Any, *inputs: torch.Tensor) -> None:
    """Raise AssertionError unless the compiled model returns what the model itself returns now."""
    with torch.no_grad():
        torch.testing.assert_close(call(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)


def _load(model: Net) -> None:
    torch.manual_seed(5)
    model.load_state_dict(Net().state_dict())


def _step(model: Net) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()


def _in_place(model: Net) -> None:
    with torch.no_grad():
        model.first.weight.mul_(-2)


def _one_element(model: Net) -> None:
    with torch.no_grad():
        model.second.bias[1] += 10


def _new_parameter(model: Net) -> None:
    model.second.weight = nn.Parameter(torch.ones(3, 8))


def _new_data(model: Net) -> None:
    model.second.weight.data = torch.ones(3, 8)


def _buffer(model: Net) -> None:
    model.shift.fill_(3)  # pyright: ignore


def _new_buffer(model: Net) -> None:
    model.shift = torch.ones(8)


def _new_layer(model: Net) -> None:
    torch.manual_seed(6)
    model.first = nn.Linear(6, 8)


CHANGES: dict[str, Callable[[Net], None]] = {
    "load_state_dict": _load,
    "optimizer step": _step,
    "in place": _in_place,
    "one element": _one_element,
    "new parameter": _new_parameter,
    "new data": _new_data,
    "buffer": _buffer,
    "new buffer": _new_buffer,
    "new layer": _new_layer,
}


def changes() -> Iterator[Any]:
    """Yield every change with every backend; the default suite takes each backend with every third one."""
    for position, backend in enumerate(registry().available()):
        for place, change in enumerate(CHANGES):
            marks = () if (place + position) % 3 == 0 else (pytest.mark.slow,)
            yield pytest.param(backend, change, marks=marks, id=f"{backend}-{change}")


@pytest.mark.parametrize(("backend", "change"), list(changes()))
def test_a_changed_weight_counts_from_the_next_call(backend: str, change: str) -> None:
    """After any change of a weight the next call gives the new result, and so do the calls after."""
    model, x = Net(), torch.randn(4, 6)
    call = compiled(model, backend)
    check(model, call, x)
    before = call(x).detach().clone()
    CHANGES[change](model)
    check(model, call, x)
    check(model, call, x)
    assert not torch.allclose(call(x), before)


@every_backend
def test_weights_may_change_again_and_again(backend: str) -> None:
    """Each of many changes counts, however many."""
    model, x = Net(), torch.randn(4, 6)
    call = compiled(model, backend)
    for _ in range(6):
        check(model, call, x)
        _in_place(model)


def _through_data(model: Net) -> None:
    model.first.weight.data.mul_(3)


def _through_numpy(model: Net) -> None:
    model.second.weight.detach().numpy()[:] *= 3


@pytest.mark.parametrize("change", [_through_data, _through_numpy])
@pytest.mark.parametrize("backend", ["onnxruntime"])
def test_refresh_makes_uncounted_writes_count(backend: str, change: Callable[[Net], None]) -> None:
    """No guard notices a write that PyTorch does not count; `hub.refresh` makes it count, each time, with one plan."""
    model, x = Net(), torch.randn(4, 6)
    call = compiled(model, backend)
    for _ in range(2):
        check(model, call, x)
        with torch.no_grad():
            before = call(x).clone()
            change(model)
            assert torch.equal(call(x), before)  # else the weights were no constants, and this tests nothing
        hub.refresh(call)
        check(model, call, x)
    assert [plan.backends for plan in hub.plans(call)] == [(backend,)]


def test_what_another_process_writes_counts_after_a_refresh() -> None:
    """Other processes write to weights in shared memory uncounted."""
    model, x = Net().share_memory(), torch.randn(4, 6)
    call = compiled(model, "onnxruntime")
    check(model, call, x)
    with torch.no_grad():
        before = call(x).clone()
    trebled = torch.multiprocessing.get_context("spawn").Process(
        target=operator.imul, args=(model.first.weight.detach(), 3.0)
    )
    trebled.start()
    trebled.join()
    assert trebled.exitcode == 0
    hub.refresh(call)
    check(model, call, x)
    assert not torch.allclose(call(x), before)


CLOSE: dict[torch.dtype, float] = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 5e-3}
"""Tolerances of a few roundings of a dtype."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "disc"])
def test_a_model_may_move_to_another_dtype_and_back(backend: str, dtype: torch.dtype) -> None:
    """After `module.to(dtype)` the next call computes in that dtype, and back in float32 with the rounded weights."""
    model, x = Net(), torch.randn(4, 6)
    call = compiled(model, backend)
    check(model, call, x)
    for kind in (dtype, torch.float32, dtype):
        model.to(kind)
        with torch.no_grad():
            torch.testing.assert_close(call(x.to(kind)), model(x.to(kind)), rtol=CLOSE[kind], atol=CLOSE[kind])
    assert hub.plans(call)[0].backends == (backend,)


class Adapted(nn.Module):
    """A layer with a low-rank adapter that can be switched off."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner, self.is_on = inner, True
        self.down, self.up = nn.Linear(inner.in_features, 2, bias=False), nn.Linear(2, inner.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.up(self.down(x)) if self.is_on else self.inner(x)


@pytest.mark.parametrize("backend", ["onnxruntime", "disc"])
def test_adapters_come_and_go(backend: str) -> None:
    """An adapter is added to a layer, switched off and on, given other weights, and merged into the layer."""
    model, x = Net(), torch.randn(4, 6)
    call = compiled(model, backend)
    check(model, call, x)
    inner = model.first
    model.first = adapted = Adapted(inner)
    check(model, call, x)
    adapted.is_on = False
    check(model, call, x)
    adapted.load_state_dict(Adapted(inner).state_dict())
    adapted.is_on = True
    check(model, call, x)
    with torch.no_grad():
        wanted = call(x)
        inner.weight += adapted.up.weight @ adapted.down.weight
        model.first = inner
        torch.testing.assert_close(call(x), wanted, rtol=1e-4, atol=1e-5)
    check(model, call, x)


def test_four_sets_of_weights_are_kept(plans_made: list[Plan]) -> None:
    """Four models of one class have executables of their own, built once each; with a fifth, weights become inputs."""
    models, x = [Net() for _ in range(MAX_BINDINGS + 1)], torch.randn(4, 6)
    calls = [compiled(model, "onnxruntime") for model in models]
    for _ in range(3):
        for model, call in zip(models[:-1], calls, strict=False):
            check(model, call, x)
    assert len(plans_made) == MAX_BINDINGS == 4
    for _ in range(2):
        for model, call in zip(models, calls, strict=True):
            check(model, call, x)
    assert len(plans_made) == MAX_BINDINGS + 1
    assert {plan.backends for plan in plans_made} == {("onnxruntime",)}


def test_after_three_changes_weights_are_inputs(plans_made: list[Plan]) -> None:
    """Each of three changes costs a build, the last one with weights as inputs; later changes cost none and count too."""
    model, x = Net(), torch.randn(4, 6)
    call = compiled(model, "onnxruntime")
    counts: list[int] = []
    for _ in range(7):
        check(model, call, x)
        counts.append(len(plans_made))
        _in_place(model)
    assert counts == [1, 2, 3, 4, 4, 4, 4]
    assert MAX_CHANGES == 3
    assert {plan.backends for plan in plans_made} == {("onnxruntime",)}


@every_backend
def test_tied_weights_stay_tied(backend: str) -> None:
    """A weight that two layers share changes for both."""
    model, ids = Tied(), torch.tensor([[1, 4, 10]])
    call = compiled(model, backend)
    check(model, call, ids)
    with torch.no_grad():
        model.embed.weight.add_(1)
    check(model, call, ids)


@every_backend
def test_instances_of_one_class_keep_their_own_weights(backend: str) -> None:
    """Two models of one class, compiled with equal options, each compute with their own weights."""
    first, second, x = Net(), Net(), torch.randn(4, 6)
    calls = compiled(first, backend), compiled(second, backend)
    for _ in range(2):
        check(first, calls[0], x)
        check(second, calls[1], x)


def test_moving_between_train_and_eval_counts() -> None:
    """Dropout acts in train mode and not in eval mode, on the same compiled model."""
    model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5))
    call = torch.compile(model, backend="hub", options={"tune": "off"})
    x = torch.ones(4, 6)
    with torch.no_grad():
        assert (model.train()(x) == 0).any()
        assert (call(x) == 0).any()
        model.eval()
        assert not (call(x) == 0).any()
    check(model, call, x)


def test_a_copy_has_its_own_weights() -> None:
    """A deep copy of a model is another model: changing one leaves the other."""
    model, x = Net(), torch.randn(4, 6)
    call = torch.compile(model, backend="hub", options={"tune": "off"})
    check(model, call, x)
    other = copy.deepcopy(model)
    other_call = torch.compile(other, backend="hub", options={"tune": "off"})
    _in_place(other)
    check(other, other_call, x)
    check(model, call, x)
