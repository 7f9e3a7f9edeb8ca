"""Lowers reductions, scans, softmax, sorting."""

from __future__ import annotations

from collections.abc import Callable

import torch
from onnx import helper

from hub.support import value_of

from .builder import ELEMENT
from .call import Call, lowers
from .create import filled


def _axes(call: Call) -> str:
    names = {declared.name for declared in call.node.target._schema.arguments}  # pyright: ignore
    return call.ints(*(call.dims("dim") if "dim" in names else range(call.rank("self"))))


def _keep(call: Call) -> int:
    names = {declared.name for declared in call.node.target._schema.arguments}  # pyright: ignore
    return int("keepdim" in names and call["keepdim"])


def reduce(call: Call, kind: str, value: str, keep: int | None = None) -> str:
    """Reduces `value` over the call's dims; a 0-d value is its own sum, product and extreme."""
    if call.rank("self") == 0:
        return value
    return call.op(kind, value, _axes(call), keepdims=_keep(call) if keep is None else keep)


def _reducing(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        return reduce(call, kind, call.typed("self"))

    return rule


for _name, _kind in {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}.items():
    lowers(f"{_name}.default", f"{_name}.{'dim_int' if _name == 'prod' else 'dim_IntList' if _name == 'sum' else 'dim'}")(
        _reducing(_kind)
    )


def _extreme(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        value = call.typed("self")
        result = reduce(call, kind, value)
        return with_nan(call, result, value, lambda flags: reduce(call, "ReduceMax", flags))

    return rule


def with_nan(call: Call, result: str, value: str, gather: Callable[[str], str]) -> str:
    """`result`, or NaN where `value` holds one: ORT's extremes skip NaN, PyTorch's give it."""
    if not call.out_dtype.is_floating_point:
        return result
    return call.op("Where", gather(call.op("IsNaN", value)), call.constant(float("nan")), result)


for _name, _kind in {"amax": "ReduceMax", "amin": "ReduceMin"}.items():
    lowers(f"{_name}.default", f"{_name[1:]}.default")(_extreme(_kind))


def _boolean(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        if any(isinstance(size, int) and size == 0 for size in call.shape("self")):
            return filled(call, kind == "ReduceMin")  # ORT knows no extreme of nothing
        return reduce(call, kind, call.typed("self", torch.bool))

    return rule


for _name, _kind in {"any": "ReduceMax", "all": "ReduceMin"}.items():
    lowers(f"{_name}.default", f"{_name}.dim", f"{_name}.dims")(_boolean(_kind))


@lowers("logsumexp.default")
def logsumexp(call: Call) -> str:
    """Largest element plus the logarithm of the sum of exponents of differences, which cannot overflow."""
    value = call.typed("self")
    peak = reduce(call, "ReduceMax", value, keep=1)
    endless = call.op("IsInf", peak)
    peak = call.op("Where", endless, call.constant(0.0), peak)
    total = call.op(
        "Add", call.op("Log", reduce(call, "ReduceSum", call.op("Exp", call.op("Sub", value, peak)), keep=1)), peak
    )
    return total if _keep(call) or call.rank("self") == 0 else call.squeeze(total, *call.dims("dim"))


def _moments(call: Call, correction: float) -> tuple[str, str]:
    """Mean, and variance with n - correction in the divisor, by differences from the mean (two passes, exact)."""
    value = call.input("self")
    mean = reduce(call, "ReduceMean", value, keep=1)
    away = call.op("Sub", value, mean)
    squares = call.op("Mul", away, away)
    if correction == 0:
        return mean, reduce(call, "ReduceMean", squares, keep=_keep(call))
    dims = call.dims("dim") if _has_dim(call) else list(range(call.rank("self")))
    count = 1
    for dim in dims:
        count = count * call.shape("self")[dim]
    freedom = call.builder.cast(call.builder.scalar_size(count), torch.int64, call.out_dtype)
    divisor = call.op("Max", call.op("Sub", freedom, call.constant(float(correction))), call.constant(0.0))
    return mean, call.op("Div", reduce(call, "ReduceSum", squares, keep=_keep(call)), divisor)


def _has_dim(call: Call) -> bool:
    return any(declared.name == "dim" for declared in call.node.target._schema.arguments)  # pyright: ignore


def _correction(call: Call) -> float:
    names = {declared.name for declared in call.node.target._schema.arguments}  # pyright: ignore
    if "unbiased" in names:
        return float(call["unbiased"])
    return 1.0 if call["correction"] is None else float(call["correction"])


@lowers("var.default", "var.dim", "var.correction")
def variance(call: Call) -> str:
    """Variance over dims."""
    return _moments(call, _correction(call))[1]


@lowers("std.default", "std.dim", "std.correction")
def deviation(call: Call) -> str:
    """Standard deviation over dims."""
    return call.op("Sqrt", _moments(call, _correction(call))[1])


@lowers("var_mean.correction")
def variance_and_mean(call: Call) -> tuple[str, str]:
    """Variance and mean over dims."""
    mean, found = _moments(call, _correction(call))
    return found, mean if _keep(call) else call.squeeze(mean, *call.dims("dim"))


@lowers("linalg_vector_norm.default")
def vector_norm(call: Call) -> str:
    """Norm of order 1, 2 or infinity over dims."""
    value, order = call.typed("self"), float(call["ord"])
    if order == 2.0:
        return call.op("Sqrt", reduce(call, "ReduceSum", call.op("Mul", value, value)))
    return reduce(call, "ReduceSum" if order == 1.0 else "ReduceMax", call.op("Abs", value))


# --- Positions and order ----------------------------------------------------------------------------------------------


def _position(kind: str) -> Callable[[Call], str]:
    def rule(call: Call) -> str:
        value = call.input("self")
        if call["dim"] is None:
            flat = call.op("Reshape", value, call.ints(-1))
            return call.reshape(_first(call, kind, flat, 0, 0), (), call.out_shape)
        return _first(call, kind, value, call.dim("dim"), int(call["keepdim"]))

    return rule


def _first(call: Call, kind: str, value: str, axis: int, keep: int) -> str:
    """Position of the extreme, or of the first NaN where there is one."""
    found = call.op(kind, value, axis=axis, keepdims=keep)
    if not call.dtype("self").is_floating_point:
        return found
    flags = call.builder.cast(call.op("IsNaN", value), torch.bool, torch.int32)
    place = call.op("ArgMax", flags, axis=axis, keepdims=keep)
    is_any = call.builder.cast(call.op("ReduceMax", flags, call.ints(axis), keepdims=keep), torch.int32, torch.bool)
    return call.op("Where", is_any, place, found)


lowers("argmax.default")(_position("ArgMax"))
lowers("argmin.default")(_position("ArgMin"))


@lowers("max.dim", "min.dim")
def extreme_with_position(call: Call) -> tuple[str, str]:
    """Extreme and its position along one dim."""
    word = "Max" if ".max." in str(call.node.target) else "Min"
    value, axis, keep = call.input("self"), call.dim("dim"), int(call["keepdim"])
    extreme = call.op(f"Reduce{word}", value, call.ints(axis), keepdims=keep)
    extreme = with_nan(call, extreme, value, lambda flags: call.op("ReduceMax", flags, call.ints(axis), keepdims=keep))
    return extreme, _first(call, f"Arg{word}", value, axis, keep)


@lowers("topk.default")
def topk(call: Call) -> tuple[str, ...]:
    """The k largest or smallest elements of one dim, in order, and their positions."""
    count = call.builder.size(call.size(call["k"]))
    return call.ops(
        "TopK", call.input("self"), count, n_outputs=2, axis=call.dim("dim"), largest=int(call["largest"]), sorted=1
    )


@lowers("sort.default", "sort.stable")
def sort(call: Call) -> tuple[str, ...]:
    """One dim in order, and the positions; equal elements keep their order."""
    return _sorted(call)


@lowers("argsort.default", "argsort.stable")
def argsort(call: Call) -> str:
    """Positions that put one dim in order."""
    return _sorted(call)[1]


def _sorted(call: Call) -> tuple[str, ...]:
    axis = call.dim("dim")
    count = call.builder.size(call.shape("self")[axis])
    return call.ops("TopK", call.input("self"), count, n_outputs=2, axis=axis, largest=int(call["descending"]), sorted=1)


# --- Scans and softmax ------------------------------------------------------------------------------------------------


@lowers("cumsum.default")
def cumsum(call: Call) -> str:
    """Running sum along one dim."""
    value = call.typed("self")
    return value if call.rank("self") == 0 else call.op("CumSum", value, call.constant(call.dim("dim"), torch.int64))


@lowers("cumprod.default")
def cumprod(call: Call) -> str:
    """Running product along one dim: ONNX has no operator, so a Scan carries the product."""
    value, axis = call.typed("self"), call.dim("dim")
    shape = [size for dim, size in enumerate(call.shape("self")) if dim != axis]
    start = call.op("Expand", call.constant(1), call.builder.sizes(shape)) if shape else call.constant(1)
    element = ELEMENT[call.out_dtype]
    infos = {name: helper.make_tensor_value_info(name, element, None) for name in ("so_far", "next", "product", "emitted")}
    body = helper.make_graph(
        [helper.make_node("Mul", ["so_far", "next"], ["product"]), helper.make_node("Identity", ["product"], ["emitted"])],
        "cumprod", [infos["so_far"], infos["next"]], [infos["product"], infos["emitted"]],
    )  # fmt: skip
    scan = call.ops(
        "Scan", start, value, n_outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[axis]
    )
    return scan[1]


@lowers("softmax.int", "_softmax.default")
def softmax(call: Call) -> str:
    """Exponents of one dim, divided by their sum."""
    return call.op("Softmax", call.typed("self"), axis=call.dim("dim"))


@lowers("log_softmax.int", "_log_softmax.default")
def log_softmax(call: Call) -> str:
    """Logarithm of softmax, computed so that it cannot overflow."""
    return call.op("LogSoftmax", call.typed("self"), axis=call.dim("dim"))


@lowers("_safe_softmax.default")
def safe_softmax(call: Call) -> str:
    """Softmax that gives 0 where the whole dim is minus infinity."""
    value = call.typed("self")
    highest = call.op("ReduceMax", value, call.ints(call.dim("dim")), keepdims=1)
    empty = call.op("Equal", highest, call.constant(float("-inf")))
    return call.op("Where", empty, call.constant(0.0), call.op("Softmax", value, axis=call.dim("dim")))


@lowers("count_nonzero.default")
def count_nonzero(call: Call) -> str:
    """How many elements are not zero."""
    flags = call.builder.cast(call.typed("self", torch.bool), torch.bool, torch.int64)
    axes = range(value_of(call["self"]).dim()) if call["dim"] is None else (call.dim("dim"),)
    return flags if call.rank("self") == 0 else call.op("ReduceSum", flags, call.ints(*axes), keepdims=0)
