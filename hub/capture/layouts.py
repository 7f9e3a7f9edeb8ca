"""Give outputs the strides that eager's have, where functionalization lost them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import fx

from hub.capture.hidden import writes
from hub.capture.pins import alias_chain, is_dense
from hub.plugin.graph import hint, output_arguments

_aten = torch.ops.aten


def keep_layouts(
    captured: fx.GraphModule, program: fx.GraphModule, n_mutated: int, among: Container[int] | None = None
) -> None:
    """Lay each returned value of a captured graph out as the program's own value, in place.

    `among` are the positions of outputs that may be laid out: by default, all.

    An in-place operator keeps its input's strides. Its functional form may return contiguous memory (`masked_fill`), and
    what is computed from that element by element is then contiguous too, where eager's result is transposed.
    """
    if not any(writes(node) for node in program.graph.nodes):
        return
    values, originals = output_arguments(captured), output_arguments(program)
    written, returned = values[:n_mutated], values[n_mutated:]
    owners = [alias_chain(node)[-1] if isinstance(node, fx.Node) else None for node in returned]
    output = captured.graph.output_node()
    for place, (node, owner, original) in enumerate(zip(returned, owners, originals, strict=False), n_mutated):
        if among is not None and place not in among:
            continue
        if owner is None or owner.op != "call_function" or owner in written or owners.count(owner) > 1:
            continue  # a constant, or memory that others share
        if order := _lost_order(node.meta.get("val"), getattr(original, "meta", {}).get("example_value")):
            with captured.graph.inserting_before(output):
                output.replace_input_with(node, _laid_out(captured.graph, node, order))
    captured.recompile()


def _lost_order(value: Any, eager: Any) -> tuple[int, ...] | None:
    """Return eager's order of dims, the widest stride first; None if it has not lost them, or cannot have them."""
    if not (isinstance(value, torch.Tensor) and isinstance(eager, torch.Tensor)) or value.layout is not torch.strided:
        return None
    if value.dim() != eager.dim() or not is_dense(eager):
        return None
    try:
        sizes, strides, wanted = ([hint(item) for item in items] for items in (value.shape, value.stride(), eager.stride()))
    except ValueError:  # a size that depends on data
        return None
    if all(size == 1 or stride == want for size, stride, want in zip(sizes, strides, wanted, strict=True)):
        return None
    return tuple(sorted(range(len(wanted)), key=lambda dim: (-wanted[dim], dim)))


def _laid_out(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    node = called(graph, _aten.permute.default, node, list(order))
    node = called(graph, _aten.clone.default, node, memory_format=torch.contiguous_format)
    return called(graph, _aten.permute.default, node, inverse)


def called(graph: fx.Graph, target: Any, node: fx.Node, *arguments: Any, **options: Any) -> fx.Node:
    """Insert a call, with a fake value of its own: one that is a view of another cannot be sent to a worker."""
    new = graph.call_function(target, (node, *arguments), options)
    value = node.meta["val"]
    with value.fake_mode, torch.no_grad():
        result = target(value, *arguments, **options)
        new.meta["val"] = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
    return new
