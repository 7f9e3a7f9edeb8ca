"""The locks that PyTorch itself holds while it traces a program, for tracing by the hub or a plugin."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from hub.process.forks import freed_in_forks
from hub.torch_private import compile_lock, compiler


@contextmanager
def tracing() -> Generator[None]:
    """Hold PyTorch's compilation lock, and set its flag for compilation, while a program is traced.

    FX keeps "now tracing" in one flag for the whole process, and `make_fx` patches modules of PyTorch: two threads that
    trace at the same time can leave either set permanently. Meanwhile Dynamo refuses a thread that calls a compiled model,
    unless the flag says that a compilation is in progress. Other threads see `torch.compiler.is_compiling()` while it is
    set, so hold it no longer than necessary.
    """
    with freed_in_forks(compile_lock):
        before = torch.compiler.is_compiling()
        _set_compiling(True)
        try:
            yield
        finally:
            _set_compiling(before)


def _set_compiling(is_on: bool) -> None:
    compiler._is_compiling_flag = is_on  # pyright: ignore[reportPrivateUsage]
