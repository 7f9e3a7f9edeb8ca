"""Libraries that `disc-compile` wrote, loaded and called with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch

from hub.plugin import CompileError, InputRefused, RunError
from hub.toolkit.rules.call import DTYPES

from .compiler import NAME, function_of, opened
from .entry import CALL, DONE, OUT_OF_RANGE, SHAPES, WORKSPACE
from .loops.machine import lanes
from .standalone import Signature, metadata_path

_TORCH = {name: dtype for dtype, name in DTYPES.items()}
ALIGNMENT = 64
"""Alignment of the workspace in bytes."""


class Library:
    """A compiled program. Calls may run in several threads at once."""

    def __init__(self, path: Path, signature: Signature) -> None:
        self.signature = signature
        self._path = path
        library = opened(path)
        self._call, self._workspace, self._shapes = (function_of(library, name, path) for name in (CALL, WORKSPACE, SHAPES))
        self._call.restype = self._workspace.restype = ctypes.c_int64
        self._shapes.restype = None

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run one call and return new packed tensors. Raise InputRefused if the program was not compiled for the inputs."""
        self._check(inputs)
        packed = [value.contiguous() for value in inputs]
        sizes = _words([size for value in packed for size in value.shape])
        given = _pointers(packed)
        outputs = self._outputs(given, sizes)
        room = torch.empty(int(self._workspace(given, sizes)) + ALIGNMENT, dtype=torch.uint8)
        start = -(-room.data_ptr() // ALIGNMENT) * ALIGNMENT
        code = self._call(given, sizes, _pointers(outputs), ctypes.c_void_p(start))
        if code == DONE:
            return outputs
        shown = ", ".join(str(list(value.shape)) for value in inputs)
        why = "an index is out of range" if code == OUT_OF_RANGE else f"inputs of sizes {shown} do not fit together"
        raise InputRefused(f"{self._path}: {why}", backend=NAME)

    def _check(self, inputs: Sequence[torch.Tensor]) -> None:
        declared = self.signature.inputs
        if len(inputs) != len(declared):
            raise RunError(f"{self._path} takes {len(declared)} inputs, {len(inputs)} were given", backend=NAME)
        for place, (value, (shape, kind)) in enumerate(zip(inputs, declared, strict=True)):
            if value.dtype is not _TORCH[kind] or value.dim() != len(shape) or not value.is_cpu:
                wanted = f"{_TORCH[kind]}{['?' if size is None else size for size in shape]} on cpu"
                found = f"{value.dtype}{list(value.shape)} on {value.device}"
                raise InputRefused(f"input {place} is {found}, {wanted} was compiled", backend=NAME)

    def _outputs(
        self, given: ctypes.Array[ctypes.c_void_p], sizes: ctypes.Array[ctypes.c_int64]
    ) -> tuple[torch.Tensor, ...]:
        ranks = [len(shape) for shape, _ in self.signature.outputs]
        found = _words([0] * sum(ranks))
        self._shapes(given, sizes, found)
        left = iter(found)
        shapes = [[max(next(left), 0) for _ in range(rank)] for rank in ranks]
        kinds = [kind for _, kind in self.signature.outputs]
        return tuple(torch.empty(shape, dtype=_TORCH[kind]) for shape, kind in zip(shapes, kinds, strict=True))


def load(path: Path) -> Library:
    """Load a library that `disc-compile` wrote; it holds machine code, so it has to be trusted.

    Raise CompileError if a file is missing, if the two do not belong together, or if this processor cannot run the code.
    """
    try:
        signature = Signature.read(metadata_path(path).read_bytes())
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise CompileError(f"{path} is not a library of disc-compile: {error}", backend=NAME) from error
    if sha256(content).hexdigest() != signature.digest:
        raise CompileError(f"{path} and {metadata_path(path).name} are not from one compilation", backend=NAME)
    if signature.lanes > lanes():
        message = f"{path} is for registers of {signature.lanes} floats, this processor has {lanes()}"
        raise CompileError(message, backend=NAME)
    return Library(path, signature)


def _words(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _pointers(values: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the tensors' addresses; an empty tensor, which has none, gets another valid one."""
    return (ctypes.c_void_p * len(values))(*(value.data_ptr() or _SPARE.data_ptr() for value in values))


_SPARE = torch.zeros(1 << 16)
