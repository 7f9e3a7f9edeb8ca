"""What PyTorch itself holds while it traces a program, for places at which the hub or a plugin traces one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch._dynamo.convert_frame import compile_lock

from hub.process.forks import freed_in_forks


@contextmanager
def tracing() -> Generator[None]:
    """Hold PyTorch's lock of compilations, and its flag that one goes on, for as long as a program is traced.

    FX keeps "now tracing" in one flag for the whole process, and `make_fx` patches modules of PyTorch: two threads that
    trace at once can leave either set for ever. A thread that calls a compiled model meanwhile is refused by Dynamo, unless
    the flag says that somebody compiles. Other threads see `torch.compiler.is_compiling()` meanwhile: hold it no longer.
    """
    with freed_in_forks(compile_lock):
        before = torch.compiler.is_compiling()
        _set_compiling(True)
        try:
            yield
        finally:
            _set_compiling(before)


def _set_compiling(is_on: bool) -> None:
    torch.compiler._is_compiling_flag = is_on  # pyright: ignore[reportPrivateUsage] - 2.11 has no context manager for it
