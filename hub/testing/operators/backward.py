"""Samples of operators that appear in backward graphs: gradients of activations, softmax, norms, convolutions, pools."""

from __future__ import annotations

import torch

from hub.testing.operators.sample import Table, at, b, bf16, call, f, f16, f64, lit, pos, rows

_X2 = f(2, 4, 9, 8)
_MASK3 = [True, True, True]

_ACTIVATIONS: Table = {
    "aten.threshold_backward.default": (
        call(f(3, 4), f(3, 4), 0),
        call(f(3), lit(-1.0, 0.0, 2.0), 0),
        call(f(3, 4), f(3, 4), 0.5),
    ),
    **rows(
        "tanh_backward.default sigmoid_backward.default",
        call(f(3, 4), pos(3, 4)),
        call(f(4, 3).T, f(3, 4)),
        call(f64(3), f64(3)),
    ),
    **rows(
        "silu_backward.default mish_backward.default hardswish_backward.default",
        call(f(3, 4), f(3, 4)),
        call(f(3), lit(-3.5, 0.0, 3.5)),
    ),
    "aten.hardsigmoid_backward.default": (call(f(3, 4), f(3, 4)),),
    "aten.gelu_backward.default": (
        call(f(3, 4), f(3, 4)),
        call(f(3, 4), f(3, 4), approximate="tanh"),
        call(f(5), lit(-8.0, -1.0, 0.0, 1.0, 8.0)),
    ),
    "aten.leaky_relu_backward.default": (call(f(3, 4), f(3, 4), 0.1, False),),
    "aten.elu_backward.default": (
        call(f(3, 4), 1.0, 1.0, 1.0, False, f(3, 4)),
        call(f(3, 4), 1.0, 1.0, 1.0, True, f(3, 4)),
    ),
    "aten.hardtanh_backward.default": (call(f(3, 4), f(3, 4), -1.0, 1.0),),
    "aten.softplus_backward.default": (call(f(3, 4), f(3, 4), 1.0, 20.0),),
    "aten.glu_backward.default": (call(f(2, 3), f(2, 6), -1),),
    "aten.native_dropout_backward.default": (call(f(3, 4), b(3, 4), 2.0), call(b(3, 4), b(3, 4), 2.0)),
}

_SOFTMAX: Table = {
    "aten._softmax_backward_data.default": (
        call(f(3, 4), pos(3, 4), 1, torch.float32),
        call(f(2, 3, 4), pos(2, 3, 4), -1, torch.float32),
        call(bf16(3, 4), pos(3, 4, dtype=torch.bfloat16), 1, torch.bfloat16),
        call(f16(3, 4), pos(3, 4, dtype=torch.float16), 1, torch.float16),
    ),
    "aten._log_softmax_backward_data.default": (
        call(f(3, 4), f(3, 4), 1, torch.float32),
        call(f(2, 3, 4), f(2, 3, 4), -1, torch.float32),
        call(bf16(3, 4), bf16(3, 4), 1, torch.bfloat16),
        call(f16(3, 4), f16(3, 4), 1, torch.float16),
    ),
}

_NORMS: Table = {
    "aten.native_layer_norm_backward.default": (
        call(f(3, 8), f(3, 8), [8], f(3, 1), pos(3, 1), f(8), f(8), _MASK3),
        call(f(2, 3, 8), f(2, 3, 8), [8], f(2, 3, 1), pos(2, 3, 1), f(8), f(8), _MASK3).reads(0),
    ),
    "aten.native_batch_norm_backward.default": (
        call(f(2, 3, 4, 4), f(2, 3, 4, 4), f(3), f(3), pos(3), f(3), pos(3), True, 1e-5, _MASK3),
        call(f(2, 3, 4, 4), f(2, 3, 4, 4), f(3), f(3), pos(3), None, None, False, 1e-5, _MASK3),
    ),
    "aten.native_group_norm_backward.default": (
        call(f(2, 6, 3, 4), f(2, 6, 3, 4), f(2, 2), pos(2, 2), f(6), 2, 6, 12, 2, _MASK3),
    ),
}

_WINDOWS: Table = {
    "aten.convolution_backward.default": (
        call(f(2, 6, 9, 8), _X2, f(6, 4, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, _MASK3),
        call(f(2, 6, 5, 4), _X2, f(6, 4, 3, 3), [0], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]).reads(
            0, 1
        ),
        call(f(2, 4, 9, 8), _X2, f(4, 1, 3, 3), [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 4, _MASK3),
    ),
    "aten.avg_pool2d_backward.default": (
        call(f(2, 4, 4, 4), _X2, [2, 2], [2, 2], [0, 0], False, True, None),
        call(f(2, 4, 5, 4), _X2, [3, 3], [2, 2], [1, 1], False, False, None),
    ),
    "aten._adaptive_avg_pool2d_backward.default": (call(f(2, 4, 1, 1), _X2), call(f(2, 4, 3, 4), _X2)),
    "aten.max_pool2d_with_indices_backward.default": (
        call(f(1, 2, 2, 2), f(1, 2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, at(1, 2, 2, 2, below=16)),
        call(f(2, 3, 4), f(2, 5, 7), [3, 3], [2, 2], [1, 1], [1, 1], False, at(2, 3, 4, below=35)),
    ),
    "aten.max_pool3d_with_indices_backward.default": (
        call(
            f(1, 2, 2, 1, 2),
            f(1, 2, 4, 3, 4),
            [2, 2, 2],
            [2, 2, 2],
            [0, 0, 0],
            [1, 1, 1],
            False,
            at(1, 2, 2, 1, 2, below=48),
        ),
    ),
    "aten.upsample_nearest2d_backward.default": (call(f(1, 2, 6, 8), [6, 8], [1, 2, 3, 4]),),
    "aten.upsample_bilinear2d_backward.default": (call(f(1, 2, 6, 8), [6, 8], [1, 2, 3, 4], False),),
}

_LOSS_GRADIENTS = (
    call(f(3, 4), f(3, 4), f(3, 4), 0),  # first, so it is tried with 0 elements: for a mean, PyTorch divides by them
    call(f(), f(3, 4), f(3, 4), 1),
    call(f(), f(3, 4), f(3, 4), 2),
    *(call(made(3, 4), made(3, 4), made(3, 4), 0) for made in (f16, bf16, f64)),
    call(bf16(), bf16(3, 4), bf16(3, 4), 1),
)
_INDICES: Table = {
    "aten.embedding_dense_backward.default": (
        call(f(3, 4), at(3, below=7), 7, -1, False),
        call(f(2, 3, 4), at(2, 3, below=7), 7, 0, False),
    ),
    "aten.slice_backward.default": (
        call(f(2, 3), [4, 3], 0, 1, 3, 1),
        call(f(4, 2), [4, 3], 1, -2, 9223372036854775807, 1),
        call(f(2, 3), [4, 3], 0, 0, 4, 2),
    ),
    "aten.select_backward.default": (call(f(3), [4, 3], 0, 1), call(f(4), [4, 3], 1, -1)),
    "aten.mse_loss_backward.default": _LOSS_GRADIENTS,
    **rows(
        "smooth_l1_loss_backward.default huber_loss_backward.default",
        *(call(*sample.arguments, 0.5) for sample in _LOSS_GRADIENTS),
    ),
    "aten.nll_loss_backward.default": (
        call(f(), f(4, 5), at(4, below=5), None, 1, -100, pos()),
        call(f(), f(4, 5), at(4, below=5), None, 2, 3, pos()),
        call(f(), f(4, 5), lit(0, 3, 4, 3), pos(5), 1, 3, pos()),
        call(f(4), f(4, 5), at(4, below=5), pos(5), 0, -100, pos()),
        call(f(), f(5), at(below=5), None, 1, -100, pos()),
        call(f16(), f16(4, 5), at(4, below=5), None, 1, -100, pos(dtype=torch.float16)),
        call(bf16(4), bf16(4, 5), at(4, below=5), None, 0, -100, pos(dtype=torch.bfloat16)),
    ),
    "aten.nll_loss2d_backward.default": (
        call(f(), f(2, 5, 3, 4), at(2, 3, 4, below=5), None, 1, -100, pos()),
        call(f(), f(2, 5, 3, 4), at(2, 3, 4, below=5), pos(5), 2, 3, pos()),
        call(f(2, 3, 4), f(2, 5, 3, 4), at(2, 3, 4, below=5), None, 0, 3, pos()),
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (
        call(*(f(1, 2, 3, 8) for _ in range(5)), pos(1, 2, 3), 0.0, False),
        call(*(f(1, 2, 3, 8) for _ in range(5)), pos(1, 2, 3), 0.0, True, scale=0.5),
        # Grouped heads, which only the sizes reveal.
        call(f(2, 4, 3, 8), f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 8), f(2, 4, 3, 8), pos(2, 4, 3), 0.0, False),
        call(f(2, 4, 3, 8), f(2, 4, 3, 8), f(2, 2, 3, 8), f(2, 2, 3, 8), f(2, 4, 3, 8), pos(2, 4, 3), 0.0, True),
        call(f(2, 4, 3, 8), f(2, 4, 3, 8), f(2, 1, 5, 8), f(2, 1, 5, 8), f(2, 4, 3, 8), pos(2, 4, 3), 0.0, False),
    ),
}

TABLE: Table = {**_ACTIVATIONS, **_SOFTMAX, **_NORMS, **_WINDOWS, **_INDICES}
