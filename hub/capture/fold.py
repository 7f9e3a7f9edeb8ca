"""Compute once, at capture, what depends on no input: position ids, masks, anchors and sines of positions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from hub.capture.pins import alias_chain
from hub.plugin.graph import is_view, output_arguments
from hub.plugin.table import elements, is_symbolic
from hub.torch_private import DisableAutocast, OpOverload, disable_current_modes

MAX_BYTES = 4 << 20
"""Maximum bytes of one constant: a larger one is computed in each call, as in eager, rather than kept for good."""
MAX_TOTAL_BYTES = 64 << 20
"""Maximum bytes of all constants of a program."""
CONSTANT = "hub_constant_"
"""Beginning of the name of an attribute that holds a constant; a number follows."""


def fold_constants(module: fx.GraphModule) -> None:
    """Replace computations without inputs by their results, in place. Meta values stay.

    Detection models compute their anchors and the sines of their positions in every call, by operators that few backends
    take, so that clusters end there. Mere fills and ranges stay operators, which compilers know, as do results that the
    caller gets, since each call returns its own. A program with an operator that writes to its arguments stays as it is.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(isinstance(node.target, OpOverload) and cast("Any", node.target)._schema.is_mutable for node in nodes):
        return
    fixed = _fixed(nodes)
    inner = fixed.keys() - _returned(module)
    ends = [node for node in fixed if node in inner and not (inner >= node.users.keys() or _is_plain(node))]
    if not ends:
        return
    try:
        values = _computed(fixed, ends)
    except Exception:  # noqa: BLE001 - the call raises it, too, as in eager
        return
    earlier = sum(name.startswith(CONSTANT) for name, _ in module.named_buffers(recurse=False))
    for number, node in enumerate(values, earlier):
        name = f"{CONSTANT}{number}"
        module.register_buffer(name, values[node], persistent=False)
        with module.graph.inserting_before(node):
            constant = module.graph.create_node("get_attr", name)
        constant.meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
        node.replace_all_uses_with(constant)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _returned(module: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes whose memory the caller gets."""
    outputs = (value for value in output_arguments(module) if isinstance(value, fx.Node))
    return {node for output in outputs for node in alias_chain(output)}


def _fixed(nodes: Iterable[fx.Node]) -> dict[fx.Node, None]:
    """Return the nodes that give the same small tensors in every call, in order."""
    found: dict[fx.Node, None] = {}
    for node in nodes:
        if not all(source in found or _is_constant(source, node) for source in node.all_input_nodes):
            continue
        if node.target is operator.getitem or _is_pure(node):
            found[node] = None
    return found


def _is_constant(source: fx.Node, reader: fx.Node) -> bool:
    """Return whether a node reads an earlier constant, or numbers that are written in the program, to copy them."""
    is_ours = str(source.target).startswith(CONSTANT) or reader.target in _LITERALS
    return source.op == "get_attr" and is_ours and type(_held(source)) is torch.Tensor


def _held(source: fx.Node) -> Any:
    return getattr(source.graph.owning_module, str(source.target), None)


def _is_pure(node: fx.Node) -> bool:
    target = cast("Any", node.target)  # PyTorch types its operators in part
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target in _UNINITIALISED:
        return False
    values = elements(node.meta.get("val"))
    return bool(values) and all(_is_small(value) for value in values)


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return False
    is_fixed = not any(map(is_symbolic, (*value.shape, *value.stride())))
    return is_fixed and 0 not in value.stride() and value.nbytes <= MAX_BYTES


def _is_plain(node: fx.Node) -> bool:
    """Return whether a node fills or counts, or is a view of one that does."""
    while is_view(node) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return not node.all_input_nodes and node.target not in _LITERALS


def _computed(fixed: Iterable[fx.Node], ends: Iterable[fx.Node]) -> dict[fx.Node, torch.Tensor]:
    """Return the values of these nodes, as far as they fit the memory, in the layout that eager gives them."""
    wanted, kept, total = set(ends), dict[fx.Node, torch.Tensor](), 0
    known: dict[fx.Node, Any] = {}
    with disable_current_modes(), torch.inference_mode(False), torch.no_grad(), DisableAutocast():
        for node in fixed:
            known |= {source: _held(source) for source in node.all_input_nodes if source.op == "get_attr"}
            args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = value = cast("Callable[..., Any]", node.target)(*args, **kwargs)
            if node in wanted and isinstance(value, torch.Tensor) and total + value.nbytes <= MAX_TOTAL_BYTES:
                total += value.nbytes
                kept[node] = _own(value)
    return kept


def _own(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same form in memory of its own; a view may be a small part of what it views."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


_aten = torch.ops.aten
_LITERALS = (_aten.lift_fresh_copy.default,)
_UNINITIALISED = frozenset({
    _aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default, _aten.empty_strided.default,
    _aten.empty_permuted.default, _aten.new_empty_strided.default,
})  # fmt: skip
