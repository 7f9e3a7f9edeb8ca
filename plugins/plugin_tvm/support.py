"""The operators that TVM supports: those that the core decomposes into loops, each tested. Imports neither torch nor TVM.

Found by the conformance suite with apache-tvm 0.27.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub.plugin import (
    Condition,
    OperatorTable,
    dtypes,
    not_empty,
    on_cpu,
    one_of,
    unrollable_lstm,
)
from hub.toolkit.operators import NARROWER, ROWS


def _names(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


_TAKEN = _names(
    "exp.default expm1.default exp2.default log.default log2.default log10.default log1p.default sqrt.default "
    "sin.default cos.default tan.default asin.default acos.default atan.default sinh.default cosh.default "
    "tanh.default acosh.default atanh.default erf.default erfc.default rsqrt.default reciprocal.default "
    "sigmoid.default floor.default ceil.default trunc.default fix.default round.default abs.default neg.default "
    "sign.default sgn.default square.default positive.default relu.default frac.default deg2rad.default "
    "rad2deg.default isnan.default isinf.default isfinite.default logical_not.default bitwise_not.default "
    "nan_to_num.default silu.default mish.default log_sigmoid.default gelu.default hardsigmoid.default "
    "hardswish.default relu6.default hardtanh.default selu.default elu.default celu.default leaky_relu.default "
    "softplus.default threshold.default hardshrink.default log_sigmoid_forward.default prelu.default "
    "_prelu_kernel.default glu.default add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar "
    "mul.Tensor mul.Scalar div.Tensor div.Scalar true_divide.Tensor div.Tensor_mode div.Scalar_mode "
    "floor_divide.default floor_divide.Scalar remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar atan2.default hypot.default copysign.Tensor logaddexp.default "
    "xlogy.Tensor maximum.default minimum.default max.other min.other fmax.default fmin.default clamp.default "
    "clamp.Tensor clamp_min.default clamp_max.default clamp_min.Tensor clamp_max.Tensor addcmul.default "
    "addcdiv.default lerp.Scalar lerp.Tensor eq.Tensor eq.Scalar ne.Tensor ne.Scalar ge.Tensor ge.Scalar "
    "gt.Tensor gt.Scalar le.Tensor le.Scalar lt.Tensor lt.Scalar logical_and.default logical_or.default "
    "logical_xor.default bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar "
    "bitwise_xor.Tensor bitwise_xor.Scalar __and__.Tensor __and__.Scalar __or__.Tensor __or__.Scalar "
    "__xor__.Tensor __xor__.Scalar bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar "
    "bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar "
    "bitwise_right_shift.Scalar_Tensor __lshift__.Tensor __lshift__.Scalar __rshift__.Tensor __rshift__.Scalar "
    "where.self where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Scalar masked_fill.Tensor "
    "_to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default clone.default alias.default "
    "contiguous.default detach.default lift_fresh_copy.default zeros.default zeros_like.default new_zeros.default "
    "ones.default ones_like.default new_ones.default full.default full_like.default new_full.default fill.Scalar "
    "fill.Tensor scalar_tensor.default arange.default arange.start arange.start_step eye.default eye.m "
    "one_hot.default view.default reshape.default _unsafe_view.default view_as.default reshape_as.default "
    "ravel.default squeeze.default unsqueeze.default flatten.using_ints unflatten.int squeeze.dim squeeze.dims "
    "permute.default t.default mT.default numpy_T.default swapaxes.default expand.default expand_as.default "
    "broadcast_to.default diagonal.default transpose.int movedim.int movedim.intlist slice.Tensor narrow.default "
    "select.int cat.default concat.default stack.default split.Tensor split_with_sizes.default split.sizes "
    "chunk.default tensor_split.sections unsafe_split.Tensor unbind.int flip.default tril.default triu.default "
    "roll.default repeat.default tile.default repeat_interleave.self_int constant_pad_nd.default pad.default "
    "diff.default unfold.default pixel_shuffle.default pixel_unshuffle.default sum.default sum.dim_IntList "
    "prod.default prod.dim_int mean.default mean.dim amax.default amin.default max.default min.default max.dim "
    "min.dim argmax.default argmin.default any.default any.dim any.dims all.default all.dim all.dims "
    "count_nonzero.default count_nonzero.dim_IntList var.default var.dim var.correction std.default std.dim "
    "std.correction var_mean.correction std_mean.correction logsumexp.default linalg_vector_norm.default "
    "softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default cumsum.default "
    "cumprod.default layer_norm.default native_layer_norm.default rms_norm.default batch_norm.default "
    "_native_batch_norm_legit_no_training.default native_batch_norm.default group_norm.default "
    "native_group_norm.default mse_loss.default l1_loss.default linear.default addmm.default baddbmm.default "
    "addmv.default matmul.default mm.default bmm.default mv.default dot.default outer.default ger.default "
    "scaled_dot_product_attention.default _scaled_dot_product_flash_attention_for_cpu.default conv1d.default "
    "conv2d.default conv3d.default conv1d.padding conv2d.padding conv3d.padding convolution.default "
    "max_pool1d.default max_pool2d.default max_pool2d_with_indices.default max_pool3d.default avg_pool1d.default "
    "avg_pool2d.default avg_pool3d.default adaptive_avg_pool1d.default adaptive_avg_pool2d.default "
    "_adaptive_avg_pool2d.default adaptive_avg_pool3d.default upsample_nearest1d.vec upsample_nearest1d.default "
    "upsample_nearest2d.vec upsample_nearest2d.default upsample_nearest3d.vec embedding.default "
    "index_select.default gather.default index.Tensor _unsafe_index.Tensor scatter.src scatter.value "
    "scatter.reduce scatter.value_reduce scatter_add.default scatter_reduce.two index_add.default "
    "index_copy.default index_fill.int_Scalar index_fill.int_Tensor index_put.default _unsafe_index_put.default "
    "slice_scatter.default select_scatter.default tanh_backward.default sigmoid_backward.default "
    "silu_backward.default threshold_backward.default gelu_backward.default leaky_relu_backward.default "
    "hardtanh_backward.default _softmax_backward_data.default _log_softmax_backward_data.default "
    "native_layer_norm_backward.default _scaled_dot_product_flash_attention_for_cpu_backward.default "
    "slice_backward.default select_backward.default embedding_dense_backward.default nll_loss_forward.default "
    "nll_loss_backward.default "
)
"""Operators tested with every sample call of the conformance suite. A new row of the core needs that test first."""

FURTHER: Mapping[str, tuple[Condition, ...]] = NARROWER
"""Conditions in addition to those of the core's table."""

OWN: Mapping[str, tuple[Condition, ...]] = {
    "aten.lstm.input": (dtypes("float32", "float64"), one_of("train", False), unrollable_lstm),
}
"""Operators in addition to the core's table."""

OPERATORS = OperatorTable(
    {**{name: (*ROWS[name], *FURTHER.get(name, ())) for name in _TAKEN}, **OWN},
    everywhere=(on_cpu, not_empty),
)
