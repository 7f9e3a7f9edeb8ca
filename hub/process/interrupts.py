"""Defers Ctrl-C while PyTorch must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Generator[None]:
    """Defer Ctrl-C to the end of the block, which takes about a second; a second Ctrl-C takes effect at once.

    PyTorch's tracing does not always survive an interruption (torch 2.13): it may leave a mode or a dispatch key enabled,
    and every tensor made later in the process is then wrong, or ends it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # only the main thread gets signals; without a Python handler, there is nothing to defer
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(held) == 1:
            handler(*held[0])
