"""The operators that ONNX Runtime supports, one row each with its conditions. Imports neither torch nor onnx.

The dtypes are those for which ORT 1.23 to 1.31 has CPU kernels. It has few for float16, which is therefore only moved and
cast, and none for bfloat16.
"""

from __future__ import annotations

from hub.plugin import (
    Condition,
    OperatorTable,
    absent,
    attribute,
    dtypes,
    equal_windows,
    floating_result,
    has_dims,
    inference,
    integer_indices,
    no_dropout,
    not_ceil,
    not_empty,
    on_cpu,
    one_of,
    only_output,
    plain,
    rank,
    same_rank,
    static,
    static_dim,
    static_input,
)

from .conditions import (
    adds_along_one_dim,
    exact_power,
    floating_input,
    gives_numbers,
    group_matches,
    known_factors,
    leading_indices,
    negative_pad_is_constant,
    pads_outwards,
    real_division,
    scannable,
    several_normalised,
    short_end,
    usual_norm,
    weights_only,
)

FLOAT32 = dtypes("float32")
FLOAT32_MASKED = dtypes("float32", "bool", "int64", "int32")
"""Dtypes of operators that compute in float32; other dtypes are cast before or after."""
FLOAT32_GATED = dtypes("float32", "bool")
FLOAT = dtypes("float32", "float64")
FLOAT_MASKED = dtypes("float32", "float64", "bool")
FLOAT_PLACED = dtypes("float32", "float64", "int64")
"""Dtypes of operators that read floats and return positions."""
FLOAT_INDEXED = dtypes("float32", "float64", "int64", "int32")
FLOAT32_INDEXED = dtypes("float32", "int64", "int32")
NUMBER = dtypes("float32", "float64", "int64", "int32", "bool")
INTEGER = dtypes("int64", "int32", "bool")
ANY = dtypes("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


def _rows(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    return {f"aten.{name}": conditions for name in names.split()}


def _both(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    return {f"aten.{name}.{form}": conditions for name in names.split() for form in ("Tensor", "Scalar")}


_CONVOLUTION = (FLOAT32, static("weight"), same_rank("input", "weight"), plain("stride", "dilation"))

OPERATORS = OperatorTable(
    # CumSum, CumProd and others divide by a size of 0, which kills the process with SIGFPE (ORT 1.31); MatMul over no
    # elements returns uninitialised memory.
    everywhere=(on_cpu, not_empty),
    rows={
        # pointwise: one input
        **_rows("abs.default neg.default square.default positive.default", NUMBER),
        **_rows("sign.default", FLOAT_INDEXED),
        **_rows(
            "exp.default log.default sqrt.default rsqrt.default reciprocal.default sigmoid.default tanh.default", NUMBER
        ),
        **_rows("log2.default log10.default exp2.default", NUMBER),
        **_rows("floor.default ceil.default round.default trunc.default fix.default", FLOAT_INDEXED),
        **_rows("sin.default cos.default tan.default asin.default acos.default atan.default", FLOAT32_MASKED),
        **_rows("sinh.default cosh.default erf.default", FLOAT32_MASKED),
        **_rows("asinh.default acosh.default atanh.default", FLOAT32_MASKED),
        **_rows("isnan.default isinf.default isfinite.default", FLOAT_MASKED, floating_input),
        # pointwise: arithmetic
        **_both("add sub rsub mul", NUMBER),
        **_both("div", NUMBER),
        **_rows("true_divide.Tensor", NUMBER),
        **_rows("div.Tensor_mode div.Scalar_mode floor_divide.default floor_divide.Scalar", NUMBER, real_division),
        **_rows("remainder.Scalar fmod.Scalar", NUMBER, real_division),
        **_rows("remainder.Tensor fmod.Tensor", FLOAT),
        **_rows("pow.Tensor_Scalar", NUMBER, plain("exponent"), exact_power),
        **_rows("pow.Tensor_Tensor", FLOAT_INDEXED, floating_result),
        **_rows("pow.Scalar", NUMBER, floating_result),
        **_rows("maximum.default minimum.default max.other min.other", NUMBER),
        **_rows(
            "clamp.default clamp.Tensor clamp_min.default clamp_max.default clamp_min.Tensor clamp_max.Tensor",
            FLOAT_INDEXED,
        ),
        **_rows("addcmul.default addcdiv.default", FLOAT),
        **_rows("lerp.Scalar lerp.Tensor", FLOAT),
        # pointwise: comparisons and logic
        **_both("eq ne ge gt le lt", NUMBER),
        **_rows("logical_and.default logical_or.default logical_xor.default logical_not.default", NUMBER),
        **_both("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__", INTEGER),
        **_rows("bitwise_not.default", INTEGER),
        **_rows("where.self where.ScalarOther where.ScalarSelf where.Scalar", NUMBER),
        **_rows("masked_fill.Scalar masked_fill.Tensor", NUMBER),
        # activations
        **_rows("relu.default", FLOAT_INDEXED),
        **_rows("relu6.default hardtanh.default", FLOAT),
        **_rows("gelu.default silu.default selu.default hardsigmoid.default hardswish.default", FLOAT32),
        **_rows("mish.default log_sigmoid.default", FLOAT32),
        **_rows("prelu.default _prelu_kernel.default", FLOAT32, has_dims),
        **_rows("leaky_relu.default", FLOAT32),
        **_rows("elu.default", FLOAT32, one_of("input_scale", 1), plain("alpha")),
        **_rows("softplus.default", FLOAT32, plain("beta", "threshold")),
        **_rows("glu.default", FLOAT),
        # casts and copies
        **_rows("_to_copy.default to.dtype to.dtype_layout to.device to.other type_as.default", ANY),
        **_rows("clone.default alias.default contiguous.default detach.default lift_fresh_copy.default", ANY),
        # matrix products
        **_rows("linear.default", FLOAT),
        **_rows("addmm.default baddbmm.default addbmm.default addmv.default", FLOAT, plain("alpha", "beta")),
        **_rows("matmul.default mm.default bmm.default mv.default dot.default", FLOAT_INDEXED),
        **_rows("outer.default ger.default", FLOAT_INDEXED),
        **_rows("einsum.default", FLOAT_INDEXED),
        **_rows("scaled_dot_product_attention.default", FLOAT32_GATED, no_dropout, group_matches),
        **_rows(
            "_scaled_dot_product_flash_attention_for_cpu.default", FLOAT32_GATED, no_dropout, group_matches, only_output(0)
        ),
        # convolutions
        **_rows("conv1d.default conv2d.default conv3d.default", *_CONVOLUTION, plain("padding")),
        **_rows("conv1d.padding conv2d.padding conv3d.padding", *_CONVOLUTION),
        **_rows(
            "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input convolution.default",
            *_CONVOLUTION,
            plain("padding", "output_padding"),
            short_end,
        ),
        **_rows("_weight_norm.default", FLOAT),
        **_rows("_weight_norm_interface.default", FLOAT, only_output(0)),
        # normalisations
        **_rows("layer_norm.default native_layer_norm.default", FLOAT32, several_normalised),
        **_rows("rms_norm.default", FLOAT32),
        **_rows("_native_batch_norm_legit_no_training.default", FLOAT32, static("running_mean"), only_output(0)),
        **_rows("batch_norm.default", FLOAT32, inference, static("running_mean")),
        **_rows("native_batch_norm.default", FLOAT32, inference, static("running_mean"), only_output(0)),
        **_rows("group_norm.default", FLOAT32),
        **_rows("native_group_norm.default", FLOAT32, only_output(0)),
        **_rows("instance_norm.default", FLOAT32, attribute("use_input_stats", bool, "only with the input's statistics")),
        # pooling and resampling
        **_rows("max_pool1d.default", FLOAT, rank("self", 3, 3), not_ceil),
        **_rows("max_pool2d.default", FLOAT, rank("self", 4, 4), not_ceil),
        **_rows(
            "max_pool2d_with_indices.default", FLOAT_PLACED, floating_input, rank("self", 4, 4), not_ceil, only_output(0)
        ),
        **_rows("max_pool3d.default", FLOAT, rank("self", 5, 5), not_ceil),
        **_rows("avg_pool1d.default", FLOAT32, rank("self", 3, 3), not_ceil),
        **_rows("avg_pool2d.default", FLOAT32, rank("self", 4, 4), not_ceil, absent("divisor_override")),
        **_rows("avg_pool3d.default", FLOAT32, rank("self", 5, 5), not_ceil, absent("divisor_override")),
        **_rows("adaptive_avg_pool1d.default", FLOAT32, rank("self", 3, 3), equal_windows),
        **_rows("adaptive_avg_pool2d.default _adaptive_avg_pool2d.default", FLOAT32, rank("self", 4, 4), equal_windows),
        **_rows("adaptive_avg_pool3d.default", FLOAT32, rank("self", 5, 5), equal_windows),
        **_rows("upsample_nearest1d.vec upsample_nearest1d.default", FLOAT32, known_factors),
        **_rows("upsample_nearest2d.vec upsample_nearest2d.default upsample_nearest3d.vec", FLOAT32, known_factors),
        **_rows(
            "upsample_linear1d.vec upsample_bilinear2d.vec upsample_bilinear2d.default upsample_trilinear3d.vec",
            FLOAT32,
            known_factors,
        ),
        **_rows("upsample_bicubic2d.vec upsample_bicubic2d.default", FLOAT32, known_factors),
        **_rows("pixel_shuffle.default", FLOAT, rank("self", 4, 4)),
        **_rows("pixel_unshuffle.default", ANY, rank("self", 4, 4)),
        **_rows("channel_shuffle.default", ANY),
        # reductions, scans, order
        **_rows("sum.default sum.dim_IntList cumsum.default", NUMBER, gives_numbers),
        **_rows("prod.default prod.dim_int", FLOAT),  # integers are multiplied in float64, without wrapping around
        **_rows("cumprod.default", NUMBER, scannable, gives_numbers),
        **_rows("mean.default mean.dim logsumexp.default", FLOAT),
        **_rows(
            "var.default var.dim var.correction std.default std.dim std.correction var_mean.correction std_mean.correction",
            FLOAT,
            has_dims,
        ),
        **_rows("linalg_vector_norm.default", FLOAT, usual_norm),
        **_rows("amax.default amin.default max.default min.default", NUMBER),
        **_rows("max.dim min.dim argmax.default argmin.default", FLOAT_INDEXED, has_dims),
        **_rows("any.default any.dim any.dims all.default all.dim all.dims count_nonzero.default", NUMBER),
        **_rows("sort.stable argsort.stable", FLOAT32_INDEXED, has_dims),
        **_rows("topk.default", FLOAT32_INDEXED, has_dims, one_of("sorted", True)),  # only the values: see `ties.py`
        **_rows("sort.default", FLOAT32_INDEXED, has_dims),
        **_rows("softmax.int _softmax.default _safe_softmax.default", FLOAT_INDEXED, has_dims),
        **_rows("log_softmax.int _log_softmax.default", FLOAT32, has_dims),  # in float64 it loses NaN
        # views and rearrangement
        **_rows("view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int", ANY),
        **_rows("view_as.default reshape_as.default ravel.default", ANY),
        **_rows("squeeze.default squeeze.dim squeeze.dims unsqueeze.default", ANY),
        **_rows("permute.default transpose.int t.default mT.default numpy_T.default swapaxes.default", ANY),
        **_rows("movedim.int movedim.intlist", ANY),
        **_rows("expand.default expand_as.default broadcast_to.default", ANY),
        **_rows("slice.Tensor", ANY, plain("step")),
        **_rows("narrow.default select.int", ANY),
        **_rows("cat.default concat.default stack.default split.sizes", ANY),
        **_rows(
            "split.Tensor split_with_sizes.default chunk.default tensor_split.sections unsafe_split.Tensor unbind.int", ANY
        ),
        **_rows("repeat.default tile.default repeat_interleave.self_int", NUMBER),
        **_rows("roll.default", ANY),
        **_rows("flip.default", ANY),
        **_rows("unfold.default", ANY, has_dims, static_dim("dimension")),
        **_rows("pad.default", NUMBER, negative_pad_is_constant),
        **_rows("constant_pad_nd.default", NUMBER),
        **_rows("reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default", NUMBER, pads_outwards),
        **_rows("replication_pad1d.default replication_pad2d.default replication_pad3d.default", NUMBER, pads_outwards),
        **_rows("diff.default", NUMBER, has_dims, attribute("n", lambda n: n > 0, "at least 1")),
        **_rows("tril.default triu.default", NUMBER),
        # gathering and scattering
        **_rows("embedding.default", FLOAT_INDEXED),
        **_rows("index_select.default gather.default take_along_dim.default", NUMBER, has_dims),
        **_rows("index.Tensor _unsafe_index.Tensor", NUMBER, integer_indices),
        **_rows("index_put.default", FLOAT_INDEXED, integer_indices, leading_indices, adds_along_one_dim),
        **_rows("scatter.src scatter.value", NUMBER, has_dims),
        **_rows("scatter_add.default index_add.default", FLOAT_INDEXED, has_dims),
        **_rows(
            "scatter_reduce.two",
            FLOAT_INDEXED,
            has_dims,
            attribute("include_self", bool, "only True"),
            one_of("reduce", "sum", "prod"),  # max and min lose NaN
        ),
        **_rows("slice_scatter.default", NUMBER, static_input, plain("start", "end", "step")),
        **_rows("select_scatter.default", NUMBER, static_input, plain("index")),
        # creation
        **_rows("full.default new_full.default full_like.default zeros.default zeros_like.default new_zeros.default", ANY),
        **_rows(
            "empty.memory_format empty_like.default new_empty.default ones.default ones_like.default new_ones.default", ANY
        ),
        **_rows("scalar_tensor.default", ANY),
        **_rows("arange.default arange.start arange.start_step", NUMBER),
        **_rows("linspace.default", FLOAT, plain("start", "end", "steps")),
        **_rows("eye.default eye.m", NUMBER, plain("n")),
        **_rows("one_hot.default", INTEGER, attribute("num_classes", lambda value: value > 0, "a known number of classes")),
        # recurrent layers
        **_rows("lstm.input gru.input", FLOAT32, rank("input", 3, 3), weights_only),
        # gradients
        **_rows("threshold_backward.default tanh_backward.default sigmoid_backward.default silu_backward.default", FLOAT),
        **_rows("_softmax_backward_data.default _log_softmax_backward_data.default", FLOAT),
        **_rows("gelu_backward.default", FLOAT32),
        **_rows("embedding_dense_backward.default", FLOAT_INDEXED, one_of("scale_grad_by_freq", False)),
        **_rows("native_dropout_backward.default", dtypes("float32", "bool")),
        **_rows("native_layer_norm_backward.default", FLOAT32),
        **_rows(
            "slice_backward.default",
            FLOAT,
            plain("input_sizes", "start", "end"),
            one_of("step", 1),
            static("grad_output"),
        ),
        **_rows("select_backward.default", FLOAT, plain("input_sizes", "index")),
    },
)
