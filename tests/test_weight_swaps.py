"""Another thread may give a weight other memory, by `weight.data = other`, at any moment while the model is called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import nn

from hub.discovery.registry import registry
from hub.dispatch.weights import WeightGuard, on_held_storage
from hub.plan import Plan
from hub.planning.make import Made, Maker

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

CALLS = 60
SIZE = 192
"""Rows of the weight: so many that its memory is returned to the system, and reading it after that would be noticed."""


class Twice(nn.Module):
    """A model that reads its weight in an operator that backends support, and in one that runs in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight) + cast("Any", torch.special).bessel_j0(self.weight)


def compiled(model: nn.Module, backend: str) -> Any:
    """Compile a model for one backend, without measuring."""
    options: Any = {"backends": (backend,), "tune": "off", "start": "wait"}
    return cast("Any", torch.compile)(model, backend="hub", options=options)


@contextmanager
def swapping(model: Twice, values: Sequence[torch.Tensor]) -> Generator[None]:
    """Assign the weight one value after the other from another thread, each in memory of its own, which is then freed."""
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            for value in values:
                model.weight.data = value.clone()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _answers(model: Twice, values: Sequence[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        model.weight.data = value.clone()
        found.append(model(x))
    return found


def _is_close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)


BACKENDS = [name for name in ("onnxruntime", "openvino", "disc") if name in registry().available()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_beside_swaps_uses_one_weight_wholly(backend: str, plans_made: list[Plan]) -> None:
    """Each answer is eager's for one of the weights and none a mixture, whether weights are constants or inputs."""
    model, x = Twice().eval(), torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    values = [torch.full((SIZE, SIZE), number) for number in (0.5, 2.0)]
    call = compiled(model, backend)
    with torch.no_grad():
        wanted = _answers(model, values, x)
        call(x)
        with swapping(model, values):
            answers = [call(x) for _ in range(CALLS)]
    assert plans_made[0].backends == ("eager", backend)
    wrong = [place for place, answer in enumerate(answers) if not any(_is_close(answer, one) for one in wanted)]
    assert not wrong


def test_a_weight_swapped_while_its_plan_is_made_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build during another thread's swaps of a weight never serves a third weight at the first one's address."""
    model, x = Twice().eval(), torch.randn(SIZE, SIZE)
    call = compiled(model, "onnxruntime")
    make: Callable[..., Made] = Maker.make
    first = model.weight.data_ptr()
    others: list[torch.Tensor] = []

    def swapped(maker: Maker, values: Sequence[Any], plan: Plan | None = None) -> Made:
        model.weight.data = torch.full((SIZE, SIZE), 2.0)
        others.extend(
            torch.full((SIZE, SIZE), 3.0) for _ in range(20)
        )  # one of them at the first one's address, if it is free
        return make(maker, values, plan)

    with torch.no_grad():
        with monkeypatch.context() as patched:
            patched.setattr(Maker, "make", swapped)
            call(x)
        model.weight.data = next((other for other in others if other.data_ptr() == first), others[0])
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_guard_holds_the_memory_that_it_was_made_for() -> None:
    """No other weight gets the memory of a guarded one while the guard exists; a freed weight's guard holds none."""
    weight = nn.Parameter(torch.ones(4))
    guard = WeightGuard([0], [weight])
    (held,) = guard.held
    address = weight.data_ptr()
    assert held.data_ptr() == address
    weight.data = torch.zeros(4)
    assert not guard.holds([weight])
    assert torch.equal(held, torch.ones(4))
    del weight
    assert guard.held == ()


def test_a_run_reads_the_weights_of_its_beginning() -> None:
    """A weight that is an input of a run is unchanged until the run ends, wherever the parameter moves meanwhile."""
    weight = nn.Parameter(torch.ones(4))

    def run(args: Sequence[Any]) -> tuple[Any, ...]:
        weight.data = torch.zeros(4)
        return (args[1] + args[0],)

    with torch.no_grad():
        (found,) = on_held_storage(run, [1])([1, weight])
        assert torch.equal(found, torch.full((4,), 2.0))
