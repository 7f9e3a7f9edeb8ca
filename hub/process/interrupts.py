"""Ctrl-C where PyTorch must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Generator[None]:
    """Let Ctrl-C wait until the end of what is inside, which takes a second or so; a second Ctrl-C does not wait.

    PyTorch's tracing does not always survive an interruption (torch 2.13): it may leave a mode or a dispatch key on, and
    every tensor that is made later in the process is wrong, or ends it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # signals reach the main thread alone; where nobody's function handles them, there is nothing to hold back
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
