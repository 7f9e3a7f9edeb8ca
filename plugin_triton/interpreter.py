"""Load a file of kernels for a GPU, or for Triton's interpreter, which runs them on tensors in the CPU's memory."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from .reductions import INTERPRETED

_loading = threading.Lock()
_calling = threading.Lock()
"""Held during calls: the interpreter replaces parts of Triton's language while it runs a kernel."""
_numbers = itertools.count()


@contextlib.contextmanager
def interpreting() -> Generator[None]:
    """Allow one call in the interpreter at a time, without NumPy's warnings about infinities and NaN."""
    import numpy as np

    with _calling, np.errstate(all="ignore"), _bools_that_stay_bools():
        yield


@contextlib.contextmanager
def _bools_that_stay_bools() -> Generator[None]:
    """Fix the interpreter's broadcast of a compared scalar to a block: the result stays bool.

    Triton 3.9 labels it with the dtype of the compared numbers, and broadcasts it as that: `&` accepts no floats.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    untyped = cast("Any", interpreter)
    before = untyped.InterpreterBuilder.create_splat

    def splat(builder: Any, kind: Any, argument: Any) -> Any:
        if argument.data.dtype != np.bool_:
            return before(builder, kind, argument)
        return untyped.TensorHandle(np.full(kind.shape, argument.data.reshape(-1)[0], dtype=np.bool_), tl.int1)

    untyped.InterpreterBuilder.create_splat = splat
    try:
        yield
    finally:
        untyped.InterpreterBuilder.create_splat = before


def loaded(path: Path, *, is_interpreted: bool) -> ModuleType:
    """Import a file of kernels under a unique name. Raise any error of its code."""
    name = f"plugin_triton_{path.stem}_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    from triton import knobs

    with _loading:  # `triton.jit` reads a setting of the process
        before = knobs.runtime.interpret
        knobs.runtime.interpret = is_interpreted
        sys.modules[name] = module  # triton.jit looks for the source there
        try:
            spec.loader.exec_module(module)
        finally:
            knobs.runtime.interpret = before
            del sys.modules[name]
    if is_interpreted:
        for name, function in INTERPRETED.items():
            setattr(module, name, _rows(function))
    return module


def _rows(function: str) -> Callable[[Any], Any]:
    """Return a reduction along rows in NumPy: Triton's interpreter would compute it element by element."""

    def reduce(tile: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        result = getattr(np, function)(tile.handle.data, axis=1).astype(tile.handle.data.dtype)
        scalar = tile.dtype.scalar
        return tl.tensor(TensorHandle(result, scalar), tl.block_type(scalar, list(result.shape)))

    return reduce
