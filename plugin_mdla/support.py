"""Operators that the device takes, each with its conditions: those of its ONNX compiler, or exact sums of them."""

from __future__ import annotations

from hub.plugin import (
    Condition,
    OperatorTable,
    absent,
    attribute,
    dtypes,
    rank,
)

from .conditions import (
    addable,
    concatenates,
    constant,
    flattens,
    floor_sizes,
    gentle_slope,
    image,
    no_dilation,
    number,
    on_device,
    only_first_read,
    plain_ratio,
    relu_shape,
    short_sums,
    two_or_four_dims,
    whole_image,
    whole_windows,
)

_INFERENCE = attribute("training", lambda value: not value, "only inference")
_STATISTICS = constant("weight", "bias", "running_mean", "running_var")
_CONVOLUTION = (image("input"), constant("weight", "bias"), short_sums)


def _rows(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    return {f"aten.{name}": conditions for name in names.split()}


OPERATORS = OperatorTable(
    everywhere=(dtypes("float32"), on_device),
    rows={
        # Conv, ConvTranspose, Gemm
        **_rows("conv2d.default conv2d.padding conv_transpose2d.input", *_CONVOLUTION),
        **_rows("linear.default", rank("input", 2, 2), rank("weight", 2, 2), constant("weight", "bias"), short_sums),
        # BatchNormalization: folded into the layer before it if possible
        **_rows("_native_batch_norm_legit_no_training.default", _STATISTICS, two_or_four_dims, only_first_read),
        **_rows("batch_norm.default", _INFERENCE, _STATISTICS, two_or_four_dims),
        # MaxPool, AveragePool, GlobalAveragePool, Upsample
        **_rows("max_pool2d.default", image("self"), floor_sizes, no_dilation),
        **_rows("avg_pool2d.default", image("self"), floor_sizes, absent("divisor_override")),
        **_rows("adaptive_avg_pool2d.default _adaptive_avg_pool2d.default", image("self"), whole_windows),
        **_rows("mean.dim", image("self"), whole_image, absent("dtype")),
        **_rows("upsample_nearest2d.vec", image("input"), plain_ratio),
        **_rows("upsample_nearest2d.default", image("self"), plain_ratio),
        # Relu, LeakyRelu, Sigmoid, Tanh; relu6 as Relu(x) - Relu(x - 6), silu as x Sigmoid(x)
        **_rows("relu.default sigmoid.default tanh.default silu.default", two_or_four_dims),
        **_rows("leaky_relu.default", two_or_four_dims, gentle_slope),
        **_rows("hardtanh.default", two_or_four_dims, relu_shape),
        **_rows("relu6.default", two_or_four_dims),
        # Add, Mul, Concat
        **_rows("add.Tensor sub.Tensor", two_or_four_dims, addable, number("alpha")),
        **_rows("rsub.Scalar", two_or_four_dims, number("other"), number("alpha")),
        **_rows("mul.Tensor", two_or_four_dims, addable),
        **_rows("cat.default", two_or_four_dims, concatenates),
        # views and copies, which cost nothing
        **_rows("clone.default contiguous.default", two_or_four_dims),
        **_rows("view.default reshape.default flatten.using_ints", flattens),
    },
)
