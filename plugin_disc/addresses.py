"""Addresses of functions inside PyTorch's own libraries: vector mathematics (Sleef), matrix products (BLAS), OpenMP."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from hub.plugin import CompileError


@cache
def library_path() -> Path:
    """Return the path of PyTorch's library with these functions. Raise CompileError if it is missing."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch.so"):
        if (folder / name).is_file():
            return folder / name
    raise CompileError(f"no libtorch_cpu.so in {folder}", backend="disc")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path()))


@cache
def address_of(name: str) -> int:
    """Return a function's address in PyTorch's library or those linked to it. Raise CompileError if there is none."""
    try:
        found = ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value
    except AttributeError as error:
        raise CompileError(f"this PyTorch has no function {name}", backend="disc") from error
    assert found
    return found


def has(name: str) -> bool:
    """Return whether PyTorch has a function."""
    try:
        address_of(name)
    except CompileError:
        return False
    return True
