"""The state of the user's process: whatever a plugin changes is named and put back."""

from __future__ import annotations

import ctypes
import gc
import locale
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode

from hub.process import state
from hub.process.modes import modes
from hub.process.state import _set_signal_stack, _signal_stack, kept_state

CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "PyTorch's modes": (lambda: FakeTensorMode().__enter__(), _get_current_dispatch_mode_stack),
    "the environment": (lambda: os.environ.update(HUB_TEST_CHANGE="1"), lambda: "HUB_TEST_CHANGE" in os.environ),
    "the working directory": (lambda: os.chdir("/"), Path.cwd),
    "signal handlers": (
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGTERM),
    ),
    "the default device": (lambda: torch.set_default_device("meta"), lambda: torch.ones(1).device),
    "the garbage collection": (gc.disable, gc.isenabled),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    "NumPy's handling of errors": (lambda: numpy.seterr(all="ignore"), numpy.geterr),
    "whether denormal numbers are zero": (
        lambda: torch.set_flush_denormal(True),
        lambda: bool(torch.tensor([sys.float_info.min], dtype=torch.float64) / 2 > 0),
    ),
    "Python's random numbers": (random.random, random.getstate),
    "PyTorch's random numbers": (lambda: torch.rand(1), lambda: torch.get_rng_state().sum().item()),
    "filters of warnings": (lambda: warnings.simplefilter("ignore"), lambda: list(warnings.filters)),
    "the standard streams": (lambda: setattr(sys, "stdin", None), lambda: sys.stdin),
    "NumPy's random numbers": (lambda: numpy.random.rand(), lambda: numpy.random.get_state()[2]),
    "the default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "the number of threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "whether gradients are on": (lambda: torch.set_grad_enabled(not torch.is_grad_enabled()), torch.is_grad_enabled),
    "whether algorithms are deterministic": (
        lambda: torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled()),
        torch.are_deterministic_algorithms_enabled,
    ),
    "PyTorch's numeric settings": (lambda: torch.set_float32_matmul_precision("high"), modes),
}
DETAILS = {
    "the environment": "HUB_TEST_CHANGE",
    "PyTorch's numeric settings": "matmul_precision, float32_precision",
}
"""What of a thing is named."""


@pytest.fixture(autouse=True)
def _in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all state, regardless of threads that earlier tests have left."""
    monkeypatch.setattr(state, "_is_workers", True)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_undone(name: str) -> None:
    """Exactly the thing that changed is named, and is as before."""
    change, read = CHANGES[name]
    before = read()
    with kept_state() as changed:
        change()
        assert read() != before
    assert changed == [f"{name} ({DETAILS[name]})" if name in DETAILS else name]
    assert read() == before


@pytest.mark.skipif(sys.platform != "linux", reason="sigaltstack is laid out otherwise elsewhere")
def test_the_stack_of_signal_handlers_is_put_back_and_nobody_accused() -> None:
    """A library's own stack may be freed at any time; the next signal with a handler would then end the process."""
    before = _signal_stack()
    own = ctypes.create_string_buffer(1 << 16)
    with kept_state() as changed:
        _set_signal_stack((ctypes.addressof(own), 0, len(own)))
        assert _signal_stack() == (ctypes.addressof(own), 0, len(own))
    assert _signal_stack() == before
    assert changed == []


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
        (lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook),
        (lambda: logging.disable(logging.CRITICAL), lambda: logging.root.manager.disable),
        (lambda: logging.root.addHandler(logging.NullHandler()), lambda: list(logging.root.handlers)),
        (lambda: logging.root.setLevel(logging.DEBUG), lambda: logging.root.level),
    ],
    ids=["recursion", "hook", "disable", "handlers", "level"],
)
def test_what_good_libraries_change_is_put_back_and_nobody_accused(
    change: Callable[[], Any], read: Callable[[], Any]
) -> None:
    """TVM hooks exceptions, JAX's logging adds a handler, compilers of deep programs raise the limit of recursion."""
    before = read()
    with kept_state() as changed:
        change()
        assert read() != before
    assert (read(), changed) == (before, [])


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to cores otherwise elsewhere")
def test_a_bound_thread_runs_on_all_its_cores_again() -> None:
    """Thread pools bind the thread that calls them, which would then stay on one core."""
    before = os.sched_getaffinity(0)
    with kept_state() as changed:
        os.sched_setaffinity(0, {min(before)})
    assert os.sched_getaffinity(0) == before
    assert changed == (["the thread's cores"] if len(before) > 1 else [])


def test_a_default_device_within_the_users_modes_is_put_back() -> None:
    """The user's own device is in force again, at every place in which PyTorch has it, and can be left."""
    with torch.device("meta"):
        with kept_state() as changed:
            torch.set_default_device("cpu")
        assert changed == ["the default device"]
        assert torch.ones(1).device.type == "meta"
        assert torch.get_default_device().type == "meta"
    assert torch.ones(1).device.type == "cpu"
    assert torch.get_default_device().type == "cpu"


def test_the_time_zone_is_the_users_again() -> None:
    """The C library keeps what it read from TZ, until it is told to read it again."""
    before = time.localtime(0).tm_hour

    def change() -> None:
        os.environ["TZ"] = "XYZ-9"
        time.tzset()

    with kept_state() as changed:
        change()
        assert time.localtime(0).tm_hour != before
    assert changed == ["the environment (TZ)"]
    assert time.localtime(0).tm_hour == before


def test_nothing_changed_names_nothing() -> None:
    """Code that keeps to itself is not accused."""
    with kept_state() as changed:
        torch.ones(4) + 1
    assert changed == []


def test_a_library_may_filter_its_own_warnings() -> None:
    """A filter for one kind of warnings, as libraries add when they are imported, is harmless; losing one is not."""
    with warnings.catch_warnings():
        with kept_state() as changed:
            warnings.filterwarnings("ignore", message="only this one")
        assert changed == []
        before = list(warnings.filters)
        with kept_state() as changed:
            warnings.resetwarnings()
        assert changed == ["filters of warnings"]
        assert list(warnings.filters) == before


def test_a_failure_is_no_excuse() -> None:
    """State is put back as well where the plugin raises."""
    before = torch.get_default_dtype()
    with pytest.raises(RuntimeError), kept_state():
        torch.set_default_dtype(torch.float64)
        raise RuntimeError("fault")
    assert torch.get_default_dtype() == before


class _Passing(TorchDispatchMode):
    """A mode that passes every call through unchanged."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_mode_that_was_ended_is_on_again() -> None:
    """Code that ends a mode of its caller's is named, and the mode goes on."""
    with _Passing() as mode:
        with kept_state() as changed:
            _pop_mode()
        assert changed == ["PyTorch's modes"]
        assert _get_current_dispatch_mode_stack() == [mode]
    assert _get_current_dispatch_mode_stack() == []
