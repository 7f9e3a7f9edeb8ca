"""Conditions on single nodes under which ONNX Runtime takes an operator. Imports neither torch nor onnx."""

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
    """Every tensor lives on the CPU."""
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type != "cpu"), None)
    return None if bad is None else f"device {bad}, only cpu here"


def not_empty(node: fx.Node) -> str | None:
    """No input and no first result is known to have no elements: CumSum, CumProd and others then divide by a size of 0.

    That ends the process with SIGFPE (ORT 1.31), and there is nothing to gain.
    """
    for tensor in (*map(value_of, node.all_input_nodes), *elements(value_of(node))[:1]):
        if any(not is_symbolic(size) and size == 0 for size in getattr(tensor, "shape", ())):
            return f"an empty tensor {list(tensor.shape)}"
    return None


def only_output(position: int) -> Condition:
    """Nobody reads any output but this one."""

    def condition(node: fx.Node) -> str | None:
        used = {user.args[1] for user in node.users if len(user.args) == 2}
        bad = sorted(used.difference((position,)), key=str)
        return f"output {', '.join(map(str, bad))} is read, only output {position} here" if bad else None

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


def indices_unread_for_integers(node: fx.Node) -> str | None:
    """Nobody reads the indices of integers put in order: among equals, PyTorch's own order is its secret."""
    dtype = value_of(node.args[0]).dtype
    gives_values = isinstance(node.meta["val"], (tuple, list))
    if dtype.is_floating_point or (gives_values and only_output(0)(node) is None):
        return None
    return f"indices of {dtype_name(dtype)}, of which many may be equal: their order is PyTorch's own"


def real_division(node: fx.Node) -> str | None:
    """Integers are divided by positive constants only: ORT kills the process on an integer division by zero."""
    value = node.meta["val"]
    if value.dtype.is_floating_point:
        return None
    by = argument(node, "other")
    return None if isinstance(by, int) and by > 0 else "integer division by something other than a positive constant"


def floating_result(node: fx.Node) -> str | None:
    """The result is in floating point."""
    dtype = node.meta["val"].dtype
    return None if dtype.is_floating_point else f"result {dtype_name(dtype)}, only floating point here"


def exact_power(node: fx.Node) -> str | None:
    """Integers are raised to 1, 2 or 3 only, by multiplication: ORT computes other powers in double."""
    exponent = argument(node, "exponent")
    is_float = node.meta["val"].dtype.is_floating_point
    return None if is_float or exponent in (1, 2, 3) else f"integers to the power {exponent}, 1 to 3 here"


def integer_indices(node: fx.Node) -> str | None:
    """Every index is an integer tensor: booleans give a result of a size that depends on data."""
    found = {dtype_name(value_of(index).dtype) for index in argument(node, "indices") if index is not None}
    bad = sorted(found.difference(("int64", "int32")))
    return f"indices of {', '.join(bad)}, only int64 and int32 here" if bad else None


def leading_indices(node: fx.Node) -> str | None:
    """Indices are given for the leading dims, without gaps."""
    return "a dim without index before one with" if any(index is None for index in argument(node, "indices")) else None


def equal_windows(node: fx.Node) -> str | None:
    """Adaptive windows are all of one size: one window, or static sizes that divide."""
    wanted = tuple(argument(node, "output_size"))
    if all(size == 1 for size in wanted):
        return None
    sizes = tuple(value_of(argument(node, "self")).shape)[-len(wanted) :]
    if any(map(is_symbolic, (*sizes, *wanted))) or any(old % new for old, new in zip(sizes, wanted, strict=True)):
        return f"adaptive windows from {list(sizes)} to {list(wanted)} are of unequal size"
    return None


def whole_ratio(node: fx.Node) -> str | None:
    """Nearest neighbours are unambiguous: each size grows or shrinks by a whole number."""
    source, result = value_of(node.args[0]).shape[2:], node.meta["val"].shape[2:]
    factors = next(
        (node.args[place] for place in (2,) if len(node.args) > 2 and isinstance(node.args[2], (list, tuple))), None
    )
    if factors and all(float(factor).is_integer() for factor in factors):  # pyright: ignore
        return None
    for old, new in zip(source, result, strict=True):
        if is_symbolic(old) or is_symbolic(new) or (new % old and old % new):
            return f"nearest neighbours from {old} to {new}, only whole ratios here"
    return None


def static_dim(name: str) -> Condition:
    """The dim named by an argument has a known size."""

    def condition(node: fx.Node) -> str | None:
        shape = value_of(argument(node, "self")).shape
        size = shape[argument(node, name)] if len(shape) else 1
        return f"dim of symbolic size {size}" if is_symbolic(size) else None

    return condition


def weights_only(node: fx.Node) -> str | None:
    """A recurrent layer has its ordinary weights: no projections, no dropout, a batch dim."""
    each = 4 if argument(node, "has_biases") else 2
    expected = argument(node, "num_layers") * each * (2 if argument(node, "bidirectional") else 1)
    found = len(argument(node, "params"))
    if any(is_symbolic(size) for weight in argument(node, "params") for size in value_of(weight).shape):
        return "weights of symbolic sizes"
    if found != expected:
        return f"{found} weight tensors, {expected} without projections"
    is_dropping = argument(node, "train") and argument(node, "dropout") and argument(node, "num_layers") > 1
    return "dropout between layers" if is_dropping else None


def same_rank(one: str, other: str) -> Condition:
    """Two tensors have equally many dims (a convolution's input has its batch dim)."""

    def condition(node: fx.Node) -> str | None:
        ranks = [len(value_of(argument(node, name)).shape) for name in (one, other)]
        return None if ranks[0] == ranks[1] else f"{one} of {ranks[0]} dims with {other} of {ranks[1]}, equal here"

    return condition


def group_matches(node: fx.Node) -> str | None:
    """Attention has 2 to 6 dims, and with grouped heads, static head counts that divide."""
    query, key = (value_of(argument(node, name)).shape for name in ("query", "key"))
    if len(query) != len(key):
        return f"query of {len(query)} dims with key of {len(key)}"
    if is_symbolic(query[-1]):
        return "symbolic head size"
    if (
        len(query) < 3
        or operator_name(node) != "aten.scaled_dot_product_attention.default"
        or not argument(node, "enable_gqa")
    ):
        return None
    return None if not (is_symbolic(query[-3]) or is_symbolic(key[-3])) else "symbolic head count"


def one_of(name: str, allowed: tuple[Any, ...]) -> Condition:
    """The argument is one of the allowed values."""
    return attribute(name, lambda value: value in allowed, f"one of {', '.join(map(str, allowed))}")


def has_dims(node: fx.Node) -> str | None:
    """The tensor has at least one dim."""
    return None if len(value_of(node.args[0]).shape) else "a tensor without dims"


def scannable(node: fx.Node) -> str | None:
    """The tensor has dims, all static and none empty: ORT kills the process on a Scan over no elements."""
    shape = value_of(node.args[0]).shape
    if any(map(is_symbolic, shape)):
        return f"symbolic dims {list(shape)}, of which one may be empty"
    return None if shape and all(shape) else f"shape {list(shape)}: no dims, or no elements"


def static_input(node: fx.Node) -> str | None:
    """The first tensor has no symbolic dims."""
    shape = value_of(node.args[0]).shape
    return f"symbolic dims {list(shape)}" if any(map(is_symbolic, shape)) else None


def negative_pad_is_constant(node: fx.Node) -> str | None:
    """Padding by edge elements adds, and never cuts."""
    mode = argument(node, "mode")
    amounts = argument(node, "pad")
    if mode != "constant" and any(isinstance(amount, int) and amount < 0 for amount in amounts):
        return f"mode {mode} with negative padding"
    return None if mode in ("constant", "reflect", "replicate", "circular") else f"mode {mode}"


no_dropout = attribute("dropout_p", lambda value: value == 0.0, "only 0")
not_ceil = attribute("ceil_mode", lambda value: not value, "only False")
inference = attribute("training", lambda value: not value, "only inference")
usual_norm = one_of("ord", (1, 2, float("inf")))


def several_normalised(node: fx.Node) -> str | None:
    """More than one element is normalised: ORT 1.23 refuses a single one."""
    sizes = value_of(argument(node, "input")).shape[-len(argument(node, "normalized_shape")) :]
    is_single = all(not is_symbolic(size) and size == 1 for size in sizes)
    return "normalises a single element" if is_single else None


def has_elements(node: fx.Node) -> str | None:
    """No input is known to be empty: ORT's MatMul then gives whatever is in memory, and its Reshape refuses some."""
    inputs = (item for source in node.all_input_nodes for item in elements(value_of(source)))
    sizes = (size for item in inputs for size in getattr(item, "shape", ()))
    return "a tensor without elements" if any(not is_symbolic(size) and size == 0 for size in sizes) else None
