"""Operators that PyTorch composes of others, and that few compilers know: they are captured as what they are composed of.

The pre-dispatch form keeps every such operator, so that compilers see `linear` or `layer_norm` whole. Of most others they
have no rule: an `einsum`, a `std` with dims or a `multiply` in the place of `mul` would split the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hub.plugin.table import overload_of
from hub.torch_private import OpOverload

_NAMES = (
    # products and distances
    "einsum.default tensordot.default inner.default ger.default kron.default cosine_similarity.default "
    "pairwise_distance.default "
    # statistics, in terms of `correction`
    "std.default std.dim var.default var.dim std_mean.default std_mean.dim var_mean.default var_mean.dim "
    # other names
    "multiply.Tensor multiply.Scalar subtract.Tensor subtract.Scalar divide.Tensor divide.Scalar divide.Tensor_mode "
    "divide.Scalar_mode true_divide.Tensor true_divide.Scalar greater.Tensor greater.Scalar greater_equal.Tensor "
    "greater_equal.Scalar less.Tensor less.Scalar less_equal.Tensor less_equal.Scalar not_equal.Tensor not_equal.Scalar "
    "negative.default absolute.default clip.default clip.Tensor fix.default special_expit.default special_softmax.default "
    "special_log_softmax.default special_logsumexp.default "
    # shapes
    "concat.default concatenate.default hstack.default vstack.default dstack.default column_stack.default "
    "row_stack.default tile.default swapaxes.default swapdims.default moveaxis.int moveaxis.intlist movedim.int "
    "movedim.intlist ravel.default fliplr.default flipud.default broadcast_tensors.default meshgrid.default "
    "meshgrid.indexing"
)


COMPOSED: Mapping[OpOverload, Callable[..., Any]] = {
    operator: operator.decompose for operator in (overload_of(f"aten.{name}") for name in _NAMES.split())
}
"""PyTorch's own decompositions, by operator."""
