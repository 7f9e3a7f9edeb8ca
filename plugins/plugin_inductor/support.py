"""The operators that Inductor supports: functional operators on dense tensors, except for a table of refusals with
reasons."""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hub.plugin import (
    ACCEPTED,
    Condition,
    Support,
    argument,
    attribute,
    declared_arguments,
    dtype_name,
    is_symbolic,
    operator_name,
    refused,
    tensors_of,
    value_of,
)

if TYPE_CHECKING:
    from torch import fx

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)

MIN_CAPABILITY = 7
"""Least major compute capability of a CUDA GPU: `torch.utils._triton.has_triton`."""

DECOMPOSED = ("aten", "prims")
"""Namespaces that Inductor can compile. The compiled program calls an operator of any other namespace unchanged."""

COMMUNICATING = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor", "symm_mem")
"""Namespaces of operators that communicate with other processes: they must not run unless the others run them, too."""


def _floats(reason: str) -> Condition:
    """Require that no tensor that the node reads or writes is floating-point."""

    def condition(node: fx.Node) -> str | None:
        return reason if any(tensor.dtype.is_floating_point for tensor in tensors_of(node)) else None

    return condition


def _floors(node: fx.Node) -> str | None:
    return _ROUNDS_FIRST(node) if argument(node, "rounding_mode") == "floor" else None


def _input_not(dtype: str, reason: str) -> Condition:
    def condition(node: fx.Node) -> str | None:
        return reason if dtype_name(value_of(argument(node, "input")).dtype) == dtype else None

    return condition


_OF_WINDOWS = ("kernel_size", "stride", "padding", "dilation")


def _each_dim(count: int) -> Condition:
    """Require one window size per dim: with one for all dims, Inductor's lowering of gradients fails (AssertionError)."""

    def condition(node: fx.Node) -> str | None:
        names = [each.name for each in declared_arguments(node) if each.name in _OF_WINDOWS]
        given = ((name, argument(node, name)) for name in names)
        short = next((name for name, value in given if isinstance(value, Sequence) and 0 < len(value) < count), None)
        return None if short is None else f"{short} has one number for all dims, only one for each here"

    return condition


def _image_of_one_size(node: fx.Node) -> str | None:
    """Refuse the gradient of an image of symbolic sizes: Inductor asks for the strides of its memory as plain numbers."""
    is_asked, *_ = argument(node, "output_mask")
    sizes = value_of(argument(node, "input")).shape[2:]
    return (
        "the image's size varies, and Inductor compiles its gradient for one"
        if is_asked and any(map(is_symbolic, sizes))
        else None
    )


_ROUNDS_FIRST = _floats(
    "in floating point Inductor rounds the quotient before it takes the floor: 6.0 // 0.1 gives 60, not 59"
)
_REMAINDER = _floats("in floating point Inductor rounds the quotient first: 1e8 % 0.3 gives 0, and 3 % inf gives NaN")
_FIXED = attribute("training", lambda training: not training, "only False: it writes to its running statistics")
_UNSCALED = attribute("alpha", lambda alpha: alpha == 1, "only 1")

CONDITIONS: Mapping[str, Condition] = {
    # Inductor's decompositions accept no positional alpha: TypeError at compile time.
    "aten.add.Scalar": _UNSCALED,
    "aten.sub.Scalar": _UNSCALED,
    # GuardOnDataDependentSymNode in the decomposition, which checks the largest index as if it were a size.
    "aten.take.default": lambda _: "Inductor's decomposition asks for the largest index while compiling",
    "aten.avg_pool2d_backward.default": _each_dim(2),
    "aten.avg_pool3d_backward.default": _each_dim(3),
    "aten.max_pool2d_with_indices_backward.default": _each_dim(2),
    "aten.convolution_backward.default": _image_of_one_size,
    # SIGSEGV, or "index out of bounds": positions are clamped to the image before they are integers, and NaN passes the
    # clamp.
    **dict.fromkeys(
        ("aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_2d_backward.default"),
        lambda _: "Inductor reads outside the image where the grid holds NaN or huge numbers",
    ),
    # Several in one program crash the process: "invalid fastbin entry", "munmap_chunk(): invalid pointer".
    "aten._segment_reduce_backward.default": lambda _: "memory is overwritten where Inductor's programs call it",
    **dict.fromkeys(
        (
            *("aten.multi_margin_loss.default", "aten.multilabel_margin_loss_forward.default"),
            *("aten.max_unpool2d.default", "aten.max_unpool3d.default", "aten.masked_scatter.default"),
        ),
        lambda _: "an index out of range, or too few values, would end the process in Inductor's loops",
    ),
    "aten.linear.default": _input_not("bool", "Inductor's pattern matcher asks booleans for gradients"),
    **dict.fromkeys(
        ("aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default"),
        _input_not("uint8", "of bytes Inductor's results are up to 1 off eager's"),
    ),
    # Their schemas do not declare that they write.
    "aten.batch_norm.default": _FIXED,
    "aten.native_batch_norm.default": _FIXED,
    "aten.floor_divide.default": _ROUNDS_FIRST,
    "aten.floor_divide.Scalar": _ROUNDS_FIRST,
    "aten.div.Tensor_mode": _floors,
    "aten.div.Scalar_mode": _floors,
    "aten.remainder.Tensor": _REMAINDER,
    "aten.remainder.Scalar": _REMAINDER,
    "aten.remainder.Scalar_Tensor": _REMAINDER,
}
"""Conditions for operators that Inductor otherwise compiles wrongly or not at all (found with torch 2.13 by comparing
samples of every operator with eager)."""


_IN_ORDER = """
topk.default sort.default sort.stable argsort.default argsort.stable kthvalue.default median.dim nanmedian.dim mode.default
cummax.default cummin.default max_pool2d_with_indices.default max_pool3d_with_indices.default adaptive_max_pool2d.default
"""
IN_ORDER = frozenset(f"aten.{name}" for name in _IN_ORDER.split())
"""Operators whose order of equal elements PyTorch leaves open, but for which Inductor's CPU programs call eager's kernel or
choose the same position: tested with ties. On GPUs Inductor sorts with its own programs."""


def keeps_order(node: fx.Node) -> bool:
    """Return whether equal elements keep eager's order."""
    return operator_name(node) in IN_ORDER and all(tensor.device.type == "cpu" for tensor in tensors_of(node))


def supports(node: fx.Node) -> Support:
    """Return the verdict on one call_function node, from its operator and the fake values around it."""
    if node.target is operator.getitem:
        return ACCEPTED
    name = operator_name(node)
    if not hasattr(node.target, "_schema"):
        return refused(f"{name}: only operators with a schema here")
    condition = CONDITIONS.get(name, _always if _namespace(node) in DECOMPOSED else _custom_refusal)
    reason = (
        _device_refusal(node) or _dtype_refusal(node) or _layout_refusal(node) or _number_refusal(node) or condition(node)
    )
    return refused(f"{name}: {reason}") if reason else ACCEPTED


def _always(_: fx.Node) -> None:
    return None


def _namespace(node: fx.Node) -> str:
    return str(cast("Any", node.target).namespace)


def _custom_refusal(node: fx.Node) -> str | None:
    schema = cast("Any", node.target)._schema
    if _namespace(node) in COMMUNICATING:
        return "talks to other processes, only operators of one process here"
    if schema.is_mutable:
        return "writes to its arguments, only functional operators here"
    if any(result.alias_info is not None for result in schema.returns):
        return "gives views of its arguments, only functional operators here"
    return None


def _dtype_refusal(node: fx.Node) -> str | None:
    bad = sorted({dtype_name(tensor.dtype) for tensor in tensors_of(node)}.difference(DTYPES))
    return f"dtype {', '.join(bad)}, only {', '.join(DTYPES)} here" if bad else None


def _device_refusal(node: fx.Node) -> str | None:
    """Refuse GPUs without Triton or unsupported by it: Inductor compiles for GPUs through Triton, and raises otherwise."""
    for device in dict.fromkeys(tensor.device for tensor in tensors_of(node)):
        if device.type != "cpu" and importlib.util.find_spec("triton") is None:
            return f"on {device.type}, where Inductor needs Triton: install triton"
        if device.type == "cuda" and (capability := _capability(device)) and capability[0] < MIN_CAPABILITY:
            return f"on a GPU of capability {'.'.join(map(str, capability))}, at least {MIN_CAPABILITY}.0 for Triton"
    return None


def _capability(device: Any) -> tuple[int, int] | None:
    """Return a GPU's capability; None if this process has not initialised CUDA, which must not happen here."""
    import torch

    return torch.cuda.get_device_capability(device) if torch.cuda.is_initialized() else None


def _layout_refusal(node: fx.Node) -> str | None:
    bad = next(
        (tensor for tensor in tensors_of(node) if str(tensor.layout) != "torch.strided" or tensor.is_quantized), None
    )
    return None if bad is None else f"a {bad.layout} tensor, only dense ones here"


def _number_refusal(node: fx.Node) -> str | None:
    """Refuse numbers other than sizes that are known only at run time: Inductor reads only sizes from its inputs."""
    kinds = sorted({type(value).__name__ for value in _numbers(node)} & {"SymFloat", "SymBool"})
    return f"reads a {kinds[0]} known only at run time, only sizes here" if kinds else None


def _numbers(node: fx.Node) -> Iterator[Any]:
    return (value_of(source) for source in node.all_input_nodes)
