"""Normalizations of half-precision tensors with float32 parameters, as autocast makes them, on a CPU.

Eager returns their statistics in float32. PyTorch's shape propagation declares them in the input's dtype. For
`native_group_norm_backward` it declares the gradient in float32, while eager returns it in half precision. In a graph
captured so, tensors have other dtypes than declared: its backward reads float32 memory as bfloat16. The decompositions here
compute in float32 and round the first result, as eager's own kernels do internally, so that the dtypes are as declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hub.torch_private import pytree

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


def _decomposed(operator: Any) -> Callable[..., Any]:
    def decomposition(first: torch.Tensor, *others: Any) -> Any:
        tensors = [first, *(other for other in others if isinstance(other, torch.Tensor))]
        is_mixed = any(tensor.dtype is torch.float32 for tensor in tensors[1:])
        if first.device.type != "cpu" or first.dtype not in _HALF or not is_mixed:
            return NotImplemented
        widened = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(torch.float32), (first, *others))
        result, *statistics = operator(*widened)
        return (None if result is None else result.to(first.dtype), *statistics)

    return decomposition


IN_FLOAT32: Mapping[Any, Callable[..., Any]] = {
    operator: _decomposed(operator)
    for operator in (
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_no_training.default,
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
    )
}
"""Decompositions by operator. They return NotImplemented for calls that need none."""
