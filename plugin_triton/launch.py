"""Launch kernels through their compiled handles.

Triton's own launch path binds every argument, describes it in text and reads the options, in every call. The outcome is
known after the first launch, and `CompiledKernel.__getitem__`, the same in Triton 3.6 to 3.9, launches the compiled kernel.
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
"""True on AMD, where Triton compiles separate kernels for memory of less than 2^31 bytes."""


class Launcher:
    """A kernel on one device, called like Triton's, `kernel[grid](*arguments, **options)`, with fixed options."""

    __slots__ = ("_function", "_handles", "_is_memory", "_lock")

    def __init__(self, function: Any) -> None:
        self._function = function
        self._handles: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}
        self._is_memory: tuple[bool, ...] = ()
        """Whether each argument is a tensor, the same in all calls; known from the first call on."""
        self._lock = threading.Lock()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    @property
    def handles(self) -> tuple[Any, ...]:
        """The handles that Triton has compiled so far."""
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
        """Return a key that differs whenever Triton would compile another kernel, if each argument keeps its dtype."""
        kinds = [
            argument.data_ptr() % _ALIGNED == 0 if is_memory else _kind(argument)
            for argument, is_memory in zip(arguments, self._is_memory, strict=True)
        ]
        if _IS_AMD:
            kinds += [each.untyped_storage().nbytes() <= _NEAR for each in arguments if isinstance(each, torch.Tensor)]
        return tuple(kinds)

    def _first(self, key: Hashable, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Compile and launch through Triton, and keep the handle; there is none if a hook of the user prevented that."""
        handle = self._function[grid](*arguments, **options)
        handle = handle.result() if hasattr(handle, "result") else handle  # if the user compiles kernels asynchronously
        if handle is not None:
            constants = tuple(options[name] for name in self._function.arg_names[len(arguments) :])
            self._handles[key] = handle, constants


def with_launchers(module: ModuleType) -> ModuleType:
    """Replace each kernel of a file by a launcher; the functions that kernels call stay Triton's."""
    for name, value in list(vars(module).items()):
        if re.fullmatch(r"k\d+", name):
            setattr(module, name, Launcher(value))
    return module


def _kind(number: object) -> Hashable:
    if type(number) is not int:
        return type(number)
    return "one" if number == 1 else (number % _ALIGNED == 0, number in _SINGLE, number < 1 << 63)
