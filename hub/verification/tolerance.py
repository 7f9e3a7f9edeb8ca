"""Largest error of an executable: from the dtype, eager's own error and the sums in its cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin.graph import Cluster, priced_size
from hub.plugin.table import argument, elements, operator_name, tensors_of, value_of

EAGER_FACTOR = 4.0
"""Allowed multiple of eager's own error against float64, for another order of the same sums."""
FUNCTION_ULPS = 32.0
"""Allowed roundings in a short chain of operations for which eager happens to be exact: library functions err by 1 to 8
ULP."""
RESULT_ULPS = 2.0
"""Allowed roundings of the result itself, to its output dtype."""
SLACK_TINY = 4.0
"""Multiple of the smallest normal number, per term of a sum, that may be lost by flushing denormals to zero."""

_ACCUMULATED_IN: Mapping[torch.dtype, torch.dtype] = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Dtype in which eager accumulates and computes functions, if it is not the tensor's own (`at::opmath_type`)."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerance of one cluster without an error budget; `docs/explanation/numerics.md` gives the reasons.

    The largest error against float64 may be 4 e + 2 u + (32 + sqrt(n)) v. Here e is eager's own largest error, u one unit
    in the last place of the largest value in the output's dtype, v the same in the dtype that eager accumulates in, and n
    the number of terms of the longest sum. Sums of n terms err by sqrt(n) roundings, since roundings have random signs:
    Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
    """

    n_terms: int
    """Terms of the longest sum."""
    n_nodes: int
    coarsest_eps: float = 0.0
    """One unit in the last place of 1 in the coarsest floating-point dtype that the cluster rounds to."""

    @classmethod
    def of(cls, cluster: Cluster) -> Tolerance:
        """Return the tolerance of a cluster, with symbolic sizes as in prices."""
        return cls(longest_sum(cluster), max(1, len(cluster.nodes)), _coarsest_eps(cluster))

    def allowed(self, dtype: torch.dtype, scale: float, eager_error: float, *, has_reference: bool) -> float:
        """Return the largest allowed error of an output of this dtype whose largest value is `scale`.

        Without a float64 reference, eager's error is unknown. Each node may then have roundings of its own, which grow with
        the square root of the number of nodes because of their random signs.
        """
        own = RESULT_ULPS * torch.finfo(dtype).eps
        inside = (FUNCTION_ULPS + math.sqrt(self.n_terms)) * torch.finfo(_ACCUMULATED_IN.get(dtype, dtype)).eps
        if has_reference:
            return EAGER_FACTOR * eager_error + (own + inside) * scale + self.slack(dtype)
        return (own + inside) * math.sqrt(self.n_nodes) * scale + self.slack(dtype)

    @property
    def roundings(self) -> float:
        """Allowed multiple of the change that one rounding of the inputs causes in eager.

        A sum of n terms errs as if each term had moved by sqrt(n) roundings, and a difference from such a sum shows it.
        """
        return EAGER_FACTOR + math.sqrt(self.n_terms)

    def half_of_digits(self, dtype: torch.dtype) -> float:
        """Return half of the digits that an output of this dtype can have, as a fraction of the value.

        Under autocast, a float32 output has no more digits than the bfloat16 values that it is computed from.
        """
        return max(torch.finfo(dtype).eps, self.coarsest_eps) ** 0.5

    def slack(self, dtype: torch.dtype) -> float:
        """Return the absolute error that flushing denormals to zero may cause in a sum."""
        return SLACK_TINY * torch.finfo(dtype).tiny * self.n_terms


def _coarsest_eps(cluster: Cluster) -> float:
    """Return the largest `eps` among the floating-point tensors that a cluster computes; 0 if it computes none."""
    values = (item for node in cluster.nodes for item in elements(value_of(node)))
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return max((torch.finfo(value.dtype).eps for value in tensors if value.is_floating_point()), default=0.0)


def longest_sum(cluster: Cluster) -> int:
    """Return the number of terms of the longest sum in a cluster; 1 if there is none."""
    return max(map(terms_of, cluster.nodes), default=1)


def terms_of(node: fx.Node) -> int:
    """Return how many terms one element of a node's result is a sum of; 1 for operators without sums.

    Raises nothing: for an unknown call, sums are as long as the input is larger than the output.
    """
    name = operator_name(node)
    base = name.split(".")[1] if name.count(".") else name
    count = _TERMS.get(base) or (_shrinkage if base.endswith(("_backward", "_backward_data")) else None)
    if count is None:
        return 1
    try:
        return max(1, count(node))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return max(1, _shrinkage(node))


def _sizes(value: Any) -> list[int]:
    return [priced_size(size) for size in value_of(value).shape]


def _numel(tensor: Any) -> int:
    return math.prod(map(priced_size, tensor.shape))


def _shrinkage(node: fx.Node) -> int:
    """Return how many times larger the largest input is than the smallest output."""
    outputs = [_numel(item) for item in elements(value_of(node)) if isinstance(item, torch.Tensor)]
    return max(map(_numel, tensors_of(node)), default=1) // max(1, min(outputs, default=1))


def _inner(name: str) -> Callable[[fx.Node], int]:
    """Return the terms of a product over the last dim of an argument."""
    return lambda node: _sizes(argument(node, name))[-1]


def _window(node: fx.Node) -> int:
    """Return the terms of a convolution: weight [out, in / groups, *kernel]."""
    return math.prod(_sizes(argument(node, "weight"))[1:])


def _scattered_window(node: fx.Node) -> int:
    """Return the terms of a transposed convolution: weight [in, out / groups, *kernel]."""
    sizes = _sizes(argument(node, "weight"))
    return math.prod(sizes) // max(1, sizes[1])


def _any_window(node: fx.Node) -> int:
    return _scattered_window(node) if argument(node, "transposed") else _window(node)


def _attention(node: fx.Node) -> int:
    """Return the terms of the longer of the two sums: over the head's channels, and over the keys."""
    return max(_sizes(argument(node, "key"))[-2:])


def _along(node: fx.Node) -> int:
    """Return the terms of a function of one dim: softmax, cumulative sums."""
    sizes = _sizes(argument(node, "self"))
    return sizes[int(argument(node, "dim"))] if sizes else 1


def _normalised(node: fx.Node) -> int:
    return math.prod(map(priced_size, argument(node, "normalized_shape")))


def _grouped(node: fx.Node) -> int:
    sizes = _sizes(argument(node, "input"))
    groups = argument(node, "num_groups") if "native" not in operator_name(node) else argument(node, "group")
    return math.prod(sizes[1:]) // max(1, priced_size(groups))


def _per_channel(node: fx.Node) -> int:
    """Return the terms of batch and instance norm that compute statistics of their input."""
    sizes = _sizes(argument(node, "input"))
    return math.prod(sizes) // max(1, sizes[1])


def _gates(node: fx.Node) -> int:
    """Return the terms of one step of a recurrent layer: over input and hidden state."""
    return sum(sizes[-1] for sizes in (_sizes(argument(node, "input")), _sizes(node.all_input_nodes[1])))


def _contracted(node: fx.Node) -> int:
    """Return the terms of an einsum: the sizes of the labels that the result lacks."""
    inputs, _, result = str(node.args[0]).replace(" ", "").partition("->")
    size_of: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), elements(node.args[1]), strict=True):
        size_of |= dict(zip(labels, _sizes(operand), strict=True))
    return math.prod(size for label, size in size_of.items() if label not in result)


def _added(node: fx.Node) -> int:
    """Return the terms of a scattered sum: at worst, all of the source is added to one element of its dim."""
    source = _sizes(argument(node, "src" if "scatter" in operator_name(node) else "source"))
    return source[int(argument(node, "dim"))] if source else 1


def _named(count: Callable[[fx.Node], int], names: str) -> dict[str, Callable[[fx.Node], int]]:
    return dict.fromkeys(names.split(), count)


_TERMS: Mapping[str, Callable[[fx.Node], int]] = {
    **_named(_inner("input"), "linear"),
    **_named(_inner("self"), "mm bmm matmul mv dot vdot inner"),
    **_named(_inner("mat1"), "addmm"),
    **_named(_inner("mat"), "addmv"),
    **_named(_inner("batch1"), "baddbmm addbmm"),
    **_named(_contracted, "einsum"),
    **_named(_window, "conv1d conv2d conv3d"),
    **_named(_scattered_window, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    **_named(_any_window, "convolution _convolution"),
    **_named(
        _attention,
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"
        " _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    ),
    **_named(_along, "softmax _softmax log_softmax _log_softmax cumsum cumprod logcumsumexp"),
    **_named(_normalised, "layer_norm native_layer_norm rms_norm _fused_rms_norm"),
    **_named(_grouped, "group_norm native_group_norm"),
    **_named(_per_channel, "batch_norm native_batch_norm _native_batch_norm_legit instance_norm cudnn_batch_norm"),
    **_named(_gates, "lstm gru rnn_tanh rnn_relu"),
    **_named(_added, "scatter_add scatter_reduce index_add index_reduce"),
    **_named(
        _shrinkage,
        "sum nansum mean nanmean prod var std var_mean std_mean norm linalg_vector_norm logsumexp trace cdist"
        " avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
        " _adaptive_avg_pool2d _adaptive_avg_pool3d embedding_bag _embedding_bag",
    ),
}
