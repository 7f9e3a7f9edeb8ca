"""Conditions on single nodes under which an operator is taken. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hub.support import (
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
    """Every tensor lies densely in the memory of the CPU."""
    for tensor in tensors_of(node):
        if tensor.device.type not in ("cpu", "meta"):
            return f"device {tensor.device}, only cpu here"
    return None


def only_output(*positions: int) -> Condition:
    """Nobody reads any output but these."""

    def condition(node: fx.Node) -> str | None:
        used = {user.args[1] for user in node.users if len(user.args) == 2}
        bad = sorted(used.difference(positions), key=str)
        return f"output {', '.join(map(str, bad))} is read, only {', '.join(map(str, positions))} here" if bad else None

    return condition


def plain(*names: str) -> Condition:
    """The arguments hold numbers known while compiling."""

    def condition(node: fx.Node) -> str | None:
        for name in names:
            value = argument(node, name)
            items = value if isinstance(value, (list, tuple)) else (value,)
            if any(hasattr(item, "meta") or is_symbolic_number(item) for item in items):
                return f"{name} is known only at run time"
        return None

    return condition


def is_symbolic_number(value: Any) -> bool:
    """True for SymInt, SymFloat and SymBool."""
    return hasattr(value, "node") and not hasattr(value, "dtype")


def real_division(node: fx.Node) -> str | None:
    """Integers are divided by known numbers only: an instruction that divides by 0, or by -1, may end the process."""
    if node.meta["val"].dtype.is_floating_point:
        return None
    by = argument(node, "other")
    is_known = isinstance(by, int) and by not in (0, -1)
    return None if is_known else "integer division by something other than a known number apart from 0 and -1"


def floating_result(node: fx.Node) -> str | None:
    """The result is in floating point."""
    dtype = node.meta["val"].dtype
    return None if dtype.is_floating_point else f"result {dtype_name(dtype)}, only floating point here"


def small_power(node: fx.Node) -> str | None:
    """Integers are raised to 0 to 64, by multiplication."""
    exponent = argument(node, "exponent")
    is_float = node.meta["val"].dtype.is_floating_point
    return None if is_float or exponent in range(65) else f"integers to the power {exponent}, 0 to 64 here"


def float_to_known_integer(node: fx.Node) -> str | None:
    """Floats become no integers narrower than 32 bits: what is out of range then differs from machine to machine."""
    source, result = value_of(node.args[0]), node.meta["val"]
    is_narrow = not result.dtype.is_floating_point and result.dtype.itemsize < 4 and dtype_name(result.dtype) != "bool"
    if getattr(source, "dtype", None) is not None and source.dtype.is_floating_point and is_narrow:
        return f"{dtype_name(source.dtype)} to {dtype_name(result.dtype)}"
    return None


def has_dims(node: fx.Node) -> str | None:
    """The tensor has at least one dim."""
    return None if len(value_of(node.args[0]).shape) else "a tensor without dims"


def has_elements(node: fx.Node) -> str | None:
    """No input is known to be empty."""
    inputs = (item for source in node.all_input_nodes for item in elements(value_of(source)))
    sizes = (size for item in inputs for size in getattr(item, "shape", ()))
    return "a tensor without elements" if any(not is_symbolic(size) and size == 0 for size in sizes) else None


def integer_indices(node: fx.Node) -> str | None:
    """Every index is an integer tensor: booleans give a result of a size that depends on data."""
    found = {dtype_name(value_of(index).dtype) for index in argument(node, "indices") if index is not None}
    bad = sorted(found.difference(("int64", "int32")))
    return f"indices of {', '.join(bad)}, only int64 and int32 here" if bad else None


def static_input(node: fx.Node) -> str | None:
    """The first tensor has no symbolic dims."""
    shape = value_of(node.args[0]).shape
    return f"symbolic dims {list(shape)}" if any(map(is_symbolic, shape)) else None


def static_space(count: int) -> Condition:
    """All but the first `count` dims of the input and of the first result are known."""

    def condition(node: fx.Node) -> str | None:
        result = elements(node.meta["val"])[0]
        shape = (*value_of(node.args[0]).shape[count:], *result.shape[count:])
        return f"symbolic dims {list(shape)}" if any(map(is_symbolic, shape)) else None

    return condition


def static_dim(name: str) -> Condition:
    """The dim named by an argument has a known size."""

    def condition(node: fx.Node) -> str | None:
        shape = value_of(node.args[0]).shape
        size = shape[argument(node, name) or 0] if len(shape) else 1
        return f"dim of symbolic size {size}" if is_symbolic(size) else None

    return condition


def same_rank(one: str, other: str) -> Condition:
    """Two tensors have equally many dims (a convolution's input has its batch dim)."""

    def condition(node: fx.Node) -> str | None:
        ranks = [len(value_of(argument(node, name)).shape) for name in (one, other)]
        return None if ranks[0] == ranks[1] else f"{one} of {ranks[0]} dims with {other} of {ranks[1]}, equal here"

    return condition


def one_of(name: str, allowed: tuple[Any, ...]) -> Condition:
    """The argument is one of the allowed values."""
    return attribute(name, lambda value: value in allowed, f"one of {', '.join(map(str, allowed))}")


def equal_windows(node: fx.Node) -> str | None:
    """Adaptive windows are all of one size: one window, or static sizes that divide."""
    wanted = tuple(argument(node, "output_size"))
    if all(size == 1 for size in wanted):
        return None
    sizes = tuple(value_of(argument(node, "self")).shape)[-len(wanted) :]
    if any(map(is_symbolic, (*sizes, *wanted))) or any(old % new for old, new in zip(sizes, wanted, strict=True)):
        return f"adaptive windows from {list(sizes)} to {list(wanted)} are of unequal size"
    return None


def whole_factors(node: fx.Node) -> str | None:
    """Each size in space grows by a whole number, known while compiling."""
    source, result = value_of(node.args[0]).shape[2:], node.meta["val"].shape[2:]
    for old, new in zip(source, result, strict=True):
        if is_symbolic(old) or is_symbolic(new) or not old or new % old:
            return f"nearest neighbours from {old} to {new}, only whole factors here"
    return None


def counts_padding(node: fx.Node) -> str | None:
    """An average divides by the whole window everywhere."""
    padding = argument(node, "padding")
    is_padded = any(padding) if isinstance(padding, (list, tuple)) else bool(padding)
    return "padding that does not count" if is_padded and not argument(node, "count_include_pad") else None


def some_differences(node: fx.Node) -> str | None:
    """Some difference is left."""
    shape, count = node.meta["val"].shape, argument(node, "n")
    return f"{count} differences give {list(shape)}" if count < 1 or any(size == 0 for size in shape) else None


def group_matches(node: fx.Node) -> str | None:
    """Attention has equally many dims in its parts, and a known width; grouped heads are known and divide."""
    query, key, value = (value_of(argument(node, name)).shape for name in ("query", "key", "value"))
    if not len(query) == len(key) == len(value):
        return f"query of {len(query)} dims with key of {len(key)} and value of {len(value)}"
    if is_symbolic(query[-1]):
        return "symbolic head size"
    is_grouped = operator_name(node) == "aten.scaled_dot_product_attention.default" and argument(node, "enable_gqa")
    if is_grouped and (len(query) < 3 or is_symbolic(query[-3]) or is_symbolic(key[-3])):
        return "symbolic head count"
    return None


def no_masked_rows(node: fx.Node) -> str | None:
    """Some key is there: attention over none is 0 or nothing, as the kernel has it."""
    sizes = value_of(argument(node, "key")).shape[-2:-1]
    return "no keys" if any(not is_symbolic(size) and size == 0 for size in sizes) else None


not_ceil = attribute("ceil_mode", lambda value: not value, "only False")
inference = attribute("training", lambda value: not value, "only inference")
no_dropout = attribute("dropout_p", lambda value: value == 0.0, "only 0")
usual_norm = one_of("ord", (0, 1, 2, float("inf"), float("-inf")))
