"""The operators that OpenVINO supports, each with its conditions. Imports neither torch nor OpenVINO.

Every row is lowered by the rule of the same name in `plugin_openvino.rules`, and a test compiles and runs each.
"""

from __future__ import annotations

from math import frexp
from typing import TYPE_CHECKING, Any

from hub.plugin import (
    Condition,
    OperatorTable,
    absent,
    argument,
    attribute,
    dtype_name,
    dtypes,
    elements,
    has_dims,
    heads_match,
    integer_indices,
    is_symbolic,
    not_empty,
    on_cpu,
    one_of,
    only_output,
    operator_name,
    plain,
    rank,
    same_rank,
    static,
    tensors_of,
    value_of,
)

if TYPE_CHECKING:
    from torch import fx

NAN_BLIND = frozenset(
    {
        "aten.relu.default",
        "aten.relu6.default",
        "aten.hardtanh.default",
        "aten.hardsigmoid.default",
        "aten.max_pool1d.default",
        "aten.max_pool2d.default",
        "aten.max_pool2d_with_indices.default",
        "aten.max_pool3d.default",
        "aten.softmax.int",
        "aten._softmax.default",
        "aten.log_softmax.int",
        "aten._log_softmax.default",
        "aten.logsumexp.default",
        "aten.scaled_dot_product_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
    }
)
"""Operators whose OpenVINO kernels lose NaN (relu returns 0, softmax affects only the one element). Kernels that keep NaN
would no longer fuse into the convolution before them, so clusters with these operators check their inputs instead: see
`runtime.py`."""

LOWEST_BLIND = frozenset(name for name in NAN_BLIND if "max_pool" in name)
"""Operators that begin with the lowest number, which they return where a window holds negative infinity alone."""

INFINITY_BLIND = frozenset(name for name in NAN_BLIND if "softmax" in name)
"""Operators that lose the NaN of infinity minus infinity: softmax of infinity returns 0 for its neighbours."""

MAX_RANK = 6
"""Largest number of dims with which OpenVINO's CPU kernels are tested."""

# --- Conditions -------------------------------------------------------------------------------------------------------


def _first_result(node: fx.Node) -> Any:
    return elements(node.meta["val"])[0]


def at_most_six_dims(node: fx.Node) -> str | None:
    """Require that no tensor has more dims than the tested kernels."""
    most = max((tensor.dim() for tensor in tensors_of(node)), default=0)
    return f"{most} dims, at most {MAX_RANK} here" if most > MAX_RANK else None


def gives(*allowed: str) -> Condition:
    """Require one of these dtypes for the (first) result."""

    def condition(node: fx.Node) -> str | None:
        found = dtype_name(_first_result(node).dtype)
        return None if found in allowed else f"gives {found}, only {', '.join(allowed)} here"

    return condition


def takes(name: str, *allowed: str) -> Condition:
    """Require one of these dtypes for the tensor argument `name`; numbers are accepted."""

    def condition(node: fx.Node) -> str | None:
        tensor = value_of(argument(node, name))
        found = dtype_name(tensor.dtype) if hasattr(tensor, "dtype") else None
        return f"{name} is {found}, only {', '.join(allowed)} here" if found is not None and found not in allowed else None

    return condition


def int32_numbers(node: fx.Node) -> str | None:
    """Require numbers within int32, as which OpenVINO computes int64; ends of slices stand for any size."""
    if operator_name(node) in ("aten.slice.Tensor", "aten.slice_scatter.default", "aten.narrow.default"):
        return None
    leaves = (item for value in (*node.args, *node.kwargs.values()) for item in elements(value))
    bad = [item for item in leaves if isinstance(item, int) and abs(item) >= 2**31]
    return f"{bad[0]} is beyond the int32 range in which OpenVINO computes" if bad else None


def whole_numbers(*names: str) -> Condition:
    """Require these arguments to be ints or symbolic ints."""

    def condition(node: fx.Node) -> str | None:
        for name in names:
            value = value_of(argument(node, name))
            if isinstance(value, float) or "Float" in type(value).__name__:
                return f"{name}={value}, only whole numbers here"
        return None

    return condition


def nonzero_divisor(node: fx.Node) -> str | None:
    """Require a known integer divisor other than 0: PyTorch raises for 0, OpenVINO returns an arbitrary number."""
    other = argument(node, "other")
    return None if isinstance(other, int) and other != 0 else f"divides by {other}, only by a known whole number here"


def no_wide_product(node: fx.Node) -> str | None:
    """Refuse a product of two int64 tensors: OpenVINO computes int64 as int32, whose range a product exceeds first."""
    operands = [value_of(argument(node, name)) for name in ("self", "other")]
    if dtype_name(_first_result(node).dtype) == "int64" and all(hasattr(operand, "dtype") for operand in operands):
        return "a product of two int64 tensors, and OpenVINO computes int64 as int32"
    return None


def known_sizes(name: str) -> Condition:
    """Require reduced dims with sizes known at compile time."""

    def condition(node: fx.Node) -> str | None:
        shape, given = value_of(argument(node, "self")).shape, argument(node, name)
        dims = range(len(shape)) if given is None or given == [] else elements(given)
        bad = [shape[dim] for dim in dims if is_symbolic(shape[dim])]
        return f"size {bad[0]} of a reduced dim is known only at run time" if bad else None

    return condition


def known_parts(node: fx.Node) -> str | None:
    """Require parts of a split with sizes known at compile time along the split dim."""
    dim = argument(node, "dim")
    bad = [part.shape[dim] for part in node.meta["val"] if is_symbolic(part.shape[dim])]
    return f"a part of size {bad[0]}, known only at run time" if bad else None


def known_dims(name: str, *dims: int) -> Condition:
    """Require sizes known at compile time for these dims of a tensor argument."""

    def condition(node: fx.Node) -> str | None:
        shape = value_of(argument(node, name)).shape
        bad = [dim for dim in dims if is_symbolic(shape[dim])]
        return f"dim {bad[0]} of {name} is known only at run time" if bad else None

    return condition


def index_as_long(node: fx.Node) -> str | None:
    """Require an index as long as the tensor along other dims: for a shorter one, OpenVINO's Gather reads wrong memory."""
    tensor, index = value_of(argument(node, "self")), value_of(argument(node, "index"))
    dim = argument(node, "dim") % tensor.dim()
    for axis, (size, wanted) in enumerate(zip(tensor.shape, index.shape, strict=True)):
        if axis != dim and str(size) != str(wanted):
            return f"dim {axis} of index is {wanted}, of the tensor {size}, only equal ones here"
    return None


def plain_batches(left: str, right: str) -> Condition:
    """Require that no batch dims of a product broadcast at run time: OpenVINO 2026.4 then returns uninitialised memory."""

    def condition(node: fx.Node) -> str | None:
        shapes = [value_of(argument(node, name)).shape for name in (left, right)]
        if not any(is_symbolic(size) for shape in shapes for size in shape) or len(shapes[1]) <= 2:
            return None
        batches = [list(map(str, shape[:-2])) for shape in shapes]
        return None if batches[0] == batches[1] else f"batch dims {batches[0]} and {batches[1]} of unknown size broadcast"

    return condition


def no_ceiling_into_pads(node: fx.Node) -> str | None:
    """Refuse counted padding with ceil_mode: past the padded edge PyTorch divides by the part inside, OpenVINO by all."""
    is_bad = argument(node, "ceil_mode") and argument(node, "count_include_pad")
    return "ceil_mode with count_include_pad" if is_bad else None


def not_one_column(node: fx.Node) -> str | None:
    """Refuse one input channel, stride 1 along the rows and a longer stride along lines in which one result is left.

    Such a convolution, plain or dilated, reads foreign memory for its later rows (OpenVINO 2026.4, 2-D and 3-D); with
    groups, two channels, equal strides or two results in a line it is correct.
    """
    channels, stride = value_of(argument(node, "weight")).shape[1], elements(argument(node, "stride"))
    last = _first_result(node).shape[-1]
    if channels != 1 or argument(node, "groups") != 1 or len(stride) < 2:
        return None
    is_transposed = operator_name(node) == "aten.convolution.default" and argument(node, "transposed")
    if is_transposed or stride[-2] != 1 or stride[-1] == 1 or not (is_symbolic(last) or last == 1):
        return None
    return f"one channel in, stride {list(stride)} and a result of width {last}, for which OpenVINO reads foreign memory"


def unprojected(node: fx.Node) -> str | None:
    """Require an LSTM without projections, with batched inputs and weights of known size."""
    each = (4 if argument(node, "has_biases") else 2) * (2 if argument(node, "bidirectional") else 1)
    params = argument(node, "params")
    if len(params) != each * argument(node, "num_layers"):
        return f"{len(params)} weights, {each} a layer here"
    if any(is_symbolic(size) for item in params for size in value_of(item).shape):
        return "weights of unknown size"
    shape = value_of(argument(node, "input")).shape
    if len(shape) != 3 or is_symbolic(shape[2]):
        return f"input is {list(shape)}, three dims with the last one known here"
    return None


def exact_places(node: fx.Node) -> str | None:
    """Require factors for which PyTorch and OpenVINO read the same positions.

    Whole factors do for sizes that are verified, powers of 2, halves among them, for all others.
    """
    is_open = any(map(is_symbolic, (*value_of(argument(node, "input")).shape[2:], *node.meta["val"].shape[2:])))
    factors = argument(node, "scale_factors")
    if factors is None:
        return "resampled to sizes known only at run time, between which places are rounded otherwise" if is_open else None
    bad = [factor for factor in factors if not isinstance(factor, float)]
    bad = bad or [factor for factor in factors if frexp(factor)[0] != 0.5 and (is_open or not factor.is_integer())]
    wanted = "powers of 2 where sizes are known only at run time" if is_open else "whole numbers and powers of 2"
    return f"scale factor {bad[0]}, only {wanted} here" if bad else None


def equals(name: str, wanted: Any) -> Condition:
    """Require this value for the plain argument `name`."""
    return attribute(name, lambda value: value == wanted, str(wanted))


reduces_something = attribute("dim", lambda value: value != [], "not without dims")

# --- Rows -------------------------------------------------------------------------------------------------------------

FLOAT = dtypes("float32")
NUMBER = gives("float32", "int64", "int32")
INTEGER = gives("int64", "int32")
MOVED: tuple[Condition, ...] = ()
_DENSE = (FLOAT, same_rank("input", "weight"), static("weight"), plain("stride", "padding", "dilation", "groups"))
_CONV = (*_DENSE, not_one_column)
_POOL = (FLOAT, plain("kernel_size", "stride", "padding"))
# Bilinear, with zeros outside: beyond the image's border OpenVINO gives NaN where the place is infinite.
_GRID = (FLOAT, rank("input", 4, 4), one_of("interpolation_mode", 0), one_of("padding_mode", 0))
_NATIVE = (FLOAT, only_output(0))
_SDPA = (
    takes("query", "float32"),
    takes("attn_mask", "float32", "bool"),
    rank("query", 3, 4),
    rank("key", 3, 4),
    equals("dropout_p", 0.0),
    plain("scale"),
    heads_match,
)
_WIDE = (has_dims, known_sizes("dim"), FLOAT)  # OpenVINO reduces no axis of a scalar

OPERATORS = OperatorTable(
    everywhere=(dtypes("float32", "int64", "int32", "bool"), on_cpu, at_most_six_dims, not_empty, int32_numbers),
    rows={
        # arithmetic
        "aten.add.Tensor": (),
        "aten.add.Scalar": (),
        "aten.sub.Tensor": (NUMBER,),
        "aten.sub.Scalar": (NUMBER,),
        "aten.rsub.Scalar": (NUMBER,),
        "aten.rsub.Tensor": (NUMBER,),
        "aten.mul.Tensor": (no_wide_product,),
        "aten.mul.Scalar": (),
        "aten.div.Tensor": (gives("float32"),),
        "aten.div.Scalar": (gives("float32"),),
        "aten.div.Tensor_mode": (gives("float32"), one_of("rounding_mode", None, "trunc")),
        "aten.floor_divide.default": (INTEGER, nonzero_divisor),
        "aten.floor_divide.Scalar": (INTEGER, nonzero_divisor),
        "aten.remainder.Scalar": (INTEGER, nonzero_divisor),
        "aten.pow.Tensor_Scalar": (FLOAT, plain("exponent")),
        "aten.pow.Tensor_Tensor": (FLOAT,),
        "aten.pow.Scalar": (FLOAT, plain("self")),
        "aten.square.default": (FLOAT,),
        "aten.maximum.default": (NUMBER,),
        "aten.minimum.default": (NUMBER,),
        "aten.max.other": (NUMBER,),
        "aten.min.other": (NUMBER,),
        "aten.clamp.default": (NUMBER,),
        "aten.clamp.Tensor": (NUMBER,),
        "aten.clamp_min.default": (NUMBER,),
        "aten.clamp_min.Tensor": (NUMBER,),
        "aten.clamp_max.default": (NUMBER,),
        "aten.clamp_max.Tensor": (NUMBER,),
        "aten.nan_to_num.default": (FLOAT,),
        "aten.addcmul.default": (FLOAT,),
        "aten.addcdiv.default": (FLOAT,),
        "aten.lerp.Scalar": (FLOAT,),
        "aten.lerp.Tensor": (FLOAT,),
        "aten.abs.default": (NUMBER,),
        "aten.neg.default": (NUMBER,),
        "aten.sign.default": (NUMBER,),
        **dict.fromkeys(
            (
                "aten.exp.default",
                "aten.log.default",
                "aten.log2.default",
                "aten.log10.default",
                "aten.log1p.default",
                "aten.sqrt.default",
                "aten.rsqrt.default",
                "aten.reciprocal.default",
                "aten.sin.default",
                "aten.cos.default",
                "aten.tan.default",
                "aten.asin.default",
                "aten.acos.default",
                "aten.atan.default",
                "aten.sinh.default",
                "aten.cosh.default",
                "aten.asinh.default",
                "aten.acosh.default",
                "aten.atanh.default",
                "aten.erf.default",
            ),
            (gives("float32"),),
        ),
        "aten.floor.default": (FLOAT,),
        "aten.ceil.default": (FLOAT,),
        "aten.round.default": (FLOAT,),
        "aten.trunc.default": (FLOAT,),
        "aten.frac.default": (FLOAT,),
        # comparison, logic, choice
        **dict.fromkeys(
            tuple(f"aten.{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")),
            (),
        ),
        "aten.logical_and.default": (),
        "aten.logical_or.default": (),
        "aten.logical_xor.default": (),
        "aten.logical_not.default": (),
        "aten.bitwise_and.Tensor": (),
        "aten.bitwise_or.Tensor": (),
        "aten.bitwise_xor.Tensor": (),
        "aten.bitwise_not.default": (),
        "aten.__and__.Tensor": (),
        "aten.__or__.Tensor": (),
        "aten.where.self": (),
        "aten.where.ScalarOther": (),
        "aten.where.ScalarSelf": (),
        "aten.where.Scalar": (),
        "aten.masked_fill.Scalar": (),
        "aten.masked_fill.Tensor": (),
        "aten.isnan.default": (takes("self", "float32"),),
        "aten.isinf.default": (takes("self", "float32"),),
        "aten.isfinite.default": (takes("self", "float32"),),
        # casts and copies
        "aten.to.dtype": (),
        "aten.to.dtype_layout": (),
        "aten.to.device": (),
        "aten.to.other": (),
        "aten.type_as.default": (),
        "aten._to_copy.default": (),
        "aten.clone.default": (),
        "aten.contiguous.default": (),
        "aten.alias.default": (),
        "aten.lift_fresh_copy.default": (),
        "aten.dropout.default": (equals("train", False),),
        # activations and softmax: several lose NaN, see NAN_BLIND
        "aten.relu.default": (FLOAT,),
        "aten.relu6.default": (FLOAT,),
        "aten.hardtanh.default": (FLOAT,),
        "aten.hardswish.default": (FLOAT,),
        "aten.hardsigmoid.default": (FLOAT,),
        "aten.leaky_relu.default": (FLOAT, plain("negative_slope")),
        "aten.prelu.default": (FLOAT, static("weight")),
        "aten.elu.default": (FLOAT, equals("scale", 1), equals("input_scale", 1), plain("alpha")),
        "aten.selu.default": (FLOAT,),
        "aten.celu.default": (FLOAT, plain("alpha")),
        "aten.threshold.default": (FLOAT,),
        "aten.softshrink.default": (FLOAT,),
        "aten.gelu.default": (FLOAT,),
        "aten.silu.default": (FLOAT,),
        "aten.mish.default": (FLOAT,),
        "aten.sigmoid.default": (gives("float32"),),
        "aten.tanh.default": (gives("float32"),),
        "aten.softplus.default": (FLOAT, equals("beta", 1), equals("threshold", 20)),
        "aten.log_sigmoid.default": (FLOAT,),
        "aten.glu.default": (FLOAT,),
        "aten.softmax.int": (gives("float32"), rank("self", 1, MAX_RANK)),
        "aten._softmax.default": (FLOAT, rank("self", 1, MAX_RANK)),
        "aten.log_softmax.int": (gives("float32"), rank("self", 1, MAX_RANK)),
        "aten._log_softmax.default": (FLOAT, rank("self", 1, MAX_RANK)),
        # views, slices, joins, pads
        "aten.view.default": MOVED,
        "aten.reshape.default": MOVED,
        "aten._unsafe_view.default": MOVED,
        "aten.flatten.using_ints": MOVED,
        "aten.unflatten.int": MOVED,
        "aten.permute.default": MOVED,
        "aten.transpose.int": MOVED,
        "aten.t.default": MOVED,
        "aten.unsqueeze.default": MOVED,
        "aten.squeeze.default": MOVED,
        "aten.squeeze.dim": MOVED,
        "aten.squeeze.dims": MOVED,
        "aten.expand.default": MOVED,
        "aten.expand_as.default": MOVED,
        "aten.view_as.default": MOVED,
        "aten.numpy_T.default": MOVED,
        "aten.slice.Tensor": MOVED,
        "aten.narrow.default": MOVED,
        "aten.select.int": MOVED,
        "aten.cat.default": MOVED,
        "aten.concat.default": MOVED,
        "aten.stack.default": MOVED,
        "aten.split.Tensor": (known_parts,),
        "aten.split_with_sizes.default": (known_parts,),
        "aten.chunk.default": (known_parts,),
        "aten.unbind.int": MOVED,
        "aten.repeat.default": MOVED,
        "aten.repeat_interleave.self_int": (plain("repeats"),),
        "aten.roll.default": (attribute("dims", bool, "some"),),
        "aten.flip.default": (attribute("dims", bool, "some"),),
        "aten.pad.default": (NUMBER, one_of("mode", "constant", "reflect", "replicate")),
        "aten.constant_pad_nd.default": (NUMBER,),
        "aten.pixel_shuffle.default": (FLOAT, rank("self", 4, 4)),
        "aten.pixel_unshuffle.default": (FLOAT, rank("self", 4, 4)),
        "aten.channel_shuffle.default": (FLOAT, rank("self", 3, 5)),
        "aten.slice_scatter.default": (NUMBER, plain("start", "end", "step")),  # OpenVINO crashes at unknown bounds
        "aten.select_scatter.default": (NUMBER, plain("index")),
        "aten.triu.default": (known_dims("self", -1, -2), plain("diagonal")),
        "aten.tril.default": (known_dims("self", -1, -2), plain("diagonal")),
        # reductions and scans
        "aten.sum.default": (NUMBER,),
        "aten.sum.dim_IntList": (NUMBER,),
        "aten.mean.default": (gives("float32"),),
        "aten.mean.dim": (gives("float32"),),
        "aten.any.default": (),
        "aten.any.dim": (),
        "aten.any.dims": (reduces_something,),
        "aten.all.default": (),
        "aten.all.dim": (),
        "aten.all.dims": (reduces_something,),
        "aten.amax.default": (NUMBER, has_dims),
        "aten.amin.default": (NUMBER, has_dims),
        **dict.fromkeys(
            ("aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim"),
            (dtypes("float32", "int64", "int32"), has_dims),
        ),
        "aten.max.default": (NUMBER,),
        "aten.min.default": (NUMBER,),
        "aten.var.correction": _WIDE,
        "aten.std.correction": _WIDE,
        "aten.var_mean.correction": _WIDE,
        "aten.linalg_vector_norm.default": (FLOAT, one_of("ord", 1, 2)),
        "aten.logsumexp.default": (FLOAT, has_dims),
        "aten.cumsum.default": (NUMBER,),
        "aten.diff.default": (equals("n", 1),),
        # products and attention
        "aten.linear.default": (FLOAT, rank("input", 1, MAX_RANK), rank("weight", 2, 2)),
        "aten.matmul.default": (FLOAT, plain_batches("self", "other")),
        "aten.mm.default": (FLOAT,),
        "aten.mv.default": (FLOAT,),
        "aten.dot.default": (FLOAT,),
        "aten.outer.default": (FLOAT,),
        "aten.bmm.default": (FLOAT,),
        "aten.addmm.default": (FLOAT, plain("alpha", "beta")),
        "aten.baddbmm.default": (FLOAT, plain("alpha", "beta")),
        "aten.scaled_dot_product_attention.default": _SDPA,
        "aten._scaled_dot_product_flash_attention_for_cpu.default": (*_SDPA, only_output(0)),
        # convolution, pooling, resampling
        "aten.conv1d.default": _CONV,
        "aten.conv2d.default": _CONV,
        "aten.conv3d.default": _CONV,
        "aten.conv1d.padding": _CONV,
        "aten.conv2d.padding": _CONV,
        "aten.conv3d.padding": _CONV,
        "aten.convolution.default": _CONV,
        "aten.conv_transpose1d.default": (*_DENSE, plain("output_padding")),
        "aten.conv_transpose2d.input": (*_DENSE, plain("output_padding")),
        "aten.conv_transpose3d.input": (*_DENSE, plain("output_padding")),
        "aten.max_pool1d.default": _POOL,
        "aten.max_pool2d.default": _POOL,
        "aten.max_pool3d.default": _POOL,
        "aten.max_pool2d_with_indices.default": (
            takes("self", "float32"),
            plain("kernel_size", "stride", "padding"),
            only_output(0),
        ),
        "aten.avg_pool1d.default": (*_POOL, no_ceiling_into_pads),
        "aten.avg_pool2d.default": (*_POOL, absent("divisor_override"), no_ceiling_into_pads),
        "aten.avg_pool3d.default": (*_POOL, absent("divisor_override"), no_ceiling_into_pads),
        "aten.adaptive_avg_pool1d.default": (FLOAT, plain("output_size")),
        "aten.adaptive_avg_pool2d.default": (FLOAT, plain("output_size")),
        "aten.adaptive_avg_pool3d.default": (FLOAT, plain("output_size")),
        "aten._adaptive_avg_pool2d.default": (FLOAT, plain("output_size")),
        "aten.upsample_nearest1d.vec": (FLOAT, exact_places),
        "aten.upsample_nearest2d.vec": (FLOAT, exact_places),
        "aten.upsample_nearest3d.vec": (FLOAT, exact_places),
        "aten.upsample_linear1d.vec": (FLOAT, exact_places),
        "aten.upsample_bilinear2d.vec": (FLOAT, exact_places),
        "aten.upsample_trilinear3d.vec": (FLOAT, exact_places),
        "aten.upsample_bicubic2d.vec": (FLOAT, exact_places),
        "aten.grid_sampler.default": _GRID,
        "aten.grid_sampler_2d.default": _GRID,
        # normalisation
        "aten.layer_norm.default": (FLOAT, plain("normalized_shape")),
        "aten.native_layer_norm.default": (*_NATIVE, plain("normalized_shape")),
        "aten.rms_norm.default": (FLOAT, plain("normalized_shape")),
        "aten.group_norm.default": (FLOAT, known_dims("input", 1), rank("input", 3, 5)),
        "aten.native_group_norm.default": (*_NATIVE, known_dims("input", 1), rank("input", 3, 5)),
        "aten.instance_norm.default": (FLOAT, rank("input", 3, 5), known_dims("input", 1)),
        "aten.batch_norm.default": (FLOAT, equals("training", False), known_dims("input", 1)),
        "aten._native_batch_norm_legit_no_training.default": (*_NATIVE, known_dims("input", 1)),
        "aten._weight_norm.default": (FLOAT,),
        # recurrent layers
        "aten.lstm.input": (FLOAT, equals("train", False), unprojected),
        # indexing
        "aten.embedding.default": (),
        "aten.gather.default": (rank("self", 1, MAX_RANK), index_as_long),
        "aten.one_hot.default": (plain("num_classes"), attribute("num_classes", lambda count: count > 0, "a known number")),
        "aten.index_select.default": (rank("self", 1, MAX_RANK), rank("index", 1, 1)),
        "aten.index.Tensor": (integer_indices,),
        "aten._unsafe_index.Tensor": (integer_indices,),
        # creation
        "aten.arange.default": (whole_numbers("end"),),
        "aten.arange.start": (whole_numbers("start", "end"),),
        "aten.arange.start_step": (whole_numbers("start", "end", "step"),),
        "aten.full.default": (),
        "aten.zeros.default": (),
        "aten.ones.default": (),
        "aten.new_full.default": (),
        "aten.new_zeros.default": (),
        "aten.new_ones.default": (),
        "aten.full_like.default": (),
        "aten.zeros_like.default": (),
        "aten.ones_like.default": (),
        "aten.scalar_tensor.default": (),
    },
)
