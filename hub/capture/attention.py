"""Expand `flex_attention` into plain operators, which backends take, before a program is captured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from hub.plugin.graph import hint
from hub.torch_private import RestartAnalysis, TransformGetItemToIndex, flex_attention, vmap_for_bhqkv

_LN2 = math.log(2.0)
_MODIFIED = "hub_modified_scores"
"""Prefix of the names of attributes that hold the programs that mask and modify scores."""


def expand_attention(module: fx.GraphModule) -> None:
    """Replace each `flex_attention` of a Dynamo graph and its nested programs by equivalent plain operators, in place.

    If one cannot be traced, it stays and runs in eager, as an operator that no backend takes. Raise only RestartAnalysis,
    which Dynamo needs to see.
    """
    for program in module.modules():
        if not isinstance(program, fx.GraphModule):
            continue
        nodes = program.graph.find_nodes(op="call_function", target=flex_attention)
        for node in nodes:
            _expand(program, node)
        if nodes:
            program.graph.eliminate_dead_code(is_impure_node=lambda node: node.op != "get_attr")  # the programs it called
            program.recompile()


def _expand(program: fx.GraphModule, node: fx.Node) -> None:
    query, key, value, score_mod, block_mask, scale, _, *buffers = node.args
    of_scores, of_mask = (cast("Sequence[Any]", given) for given in (*buffers, (), ())[:2])
    changes, hides = (getattr(program, str(cast("Any", mod).target)) for mod in (score_mod, cast("Any", block_mask)[-1]))
    try:
        modified = _traced(_modified(changes, hides, len(of_scores)), query, key, (*of_scores, *of_mask))
        layout = _layout(node)
    except RestartAnalysis:
        raise
    except Exception:  # noqa: BLE001 - the user's own functions, which eager would not trace
        return
    name = f"{_MODIFIED}_{node.name}"
    program.add_module(name, modified)
    with program.graph.inserting_before(node):
        reference = program.graph.get_attr(name)
    node.target = _attention
    node.args = (query, key, value, reference, scale, layout, *of_scores, *of_mask)


def _traced(function: Callable[..., Any], query: Any, key: Any, buffers: Sequence[Any]) -> fx.GraphModule:
    """Return `function` as a program of plain operators that takes scores [B, H, L, S] and the captured values."""
    query, key, *known = (_example(item) for item in (query, key, *buffers))
    with query.fake_mode, torch.no_grad():
        sizes = (query.size(0), query.size(1), query.size(2), key.size(2))
        scores = query.new_empty(sizes, dtype=_precision(query))
        return make_fx(function)(scores, *known)


def _example(item: Any) -> Any:
    value = item.meta["example_value"] if isinstance(item, fx.Node) else item
    return value.detach() if isinstance(value, torch.Tensor) else value


def _modified(score_mod: Callable[..., Any], mask_mod: Callable[..., Any], n_of_scores: int) -> Callable[..., torch.Tensor]:
    """Return a function that does to scores [B, H, L, S] what eager does: modify them, then set them to -inf if masked."""

    def modified(scores: torch.Tensor, *buffers: Any) -> torch.Tensor:
        places = [torch.arange(0, size, device=scores.device) for size in scores.shape]
        of_scores, of_mask = buffers[:n_of_scores], buffers[n_of_scores:]
        changed = vmap_for_bhqkv(score_mod, prefix=(0,), suffix=(None,) * len(of_scores))
        mask = vmap_for_bhqkv(mask_mod, prefix=(), suffix=(None,) * len(of_mask))
        with TransformGetItemToIndex():
            seen = mask(*places, *of_mask)
            return changed(scores, *places, *of_scores).to(scores.dtype).masked_fill(~seen, -math.inf)

    return modified


def _layout(node: fx.Node) -> tuple[int, ...]:
    """Return the dims of eager's output, from the outermost in memory to the innermost."""
    strides = node.meta["example_value"][0].stride()
    return tuple(sorted(range(len(strides)), key=lambda dim: -hint(strides[dim])))


def _precision(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    modified: Callable[..., torch.Tensor],
    scale: float,
    layout: Sequence[int],
    *buffers: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute attention over [B, H, L, E] as eager's `flex_attention` does, for one node in a traced program.

    Return the output, the logsumexp of the scores and the maximum scores, both to base 2. Fully masked rows are 0.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # eager casts its inputs, and computes without autocast
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return _attention(query.to(dtype), key.to(dtype), value.to(dtype), modified, scale, layout, *buffers)
    key, value = _for_each_head(key, query), _for_each_head(value, query)
    precision = _precision(query)
    scores = (query.to(precision) @ key.to(precision).transpose(-2, -1)) * scale
    scores = modified(scores, *buffers)
    weights = torch.ops.aten._safe_softmax.default(scores, -1)
    output = weights.to(query.dtype) @ value.to(query.dtype)
    sums = scores.logsumexp(dim=-1)
    return _laid_out(output, layout), sums / _LN2, scores.detach().amax(dim=-1) / _LN2


def _for_each_head(stored: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return keys or values expanded to the batch size and number of heads of the query."""
    batch, heads = query.shape[:2]
    shared = heads // stored.size(1)
    if shared == 1:
        return stored if stored.size(0) == batch else stored.expand(batch, -1, -1, -1)
    grouped = stored.unsqueeze(2).expand(batch, -1, shared, -1, -1)
    return grouped.reshape(batch, heads, *stored.shape[2:])


def _laid_out(output: torch.Tensor, layout: Sequence[int]) -> torch.Tensor:
    if tuple(layout) == tuple(range(len(layout))):
        return output
    return output.permute(*layout).contiguous().permute(*(layout.index(dim) for dim in range(len(layout))))
