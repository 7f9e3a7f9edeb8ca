"""What this thread has switched on to intercept operators: autocast, and modes such as the default device.

A captured program already holds what they did to it. Operators that a plan runs must not be intercepted again, and the
tensors that a plugin makes must lie where the plugin wants them: with `torch.set_default_device("meta")` its buffer for a
result would have no memory.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from hub.torch_private import (
    DisableAutocast,
    dispatch_key,
    is_any_autocast_enabled,
    is_dispatch_key_included,
    len_torch_function_stack,
    pop_function_mode,
    push_function_mode,
)

_BATCHES = dispatch_key("VmapMode")


def is_batched() -> bool:
    """Return whether PyTorch calls a backward once for many gradients (`is_grads_batched`): tensors have no memory then."""
    return is_dispatch_key_included(_BATCHES)


def is_intercepted() -> bool:
    """Return whether autocast or modes of this thread would change or see the operators that it runs."""
    return is_any_autocast_enabled() or len_torch_function_stack() > 0


@contextmanager
def not_intercepted() -> Generator[None]:
    """Switch autocast off, and take this thread's modes away, for a while."""
    modes = [pop_function_mode() for _ in range(len_torch_function_stack())]
    try:
        with DisableAutocast():
            yield
    finally:
        for mode in reversed(modes):
            push_function_mode(mode)
