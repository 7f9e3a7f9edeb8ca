"""Ctrl-C where PyTorch must not be interrupted: the interruption is deferred until that is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.capture import inference, training
from hub.planning.make import Maker
from hub.process.interrupts import held_back


def interrupt() -> None:
    """Act as Ctrl-C, at once: the handler runs before the next line."""
    signal.raise_signal(signal.SIGINT)


def test_an_interruption_waits() -> None:
    """The body runs to its end; then the interruption is raised, and the handler is as before."""
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), held_back():
        interrupt()
        done.append(True)
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interruption_does_not_wait() -> None:
    """A second Ctrl-C takes effect at once, and once."""
    done: list[bool] = []
    with pytest.raises(KeyboardInterrupt), held_back():
        interrupt()
        interrupt()
        done.append(True)
    assert done == []


def test_without_an_interruption_nothing_is_raised() -> None:
    """Errors pass through, and the handler is as before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="inside"), held_back():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_interruption_stays_ignored() -> None:
    """A process that ignores Ctrl-C, as in a shell's background, continues to do so."""
    done: list[bool] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            interrupt()
            done.append(True)
        assert done
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    """Only the main thread may set handlers."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with held_back():
                pass
        except BaseException as error:  # noqa: BLE001 - any of them
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert raised == []


@pytest.mark.parametrize("wants_gradients", [False, True])
def test_a_capture_that_is_interrupted_harms_no_later_one(wants_gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while AOTAutograd traces is raised after it; the same model compiles and is right afterwards."""
    module, name = (training, "aot_autograd") if wants_gradients else (inference, "aot_export_module")
    real: Callable[..., Any] = getattr(module, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        interrupt()
        return real(*args, **kwargs)

    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    with torch.set_grad_enabled(wants_gradients):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                torch.compile(model, backend="hub", options={"tune": "off"})(x)
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(model, backend="hub", options={"tune": "off"})(x), model(x))


def test_a_signal_handler_may_call_the_model_that_is_being_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call runs in eager. It would begin the same planning again, and so would the handler of each later signal."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval(), torch.randn(2, 4)
    options = {"backends": ["onnxruntime"], "tune": "off", "start": "wait"}
    compiled: Any = torch.compile(model, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
    found: list[torch.Tensor] = []
    made: list[object] = []
    make = Maker.make

    def interrupted(self: Maker, *args: Any) -> Any:
        made.append(self)
        signal.raise_signal(signal.SIGUSR1)
        return make(self, *args)

    monkeypatch.setattr(Maker, "make", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(compiled(x)))
    try:
        with torch.no_grad():
            found += [compiled(x), compiled(x)]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(made) == 1
    assert len(found) == 3
    for one in found:
        torch.testing.assert_close(one, model(x), rtol=1e-4, atol=1e-5)
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("onnxruntime",)
