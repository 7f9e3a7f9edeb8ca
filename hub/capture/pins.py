"""Find the nodes that must run in eager even if a backend supports them, with the reason for each."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import fx

from hub.plugin.graph import Pin, hint, is_view, output_arguments
from hub.plugin.table import argument, declared_arguments, devices_of, elements
from hub.torch_private import HigherOrderOperator, OpOverload

_SIDE_EFFECTS = frozenset({"aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default"})


_CUDA_STATE = frozenset(
    f"aten.{name}.default"
    for name in (
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward"),
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
        *("_flash_attention_forward", "_flash_attention_backward"),
        *("_efficient_attention_forward", "_efficient_attention_backward"),
        *("cudnn_batch_norm", "cudnn_batch_norm_backward", "_cudnn_rnn", "_cudnn_rnn_backward"),
    )
)
"""Operators of CUDA's libraries, with their gradients. Attention's seeds may be tensors on the CPU that are never written,
contrary to their fake values, and its log-sum-exps are padded. Reserve tensors have a meaning only for the library."""

_UNINITIALISED = frozenset(
    {
        "aten.empty.memory_format",  # with a memory format: others have become zeros (`simplify`)
        "aten.empty_permuted.default",
        "aten.empty_strided.default",
        "aten.new_empty_strided.default",
    }
)


def pins(module: fx.GraphModule, *, n_mutated: int, returned: Iterable[int]) -> dict[str, Pin]:
    """Return the names of nodes that only eager can run faithfully, each with its reason.

    The first `n_mutated` outputs are copied into inputs, so their own identity does not matter. `returned` are the
    positions of outputs that a caller receives without a copy, and that may share memory as in eager.
    """
    found = {node.name: reason for node in module.graph.nodes if (reason := _intrinsic(node))}
    for name in _aliasing_chains(module, n_mutated, returned):
        found.setdefault(name, Pin.SHARED)
    return found


def _intrinsic(node: fx.Node) -> Pin | None:
    if node.op in ("placeholder", "output", "get_attr"):
        return None
    if node.op != "call_function":
        return Pin.FOREIGN
    if node.target is operator.getitem:
        return None
    value = node.meta.get("val")
    target = cast("Any", node.target)  # PyTorch types its operators in part
    if isinstance(node.target, HigherOrderOperator):
        return _higher_order(node)
    if not isinstance(node.target, OpOverload):
        return Pin.SIZES if _is_scalar(value) else Pin.FOREIGN
    if _is_scalar(value):
        return Pin.NUMBER
    if torch.Tag.nondeterministic_seeded in target.tags and _draws(node):
        return Pin.RANDOM
    if str(target) in _UNINITIALISED:
        return Pin.UNINITIALISED
    if str(target) in _CUDA_STATE:
        return Pin.CUDA_STATE
    if _moves(node):
        return Pin.MOVE
    if str(target) in _SIDE_EFFECTS or value is None:
        return Pin.EFFECT
    if target._schema.is_mutable:
        return Pin.WRITE
    if not all(_is_plain_tensor(item) for item in elements(value)):
        return Pin.NOT_DENSE
    return None


def _higher_order(node: fx.Node) -> Pin:
    """Return why an operator that calls programs stays in eager. If its programs must keep their order, so must it.

    Checkpointing runs random operators through others that take them as arguments, and keep the generator's state.
    """
    if any(isinstance(item, OpOverload) and torch.Tag.nondeterministic_seeded in item.tags for item in node.args):
        return Pin.RANDOM
    programs = (source for source in node.all_input_nodes if source.op == "get_attr")
    found = (getattr(node.graph.owning_module, str(source.target), None) for source in programs)
    pinned = (
        _intrinsic(inside) for program in found if isinstance(program, fx.GraphModule) for inside in program.graph.nodes
    )
    return Pin.ORDERED_PROGRAMS if any(pin is not None and pin.is_ordered for pin in pinned) else Pin.PROGRAMS


def _moves(node: fx.Node) -> bool:
    """Return whether an input is on another device than the results. Any device may read a 0-dim tensor on the CPU."""
    places = devices_of(node)
    read = (item for source in node.all_input_nodes for item in elements(source.meta.get("val")))
    away = (item for item in read if isinstance(item, torch.Tensor) and item.device not in places)
    return bool(places) and any(item.dim() or item.device.type != "cpu" for item in away)


def _draws(node: fx.Node) -> bool:
    """Return whether a node draws random numbers. Attention or an LSTM without dropout does not."""
    names = {declared.name for declared in declared_arguments(node)}
    if any(name in names and not argument(node, name) for name in ("train", "training")):
        return False
    return not any(name in names and argument(node, name) == 0.0 for name in ("dropout_p", "dropout"))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_plain_tensor(value: Any) -> bool:
    return value is None or (isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized)


def _aliasing_chains(module: fx.GraphModule, n_mutated: int, returned: Iterable[int]) -> list[str]:
    """Return the names of views on the path from shared memory to outputs, or whose strides only a view can have."""
    values = output_arguments(module)
    written = set(values[:n_mutated])
    outputs = [values[position] for position in returned]
    chains = [alias_chain(node) for node in outputs if isinstance(node, fx.Node)]
    bases = [chain[-1] for chain in chains]
    kept = [
        chain
        for chain, base in zip(chains, bases, strict=True)
        if base.op in ("placeholder", "get_attr") or base in written or bases.count(base) > 1 or _is_sparse_view(chain[0])
    ]
    return [node.name for chain in kept for node in chain[:-1]]


def _is_sparse_view(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not is_dense(value)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill memory without gaps or overlaps, in any order of dims. Add no guards."""
    try:
        sizes = [(hint(stride), hint(size)) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    except ValueError:  # a size that depends on data
        return False
    expected = 1
    for stride, size in sorted(sizes):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def alias_chain(node: fx.Node) -> list[fx.Node]:
    """Return the chain from a value through views, and tuple elements of views, to the value that owns the memory."""
    chain = [node]
    while True:
        node = chain[-1]
        producer = node.args[0] if node.target is operator.getitem else node
        if not isinstance(producer, fx.Node) or producer.op != "call_function" or not is_view(producer):
            return chain
        source = _viewed(producer, node)
        if source is None:
            return chain
        if producer is not node:
            chain.append(producer)
        chain.append(source)


def owners(values: Iterable[Any]) -> frozenset[str]:
    """Return the names of the nodes that own the memory of these outputs, the outputs themselves included."""
    nodes = [value for value in values if isinstance(value, fx.Node)]
    return frozenset(node.name for value in nodes for node in (value, alias_chain(value)[-1]))


def _viewed(producer: fx.Node, element: fx.Node) -> fx.Node | None:
    """Return the base of a view. If an operator makes views of several tensors, each element has the base in its place."""
    first = next((item for item in producer.args if isinstance(item, (fx.Node, list, tuple))), None)
    if not isinstance(first, (list, tuple)):
        return first
    sources = [item for item in elements(first) if isinstance(item, fx.Node)]
    if len(sources) == 1:
        return sources[0]
    position = element.args[1] if element is not producer else None
    return sources[position] if isinstance(position, int) and position < len(sources) else None
