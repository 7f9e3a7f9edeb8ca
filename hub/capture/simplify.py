"""Remove nodes that do nothing and define uninitialised tensors, in place, before a captured module becomes a `Graph`."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from hub.capture.layouts import called
from hub.plugin.graph import hint
from hub.plugin.table import argument, declared_arguments, elements, value_of
from hub.torch_private import set_grad_enabled

_aten = torch.ops.aten


def simplify(module: fx.GraphModule) -> None:
    """Drop inactive dropout, detach, no-op casts, empty pieces, idle `ceil_mode` and metadata assertions, then dead code.

    What is written to a part of a tensor is no copy before it is written. A pool whose only window holds everything becomes
    a mean. Meta values stay.

    Uninitialised tensors become zeros: zeros are valid contents, and make two runs comparable. What is padded by a symbolic
    number gets the strides that capture declares.
    """
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _NOTHING and _NOTHING[node.target](node):
            _bypass(node)
        elif node.target in _JOINS:
            _join_no_empties(node)
        elif node.target in _COPIES and all(_writes_a_part(user, node) for user in node.users):
            _write_itself(node)
        elif node.target in _DROPPED:
            module.graph.erase_node(node)
        elif node.target in _UNINITIALISED:
            _define(node)
        elif node.target in _AVERAGES and _covers_everything(node):
            _average_all(node)
        elif node.target in _POOLS and _is_ceiling_idle(node):
            _set(node, "ceil_mode", value=False)
        elif node.target is _aten.constant_pad_nd.default and _may_keep_strides(node):
            _make_contiguous(node)
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


def _writes_a_part(node: fx.Node, value: fx.Node) -> bool:
    """Return whether an operator writes a value to a part of a tensor, and so reads its elements alone."""
    return node.target in _WRITES and node.args[1] is value and value not in (node.args[0], *node.args[2:])


def _write_itself(node: fx.Node) -> None:
    """Replace a copy by what is copied, with the copy's dtype and sizes.

    `z[:, :4] = y` is captured as a copy of y with the form of the slice, which few backends have a rule for.
    """
    source = cast("fx.Node", node.args[1])
    given, wanted = value_of(source), node.meta["val"]
    sizes = list(wanted.shape)
    is_expanded = not _has_sizes(given, wanted)
    if given.device != wanted.device or (is_expanded and not all(isinstance(size, int) for size in sizes)):
        return
    with node.graph.inserting_before(node):
        if given.dtype != wanted.dtype:
            source = called(node.graph, _aten._to_copy.default, source, dtype=wanted.dtype)
        if is_expanded:
            source = called(node.graph, _aten.expand.default, source, sizes)
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)


def _has_sizes(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether sizes are equal as written: adds no guard on symbolic ones."""
    return [str(size) for size in given.shape] == [str(size) for size in wanted.shape]


def _define(node: fx.Node) -> None:
    target = _UNINITIALISED[node.target]
    if target is _aten.zeros.default:
        if node.kwargs.get("memory_format") is not None:
            return  # zeros take none
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "memory_format"}
    node.target = target


def _is_ceiling_idle(node: fx.Node) -> bool:
    """Return whether `ceil_mode` adds no window: few backends support it, and many models set it in vain."""
    pooled = elements(node.meta["val"])[0]
    n_dims = len(_dims_of(node))
    sizes, results = value_of(node.args[0]).shape[-n_dims:], pooled.shape[-n_dims:]
    if not argument(node, "ceil_mode") or not all(isinstance(size, int) for size in (*sizes, *results)):
        return False
    has_dilation = any(declared.name == "dilation" for declared in declared_arguments(node))
    kernel, stride, padding = (_each(argument(node, name), n_dims) for name in ("kernel_size", "stride", "padding"))
    dilation = _each(argument(node, "dilation"), n_dims) if has_dilation else (1,) * n_dims
    return all(
        result == (size + 2 * pad - spread * (width - 1) - 1) // step + 1
        for size, result, width, step, pad, spread in zip(
            sizes, results, kernel, stride or kernel, padding, dilation, strict=True
        )
    )


def _covers_everything(node: fx.Node) -> bool:
    """Return whether the only window of an average pool begins at the first element and reaches the last.

    EfficientNet's last pool does, with a window of 1,280 over 7 that `ceil_mode` cuts off, which few backends support.
    """
    n_dims = len(_dims_of(node))
    sizes, results = value_of(node.args[0]).shape[-n_dims:], node.meta["val"].shape[-n_dims:]
    kernel, padding = (_each(argument(node, name), n_dims) for name in ("kernel_size", "padding"))
    names = {declared.name for declared in declared_arguments(node)}
    is_plain = "divisor_override" not in names or argument(node, "divisor_override") is None
    is_plain = is_plain and node.meta["val"].dtype.is_floating_point
    return is_plain and all(
        isinstance(size, int) and isinstance(result, int) and result == 1 and pad == 0 and width >= size
        for size, result, width, pad in zip(sizes, results, kernel, padding, strict=True)
    )


def _average_all(node: fx.Node) -> None:
    source = node.args[0]
    node.target, node.args, node.kwargs = _aten.mean.dim, (source, _dims_of(node), True), {}


def _dims_of(node: fx.Node) -> list[int]:
    """Return the dims that a pool pools."""
    n_dims = int(next(letter for letter in str(node.target) if letter.isdigit()))
    return list(range(-n_dims, 0))


def _each(value: Any, n_dims: int) -> tuple[int, ...]:
    """Return a number for each dim; () for an empty list, which stands for a default."""
    numbers: tuple[int, ...] = elements(value)
    return numbers * n_dims if len(numbers) == 1 else numbers


def _set(node: fx.Node, name: str, *, value: bool) -> None:
    """Set an argument, which may be given by position or by name."""
    names = [declared.name for declared in declared_arguments(node)]
    if (position := names.index(name)) < len(node.args):
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


def _may_keep_strides(node: fx.Node) -> bool:
    """Return whether padding may return a tensor in its input's order of dims where contiguous memory is declared.

    Padding by no positive number crops, and keeps that order. Capture does not know a symbolic number's sign, and declares
    contiguous memory: the gradient of `torch.fft.irfft` over any number of points has views that rely on it.
    """
    padding = argument(node, "pad")
    given, declared = value_of(node.args[0]), node.meta["val"]
    if not any(isinstance(number, fx.Node) for number in padding):
        return False
    return _is_row_major(declared) and not _is_row_major(given)


def _is_row_major(tensor: torch.Tensor) -> bool:
    """Return whether strides never grow from one dim to the next, as seen during capture. Add no guards."""
    try:
        strides = [hint(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if hint(size) != 1]
    except ValueError:  # a size that depends on data
        return False
    return strides == sorted(strides, reverse=True)


def _make_contiguous(node: fx.Node) -> None:
    with node.graph.inserting_after(node):
        packed = called(node.graph, _aten.clone.default, node, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(packed, delete_user_cb=lambda user: user is not packed)


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

_POOLS = frozenset({
    _aten.avg_pool1d.default, _aten.avg_pool2d.default, _aten.avg_pool3d.default,
    _aten.max_pool1d.default, _aten.max_pool2d.default, _aten.max_pool3d.default,
    _aten.max_pool1d_with_indices.default, _aten.max_pool2d_with_indices.default, _aten.max_pool3d_with_indices.default,
})  # fmt: skip

_AVERAGES = frozenset({_aten.avg_pool1d.default, _aten.avg_pool2d.default, _aten.avg_pool3d.default})

_COPIES = (_aten.copy.default, _aten.fill.Tensor)

_WRITES = frozenset({_aten.slice_scatter.default, _aten.select_scatter.default})

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
