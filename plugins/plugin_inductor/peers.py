"""Contenders for `hub bench`: Inductor through its own API, `torch.compile`, without the hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config


def default(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Gives a callable that runs `torch.compile(module)` once without gradients. Compiles at once."""
    return _compiled(torch.compile(module), inputs)


def max_autotune(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Gives the strong form: mode "max-autotune" with weights frozen. Compiles at once, which may take minutes."""
    with config.patch(freezing=True):
        return _compiled(torch.compile(module, mode="max-autotune"), inputs)


def _compiled(compiled: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    run()
    return run
