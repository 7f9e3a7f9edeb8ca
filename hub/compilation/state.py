"""What belongs to the user's process and not to a plugin: looked at before a plugin runs, restored after it."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGALRM, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class _Thing:
    """One piece of state: how to read it, and how to write it back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _set_environment(wanted: dict[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_handlers(wanted: dict[signal.Signals, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; a plugin outside it could not have changed them either
    for number, handler in wanted.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


_THINGS = (
    _Thing("the environment", _environment, _set_environment),
    _Thing("the working directory", Path.cwd, os.chdir),
    _Thing("signal handlers", _handlers, _set_handlers),
    _Thing("Python's random numbers", random.getstate, random.setstate),
    _Thing("PyTorch's random numbers", lambda: torch.get_rng_state().numpy().tobytes(), lambda state: _set_rng(state)),
    _Thing("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Thing("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _Thing("whether gradients are on", torch.is_grad_enabled, torch.set_grad_enabled),
    _Thing(
        "whether algorithms are deterministic",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
)


def _set_rng(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


@contextmanager
def kept_state() -> Generator[list[str]]:
    """Restores the process's state at the end. The list that it gives then names what had changed."""
    changed: list[str] = []
    before = [thing.read() for thing in _THINGS]
    try:
        yield changed
    finally:
        for thing, value in zip(_THINGS, before, strict=True):
            if thing.read() != value:
                changed.append(thing.name)
                thing.write(value)
