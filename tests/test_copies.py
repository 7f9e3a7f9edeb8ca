"""Copies of compiled models, and models saved to files: each matches eager, compiled anew, with weights of its own."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub

X = torch.linspace(-1, 1, 24).reshape(4, 6)
BACKEND = "onnxruntime"
OPTIONS = {"tune": "off", "backends": (BACKEND,)}


class Net(nn.Module):
    """Weights, and a buffer that a state has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)) + self.shift).softmax(-1)


@pytest.fixture(autouse=True)
def _inference() -> Any:
    """Run inference only: training has tests of its own."""
    with torch.no_grad():
        yield


def compiled(model: nn.Module, backend: str = "hub") -> Any:
    """Compile a model, and capture and plan it."""
    call = torch.compile(model, backend=backend, options=OPTIONS if backend == "hub" else None)
    call(X)
    return call


def check(call: Callable[..., Any], model: nn.Module, *, is_planned: bool = True) -> None:
    """Raise AssertionError unless a model returns another's results in eager, and, if it is compiled, by the backend."""
    torch.testing.assert_close(call(X), model(X), rtol=1e-5, atol=1e-6)
    if is_planned:
        assert [plan.backends for plan in hub.plans(call)] == [(BACKEND,)]


def in_eager(model: nn.Module) -> nn.Module:
    """Return a model of these weights that has never been compiled."""
    plain = Net().eval()
    plain.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    return plain


def _deep_copy(value: Any) -> Any:
    return copy.deepcopy(value)


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {"deepcopy": _deep_copy, "pickle": _pickled, "torch.save": _saved}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_compiled_model_is_compiled_with_weights_of_its_own(way: str) -> None:
    """The copy is planned at its first call; from then on a change of one model's weights does not affect the other."""
    model = Net().eval()
    call = compiled(model)
    twin = WAYS[way](call)
    assert hub.plans(twin) == ()
    inner, before = twin._orig_mod, model(X)
    check(twin, in_eager(model))
    inner.first.weight.mul_(-2)
    check(twin, in_eager(inner))
    check(call, in_eager(model))
    torch.testing.assert_close(call(X), before)
    model.second.weight.add_(torch.eye(3, 8))
    check(call, in_eager(model))
    check(twin, in_eager(inner))
    assert not torch.allclose(twin(X), call(X))


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_model_that_was_compiled_is_a_plain_model(way: str) -> None:
    """It contains weights and nothing of the hub's; compiled itself, it has plans and weights of its own."""
    model = Net().eval()
    call = compiled(model)
    twin = WAYS[way](model)
    assert set(vars(twin)) == set(vars(model))
    check(twin, in_eager(model), is_planned=False)
    twin_call = compiled(twin)
    twin.first.bias.add_(1)
    model.shift.mul_(3)
    check(twin_call, in_eager(twin))
    check(call, in_eager(model))
    assert not torch.allclose(twin(X), model(X))


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_is_compiled_in_place_can_be_copied(way: str) -> None:
    """`model.compile(backend="hub")` has plans; its copy is a plain model, as with every backend of PyTorch."""
    model = Net().eval()
    model.compile(backend="hub", options=OPTIONS)
    model(X)
    assert [plan.backends for plan in hub.plans(model)] == [(BACKEND,)]
    check(model, in_eager(model))
    torch.testing.assert_close(hub.freeze(model, X)(X), model(X))
    twin = WAYS[way](model)
    assert twin._compiled_call_impl is None
    twin.first.weight.mul_(-2)
    check(twin, in_eager(twin), is_planned=False)
    check(model, in_eager(model))
    assert not torch.allclose(twin(X), model(X))


def test_a_state_goes_from_one_compiled_model_to_another() -> None:
    """Names are those of every compiled module; loaded weights count in the next call of a model with a plan."""
    source, target = Net().eval(), Net().eval()
    call, other = compiled(source), compiled(target)
    state = _saved(call.state_dict())
    assert list(state) == list(compiled(Net().eval(), "aot_eager").state_dict())
    assert not torch.allclose(other(X), call(X))
    other.load_state_dict(state)
    check(other, in_eager(source))
    source.first.weight.mul_(2)
    check(other, in_eager(target))
    check(call, in_eager(source))


def test_another_process_loads_a_compiled_model(tmp_path: Path) -> None:
    """A process that has not imported the hub loads the file, and plans the model at its first call."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh()).eval()
    torch.save((compiled(model), X, model(X)), tmp_path / "model.pt")
    program = f"""
import torch
call, x, expected = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
with torch.no_grad():
    torch.testing.assert_close(call(x), expected)
import hub
assert [plan.backends for plan in hub.plans(call)] == [("{BACKEND}",)], hub.plans(call)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("what", ["the model", "the compiled model", "a model compiled in place"])
def test_what_was_compiled_can_be_exported(what: str) -> None:
    """`torch.export` returns the same program as with PyTorch's own backend, and eager's result."""
    programs: dict[str, Any] = {}
    state = Net().state_dict()
    for backend in ("aot_eager", "hub"):
        torch._dynamo.reset()
        model = Net().eval()
        model.load_state_dict(state)
        expected, call = model(X), compiled(model, backend)
        if what == "a model compiled in place":
            model.compile(backend=backend, options=OPTIONS if backend == "hub" else None)
            torch.testing.assert_close(model(X), expected)
        program = torch.export.export(call if what == "the compiled model" else model, (X,))
        torch.testing.assert_close(program.module()(X), expected)
        programs[backend] = [str(node.target) for node in program.graph.nodes], list(program.state_dict)
        check(call, in_eager(model), is_planned=backend == "hub")  # it continues to serve
    assert programs["hub"] == programs["aot_eager"]


def test_functions_and_plans_are_copied() -> None:
    """A compiled function stays the same one, as every function does; a plan survives pickling."""
    function: Any = torch.compile(lambda x: torch.tanh(x) * 2, backend="hub", options=OPTIONS)
    function(X)
    twin = copy.deepcopy(function)
    torch.testing.assert_close(twin(X), torch.tanh(X) * 2)
    (plan,) = hub.plans(twin)
    assert plan.backends == (BACKEND,)
    assert _pickled(plan) == copy.deepcopy(plan) == plan
