"""Conditions on single nodes that many backends share, for their operator tables. Imports no torch.

Conditions of a single compiler are in its plugin, next to its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hub.plugin.table import (
    Condition,
    argument,
    attribute,
    dtype_name,
    elements,
    is_symbolic,
    operator_name,
    tensors_of,
    value_of,
)

if TYPE_CHECKING:
    from torch import fx


def on_cpu(node: fx.Node) -> str | None:
    """Require every tensor to be in the CPU's memory, or on the meta device, which has none."""
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type not in ("cpu", "meta")), None)
    return None if bad is None else f"device {bad}, only cpu here"


def only_output(*positions: int) -> Condition:
    """Require that only these outputs of an operator with several outputs are read."""

    def condition(node: fx.Node) -> str | None:
        read: list[Any] = [user.args[1] for user in node.users if len(user.args) == 2]
        bad = sorted({*read} - {*positions}, key=str)
        return f"output {_listed(bad)} is read, only output {_listed(positions)} here" if bad else None

    return condition


def plain(*names: str) -> Condition:
    """Require the arguments to hold numbers known at compile time."""

    def condition(node: fx.Node) -> str | None:
        for name in names:
            if any(hasattr(item, "meta") or is_symbolic_number(item) for item in elements(argument(node, name))):
                return f"{name} is known only at run time"
        return None

    return condition


def is_symbolic_number(value: Any) -> bool:
    """Return True for SymInt, SymFloat and SymBool."""
    return hasattr(value, "node") and not hasattr(value, "dtype")


def one_of(name: str, *allowed: Any) -> Condition:
    """Require the argument to be one of the allowed values."""
    return attribute(name, lambda value: value in allowed, f"one of {_listed(allowed)}")


def floating_result(node: fx.Node) -> str | None:
    """Require a floating-point result."""
    dtype = node.meta["val"].dtype
    return None if dtype.is_floating_point else f"result {dtype_name(dtype)}, only floating point here"


def has_dims(node: fx.Node) -> str | None:
    """Require the first tensor to have at least one dim."""
    return None if len(value_of(node.args[0]).shape) else "a tensor without dims"


def has_elements(node: fx.Node) -> str | None:
    """Require that no input is known to be empty."""
    inputs = (item for source in node.all_input_nodes for item in elements(value_of(source)))
    sizes = (size for item in inputs for size in getattr(item, "shape", ()))
    return "a tensor without elements" if any(not is_symbolic(size) and size == 0 for size in sizes) else None


def not_empty(node: fx.Node) -> str | None:
    """Require that no input and no first result is known to be empty."""
    for tensor in (*map(value_of, node.all_input_nodes), *elements(value_of(node))[:1]):
        if any(not is_symbolic(size) and size == 0 for size in getattr(tensor, "shape", ())):
            return f"an empty tensor {list(tensor.shape)}"
    return None


def static_input(node: fx.Node) -> str | None:
    """Require the first tensor to have no symbolic dims."""
    shape = value_of(node.args[0]).shape
    return f"symbolic dims {list(shape)}" if any(map(is_symbolic, shape)) else None


def static_dim(name: str) -> Condition:
    """Require a known size for the dim of the first tensor that an argument names (dim 0 if it is None)."""

    def condition(node: fx.Node) -> str | None:
        shape = value_of(node.args[0]).shape
        size = shape[argument(node, name) or 0] if len(shape) else 1
        return f"dim of symbolic size {size}" if is_symbolic(size) else None

    return condition


def same_rank(one: str, other: str) -> Condition:
    """Require two tensors to have equally many dims (a convolution's input must have its batch dim)."""

    def condition(node: fx.Node) -> str | None:
        ranks = [len(value_of(argument(node, name)).shape) for name in (one, other)]
        return None if ranks[0] == ranks[1] else f"{one} of {ranks[0]} dims with {other} of {ranks[1]}, equal here"

    return condition


def integer_indices(node: fx.Node) -> str | None:
    """Require every index to be an integer tensor: with booleans, the size of the result depends on data."""
    found = {dtype_name(value_of(index).dtype) for index in argument(node, "indices") if index is not None}
    bad = sorted(found.difference(("int64", "int32")))
    return f"indices of {', '.join(bad)}, only int64 and int32 here" if bad else None


def equal_windows(node: fx.Node) -> str | None:
    """Require adaptive windows of one size: one window, or static sizes that divide."""
    wanted = tuple(argument(node, "output_size"))
    if all(size == 1 for size in wanted):
        return None
    sizes = tuple(value_of(argument(node, "self")).shape)[-len(wanted) :]
    pairs = tuple(zip(sizes, wanted, strict=True))
    if any(map(is_symbolic, (*sizes, *wanted))) or any(not new or old % new for old, new in pairs):
        return f"adaptive windows from {list(sizes)} to {list(wanted)} are of unequal size"
    return None


def heads_match(node: fx.Node) -> str | None:
    """Require as many keys as values, and, if attention has groups, groups of query heads that share one of their heads.

    PyTorch's CPU kernel forms groups from the sizes alone, without `enable_gqa`. It also checks no sizes, and reads out of
    bounds if they do not match.
    """
    query, key, value = (value_of(argument(node, name)).shape for name in ("query", "key", "value"))
    rows = [each[-2] for each in (key, value)]
    if not any(map(is_symbolic, rows)) and rows[0] != rows[1]:
        return f"{rows[0]} keys with {rows[1]} values"
    is_kernel = not operator_name(node).startswith("aten.scaled_dot_product_attention.")
    if min(map(len, (query, key, value))) < 3 or not (is_kernel or argument(node, "enable_gqa")):
        return None
    count, *shared = (each[-3] for each in (query, key, value))
    if is_kernel and str(shared[0]) != str(shared[1]):
        return f"{shared[0]} heads of keys with {shared[1]} of values"
    for heads in shared:
        if str(heads) != str(count) and (is_symbolic(count) or is_symbolic(heads)):
            return "symbolic head count"
        if str(heads) != str(count) and (heads == 0 or count % heads):
            return f"{count} heads of queries over {heads} of keys or values"
    return None


not_ceil = attribute("ceil_mode", lambda value: not value, "only False")
"""Condition: a pool's windows do not reach beyond its input."""
inference = attribute("training", lambda value: not value, "only inference")
"""Condition: a normalization does not update its statistics."""
no_dropout = attribute("dropout_p", lambda value: value == 0.0, "only 0")
"""Condition: attention has no dropout."""


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


MAX_STEPS = 64
"""Largest number of LSTM steps that are unrolled: each step adds to the compile time."""


def unrollable_lstm(node: fx.Node) -> str | None:
    """Require an LSTM without projections, with a known number of batched steps, for compilers that get it unrolled."""
    each = (4 if argument(node, "has_biases") else 2) * (2 if argument(node, "bidirectional") else 1)
    if len(argument(node, "params")) != each * argument(node, "num_layers"):
        return "an LSTM with projections"
    shape = value_of(argument(node, "input")).shape
    if len(shape) != 3:
        return f"input is {list(shape)}, three dims here"
    steps = shape[1] if argument(node, "batch_first") else shape[0]
    return f"{steps} steps, at most {MAX_STEPS} here" if is_symbolic(steps) or steps > MAX_STEPS else None
