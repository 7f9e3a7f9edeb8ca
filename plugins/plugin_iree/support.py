"""The operators that IREE supports: tested rows of the core's table, with restrictions that tests showed. Imports no torch.

Found by the conformance suite with torch-mlir 20261001 and IREE 3.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hub.plugin import (
    Condition,
    OperatorTable,
    argument,
    attribute,
    declared_arguments,
    dtypes,
    elements,
    has_dims,
    is_symbolic,
    not_ceil,
    not_empty,
    on_cpu,
    one_of,
    only_output,
    plain,
    rank,
    tensors_of,
    unrollable_lstm,
    value_of,
)
from hub.toolkit.operators import NARROWER, ROWS

if TYPE_CHECKING:
    from torch import fx

_TRIED = dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
"""Tested dtypes. Bytes from 128 on count as negative in every other operator; int16 and int8 are untested."""

_FLOAT = dtypes("float32", "float64")
_WHOLE = dtypes("int64", "int32", "bool")
_NARROW = dtypes("float32", "float16", "bfloat16")
"""Dtypes other than float64, for which IREE links no function library."""


def _names(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


def no_integer_to_bfloat16(node: fx.Node) -> str | None:
    """Require no integers that become bfloat16: IREE links no function for that, which some processors need."""
    if any(declared.name in ("index", "indices") for declared in declared_arguments(node)):
        return None
    given = {str(value.dtype) for source in node.all_input_nodes for value in tensors_of(source)}
    if given.isdisjoint(("torch.int64", "torch.int32")):
        return None
    found = given | {str(value.dtype) for value in tensors_of(node)}
    return "integers that become bfloat16" if "torch.bfloat16" in found else None


def grown(node: fx.Node) -> str | None:
    """Require non-negative padding."""
    return "negative padding" if any(size < 0 for size in argument(node, "pad")) else None


def leaves_no_rest(node: fx.Node) -> str | None:
    """Require a window with one position along a dim to cover it all: IREE's compiler includes the rest in the window."""
    source, result = (elements(value)[0].shape[2:] for value in (value_of(argument(node, "self")), node.meta["val"]))
    return _rest(source, result, _repeated(node, "kernel_size", len(result)), node)


def filter_leaves_no_rest(node: fx.Node) -> str | None:
    """Require the same of a convolution."""
    source, weight = (value_of(argument(node, name)).shape[2:] for name in ("input", "weight"))
    return _rest(source, node.meta["val"].shape[2:], weight, node)


def _rest(source: Sequence[Any], result: Sequence[Any], window: Sequence[Any], node: fx.Node) -> str | None:
    padding, dilation = (_repeated(node, name, len(result)) for name in ("padding", "dilation"))
    for size, count, width, added, step in zip(source, result, window, padding, dilation, strict=True):
        whole, covered = size + 2 * added, step * (width - 1) + 1
        if not is_symbolic(whole) and count == 1 and whole != covered:
            return f"one window over {covered} of {whole}"
    return None


def _repeated(node: fx.Node, name: str, count: int) -> Sequence[Any]:
    """Return an attribute for each dim; the default that keeps sizes if there is none, or if padding is a string."""
    if not any(each.name == name for each in declared_arguments(node)) or isinstance(argument(node, name), str):
        return (1 if name == "dilation" else 0,) * count
    given = elements(argument(node, name))
    return given if len(given) == count else given * count


_WINDOWS = _names("max_pool2d.default max_pool2d_with_indices.default avg_pool1d.default avg_pool2d.default")
_FILTERS = _names("conv1d.default conv2d.default conv1d.padding conv2d.padding convolution.default")
_ALONG = _names(
    "cumsum.default linalg_vector_norm.default "
    "mean.dim amax.default amin.default any.dim all.dim var.correction std.correction var_mean.correction logsumexp.default"
)
_TAKEN = _names(
    "exp.default log.default sqrt.default tanh.default erf.default rsqrt.default sigmoid.default abs.default "
    "neg.default relu.default logical_not.default bitwise_not.default silu.default gelu.default hardsigmoid.default "
    "hardswish.default relu6.default hardtanh.default elu.default leaky_relu.default softplus.default add.Tensor "
    "add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar pow.Tensor_Scalar "
    "maximum.default minimum.default clamp.default clamp_min.default eq.Tensor eq.Scalar ne.Scalar ge.Tensor "
    "ge.Scalar gt.Tensor gt.Scalar le.Tensor le.Scalar lt.Tensor lt.Scalar logical_and.default bitwise_and.Tensor "
    "bitwise_or.Tensor __and__.Tensor __or__.Tensor where.self masked_fill.Scalar _to_copy.default to.dtype "
    "type_as.default clone.default alias.default contiguous.default detach.default zeros.default zeros_like.default "
    "ones.default ones_like.default new_ones.default full.default full_like.default scalar_tensor.default "
    "arange.default view.default reshape.default _unsafe_view.default view_as.default squeeze.default "
    "unsqueeze.default flatten.using_ints squeeze.dim permute.default t.default expand.default transpose.int "
    "slice.Tensor select.int cat.default stack.default split.Tensor split_with_sizes.default chunk.default unbind.int "
    "tril.default triu.default roll.default repeat.default constant_pad_nd.default pad.default diff.default "
    "sum.default sum.dim_IntList mean.default mean.dim amax.default max.dim argmax.default any.dim all.dim "
    "softmax.int _softmax.default log_softmax.int cumsum.default layer_norm.default native_layer_norm.default "
    "batch_norm.default _native_batch_norm_legit_no_training.default group_norm.default native_group_norm.default "
    "linear.default addmm.default baddbmm.default matmul.default mm.default bmm.default "
    "scaled_dot_product_attention.default conv1d.default conv2d.default convolution.default max_pool2d.default "
    "max_pool2d_with_indices.default avg_pool2d.default adaptive_avg_pool2d.default embedding.default "
    "index_select.default gather.default index.Tensor "
    "select_scatter.default expm1.default exp2.default log1p.default sinh.default cosh.default acosh.default "
    "atanh.default reciprocal.default floor.default ceil.default trunc.default fix.default round.default sign.default "
    "sgn.default positive.default frac.default deg2rad.default rad2deg.default isnan.default isinf.default "
    "nan_to_num.default log_sigmoid.default selu.default celu.default threshold.default hardshrink.default "
    "log_sigmoid_forward.default prelu.default _prelu_kernel.default glu.default rsub.Tensor log2.default "
    "asin.default acos.default mish.default square.default "
    "where.ScalarOther where.ScalarSelf masked_fill.Tensor ne.Tensor clamp_min.Tensor clamp_max.Tensor "
    "max.other min.other squeeze.dims amin.default min.dim argmin.default _log_softmax.default var.correction "
    "std.correction var_mean.correction rms_norm.default mv.default dot.default outer.default conv1d.padding "
    "conv2d.padding avg_pool1d.default adaptive_avg_pool1d.default movedim.int flip.default narrow.default "
    "unflatten.int expand_as.default mT.default prod.default logsumexp.default linalg_vector_norm.default "
    "upsample_nearest2d.vec pixel_shuffle.default bitwise_xor.Tensor __xor__.Tensor bitwise_and.Scalar "
    "bitwise_or.Scalar "
)
"""Operators tested with every sample call of the conformance suite. A new row of the core needs that test first."""


DECLINED: Mapping[str, str] = {
    **dict.fromkeys(_names("sin.default cos.default tan.default"), "IREE gives infinities for huge numbers"),
    "aten.atan.default": "IREE is 25 roundings off",
    "aten.log10.default": "IREE links no function for it",
    "aten.erfc.default": "torch-mlir has no rule for it",
    **dict.fromkeys(
        _names("scatter.src scatter_add.default index_put.default"), "IREE writes to the tensor that it is given"
    ),
    "aten.slice_scatter.default": "torch-mlir runs out of memory over an end beyond the size",
}
"""Operators of the core's table that are refused, with the reason."""

FURTHER: Mapping[str, tuple[Condition, ...]] = {
    **NARROWER,
    # IREE's compiler does not terminate for a tensor without dims.
    **dict.fromkeys(
        _names("softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default"), (has_dims,)
    ),
    # erf is not legalised; for the others IREE's linker reports an undefined symbol.
    **dict.fromkeys(
        _names("gelu.default erf.default tanh.default log2.default asin.default acos.default mish.default"), (_NARROW,)
    ),
    # torch-mlir cannot square integers.
    "aten.square.default": (dtypes("float32", "float64", "float16", "bfloat16"),),
    # NaN is ignored among floats.
    **dict.fromkeys(_names("max.dim min.dim argmax.default argmin.default"), (_WHOLE,)),
    # The smallest floats (denormals) count as zero.
    **dict.fromkeys(_names("logical_not.default logical_and.default logical_or.default logical_xor.default"), (_WHOLE,)),
    # A vector on the left leaves an operator without a rule.
    "aten.matmul.default": (rank("self", 2, 9),),
    # torch-mlir supports no other calls of these.
    "aten.linear.default": (rank("input", 2, 9),),
    "aten.adaptive_avg_pool2d.default": (*NARROWER["aten.adaptive_avg_pool2d.default"], rank("self", 4, 4)),
    "aten.max_pool2d.default": (_FLOAT, not_ceil, rank("self", 4, 4)),
    "aten.max_pool2d_with_indices.default": (
        dtypes("float32", "float64", "int64"),
        not_ceil,
        rank("self", 4, 4),
        only_output(0),
    ),
    # int32 indices leave a comparison of two widths.
    "aten.index.Tensor": (dtypes("float32", "float64", "float16", "bfloat16", "int64", "bool"),),
    "aten.roll.default": (attribute("dims", bool, "some"),),
    # torch-mlir cannot raise integers to powers.
    "aten.pow.Tensor_Scalar": (_NARROW,),
    # A negative one reads memory outside the tensor.
    **dict.fromkeys(_names("pad.default constant_pad_nd.default"), (plain("pad"), grown)),
}
"""Conditions in addition to those of the core's table."""

OWN: Mapping[str, tuple[Condition, ...]] = {
    "aten.lstm.input": (dtypes("float32"), one_of("train", False), unrollable_lstm),
}
"""Operators in addition to the core's table."""


def _conditions(name: str) -> tuple[Condition, ...]:
    found = (*ROWS[name], *FURTHER.get(name, ()))
    if name in _ALONG:  # torch-mlir leaves operators without a rule, or crashes IREE's compiler
        return (*found, has_dims)
    if name in _WINDOWS:
        return (*found, leaves_no_rest)
    return (*found, filter_leaves_no_rest) if name in _FILTERS else found


OPERATORS = OperatorTable(
    {**{name: _conditions(name) for name in _TAKEN}, **OWN},
    everywhere=(_TRIED, on_cpu, not_empty, no_integer_to_bfloat16),
    declined=DECLINED,
)
