"""The programs of one call are captured while other compiled models run, which notice nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import hub
from hub.capture.call import capture_call, uncompiled

OPTIONS = {"tune": "off", "backends": ["eager"]}
X = torch.randn(2, 4)


class Whole(nn.Module):
    """One graph, with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() + self.shift


class Broken(nn.Module):
    """Three graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = Whole()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        x = self.whole(x)
        torch._dynamo.graph_break()
        return x + 1


MODELS: tuple[tuple[Callable[[], nn.Module], int], ...] = ((Whole, 1), (Broken, 3))


def explained(model: Any, *inputs: Any) -> int:
    """Return the number of plans."""
    return len(hub.explain(model, *inputs, options=OPTIONS))


@pytest.mark.parametrize(("model", "n_graphs"), MODELS)
def test_other_compiled_models_compile_nothing_anew(model: Callable[[], nn.Module], n_graphs: int) -> None:
    """Explaining a function as often as one likes leaves what PyTorch compiled of it, and its right to compile more."""
    module, counter = model(), CompileCounter()
    compiled = torch.compile(module, backend=counter, dynamic=False)
    with torch.no_grad():
        compiled(X)
        assert counter.frame_count == n_graphs
        for _ in range(10):  # more than PyTorch compiles one function anew
            assert explained(module, X) == n_graphs
        compiled(X)
        assert counter.frame_count == n_graphs
        compiled(torch.randn(3, 4))
    assert counter.frame_count == 2 * n_graphs


def test_sizes_that_were_explained_are_no_news_to_pytorch() -> None:
    """Another size at its first real call is compiled as static, as if nothing had been explained."""
    module, found = Whole(), list[Any]()

    def backend(program: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        found.append([value for value in example_inputs if isinstance(value, torch.SymInt)])
        return program

    assert explained(module, X) == explained(module, torch.randn(3, 4)) == 1
    with torch.no_grad():
        torch.compile(module, backend=backend)(torch.randn(5, 4))
    assert found == [[]]


def test_what_was_compiled_before_is_explained_in_full() -> None:
    """Plans are those of the call's own sizes, for a model that has been compiled for others, and for what is compiled."""
    module = Broken()
    compiled = torch.compile(module, backend="hub", options=OPTIONS)
    with torch.no_grad():
        for size in range(2, 14):  # past the number of times that PyTorch compiles one function
            compiled(torch.randn(size, 4))
    names = [plan.inputs for plan in hub.explain(module, X, options=OPTIONS)]
    assert len(names) == 3
    assert all("float32[2, 4]" in inputs for inputs in names)
    assert [plan.inputs for plan in hub.explain(compiled, X, options=OPTIONS)] == names
    module.compile(backend="eager")
    assert [plan.inputs for plan in hub.explain(module, X, options=OPTIONS)] == names


def test_a_compiled_function_is_explained() -> None:
    """So are functions that `torch.compile` decorates."""

    @torch.compile(backend="eager")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double(X)
    assert explained(double, X) == 1


def test_any_thread_may_explain() -> None:
    """Two threads explain one model while a third calls it compiled."""
    module, counter, found = Broken(), CompileCounter(), list[int]()
    compiled = torch.compile(module, backend=counter)
    with torch.no_grad():
        expected = compiled(X)

    def explain() -> None:
        found.extend(explained(module, X) for _ in range(3))

    threads = [threading.Thread(target=explain) for _ in range(2)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        while any(thread.is_alive() for thread in threads):
            torch.testing.assert_close(compiled(X), expected)
    for thread in threads:
        thread.join()
    assert found == [3] * 6
    assert counter.frame_count == 3


def test_nothing_of_a_call_is_kept() -> None:
    """What was captured for one call is gone with it: no program holds its weights."""
    import gc
    import weakref

    kept: list[weakref.ref[Any]] = []

    def backend(program: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        kept.append(weakref.ref(program))
        return program.forward

    capture_call(Broken(), (X,), None, backend)
    gc.collect()
    assert len(kept) == 3
    assert not [one for one in kept if one() is not None]


def test_uncompiled_leaves_other_callables_alone() -> None:
    """A plain function or module is itself."""
    module = Whole()
    assert uncompiled(module) is module
    assert uncompiled(torch.compile(module, backend="eager")) is module
    assert uncompiled(len) is len
