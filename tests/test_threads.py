"""Several threads may call one compiled model at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hub.registry import registry

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

CALLS = 30


def at_once(*jobs: Callable[[], None]) -> None:
    """Runs jobs in threads that start together; raises what the first failing one raised."""
    gate = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        gate.wait()
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def model_of(backend: str) -> tuple[nn.Module, nn.Module]:
    """Gives a model and its compiled form."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4), nn.Softmax(-1)).eval()
    return model, torch.compile(model, backend="hub", options={"backends": (backend,), "tune": "off"})  # pyright: ignore


def checking(model: nn.Module, call: nn.Module, seed: int) -> Callable[[], None]:
    """Gives a job that compares many calls with eager's results."""

    def job() -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(CALLS):
                x = torch.randn(16, 8, generator=generator)
                torch.testing.assert_close(call(x), model(x))

    return job


@pytest.mark.parametrize("backend", registry().available())
def test_two_threads_at_once(backend: str) -> None:
    """Two threads that call one compiled model at once get right answers."""
    model, call = model_of(backend)
    with torch.no_grad():
        call(torch.zeros(16, 8))
    at_once(checking(model, call, 1), checking(model, call, 2))


@pytest.mark.parametrize("backend", registry().available())
def test_two_threads_make_the_first_call_at_once(backend: str) -> None:
    """Two threads that both make the first call get right answers, and planning happens as if one had come first."""
    model, call = model_of(backend)
    at_once(checking(model, call, 1), checking(model, call, 2))


def test_two_models_in_two_threads() -> None:
    """Two compiled models in two threads keep apart."""
    torch.manual_seed(0)
    first, second = model_of(registry().available()[0]), model_of(registry().available()[-1])
    at_once(checking(*first, seed=1), checking(*second, seed=2))


def test_weights_change_while_another_thread_calls() -> None:
    """Each result belongs to the weights before a change or to those after it, never to a mixture."""
    model = nn.Linear(4, 4, bias=False)
    call = torch.compile(model, backend="hub", options={"tune": "off"})
    x = torch.eye(4)
    with torch.no_grad():
        model.weight.fill_(0)
        call(x)
    lock = threading.Lock()

    def change() -> None:
        with torch.no_grad():
            for step in range(5):
                with lock:
                    model.weight.fill_(step)

    def read() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                with lock:
                    assert torch.equal(call(x), model.weight.t())

    at_once(change, read)
