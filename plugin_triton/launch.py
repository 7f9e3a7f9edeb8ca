"""Launches kernels through their compiled handles.

Triton's own way to a launch binds every argument, describes it in text and looks at the options, each time. What it finds
is known after the first launch, and `CompiledKernel.__getitem__`, alike in Triton 3.6 to 3.9, launches what that compiled.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable
from functools import partial
from types import ModuleType
from typing import Any

import torch

_ALIGNED = 16
_NEAR = (1 << 31) - 1
_SINGLE = range(-(1 << 31), 1 << 31)
_IS_AMD = torch.version.hip is not None
"""There memory of less than 2^31 bytes has kernels of its own."""


class Launcher:
    """A kernel on one device, called as Triton's are, `kernel[grid](*arguments, **options)`, with fixed options."""

    __slots__ = ("_function", "_handles", "_is_memory", "_lock")

    def __init__(self, function: Any) -> None:
        self._function = function
        self._handles: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}
        self._is_memory: tuple[bool, ...] = ()
        """Of each argument, which all calls have alike; known from the first call on."""
        self._lock = threading.Lock()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    @property
    def handles(self) -> tuple[Any, ...]:
        """What Triton has compiled of it so far."""
        return tuple(handle for handle, _ in self._handles.values())

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if not self._is_memory:
            self._is_memory = tuple(isinstance(argument, torch.Tensor) for argument in arguments)
        key = self._key(arguments)
        found = self._handles.get(key)
        if found is None:
            with self._lock:
                found = self._handles.get(key)
                if found is None:
                    self._first(key, grid, arguments, options)
                    return
        handle, constants = found
        handle[(*grid, 1, 1)[:3]](*arguments, *constants)

    def _key(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return what Triton compiles a kernel of its own for, of arguments that have one dtype each: no less than that."""
        kinds = [
            argument.data_ptr() % _ALIGNED == 0 if is_memory else _kind(argument)
            for argument, is_memory in zip(arguments, self._is_memory, strict=True)
        ]
        if _IS_AMD:
            kinds += [each.untyped_storage().nbytes() <= _NEAR for each in arguments if isinstance(each, torch.Tensor)]
        return tuple(kinds)

    def _first(self, key: Hashable, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Have Triton compile and launch; a hook of the user's may have kept it from that, and then there is no handle."""
        handle = self._function[grid](*arguments, **options)
        handle = handle.result() if hasattr(handle, "result") else handle  # while the user has kernels compiled on the side
        if handle is not None:
            constants = tuple(options[name] for name in self._function.arg_names[len(arguments) :])
            self._handles[key] = handle, constants


def with_launchers(module: ModuleType) -> ModuleType:
    """Put a launcher in the place of each kernel of a file; what kernels call stays Triton's."""
    for name, value in list(vars(module).items()):
        if re.fullmatch(r"k\d+", name):
            setattr(module, name, Launcher(value))
    return module


def _kind(number: object) -> Hashable:
    if type(number) is not int:
        return type(number)
    return "one" if number == 1 else (number % _ALIGNED == 0, number in _SINGLE, number < 1 << 63)
