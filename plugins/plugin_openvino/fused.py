"""Chains of small products that OpenVINO fuses into one kernel, and at which it ends the process while it compiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openvino import Model

MAX_ROWS = 8
"""Rows of a product up to which OpenVINO fuses chains (tried with 1 to 32 rows, one and two threads, OpenVINO 2026.4.1)."""

NOT_FUSED = {"SNIPPETS_MODE": "DISABLE"}
"""OpenVINO's option by which it fuses nothing into such kernels."""


def has_fatal_chain(model: Model) -> bool:
    """Return whether a model holds a chain of products whose fusion ends the process (SIGSEGV).

    OpenVINO fuses products of few rows with constant matrices, and what is computed element by element between and behind
    them. If that reads another tensor behind the last product, as a residual connection does, it crashes for some numbers
    of rows and threads. Such a chain is left unfused whatever the numbers are.
    """
    return any(_is_small_product(op) and _meets_another_tensor(op) and _follows_a_product(op) for op in model.get_ops())


def _is_small_product(op: Any) -> bool:
    if op.get_type_name() != "MatMul" or not op.output(0).get_partial_shape().is_static:
        return False
    shape = op.output(0).get_shape()
    return len(shape) == 2 and shape[0] <= MAX_ROWS and _is_constant(op.input_value(1))


def _follows_a_product(op: Any) -> bool:
    """Return whether the product reads another small product, through nothing but functions of single elements."""
    source = op.input_value(0).get_node()
    while (read := _only_source(source)) is not None:
        source = read
    return _is_small_product(source)


def _meets_another_tensor(op: Any) -> bool:
    """Return whether a value computed from the product element by element is combined with one that is no constant."""
    waiting, seen = [op], set[str]()
    while waiting:
        for reader in _readers(waiting.pop()):
            if reader.get_friendly_name() in seen or not _keeps_shape(reader, op):
                continue
            seen.add(reader.get_friendly_name())
            if len(_tensors(reader)) > 1:
                return True
            waiting.append(reader)
    return False


def _only_source(op: Any) -> Any | None:
    """Return the op that a function of single elements reads; None for any other op."""
    sources = _tensors(op)
    is_elementwise = len(sources) == 1 and op.get_type_name() != "MatMul" and _keeps_shape(op, sources[0])
    return sources[0] if is_elementwise else None


def _readers(op: Any) -> Iterator[Any]:
    for output in op.outputs():
        for read in output.get_target_inputs():
            yield read.get_node()


def _keeps_shape(op: Any, source: Any) -> bool:
    is_product = op.get_type_name() in ("MatMul", "Result")
    return not is_product and op.output(0).get_partial_shape() == source.output(0).get_partial_shape()


def _tensors(op: Any) -> list[Any]:
    """Return the ops of inputs that are no constants."""
    return [value.get_node() for value in op.input_values() if not _is_constant(value)]


def _is_constant(value: Any) -> bool:
    return value.get_node().get_type_name() == "Constant"
