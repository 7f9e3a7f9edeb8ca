"""Turns symbolic output sizes into Python expressions over a call's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from hub.plugin import Spec, TensorSpec
from hub.toolkit.sizes import printed

from .lower.builder import expression


def sources(inputs: Sequence[Spec]) -> dict[Any, str]:
    """Return, for each symbolic size that an input shows directly, the Python text that reads it; inputs are i0, i1, ..."""
    found: dict[Any, str] = {}
    for position, spec in enumerate(inputs):
        if isinstance(spec, TensorSpec):
            for dim, size in enumerate(spec.shape):
                if not isinstance(size, int):
                    found.setdefault(expression(size), f"i{position}.shape[{dim}]")
        elif spec.kind == "int" and not isinstance(spec.value, int):
            found.setdefault(expression(spec.value), f"i{position}")
    return found


def size_text(size: Any, known: Mapping[Any, str]) -> str | None:
    """Return the Python text of a size; None if it depends on data, or on a symbol that no input shows."""
    if isinstance(size, int):
        return str(int(size))
    wanted = expression(size)
    if wanted in known:
        return known[wanted]
    if not all(symbol in known for symbol in wanted.free_symbols):
        return None
    stand_ins = {symbol: sympy.Symbol(f"_{index}_", integer=True) for index, symbol in enumerate(wanted.free_symbols)}
    text = printed(wanted.xreplace(stand_ins))
    for symbol, stand_in in stand_ins.items():
        text = text.replace(stand_in.name, known[symbol])
    return f"int({text})"


def shape_text(spec: TensorSpec, known: Mapping[Any, str]) -> str | None:
    """Return the Python text of a tensor's sizes as a tuple; None if one of them is unknown before the call."""
    sizes: list[str] = []
    for size in spec.shape:
        text = size_text(size, known)
        if text is None:
            return None
        sizes.append(text)
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
