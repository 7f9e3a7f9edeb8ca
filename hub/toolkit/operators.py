"""Operators that have a rule, one row each with its conditions. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from hub.plugin.conditions import (
    equal_windows,
    floating_result,
    has_dims,
    has_elements,
    inference,
    integer_indices,
    no_dropout,
    not_ceil,
    one_of,
    only_output,
    plain,
    same_rank,
    static_dim,
    static_input,
)
from hub.plugin.table import Condition, absent, attribute, dtypes, rank, static
from hub.toolkit.conditions import (
    counts_padding,
    group_matches,
    known_floats,
    no_masked_rows,
    real_division,
    small_power,
    some_differences,
    static_space,
    sums_without_mask,
    usual_norm,
    whole_factors,
    wide_mean,
)

FLOAT = dtypes("float32", "float64")
SINGLE = dtypes("float32", "float16", "bfloat16")
"""Excludes float64, in which results differ from PyTorch's by more than a few roundings if terms cancel."""
FLOATING = dtypes("float32", "float64", "float16", "bfloat16")
FLOATING_PLACED = dtypes("float32", "float64", "float16", "bfloat16", "int64", "int32")
CLASSIFIED = dtypes("float32", "float64", "float16", "bfloat16", "int64")
FLOATING_MASKED = dtypes("float32", "float64", "float16", "bfloat16", "bool")
_WHOLE = ("int64", "int32", "int16", "int8", "uint8")
SHIFTED = dtypes(*_WHOLE)
INTEGER = dtypes(*_WHOLE, "bool")
_POOLED = dtypes("float32", "float64", "float16", "bfloat16", "int64")
NUMBER = dtypes("float32", "float64", "float16", "bfloat16", *_WHOLE)
ANY = dtypes("float32", "float64", "float16", "bfloat16", *_WHOLE, "bool")


def _rows(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    return {f"aten.{name}": conditions for name in names.split()}


def _all(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    return {f"aten.{name}.default": conditions for name in names.split()}


def _both(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    return {f"aten.{name}.{form}": conditions for name in names.split() for form in ("Tensor", "Scalar")}


unmasked = absent("attn_mask")

_CONVOLUTION = (
    SINGLE,
    static("weight"),
    same_rank("input", "weight"),
    static_space(1),
    plain("stride", "dilation", "padding"),
    has_elements,
)

_AVERAGED = (static_space(1), not_ceil, counts_padding, absent("divisor_override"), rank("self", 4, 5))

PLACES_IN_WINDOWS = ("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
"""Operators that leave open which of equal elements they take; the rules here take the same as eager."""

ROWS: Mapping[str, tuple[Condition, ...]] = {
    # pointwise: one input
    **_all("exp expm1 exp2 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh", ANY),
    **_all("acosh atanh erf erfc rsqrt reciprocal sigmoid", ANY),
    **_all("floor ceil trunc fix round", NUMBER),
    **_all("abs neg sign sgn square positive relu", NUMBER),
    **_all("frac deg2rad rad2deg", FLOATING),
    **_all("isnan isinf isfinite logical_not", ANY),
    **_all("bitwise_not", INTEGER),
    **_all("nan_to_num", FLOATING),
    # pointwise: activations
    **_all("silu mish log_sigmoid gelu hardsigmoid hardswish relu6 selu", FLOATING),
    **_all("hardtanh", FLOATING, plain("min_val", "max_val")),
    **_all("elu", FLOATING, plain("alpha", "scale", "input_scale")),
    **_all("celu", FLOATING, plain("alpha")),
    **_all("leaky_relu", FLOATING, plain("negative_slope")),
    **_all("softplus", FLOATING, plain("beta", "threshold")),
    **_all("threshold", FLOATING, plain("threshold", "value")),
    **_all("hardshrink", FLOATING, plain("lambd")),
    **_all("log_sigmoid_forward", FLOATING, only_output(0)),
    **_all("prelu _prelu_kernel", FLOATING, has_dims),
    **_all("glu", FLOATING),
    # pointwise: arithmetic
    **_both("add sub rsub", ANY, plain("alpha")),
    **_both("mul div", ANY),
    **_rows("true_divide.Tensor", ANY),
    **_rows("div.Tensor_mode div.Scalar_mode floor_divide.default floor_divide.Scalar", NUMBER, real_division),
    **_rows("remainder.Scalar fmod.Scalar", NUMBER, real_division),
    **_rows("remainder.Tensor fmod.Tensor", FLOATING),
    **_rows("pow.Tensor_Scalar", NUMBER, plain("exponent"), small_power),
    **_rows("pow.Tensor_Tensor pow.Scalar", NUMBER, floating_result),
    **_rows("atan2.default hypot.default copysign.Tensor logaddexp.default xlogy.Tensor", FLOATING),
    **_rows("maximum.default minimum.default max.other min.other", ANY),
    **_all("fmax fmin", FLOATING),
    **_rows("clamp.default clamp.Tensor clamp_min.default clamp_max.default clamp_min.Tensor clamp_max.Tensor", NUMBER),
    **_all("addcmul addcdiv", FLOATING, plain("value")),
    **_rows("lerp.Scalar lerp.Tensor", FLOATING),
    # pointwise: comparisons, logic, choice
    **_both("eq ne ge gt le lt", ANY),
    **_all("logical_and logical_or logical_xor", ANY),
    **_both("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__", INTEGER),
    **_rows("bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor", SHIFTED),
    **_rows("bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor", SHIFTED),
    **_both("__lshift__ __rshift__", SHIFTED),
    **_rows("where.self where.ScalarOther where.ScalarSelf where.Scalar", ANY),
    **_rows("masked_fill.Scalar masked_fill.Tensor", ANY),
    # casts, copies, new tensors
    **_rows("_to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default", ANY),
    **_all("clone alias contiguous detach lift_fresh_copy", ANY),
    **_all("zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full", ANY),
    **_rows("fill.Scalar fill.Tensor scalar_tensor.default", ANY),
    **_rows("arange.default arange.start arange.start_step", NUMBER, known_floats),
    **_rows("eye.default eye.m", ANY),
    **_all("one_hot", INTEGER, attribute("num_classes", lambda value: value > 0, "a known number of classes")),
    # views and rearrangement
    **_all("view reshape _unsafe_view view_as reshape_as ravel squeeze unsqueeze", ANY),
    **_rows("flatten.using_ints unflatten.int squeeze.dim squeeze.dims", ANY),
    **_all("permute t numpy_T swapaxes expand expand_as broadcast_to broadcast_tensors", ANY),
    **_all("mT", ANY, has_dims),
    **_all("diagonal", ANY, plain("offset")),
    **_rows("transpose.int", ANY),
    **_rows("movedim.int movedim.intlist flip.default", ANY, has_dims),
    **_rows("slice.Tensor", ANY, plain("step")),
    **_rows("narrow.default select.int", ANY),
    **_rows("cat.default concat.default stack.default", ANY),
    **_rows("split.Tensor split_with_sizes.default split.sizes chunk.default tensor_split.sections", ANY),
    **_rows("unsafe_split.Tensor unbind.int", ANY),
    **_rows("tril.default triu.default", ANY),
    **_all("roll", ANY, plain("shifts"), static_space(0)),
    **_rows("repeat.default tile.default repeat_interleave.self_int", ANY),
    **_all("constant_pad_nd", ANY, plain("value")),
    **_all("pad", ANY, one_of("mode", "constant"), plain("value")),
    **_all("diff", dtypes("float32", "float64", *_WHOLE, "bool"), has_dims, some_differences, static_input),
    **_all("unfold", ANY, plain("size", "step"), has_dims, static_dim("dimension")),
    **_all("pixel_shuffle pixel_unshuffle", ANY, static_space(0), has_elements),
    # reductions and scans
    **_rows("sum.default sum.dim_IntList", ANY),
    **_rows("prod.default prod.dim_int", NUMBER),
    **_rows("mean.default mean.dim", FLOATING),
    **_rows("amax.default amin.default max.default min.default", NUMBER),
    **_rows("max.dim min.dim argmax.default argmin.default", NUMBER, has_dims),
    **_rows("any.default any.dim any.dims all.default all.dim all.dims", ANY),
    **_rows("count_nonzero.default count_nonzero.dim_IntList", ANY),
    **_rows("var.default var.dim std.default std.dim", FLOATING),
    **_rows("var.correction std.correction var_mean.correction std_mean.correction", FLOATING, plain("correction")),
    **_all("logsumexp", FLOATING),
    **_all("linalg_vector_norm", FLOATING, usual_norm),
    **_rows("softmax.int _softmax.default log_softmax.int _log_softmax.default _safe_softmax.default", FLOATING),
    **_all("cumsum", ANY),
    **_all("cumprod", NUMBER),
    # normalisations
    **_all("layer_norm native_layer_norm", FLOATING),
    **_all("rms_norm", FLOATING),
    **_all("batch_norm", FLOATING, inference),
    **_all("_native_batch_norm_legit_no_training", FLOATING, only_output(0)),
    **_all("native_batch_norm", FLOATING, inference, only_output(0)),
    **_all("group_norm native_group_norm", FLOATING, static_space(1)),
    # losses
    **_all("mse_loss l1_loss kl_div binary_cross_entropy_with_logits mse_loss_backward", FLOATING),
    **_all("smooth_l1_loss smooth_l1_loss_backward", FLOATING, plain("beta")),
    **_all("huber_loss huber_loss_backward", FLOATING, plain("delta")),
    **_all("nll_loss_nd nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward", CLASSIFIED),
    **_all("cross_entropy_loss", CLASSIFIED, plain("label_smoothing")),
    # products
    **_all("linear", FLOATING, rank("weight", 2, 2)),
    **_all("matmul mm bmm mv dot", FLOATING),
    **_all("addmm baddbmm addmv", FLOATING, plain("alpha", "beta")),
    **_all("outer ger", NUMBER),
    **_all("scaled_dot_product_attention", FLOATING_MASKED, no_dropout, group_matches, no_masked_rows, has_elements),
    **_all(
        "_scaled_dot_product_flash_attention_for_cpu",
        FLOATING_MASKED,
        no_dropout,
        group_matches,
        no_masked_rows,
        sums_without_mask,
    ),
    # windows
    **_rows("conv1d.default conv2d.default conv3d.default conv1d.padding conv2d.padding conv3d.padding", *_CONVOLUTION),
    **_all("convolution", *_CONVOLUTION, attribute("transposed", lambda value: not value, "only False")),
    **_all("max_pool1d max_pool2d max_pool3d", _POOLED, static_space(1)),
    **_all("max_pool2d_with_indices max_pool3d_with_indices", _POOLED, static_space(1)),
    **_all("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", _POOLED, static_space(1)),
    **_all("avg_pool1d", FLOATING, rank("self", 3, 3), static_space(1), not_ceil, counts_padding),
    **_all("avg_pool2d", FLOATING, *_AVERAGED),
    **_all("avg_pool3d", FLOAT, *_AVERAGED),  # eager has no half precision there on a CPU
    **_all("adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d", FLOATING, equal_windows),
    **_rows("upsample_nearest1d.vec upsample_nearest1d.default upsample_nearest2d.vec", FLOATING, whole_factors),
    **_rows("upsample_nearest2d.default upsample_nearest3d.vec", FLOATING, whole_factors),
    # gathering
    **_all("embedding index_select gather", ANY, has_dims),
    **_rows("index.Tensor _unsafe_index.Tensor", ANY, integer_indices),
    # writes
    **_rows("scatter.src scatter.value", ANY),
    **_rows("scatter.reduce scatter.value_reduce", NUMBER),
    **_all("scatter_add", NUMBER),
    **_rows("scatter_reduce.two", NUMBER, wide_mean),
    **_all("index_add", NUMBER, plain("alpha")),
    **_all("index_copy", ANY),
    **_rows("index_fill.int_Scalar index_fill.int_Tensor", ANY),
    **_all("index_put _unsafe_index_put", ANY, integer_indices),
    **_rows("slice_scatter.default", ANY, plain("step"), one_of("step", 1), has_dims),
    **_all("select_scatter", ANY, has_dims),
    # gradients
    **_all("tanh_backward sigmoid_backward silu_backward gelu_backward", FLOATING),
    **_all("threshold_backward", FLOATING, plain("threshold")),
    **_all("leaky_relu_backward", FLOATING, plain("negative_slope")),
    **_all("hardtanh_backward", FLOATING, plain("min_val", "max_val")),
    **_all("_softmax_backward_data _log_softmax_backward_data", FLOATING),
    **_all("native_layer_norm_backward", FLOATING),
    **_all(
        "_scaled_dot_product_flash_attention_for_cpu_backward", SINGLE, no_dropout, group_matches, no_masked_rows, unmasked
    ),
    **_all("slice_backward", ANY, plain("start", "step"), one_of("step", 1)),
    **_all("select_backward", ANY, plain("index")),
    **_all("embedding_dense_backward", FLOATING_PLACED, one_of("scale_grad_by_freq", False)),
}
"""Operators of a code generator that has loops, products and scans for all tensors. It adds conditions on devices."""

_NOT_HALF = dtypes("float32", "float64", *_WHOLE, "bool")
NARROWER: Mapping[str, tuple[Condition, ...]] = {
    **_all("nan_to_num prelu _prelu_kernel atan2 hypot logaddexp", _NOT_HALF),
    **_rows("copysign.Tensor xlogy.Tensor lerp.Scalar lerp.Tensor", _NOT_HALF),
    **_rows("prod.default prod.dim_int max.dim min.dim argmax.default argmin.default cumprod.default", _NOT_HALF),
    **_rows("var.default var.dim var.correction std.default std.dim std.correction", _NOT_HALF),
    **_rows("var_mean.correction std_mean.correction logsumexp.default linalg_vector_norm.default", _NOT_HALF),
    **_all("batch_norm _native_batch_norm_legit_no_training native_batch_norm group_norm native_group_norm", _NOT_HALF),
    **_all(
        "mse_loss l1_loss avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d", _NOT_HALF
    ),
    **_rows("adaptive_avg_pool3d.default upsample_nearest1d.vec upsample_nearest1d.default", _NOT_HALF),
    **_rows("upsample_nearest2d.vec upsample_nearest2d.default upsample_nearest3d.vec", _NOT_HALF),
    **_all("_softmax_backward_data _log_softmax_backward_data", _NOT_HALF),
    **_all(
        "nll_loss_forward nll_loss_backward", _NOT_HALF, rank("self", 2, 2), absent("weight"), one_of("reduction", 1, 2)
    ),
}
"""Conditions for other compilers, as far as they were tested, on operators that the rules now support more widely."""
