"""The operators that XLA supports: tested rows of the core's table, with restrictions that tests showed. Imports no torch.

Found by the conformance suite with torch-mlir 20261001 and jaxlib 0.10.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp
from typing import TYPE_CHECKING, Any

from hub.plugin import (
    Condition,
    OperatorTable,
    argument,
    attribute,
    declared_arguments,
    dtype_name,
    dtypes,
    has_dims,
    not_ceil,
    not_empty,
    on_cpu,
    one_of,
    only_output,
    rank,
    tensors_of,
    unrollable_lstm,
    value_of,
)
from hub.toolkit.operators import NARROWER, ROWS

if TYPE_CHECKING:
    from torch import fx

_TRIED = dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
"""Tested dtypes; int16 and int8 are untested."""
_NOT_BYTES = dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
_FLOAT = dtypes("float32", "float64")
_WHOLE = dtypes("int64", "int32", "uint8", "bool")


def whole_bounds(node: fx.Node) -> str | None:
    """Require integer bounds for clamping integers."""
    bounds = [argument(node, each.name) for each in declared_arguments(node) if each.name in ("min", "max")]
    is_float = next(tensors_of(node)).dtype.is_floating_point
    return None if is_float or not any(isinstance(bound, float) for bound in bounds) else "integers between floats"


def of_numbers(node: fx.Node) -> str | None:
    """Require numbers: torch-mlir makes no StableHLO of booleans that are compared with infinity."""
    return "booleans" if dtype_name(value_of(argument(node, "self")).dtype) == "bool" else None


def moves(node: fx.Node) -> str | None:
    """Require a roll that moves elements: for a full turn, torch-mlir concatenates the whole tensor with itself."""
    sizes = value_of(argument(node, "self")).shape
    for shift, dim in zip(argument(node, "shifts"), argument(node, "dims"), strict=True):
        if isinstance(shift, int) and isinstance(sizes[dim], int) and shift % sizes[dim] == 0:
            return f"a roll by {shift} of {sizes[dim]}, which moves nothing"
    return None


def on_gpu(node: fx.Node) -> str | None:
    """Require every tensor to be on an NVIDIA GPU."""
    bad = next((tensor.device for tensor in tensors_of(node) if tensor.device.type != "cuda"), None)
    return None if bad is None else f"device {bad}, only cuda here"


def exact_quotient(node: fx.Node) -> str | None:
    """Require quotients to be exact where they are cut off: XLA multiplies by the reciprocal of a known number."""
    by, is_float = argument(node, "other"), node.meta["val"].dtype.is_floating_point
    is_known = is_float and argument(node, "rounding_mode") == "trunc" and isinstance(by, (int, float))
    return f"quotients by {by} that are cut off" if is_known and abs(frexp(by)[0]) != 0.5 else None


def _all_one(sizes: Any) -> bool:
    return all(size == 1 for size in sizes)


def _names(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


_UNKNOWN = _names(
    "cumprod.default diagonal.default erfc.default hypot.default copysign.Tensor unfold.default scatter.reduce "
    "scatter.value_reduce scatter_reduce.two"
)
_EXTREMES = _names("abs.default amax.default amin.default max.default min.default")
_PLACES = _names("argmax.default argmin.default max.dim min.dim")
_TRUTH = _names("any.default all.default")
_CONSTANTS = _names(
    "zeros.default zeros_like.default new_zeros.default ones.default ones_like.default new_ones.default full.default "
    "full_like.default new_full.default fill.Scalar scalar_tensor.default"
)
_QUOTIENTS = _names("div.Tensor true_divide.Tensor")
_LOGICAL = _names("logical_not.default logical_and.default logical_or.default logical_xor.default")
_RIGHT = _names(
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor __rshift__.Tensor "
    "__rshift__.Scalar"
)
_ALONG = _names(
    "sum.dim_IntList prod.dim_int mean.dim amax.default amin.default any.dim any.dims all.dim all.dims "
    "count_nonzero.dim_IntList var.default var.dim var.correction std.default std.dim std.correction "
    "var_mean.correction std_mean.correction logsumexp.default linalg_vector_norm.default scatter.src scatter.value "
    "scatter_add.default"
)
_SOFTMAX = _names("softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default")

_TAKEN = _names(
    "exp.default expm1.default exp2.default log.default log2.default log10.default log1p.default sqrt.default "
    "sin.default cos.default tan.default asin.default acos.default atan.default sinh.default cosh.default tanh.default "
    "acosh.default atanh.default erf.default rsqrt.default reciprocal.default sigmoid.default floor.default "
    "ceil.default trunc.default fix.default round.default abs.default neg.default sign.default sgn.default "
    "square.default positive.default relu.default frac.default deg2rad.default rad2deg.default isnan.default "
    "isinf.default isfinite.default logical_not.default bitwise_not.default nan_to_num.default silu.default "
    "mish.default log_sigmoid.default gelu.default hardsigmoid.default hardswish.default relu6.default "
    "hardtanh.default selu.default elu.default celu.default leaky_relu.default softplus.default threshold.default "
    "hardshrink.default log_sigmoid_forward.default prelu.default _prelu_kernel.default glu.default add.Tensor "
    "add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar "
    "true_divide.Tensor div.Tensor_mode div.Scalar_mode floor_divide.default floor_divide.Scalar remainder.Tensor "
    "remainder.Scalar fmod.Tensor fmod.Scalar pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar atan2.default "
    "logaddexp.default xlogy.Tensor maximum.default minimum.default max.other min.other fmax.default fmin.default "
    "clamp.default clamp.Tensor clamp_min.default clamp_max.default clamp_min.Tensor clamp_max.Tensor addcmul.default "
    "addcdiv.default lerp.Scalar lerp.Tensor eq.Tensor eq.Scalar ne.Tensor ne.Scalar ge.Tensor ge.Scalar gt.Tensor "
    "gt.Scalar le.Tensor le.Scalar lt.Tensor lt.Scalar logical_and.default logical_or.default logical_xor.default "
    "bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar "
    "__and__.Tensor __and__.Scalar __or__.Tensor __or__.Scalar __xor__.Tensor __xor__.Scalar bitwise_left_shift.Tensor "
    "bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor "
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar __lshift__.Tensor __lshift__.Scalar "
    "__rshift__.Tensor __rshift__.Scalar where.self where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Scalar "
    "masked_fill.Tensor _to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default clone.default "
    "alias.default contiguous.default detach.default lift_fresh_copy.default zeros.default zeros_like.default "
    "new_zeros.default ones.default ones_like.default new_ones.default full.default full_like.default new_full.default "
    "fill.Scalar fill.Tensor scalar_tensor.default arange.default arange.start arange.start_step eye.default eye.m "
    "one_hot.default view.default reshape.default _unsafe_view.default view_as.default reshape_as.default "
    "ravel.default squeeze.default unsqueeze.default flatten.using_ints unflatten.int squeeze.dim squeeze.dims "
    "permute.default t.default mT.default numpy_T.default swapaxes.default expand.default expand_as.default "
    "broadcast_to.default transpose.int movedim.int movedim.intlist slice.Tensor narrow.default select.int cat.default "
    "concat.default stack.default split.Tensor split_with_sizes.default split.sizes chunk.default "
    "tensor_split.sections unsafe_split.Tensor unbind.int flip.default tril.default triu.default roll.default "
    "repeat.default tile.default repeat_interleave.self_int constant_pad_nd.default pad.default diff.default "
    "pixel_shuffle.default pixel_unshuffle.default sum.default sum.dim_IntList prod.default prod.dim_int mean.default "
    "mean.dim amax.default amin.default max.default min.default max.dim min.dim argmax.default argmin.default "
    "any.default any.dim any.dims all.default all.dim all.dims count_nonzero.default count_nonzero.dim_IntList "
    "var.default var.dim var.correction std.default std.dim std.correction var_mean.correction std_mean.correction "
    "logsumexp.default linalg_vector_norm.default softmax.int _softmax.default log_softmax.int _log_softmax.default "
    "_safe_softmax.default cumsum.default layer_norm.default native_layer_norm.default rms_norm.default "
    "batch_norm.default _native_batch_norm_legit_no_training.default native_batch_norm.default group_norm.default "
    "native_group_norm.default mse_loss.default l1_loss.default linear.default addmm.default baddbmm.default "
    "addmv.default matmul.default mm.default bmm.default mv.default dot.default outer.default ger.default "
    "scaled_dot_product_attention.default _scaled_dot_product_flash_attention_for_cpu.default conv1d.default "
    "conv2d.default conv3d.default conv1d.padding conv2d.padding conv3d.padding convolution.default max_pool1d.default "
    "max_pool2d.default max_pool2d_with_indices.default max_pool3d.default avg_pool1d.default avg_pool2d.default "
    "avg_pool3d.default adaptive_avg_pool1d.default adaptive_avg_pool2d.default _adaptive_avg_pool2d.default "
    "adaptive_avg_pool3d.default upsample_nearest1d.vec upsample_nearest1d.default upsample_nearest2d.vec "
    "upsample_nearest2d.default upsample_nearest3d.vec embedding.default index_select.default gather.default "
    "scatter.src scatter.value scatter_add.default index_add.default index_copy.default index.Tensor "
    "_unsafe_index.Tensor index_put.default _unsafe_index_put.default index_fill.int_Scalar index_fill.int_Tensor "
    "select_scatter.default tanh_backward.default sigmoid_backward.default silu_backward.default "
    "threshold_backward.default gelu_backward.default leaky_relu_backward.default hardtanh_backward.default "
    "_softmax_backward_data.default _log_softmax_backward_data.default "
)
"""Operators tested with every sample call of the conformance suite. A new row of the core needs that test first."""

DECLINED: Mapping[str, str] = {
    **dict.fromkeys(_UNKNOWN, "torch-mlir makes no StableHLO of it"),
    "aten.slice_scatter.default": "torch-mlir runs out of memory over an end beyond the size",
}
"""Operators of the core's table that are refused, with the reason."""

FURTHER: Mapping[str, tuple[Condition, ...]] = {
    **NARROWER,
    # torch-mlir treats bytes from 128 on as negative.
    **dict.fromkeys(_EXTREMES, (_NOT_BYTES,)),
    **dict.fromkeys(_PLACES, (dtypes("float32", "float64", "int64", "int32", "bool"),)),
    # torch-mlir returns bytes other than 0 and 1 for bytes.
    **dict.fromkeys(_TRUTH, (_NOT_BYTES,)),
    # torch-mlir makes no StableHLO of constants that are bytes.
    **dict.fromkeys(_CONSTANTS, (_NOT_BYTES,)),
    # False / False is 0 instead of NaN if the divisor is constant.
    **dict.fromkeys(_QUOTIENTS, (dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"),)),
    **dict.fromkeys(_names("div.Tensor_mode div.Scalar_mode"), (exact_quotient,)),
    # XLA treats the smallest floats (denormals) as zero.
    **dict.fromkeys(_LOGICAL, (_WHOLE,)),
    # torch-mlir shifts sign bits in, even into uint8.
    **dict.fromkeys(_RIGHT, (dtypes("int64", "int32"),)),
    # torch-mlir crashes the process for a tensor without dims.
    **dict.fromkeys(_SOFTMAX, (has_dims,)),
    # torch-mlir makes no StableHLO of other calls.
    "aten.embedding.default": (one_of("scale_grad_by_freq", False), one_of("sparse", False)),
    "aten.linear.default": (rank("input", 2, 9),),
    "aten.adaptive_avg_pool3d.default": (
        _FLOAT,
        attribute("output_size", _all_one, "only 1s"),
    ),
    "aten.max_pool1d.default": (_FLOAT, not_ceil, rank("self", 3, 3)),
    "aten.max_pool2d.default": (_FLOAT, not_ceil, rank("self", 4, 4)),
    "aten.max_pool2d_with_indices.default": (dtypes("float32", "float64", "int64"), not_ceil, only_output(0)),
    "aten.max_pool3d.default": (_FLOAT, not_ceil, rank("self", 5, 5)),
    **dict.fromkeys(_names("clamp.default clamp_min.default clamp_max.default"), (whole_bounds,)),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (only_output(0),),
    # torch-mlir crashes the process on sums of bytes when it makes StableHLO.
    "aten.cumsum.default": (has_dims, _NOT_BYTES),
    "aten.isinf.default": (_NOT_BYTES, of_numbers),
    "aten.erf.default": (dtypes("float32", "float64", "float16", "bfloat16"),),
    "aten.matmul.default": (rank("self", 2, 9),),
    "aten.reciprocal.default": (dtypes("float32", "float64", "float16", "bfloat16"),),
    "aten.roll.default": (attribute("dims", bool, "some"), moves),
}
"""Conditions in addition to those of the core's table."""

OWN: Mapping[str, tuple[Condition, ...]] = {
    "aten.lstm.input": (dtypes("float32", "float64"), one_of("train", False), unrollable_lstm),
}
"""Operators in addition to the core's table."""


def _conditions(name: str) -> tuple[Condition, ...]:
    # torch-mlir crashes the process, or makes no StableHLO, for a tensor without dims.
    return (*ROWS[name], *FURTHER.get(name, ()), *((has_dims,) if name in _ALONG else ()))


def _table(place: Condition) -> OperatorTable:
    rows = {**{name: _conditions(name) for name in _TAKEN}, **OWN}
    return OperatorTable(rows, everywhere=(_TRIED, place, not_empty), declined=DECLINED)


OPERATORS = _table(on_cpu)
"""Table for tensors in the CPU's memory."""
ON_GPU = _table(on_gpu)
"""The same table for tensors on a GPU, untested on a GPU."""
