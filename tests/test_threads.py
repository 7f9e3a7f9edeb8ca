"""Several threads may call one compiled model at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry
from hub.plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

CALLS = 30


def at_once(*jobs: Callable[[], None]) -> None:
    """Run jobs in threads that start together; raise the first failing one's error."""
    gate = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        gate.wait()
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - passed to the test below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def model_of(backend: str) -> tuple[nn.Module, nn.Module]:
    """Return a model and its compiled form."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4), nn.Softmax(-1)).eval()
    return model, torch.compile(model, backend="hub", options={"backends": (backend,), "tune": "off"})  # pyright: ignore


def checking(model: nn.Module, call: nn.Module, seed: int) -> Callable[[], None]:
    """Return a job that compares many calls with eager's results."""

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
def test_two_threads_make_the_first_call_at_once(backend: str, plans_made: list[Plan]) -> None:
    """Two threads that both make the first call get right answers, and each graph that PyTorch captured is planned once."""
    model, call = model_of(backend)
    at_once(checking(model, call, 1), checking(model, call, 2))
    n_captured = len(hub.plans(call))
    assert n_captured <= 2  # PyTorch captures in both if neither has ended when the other begins
    assert len(plans_made) == n_captured
    hub.refresh(call)
    plans_made.clear()
    at_once(checking(model, call, 3), checking(model, call, 4))
    assert len(plans_made) == 1


def test_two_models_in_two_threads() -> None:
    """Two compiled models in two threads do not affect each other."""
    torch.manual_seed(0)
    first, second = model_of(registry().available()[0]), model_of(registry().available()[-1])
    at_once(checking(*first, seed=1), checking(*second, seed=2))


def test_threads_with_options_of_their_own() -> None:
    """One model, compiled once for each thread: right answers, each from the backend that the thread's options name."""
    model, _ = model_of("disc")
    names = ("disc", "onnxruntime", "openvino")
    calls = [torch.compile(model, backend="hub", options={"backends": (name,), "tune": "off"}) for name in names]
    at_once(*(checking(model, call, seed) for seed, call in enumerate(calls)))
    assert [{name for plan in hub.plans(call) for name in plan.backends} - {"eager"} for call in calls] == [
        {name} for name in names
    ]


@pytest.mark.parametrize("backend", ["disc", "inductor", "onnxruntime", "openvino"])
def test_two_threads_call_a_frozen_model_at_once(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both get right answers from its plan, and neither calls the compiled model."""
    model, call = model_of(backend)
    frozen = hub.freeze(call, torch.zeros(16, 8))
    monkeypatch.setattr(frozen, "_compiled", lambda *_: pytest.fail("it asks the compiled model"))
    at_once(checking(model, frozen, 1), checking(model, frozen, 2))


def test_two_threads_freeze_one_model_at_once() -> None:
    """Each of them gets a correct frozen model."""
    model, call = model_of("onnxruntime")

    def freezing(seed: int) -> Callable[[], None]:
        def job() -> None:
            for _ in range(5):
                checking(model, hub.freeze(call, torch.zeros(16, 8)), seed)()

        return job

    at_once(freezing(1), freezing(2))


def _swap(model: nn.Linear, call: nn.Module, value: float) -> None:
    model.weight = nn.Parameter(torch.full((16, 16), value))


def _write(model: nn.Linear, call: nn.Module, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def _write_uncounted(model: nn.Linear, call: nn.Module, value: float) -> None:
    model.weight.data.fill_(value)
    hub.refresh(call)


@pytest.mark.parametrize("change", [_swap, _write, _write_uncounted], ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("backend", ["onnxruntime", "disc"])
def test_weights_change_while_another_thread_calls(
    backend: str, change: Callable[[nn.Linear, nn.Module, float], None]
) -> None:
    """Each result belongs to weights that the model had during the call: no older ones.

    It never belongs to a mixture, if weights are swapped: a write in place may be read halfway, as in eager.
    """
    model = nn.Linear(16, 16, bias=False)
    call = torch.compile(model, backend="hub", options={"tune": "off", "backends": (backend,)})
    x = torch.eye(16)
    model.weight = nn.Parameter(torch.zeros(16, 16))
    with torch.no_grad():
        call(x)
    written, n_calls, is_over = [0], [0], threading.Event()

    def write() -> None:
        try:
            for step in range(1, 8):
                change(model, call, float(step))
                written.append(step)
                seen = n_calls[0]
                while n_calls[0] < seen + 2 and not is_over.is_set():  # one call begins and ends with these weights
                    time.sleep(0.001)
        finally:
            is_over.set()

    def read() -> None:
        try:
            with torch.no_grad():
                while not is_over.is_set():
                    oldest = written[-1]
                    found = call(x).unique()
                    assert found.numel() == 1 or change is not _swap, f"a mixture of weights: {found}"
                    assert oldest <= found.min()
                    assert found.max() <= written[-1] + 1  # changed, and not recorded yet
                    n_calls[0] += 1
        finally:
            is_over.set()

    at_once(write, read)
    with torch.no_grad():
        assert torch.equal(call(x), model(x))
    assert len(written) == 8
