"""Instructions and calls that take single registers: a vector of several is split and joined again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .writer import Value, Writer

OfRegisters = Callable[[Sequence[str], str], str]
"""Function that returns the operation on registers of some names; the second argument is their type."""


def by_register(writer: Writer, arguments: Sequence[Value], lanes: int, operation: OfRegisters) -> Value:
    """Return an operation on wide values of one floating dtype, performed on `lanes` elements at a time."""
    dtype, level = arguments[0].dtype, max(argument.level for argument in arguments)
    kind, whole = f"vector<{lanes}x{dtype}>", writer.vector(dtype)

    def put(text: str) -> Value:
        return writer.put(text, dtype, is_wide=True, level=level)

    if lanes == writer.lanes:
        return put(operation([argument.name for argument in arguments], kind))
    result = writer.constant(0.0, dtype, is_wide=True)
    for start in range(0, writer.lanes, lanes):
        at = f"{{offsets = [{start}], sizes = [{lanes}], strides = [1]}}"
        parts = [put(f"vector.extract_strided_slice {each.name} {at} : {whole} to {kind}").name for each in arguments]
        part = put(operation(parts, kind))
        at = f"{{offsets = [{start}], strides = [1]}}"
        result = put(f"vector.insert_strided_slice {part.name}, {result.name} {at} : {kind} into {whole}")
    return result
