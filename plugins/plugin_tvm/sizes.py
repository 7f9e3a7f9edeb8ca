"""Symbolic sizes as TVM's expressions over the variables of one function."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import sympy

from hub.plugin import CompileError
from hub.toolkit.sizes import Size
from plugin_tvm.torch_private import CleanDiv, FloorDiv, Mod, PythonMod


class Sizes:
    """Sizes of one function: a variable for each symbol, or part of a size, that inputs show."""

    def __init__(self, shown: Iterable[Size]) -> None:
        from plugin_tvm.library import tirx

        self.variables: Mapping[Size, Any] = {size: tirx.Var(f"n{place}", "int64") for place, size in enumerate(shown)}

    def of(self, size: Size) -> Any:
        """Return a size as an int64. Raise CompileError if no input shows it."""
        from plugin_tvm.library import tirx

        if isinstance(size, int):
            return tirx.IntImm("int64", int(size))
        if size in self.variables:
            return self.variables[size]
        if size.is_Integer:
            return tirx.IntImm("int64", int(size))
        return self._computed(size)

    def shape(self, sizes: Iterable[Size]) -> list[Any]:
        """Return a shape."""
        return [self.of(size) for size in sizes]

    def _computed(self, size: Any) -> Any:
        from plugin_tvm.library import tirx

        parts = [self.of(part) for part in size.args]
        if isinstance(size, sympy.Add):
            return _folded(operator.add, parts)
        if isinstance(size, sympy.Mul):
            return _folded(operator.mul, parts)
        if isinstance(size, sympy.Pow) and size.exp.is_Integer and int(size.exp) > 0:
            return _folded(operator.mul, [self.of(size.base)] * int(size.exp))
        if isinstance(size, (FloorDiv, CleanDiv)):
            return tirx.floordiv(*parts)
        if isinstance(size, (Mod, PythonMod)):
            return tirx.floormod(*parts)
        name = type(size).__name__
        if name in ("Max", "Min"):
            return _folded(tirx.max if name == "Max" else tirx.min, parts)
        raise CompileError(f"size {size} depends on what no input shows, or is not a sum, product or quotient")


def _folded(function: Any, parts: list[Any]) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = function(result, part)
    return result
