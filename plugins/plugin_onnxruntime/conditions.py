"""Conditions on single nodes under which ONNX Runtime supports an operator. Imports neither torch nor onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.plugin import (
    argument,
    declared_arguments,
    dtype_name,
    elements,
    heads_match,
    is_symbolic,
    one_of,
    plain,
    value_of,
)

if TYPE_CHECKING:
    from torch import fx


def floating_input(node: fx.Node) -> str | None:
    """Require a floating-point first tensor: ORT has no such kernel for integers."""
    dtype = value_of(node.args[0]).dtype
    return None if dtype.is_floating_point else f"of {dtype_name(dtype)}, only floating point here"


def real_division(node: fx.Node) -> str | None:
    """Require a positive constant as divisor of integers: ORT kills the process on an integer division by zero."""
    value = node.meta["val"]
    if value.dtype.is_floating_point:
        return None
    by = argument(node, "other")
    return None if isinstance(by, int) and by > 0 else "integer division by something other than a positive constant"


def exact_power(node: fx.Node) -> str | None:
    """Require exponent 1, 2 or 3 for integers, which multiplication computes: ORT computes other powers in double."""
    exponent = argument(node, "exponent")
    is_float = node.meta["val"].dtype.is_floating_point
    return None if is_float or exponent in (1, 2, 3) else f"integers to the power {exponent}, 1 to 3 here"


def leading_indices(node: fx.Node) -> str | None:
    """Require indices for the leading dims, without gaps."""
    return "a dim without index before one with" if any(index is None for index in argument(node, "indices")) else None


def adds_along_one_dim(node: fx.Node) -> str | None:
    """Require a vector as the only index of values to add: no kernel adds to several dims without losing some."""
    given = argument(node, "indices")
    is_vector = len(given) == 1 and value_of(given[0]).dim() == 1
    return None if is_vector or not argument(node, "accumulate") else "values to add, only at one vector of positions here"


def known_factors(node: fx.Node) -> str | None:
    """Require scale factors, if given, to be numbers known at compile time."""
    names = [declared.name for declared in declared_arguments(node)]
    return plain(*(name for name in names if name.startswith("scale")))(node)


def short_end(node: fx.Node) -> str | None:
    """Require a transposed convolution's output padding to be less than its stride, or no more than its padding."""
    if "transposed" in {declared.name for declared in declared_arguments(node)} and not argument(node, "transposed"):
        return None
    lengths = (elements(argument(node, name)) for name in ("output_padding", "stride", "padding"))
    count = len(value_of(argument(node, "weight")).shape) - 2
    for added, stride, padding in zip(*(each * count if len(each) == 1 else each for each in lengths), strict=True):
        if added >= stride and added > padding:
            return f"output_padding {added} with stride {stride} and padding {padding}, below one of both here"
    return None


def weights_only(node: fx.Node) -> str | None:
    """Require a recurrent layer with ordinary weights of known size: no projections, no dropout, a batch dim."""
    each = 4 if argument(node, "has_biases") else 2
    expected = argument(node, "num_layers") * each * (2 if argument(node, "bidirectional") else 1)
    found = len(argument(node, "params"))
    if any(is_symbolic(size) for weight in argument(node, "params") for size in value_of(weight).shape):
        return "weights of symbolic sizes"
    if found != expected:
        return f"{found} weight tensors, {expected} without projections"
    is_dropping = argument(node, "train") and argument(node, "dropout") and argument(node, "num_layers") > 1
    return "dropout between layers" if is_dropping else None


def group_matches(node: fx.Node) -> str | None:
    """Require attention over equally many dims with a known head size; grouped heads must be known and divide."""
    query, key = (value_of(argument(node, name)).shape for name in ("query", "key"))
    if len(query) != len(key):
        return f"query of {len(query)} dims with key of {len(key)}"
    if is_symbolic(query[-1]):
        return "symbolic head size"
    return heads_match(node)


def gives_numbers(node: fx.Node) -> str | None:
    """Require a result that is not boolean: ORT adds and multiplies only numbers."""
    return "a boolean result, only numbers here" if dtype_name(node.meta["val"].dtype) == "bool" else None


def scannable(node: fx.Node) -> str | None:
    """Require static, non-empty dims, at least one: ORT kills the process on a Scan over no elements."""
    shape = value_of(node.args[0]).shape
    if any(map(is_symbolic, shape)):
        return f"symbolic dims {list(shape)}, of which one may be empty"
    return None if shape and all(shape) else f"shape {list(shape)}: no dims, or no elements"


def pads_outwards(node: fx.Node) -> str | None:
    """Require non-negative padding by elements of the tensor: ORT fails if none are left to copy."""
    is_cut = any(isinstance(amount, int) and amount < 0 for amount in argument(node, "padding"))
    return "negative padding" if is_cut else None


def negative_pad_is_constant(node: fx.Node) -> str | None:
    """Require non-negative padding in all modes but "constant"."""
    mode = argument(node, "mode")
    amounts = argument(node, "pad")
    if mode != "constant" and any(isinstance(amount, int) and amount < 0 for amount in amounts):
        return f"mode {mode} with negative padding"
    return None if mode in ("constant", "reflect", "replicate", "circular") else f"mode {mode}"


usual_norm = one_of("ord", 1, 2, float("inf"))


def several_normalised(node: fx.Node) -> str | None:
    """Require more than one normalised element: ORT 1.23 refuses a single one."""
    sizes = value_of(argument(node, "input")).shape[-len(argument(node, "normalized_shape")) :]
    is_single = all(not is_symbolic(size) and size == 1 for size in sizes)
    return "normalises a single element" if is_single else None
