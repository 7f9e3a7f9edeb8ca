"""Parsing of text to an MLIR module: MHLO's names become StableHLO's, and messages name the line."""

from __future__ import annotations

import re
from typing import Any

from hub.plugin import CompileError
from hub.toolkit.mlir_text import inlined

from ..bindings import bindings
from ..compiler import NAME

_LIST = re.compile(r"(\w+) = dense<(\[?)([^\]>\"]*)\]?> : tensor<(\d+)x(i64|i1)>(?=\s*[,}])")
"""Attributes that are lists of numbers: dense tensors in MHLO, arrays in StableHLO."""
_CUSTOM_CHLO = re.compile(r"= chlo\.(\w+) ((?:%[\w#]+(?:, )?)+) : (?:\(([^)]*)\)|([^()]+?)) -> (.+)$", re.MULTILINE)
_PLACE = re.compile(r"\"-\":(\d+):(\d+): ")


def as_stablehlo(text: str) -> str:
    """Return a program with MHLO's names and forms replaced by StableHLO's, line by line; StableHLO stays as it is.

    CHLO's custom forms become generic ones, which need no dialect.
    """
    found = re.sub(r"([\"#\s(])mhlo(?=[.<])", r"\1stablehlo", inlined(text))
    return _CUSTOM_CHLO.sub(_generic, _LIST.sub(_as_array, found))


def _as_array(found: re.Match[str]) -> str:
    name, bracket, numbers, count, kind = found.groups()
    if name == "value":  # the attribute of a constant
        return found[0]
    listed = numbers if bracket or not numbers else ", ".join([numbers] * int(count))
    return f"{name} = array<{kind}{f': {listed}' if listed else ''}>"


def _generic(found: re.Match[str]) -> str:
    name, operands, several, one, result = found.groups()
    return f'= "chlo.{name}"({operands}) : ({several or one}) -> {result}'


def parsed(text: str, context: Any) -> Any:
    """Return a verified module in an entered context. Raise CompileError, which names the line, if it does not parse."""
    context.enable_multithreading(False)
    context.allow_unregistered_dialects = True  # the attribute of the dialect `tf`, and CHLO
    bindings("_mlir_libs._stablehlo").register_dialect(context)
    try:
        return bindings("ir").Module.parse(as_stablehlo(text))
    except Exception as error:
        lines = str(error).splitlines()
        said = "; ".join(_PLACE.sub(r"line \1, column \2: ", line.strip()) for line in lines[1:3] or lines)
        hint = "give one function in StableHLO or MHLO, as text"
        raise CompileError(f"the program does not parse: {said[:2000]}", backend=NAME, hint=hint) from error
