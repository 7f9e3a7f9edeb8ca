"""Features of a set of nodes for the cost models: work, bytes, kinds of operators and sizes, as plain numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from hub.plugin.graph import edges_into, edges_out_of, priced_size
from hub.plugin.table import argument, elements, operator_name, value_of
from hub.pricing.roofline import device_of, flops

VERSION = 4
"""Version of the features, raised when a meaning changes; samples of other versions are ignored."""
EAGER_S = "eager_s"
"""Feature that only planning knows: the seconds that a cluster's operators take in eager, one after the other."""

_KINDS: Mapping[str, str] = {
    "product": "linear mm bmm matmul addmm baddbmm addbmm dot mv einsum bilinear",
    "convolution": "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d",
    "attention": (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"
        " _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"
    ),
    "recurrent": "lstm gru rnn_tanh rnn_relu",
    "normalisation": (
        "layer_norm native_layer_norm batch_norm _native_batch_norm_legit_no_training native_batch_norm group_norm"
        " native_group_norm instance_norm rms_norm softmax _softmax log_softmax _log_softmax"
    ),
    "reduction": (
        "sum mean amax amin max min prod var std var_mean argmax argmin any all norm linalg_vector_norm cumsum cumprod"
        " logsumexp topk sort max_pool1d max_pool2d max_pool2d_with_indices avg_pool1d avg_pool2d adaptive_avg_pool1d"
        " adaptive_avg_pool2d _adaptive_avg_pool2d"
    ),
    "transcendental": (
        "gelu exp expm1 log log1p sin cos tan tanh sigmoid silu mish softplus elu selu erf pow rsqrt sqrt hardswish"
    ),
    "gather": "embedding index index_select gather index_put index_add scatter scatter_add masked_select masked_scatter",
    "view": "view reshape _unsafe_view unsqueeze squeeze alias detach flatten unflatten getitem",
    "movement": (
        "transpose permute t expand expand_as slice select split split_with_sizes chunk unbind unfold diagonal narrow"
        " cat stack clone contiguous copy pad constant_pad_nd reflection_pad1d reflection_pad2d roll flip repeat tile"
        " repeat_interleave upsample_nearest2d upsample_bilinear2d arange full zeros ones full_like zeros_like ones_like"
        " new_zeros new_ones tril triu to _to_copy"
    ),
}
"""Operators, without the namespace, by what bounds them; all others count as pointwise.

"view" costs nothing in any backend, while a transposition, a view in eager, is a copy elsewhere. Depthwise convolutions are
recognized by their weight.
"""

_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla")
"""Kinds of devices; the index is the feature's value. All other kinds share the next number."""

_KIND_OF: Mapping[str, str] = {name: kind for kind, names in _KINDS.items() for name in names.split()}
KINDS = (*_KINDS, "depthwise", "pointwise")
_PRODUCT = ("product_m", "product_n", "product_k", "product_batch")
_CONVOLUTION = ("convolution_in", "convolution_out", "convolution_kernel", "convolution_pixels", "convolution_rank")
_ATTENTION = ("attention_queries", "attention_keys", "attention_channels")
NAMES = (
    *("version", "device", "nodes", "flops", "inner_bytes", "intensity", "inputs", "outputs"),
    *("read_bytes", "written_bytes", "weight_bytes", "share_floating", "share_half"),
    *(f"{what}_{kind}" for kind in KINDS for what in ("count", "elements", "flops")),
    *_PRODUCT,
    *_CONVOLUTION,
    *_ATTENTION,
)
"""Names of all features."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A call node with its properties that are needed more than once."""

    node: fx.Node
    kind: str
    flops: float
    elements: float
    nbytes: float


def features_of(nodes: Sequence[fx.Node], weights: Collection[str] = ()) -> dict[str, float]:
    """Return the features of the call nodes of a graph or cluster, by name, ready for JSON.

    `weights` names the placeholders that become constants (`Graph.weights`); `get_attr` nodes are constants anyway.
    Bytes and operations are those of one call; symbolic sizes count as first seen. Takes about 15 us per node.
    Raises nothing for captured graphs.
    """
    items = tuple(map(_item, nodes))
    outputs = edges_out_of(nodes)
    read_outside = set(outputs)
    inner = (item.nbytes for item in items if item.kind != "view" and item.node not in read_outside)
    found = {
        "version": float(VERSION),
        "device": device_number(nodes),
        "nodes": float(len(items)),
        "flops": sum(item.flops for item in items),
        "inner_bytes": float(sum(inner)),
    }
    found |= _by_kind(items) | _edges(nodes, outputs, weights)
    edge_bytes = found["read_bytes"] + found["written_bytes"] + found["weight_bytes"]
    found["intensity"] = found["flops"] / max(edge_bytes, 1.0)
    return found | _largest_product(items) | _largest_convolution(items) | _largest_attention(items)


def device_number(nodes: Iterable[fx.Node]) -> float:
    """Return the number of the device kind that computes some nodes: the first accelerator's, 0 if there is none."""
    device = next(filter(None, map(device_of, nodes)), None)
    kind = "cpu" if device is None else device.type
    return float(_DEVICES.index(kind) if kind in _DEVICES else len(_DEVICES))


def _item(node: fx.Node) -> _Item:
    tensors = _tensors(node)
    return _Item(node, kind_of(node), flops(node), float(sum(map(_size, tensors))), float(sum(map(_nbytes, tensors))))


def _by_kind(items: Sequence[_Item]) -> dict[str, float]:
    found = {f"{what}_{kind}": 0.0 for kind in KINDS for what in ("count", "elements", "flops")}
    for item in items:
        found[f"count_{item.kind}"] += 1.0
        found[f"elements_{item.kind}"] += item.elements
        found[f"flops_{item.kind}"] += item.flops
    return found


def kind_of(node: fx.Node) -> str:
    """Return what bounds a node's operator, one of `KINDS`."""
    if node.target is operator.getitem:
        return "view"
    kind = _kind_of_operator(operator_name(node))
    if kind == "convolution" and _is_depthwise(node):
        return "depthwise"
    return kind


@cache
def _kind_of_operator(name: str) -> str:
    base = name.split(".")[1] if name.count(".") else name
    return _KIND_OF.get(base, "pointwise")


def _is_depthwise(node: fx.Node) -> bool:
    """Return whether each group has one input channel, of several: no sums over channels, so memory bounds it."""
    weight = value_of(argument(node, "weight"))
    return priced_size(weight.shape[1]) == 1 and priced_size(weight.shape[0]) > 1


def _edges(nodes: Sequence[fx.Node], written: Iterable[fx.Node], weights: Collection[str]) -> dict[str, float]:
    sources = edges_into(nodes)
    constants = [source for source in sources if source.op == "get_attr" or source.name in weights]
    inputs = [source for source in sources if source not in constants]
    outputs = list(written)
    crossing = [tensor for node in (*inputs, *outputs) for tensor in _tensors(node)]
    total = sum(map(_nbytes, crossing))
    floating = sum(_nbytes(tensor) for tensor in crossing if tensor.dtype.is_floating_point)
    half = sum(_nbytes(tensor) for tensor in crossing if tensor.dtype in (torch.float16, torch.bfloat16))
    return {
        "inputs": float(len(inputs)),
        "outputs": float(len(outputs)),
        "read_bytes": _bytes_in(inputs),
        "written_bytes": _bytes_in(outputs),
        "weight_bytes": _bytes_in(constants),
        "share_floating": floating / total if total else 1.0,
        "share_half": half / total if total else 0.0,
    }


def _largest_product(items: Sequence[_Item]) -> dict[str, float]:
    """Return the sizes of the largest product: rows m, columns n and summed length k; the batch counts separately."""
    node = _largest(items, "product")
    if node is None:
        return dict.fromkeys(_PRODUCT, 0.0)
    shape = tuple(map(priced_size, value_of(node).shape))
    columns = shape[-1] if shape else 1
    is_batched = len(shape) > 2 and ".linear." not in operator_name(node)
    batch = math.prod(shape[:-2]) if is_batched else 1
    rows = math.prod(shape[:-1]) // max(batch, 1)
    summed = flops(node) / max(2.0 * math.prod(shape), 1.0)
    return {"product_m": float(rows), "product_n": float(columns), "product_k": summed, "product_batch": float(batch)}


def _largest_convolution(items: Sequence[_Item]) -> dict[str, float]:
    """Return the sizes of the convolution with the most operations, depthwise ones included."""
    node = _largest(items, "convolution", "depthwise")
    if node is None:
        return dict.fromkeys(_CONVOLUTION, 0.0)
    weight = tuple(map(priced_size, value_of(argument(node, "weight")).shape))
    output = tuple(map(priced_size, value_of(node).shape))
    pixels = math.prod(output) / max(weight[0], 1)
    sizes = (weight[1], weight[0], math.prod(weight[2:]), pixels, len(weight) - 2)
    return dict(zip(_CONVOLUTION, map(float, sizes), strict=True))


def _largest_attention(items: Sequence[_Item]) -> dict[str, float]:
    """Return the sizes of the attention with the most operations: queries, keys and channels of a head."""
    node = _largest(items, "attention")
    if node is None:
        return dict.fromkeys(_ATTENTION, 0.0)
    query, key = (value_of(argument(node, name)) for name in ("query", "key"))
    sizes = (query.shape[-2], key.shape[-2], key.shape[-1])
    return dict(zip(_ATTENTION, (float(priced_size(size)) for size in sizes), strict=True))


def _largest(items: Sequence[_Item], *kinds: str) -> fx.Node | None:
    found = max((item for item in items if item.kind in kinds), key=lambda item: item.flops, default=None)
    return found.node if found else None


def _tensors(node: fx.Node) -> list[Any]:
    return [item for item in elements(value_of(node)) if isinstance(item, torch.Tensor)]


def _size(tensor: Any) -> int:
    return math.prod(map(priced_size, tensor.shape))


def _nbytes(tensor: Any) -> int:
    return _size(tensor) * tensor.dtype.itemsize


def _bytes_in(nodes: Iterable[fx.Node]) -> float:
    return float(sum(_nbytes(tensor) for node in nodes for tensor in _tensors(node)))
