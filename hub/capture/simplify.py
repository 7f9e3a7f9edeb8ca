"""Removes nodes that do nothing and defines what is left open, in place, before a captured module becomes a `Graph`."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from hub.support import argument, value_of

_aten = torch.ops.aten


def simplify(module: fx.GraphModule) -> None:
    """Drops inactive dropout, detach, no-op casts and metadata assertions, then dead code. Meta values stay.

    Uninitialised tensors become zeros: whatever lies in memory may be that, and two runs can then be compared.
    """
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _NOTHING and _NOTHING[node.target](node):
            _bypass(node)
        elif node.target in _DROPPED:
            module.graph.erase_node(node)
        elif node.target in _UNINITIALISED:
            _define(node)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _bypass(node: fx.Node) -> None:
    node.replace_all_uses_with(cast("fx.Node", node.args[0]))
    node.graph.erase_node(node)


def _define(node: fx.Node) -> None:
    target = _UNINITIALISED[node.target]
    if target is _aten.zeros.default:
        if node.kwargs.get("memory_format") is not None:
            return  # zeros take none
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "memory_format"}
    node.target = target


def _is_inactive_dropout(node: fx.Node) -> bool:
    return not argument(node, "train") or argument(node, "p") == 0.0


def _always(_: fx.Node) -> bool:
    return True


def _keeps_dtype(node: fx.Node) -> bool:
    source = value_of(node.args[0])
    return source.dtype == node.meta["val"].dtype and not argument(node, "copy") and argument(node, "memory_format") is None


SET_GRAD_ENABLED: Any = torch._C._set_grad_enabled  # pyright: ignore[reportPrivateUsage] - the very function in graphs

_DROPPED = (_aten._assert_tensor_metadata.default, SET_GRAD_ENABLED)
"""Without users. Grad mode changes nothing in an inference graph, whose inputs need no gradients."""

_NOTHING: dict[Any, Any] = {
    _aten.dropout.default: _is_inactive_dropout,
    _aten.detach.default: _always,
    _aten.detach_.default: _always,
    _aten.lift_fresh.default: _always,
    _aten.to.dtype: _keeps_dtype,
}

_UNINITIALISED: dict[Any, Any] = {
    _aten.empty.memory_format: _aten.zeros.default,
    _aten.empty_like.default: _aten.zeros_like.default,
    _aten.new_empty.default: _aten.new_zeros.default,
}
"""What gives whatever lies in memory, and what takes its place."""
