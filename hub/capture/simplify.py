"""Remove nodes that do nothing and define uninitialised tensors, in place, before a captured module becomes a `Graph`."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from hub.plugin.graph import hint
from hub.plugin.table import argument, value_of
from hub.torch_private import set_grad_enabled

_aten = torch.ops.aten


def simplify(module: fx.GraphModule) -> None:
    """Drop inactive dropout, detach, no-op casts, empty pieces and metadata assertions, then dead code. Keep meta values.

    Uninitialised tensors become zeros: zeros are valid contents, and make two runs comparable.
    """
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _NOTHING and _NOTHING[node.target](node):
            _bypass(node)
        elif node.target in _JOINS:
            _join_no_empties(node)
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


def _join_no_empties(node: fx.Node) -> None:
    """Drop `torch.tensor([])` from a concatenation with tensors of more dims: the start of a key and value cache.

    Backends reject tensors without elements. PyTorch ignores them, too, except for the result's dtype and memory format. If
    one may affect either, keep it.
    """
    pieces = cast("list[fx.Node]", node.args[0])
    kept = [piece for piece in pieces if not _is_empty_row(piece)]
    values = [value_of(piece) for piece in kept]
    if len(kept) == len(pieces) or not any(value.dtype == node.meta["val"].dtype for value in values):
        return
    if any(value.dim() in (4, 5) for value in values) and not any(map(_has_channels_before_columns, values)):
        return
    node.args = (kept, *node.args[1:])


def _is_empty_row(piece: fx.Node) -> bool:
    shape = tuple(value_of(piece).shape)
    return len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 0


def _has_channels_before_columns(value: torch.Tensor) -> bool:
    """Return whether dim 1 is certainly not the innermost in memory."""
    try:
        return hint(value.stride(1)) > hint(value.stride(-1))
    except ValueError:  # a size that depends on data
        return False


def _define(node: fx.Node) -> None:
    target = _UNINITIALISED[node.target]
    if target is _aten.zeros.default:
        if node.kwargs.get("memory_format") is not None:
            return  # zeros take none
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "memory_format"}
    node.target = target


def _is_inactive_dropout(node: fx.Node) -> bool:
    return not argument(node, "train") or argument(node, "p") == 0.0


def _is_inner_detach(node: fx.Node) -> bool:
    """Return whether no caller sees that a detached tensor is another object than its source.

    A returned one must be: the caller may resize it, or set its `requires_grad`, which must not change an input or another
    output.
    """
    source = cast("fx.Node", node.args[0])
    if not any(user.op == "output" for user in node.users):
        return True
    schema = getattr(source.target, "_schema", None)  # `contiguous` may return its input, and says so
    is_new = schema is not None and not any(one.alias_info is not None for one in schema.returns)
    return is_new and not any(user.op == "output" for user in source.users)


def _always(_: fx.Node) -> bool:
    return True


def _keeps_dtype(node: fx.Node) -> bool:
    source = value_of(node.args[0])
    return source.dtype == node.meta["val"].dtype and not argument(node, "copy") and argument(node, "memory_format") is None


_DROPPED = (_aten._assert_tensor_metadata.default, set_grad_enabled)
"""Operators without users, to be dropped. Grad mode has no effect in an inference graph, whose inputs need no gradients."""

_JOINS = (_aten.cat.default, _aten.concat.default)

_NOTHING: dict[Any, Any] = {
    _aten.dropout.default: _is_inactive_dropout,
    _aten.detach.default: _is_inner_detach,
    _aten.detach_.default: _always,
    _aten.lift_fresh.default: _always,
    _aten.to.dtype: _keeps_dtype,
}

_UNINITIALISED: dict[Any, Any] = {
    _aten.empty.memory_format: _aten.zeros.default,
    _aten.empty_like.default: _aten.zeros_like.default,
    _aten.new_empty.default: _aten.new_zeros.default,
}
"""Operators that return uninitialised memory, each with its replacement. Others of the kind are pinned to eager."""
