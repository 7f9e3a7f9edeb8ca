"""Changes, writes and transforms that plans and frozen models must notice: each was found by reading the code."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import hub
from hub.capture.specialize import size_places
from hub.errors import CaptureError
from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.compile import program_of
from hub.frontend.dynamo import _raising
from hub.frontend.ownership import graphs_of
from tests.direct.answers import assert_same
from tests.functions import Of

OPTIONS: dict[str, Any] = {"tune": "off", "start": "wait", "backends": []}
WITH_BACKEND: dict[str, Any] = {"tune": "off", "start": "wait", "backends": ["onnxruntime"]}


class Scaled(nn.Module):
    """A module whose attribute hides one of its class."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Branches(nn.Module):
    """A model of two programs, which read different objects."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), Scaled()

    def forward(self, x: torch.Tensor, *, is_second: bool = False) -> torch.Tensor:
        return self.two(x) if is_second else self.one(x)


def test_a_program_captured_by_a_call_that_is_not_recorded_is_watched() -> None:
    """`hub.freeze` captures a second program while calls of the first one skip Dynamo. What only it reads is noticed."""
    model, x = Branches().eval(), torch.ones(2, 4)
    compiled = hub.compile(model, options=OPTIONS)
    with torch.no_grad():
        for _ in range(5):
            assert_same(compiled(x), model(x))
        hub.freeze(compiled, x, is_second=True)
        for scale in (2.0, 10.0, 3.0):
            model.two.scale = scale
            for _ in range(4):
                assert_same(compiled(x, is_second=True), model(x, is_second=True))


@pytest.mark.parametrize("way", ["hub.compile", "torch.compile"])
@pytest.mark.parametrize("view", [torch.detach, torch.t, lambda w: w[0], lambda w: w])
def test_a_write_through_a_view_of_a_weight_that_was_returned_is_noticed(way: str, view: Any) -> None:
    """Plans hold copies of weights. A write through what an earlier call returned changes the weight."""

    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(4))

        def forward(self, x: torch.Tensor) -> Any:
            return torch.relu(x @ self.w) + 1, view(self.w)

    model, x = Returning().eval(), torch.ones(2, 4)
    made = {"hub.compile": hub.compile, "torch.compile": _torch_compile}[way]
    compiled = made(model, options=WITH_BACKEND)
    with torch.no_grad():
        for _ in range(4):
            _, returned = compiled(x)
        returned.fill_(3.0)
        assert_same(compiled(x)[0], model(x)[0])
        assert float(compiled(x)[0].sum()) > 8.0


def _torch_compile(model: Any, options: Any) -> Any:
    return torch.compile(model, backend="hub", options=options)


@pytest.mark.parametrize("name", ["settle", "improve"])
def test_weights_that_are_refreshed_while_a_plan_is_built_are_read_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hub.refresh` is for writes that PyTorch does not count. A plan that was being built holds the former weights."""
    model, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    handed_over = getattr(CompiledGraph, name)
    bound = CompiledGraph._bound

    def bound_slowly(graph: Any, args: Any, plan: Any, **how: Any) -> Any:
        found = bound(graph, args, plan, **how)
        if not changed:
            changed.append(True)
            model.weight.data.numpy()[:] = 5.0
            hub.refresh(compiled)
        return found

    changed: list[bool] = []
    options = {**WITH_BACKEND, "start": "eager", "tune": "fast" if name == "improve" else "off"}
    compiled: Any = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        if name == "settle":
            monkeypatch.setattr(CompiledGraph, "_bound", bound_slowly)
            compiled(x)
            assert hub.wait(compiled)
        else:
            compiled(x)
            assert hub.wait(compiled)
            (graph,) = _graphs(compiled)
            monkeypatch.setattr(CompiledGraph, "_bound", bound_slowly)
            handed_over(graph, [*_arguments(graph, x, model)], graph.plan)
        assert changed
        assert_same(compiled(x), model(x))


def _graphs(compiled: Any) -> Any:
    from hub.frontend.ownership import graphs_of

    return graphs_of(compiled)


def _arguments(graph: Any, x: torch.Tensor, model: nn.Linear) -> Any:
    given = {(2, 4): x, (4, 4): model.weight, (4,): model.bias}
    return (given[tuple(node.meta["val"].shape)] for node in graph.graph.placeholders)


# --- Frozen models ----------------------------------------------------------------------------------------------------


def frozen_net() -> tuple[nn.Module, Any]:
    """Return a model, and the same frozen."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    return net, hub.freeze(hub.compile(net, options=WITH_BACKEND), torch.ones(4))


def test_a_frozen_model_leaves_transforms_to_the_model() -> None:
    """Under `vmap` a tensor has the shape of one example, and no memory that an executable could read."""
    net, frozen = frozen_net()
    x = torch.randn(8, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(frozen)(x), net(x))
        torch.testing.assert_close(frozen(x[0]), net(x[0]))
        assert hub.plans(frozen._compiled)[0].backends == ("onnxruntime",)


def test_a_frozen_model_can_be_traced() -> None:
    """What an executable computes would be a constant of the traced program."""
    net, frozen = frozen_net()
    with torch.no_grad():
        traced = make_fx(frozen)(torch.ones(4))
        torch.testing.assert_close(traced(torch.zeros(4)), net(torch.zeros(4)))


def test_a_frozen_model_sees_a_negated_view() -> None:
    """The imaginary part of a conjugate has the memory of the number's own, with the other sign."""
    model = Of(lambda v: torch.relu(v) + 1)
    z = torch.randn(4, dtype=torch.cfloat)
    frozen = hub.freeze(hub.compile(model, options=WITH_BACKEND), z.imag)
    with torch.no_grad():
        torch.testing.assert_close(frozen(z.conj().imag), model(z.conj().imag))
        torch.testing.assert_close(frozen(z.imag), model(z.imag))


# --- What a watch cannot see ------------------------------------------------------------------------------------------


def test_a_conjugated_weight_is_noticed() -> None:
    """It has the address, the form and the count of writes of the weight before."""

    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1 + 2j]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    model, x = Complex().eval(), torch.ones(1, dtype=torch.cfloat)
    compiled = hub.compile(model, options=OPTIONS)
    with torch.no_grad():
        for _ in range(6):
            compiled(x)
        model.w.data = model.w.data.conj()
        assert_same(compiled(x), model(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_a_weight_on_another_device_is_noticed() -> None:
    """It has the form and the count of writes of the weight before."""

    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))

        def forward(self, n: int) -> torch.Tensor:
            return self.w[:n] + torch.arange(n, device=self.w.device)

    model = Placed().eval()
    compiled = hub.compile(model, options=OPTIONS)
    with torch.no_grad():
        for device in ("cpu", "cuda", "cpu"):
            model.to(device)
            for _ in range(5):
                assert_same(compiled(4), model(4))


def test_calls_that_raise_keep_no_tensors() -> None:
    """Under `strict`, a program that cannot be captured raises the same error in every call."""
    fail = _raising(CaptureError("no"))
    alive: list[weakref.ref[torch.Tensor]] = []
    for _ in range(3):
        x = torch.ones(4)
        alive.append(weakref.ref(x))
        with pytest.raises(CaptureError, match="no"):
            fail(x)
        del x
    gc.collect()
    assert [one() for one in alive[:-1]] == [None, None]


@pytest.mark.parametrize("way", ["hub.compile", "torch.compile"])
def test_weights_made_in_inference_mode_are_inputs_of_the_plan(way: str, plans_made: list[hub.Plan]) -> None:
    """Planning copies them; a plan bound to the copies would be built again in the first call that could use it."""
    with torch.inference_mode():
        net, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
        made = {"hub.compile": hub.compile, "torch.compile": _torch_compile}[way]
        compiled = made(net, options={**WITH_BACKEND, "start": "eager"})
        for _ in range(2):
            compiled(x)
        assert hub.wait(compiled)
        n_made = len(plans_made)
        for _ in range(3):
            assert_same(compiled(x), net(x))
        assert len(plans_made) == n_made >= 1


def test_a_programs_code_exists_before_other_threads_can_run_it() -> None:
    """PyTorch delays generating it to the first call, and two threads that generate it take names from each other."""
    model = Of(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1)
    compiled: Any = torch.compile(model, backend="hub", options=OPTIONS)
    with torch.no_grad():
        compiled(torch.ones(4))
    graphs = [one for graph in _graphs(compiled) for one in graph.graph.module.modules()]
    programs = [one for one in graphs if isinstance(one, torch.fx.GraphModule)]
    assert programs
    assert not [one for one in programs if "lazy" in type(one).forward.__name__]


# --- Threads, nested tensors and limits -------------------------------------------------------------------------------


def test_threads_that_bring_a_new_form_capture_it_once() -> None:
    """PyTorch captures what waits for a capture again, and captures no more after eight."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(30)), nn.ReLU()).eval()  # its capture outlasts their start
    run = hub.compile(model, options={"tune": "off", "backends": [], "start": "eager"})
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(4, 8))
    n_before, barrier, wrong = len(graphs_of(run)), threading.Barrier(9), list[int]()

    def call(number: int) -> None:
        x = torch.randn(5 + number, 8)
        barrier.wait()
        with torch.no_grad():
            if not torch.allclose(run(x), model(x), atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(graphs_of(run)) == n_before + 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_run_as_in_eager() -> None:
    """They have no shape to compare calls by."""
    model = nn.Linear(4, 4).eval()
    run = hub.compile(model, options={"tune": "off", "start": "wait"})
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    with torch.no_grad():
        for _ in range(5):
            for mine, expected in zip(run(nested).unbind(), model(nested).unbind(), strict=True):
                torch.testing.assert_close(mine, expected)


def test_programs_that_pytorch_captures_no_more_are_told(recwarn: pytest.WarningsRecorder) -> None:
    """They run in eager, and the reason names the setting."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    examples = [(torch.randn(n, 8),) for n in range(2, 12)]
    run = hub.compile(model, options={"tune": "off", "backends": []}, dynamic=False, example_inputs=examples)
    with torch.no_grad():
        for (x,) in examples:
            torch.testing.assert_close(run(x), model(x))
        for _ in range(3):
            run(torch.randn(20, 8))
    assert any("recompile_limit" in str(item.message) for item in recwarn)
    assert "recompile_limit" in program_of(run).why_dynamo


def test_a_default_device_is_named_as_the_reason() -> None:
    """It is a mode, through which every operator goes."""
    model = nn.Linear(4, 4).eval()
    run = hub.compile(model, options={"tune": "off", "start": "wait"})
    with torch.no_grad(), torch.device("cpu"):
        for _ in range(4):
            run(torch.randn(2, 4))
    assert "set_default_device" in program_of(run).why_dynamo


def test_the_offset_of_a_view_is_no_size() -> None:
    """Each batch of a dataset has another."""
    data, model = torch.randn(64, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    run = torch.compile(model, backend="hub", dynamic=True, options={"tune": "off", "start": "wait"})
    with torch.no_grad():
        for start in (3, 8, 16):
            torch.testing.assert_close(run(data[start : start + 5]), model(data[start : start + 5]))
    for graph in graphs_of(run):
        sizes = [graph.graph.placeholders[place].meta["val"] for place in size_places(graph.graph)]
        assert [int(size) for size in sizes] == [5]
