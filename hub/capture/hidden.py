"""Find what PyTorch's capture does not show: undeclared views and writes of operators, and programs with other results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from hub.plugin.graph import hint
from hub.plugin.table import argument, is_symbolic, operator_name

_HIDDEN_VIEWS = frozenset(
    {
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "einsum",
        "meshgrid",
        "sum_to_size",
        "type_as",
        "unsafe_chunk",
        "unsafe_split",
        "unsafe_split_with_sizes",
    }
)
"""Functions of a Dynamo graph that may return views of their inputs without declaring it."""


_REPLACED = frozenset({"multilabel_margin_loss", "multilabel_margin_loss_forward"})
"""Functions of a Dynamo graph in whose place AOTAutograd traces a program in Python, whose results are others than eager's:
labels behind the first -1 of a row count there (PyTorch 2.13 and 2.15, `torch/_decomp/decompositions.py`)."""


def replaced_by_another(module: fx.GraphModule) -> str | None:
    """Return the name of a function in a Dynamo graph in whose place AOTAutograd puts another program, or None."""
    return next((name for node in module.graph.nodes if (name := _name(node)) in _REPLACED), None)


def written_hidden_view(module: fx.GraphModule) -> str | None:
    """Return the name of a function in a Dynamo graph with an undeclared view that is, or whose base is, written to.

    The write would be lost. Return None if there is no such function. The check is conservative: values may share memory
    if they come from the same input through the first arguments of calls.
    """
    views = [node for node in module.graph.nodes if _name(node) in _HIDDEN_VIEWS and not _casts(node)]
    if not views:
        return None
    written = {base for node in module.graph.nodes if writes(node) for base in _bases(node)}
    return next((_name(node) for node in views if written & set(_bases(node))), None)


def lost_write(module: fx.GraphModule) -> str | None:
    """Return why PyTorch's functional form of a Dynamo graph would lose or invent a write, None if it does not."""
    if writer := write_through_lossy_view(module):
        return f"{writer} writes through a view, and PyTorch's functional form of that leaves other values in its base"
    if writer := write_to_shared_input(module):
        return f"{writer} writes to memory of two inputs, which PyTorch does not guard where sizes vary"
    return None


def write_to_shared_input(module: fx.GraphModule) -> str | None:
    """Return the name of a function that writes to memory that two inputs share, in a Dynamo graph with symbolic sizes.

    Return None if there is none. AOTAutograd makes one input a view of the other, for this call and, if sizes are symbolic,
    without a guard for all later ones (PyTorch 2.13): a model that is called with a part of its own buffer, for example.
    """
    inputs = [_value(node) for node in module.graph.find_nodes(op="placeholder")]
    if not any(map(_has_symbols, inputs)):
        return None
    shared = [one for one in inputs if any(one is not other and _overlap(one, other) for other in inputs)]
    written = (node for node in module.graph.nodes if shared and writes(node))
    return next((_name(node) for node in written if _is_of(_views_written(node), shared)), None)


def _is_of(views: Iterable[fx.Node], values: Sequence[Any]) -> bool:
    """Return whether one of the views overlaps one of the values."""
    return any(_overlap(_value(view), value) for view in views for value in values)


def _overlap(one: Any, other: Any) -> bool:
    """Return whether two tensors may lie on the same elements of one memory, at the sizes seen during capture."""
    memory = _memory(one)
    if memory is None or memory != _memory(other):
        return False
    (start, end), (others_start, others_end) = map(_extent, (one, other))
    return start < others_end and others_start < end


def _extent(value: torch.Tensor) -> tuple[float, float]:
    """Return the bytes from which and before which a tensor lies in its memory; all if its sizes depend on data."""
    try:
        start, *sizes = (hint(number) for number in (value.storage_offset(), *value.shape))
        strides = [hint(number) for number in value.stride()]
    except ValueError:
        return 0.0, math.inf
    width = value.element_size()
    length = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if all(sizes) else 0
    return start * width, (start + length) * width


def _has_symbols(value: Any) -> bool:
    """Return whether a graph's input is a symbolic number, or a tensor of symbolic sizes."""
    return any(map(is_symbolic, value.shape)) if isinstance(value, torch.Tensor) else isinstance(value, torch.SymInt)


def write_through_lossy_view(module: fx.GraphModule) -> str | None:
    """Return the name of a function in a Dynamo graph that writes through a view whose inverse loses values, or None.

    Functionalization writes to a view apart from its base, and then makes the base of it (PyTorch 2.13). For a place that a
    view repeats, this gives the sum of what was written, or one of it, and no error where eager raises one. For elements in
    no window of `unfold` it gives 0.
    """
    written = (node for node in module.graph.nodes if writes(node))
    return next((_name(node) for node in written if any(map(_loses, _views_written(node)))), None)


def _loses(view: fx.Node) -> bool:
    return _is_of_windows(view) or _repeats(_value(view))


def _is_of_windows(view: fx.Node) -> bool:
    """Return whether a node is `Tensor.unfold`; the function of that name, of images, copies."""
    source = next(iter(_first_nodes(view)), None)
    return _name(view) == "unfold" and source is not None and _memory(_value(source)) == _memory(_value(view))


def _views_written(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the value that a node writes to, and those that it is a view of."""
    out = node.kwargs.get("out")
    target = out if isinstance(out, fx.Node) else next(iter(_first_nodes(node)), None)
    memory = _memory(_value(target))
    while target is not None and memory is not None and _memory(_value(target)) == memory:
        yield target
        target = next(iter(_first_nodes(target)), None)


def _memory(value: Any) -> int | None:
    """Return what identifies the memory of a strided tensor, None for any other value."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] - fake tensors have no address
    except NotImplementedError:  # of a functorch transform
        return None


def _repeats(value: torch.Tensor) -> bool:
    """Return whether a tensor has a dim along which nothing moves. Add no guards: an unknown size counts as several."""
    dims: list[tuple[Any, Any]] = list(zip(value.stride(), value.shape, strict=True))
    return any(not is_symbolic(step) and step == 0 and (is_symbolic(size) or size > 1) for step, size in dims)


def hidden_write(captured: fx.GraphModule) -> str | None:
    """Return the name of an operator that writes to its arguments without declaring it, None if there is none."""
    for node in captured.graph.nodes:
        if node.target is torch.ops.aten.instance_norm.default and argument(node, "use_input_stats"):
            found = (argument(node, "running_mean"), argument(node, "running_var"))
            if found != (None, None):
                return operator_name(node)
    return None


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _casts(node: fx.Node) -> bool:
    """Return whether a node is a cast that changes the dtype, and so copies."""
    source = node.args[0] if node.args else None
    before, after = (getattr(_value(item), "dtype", None) for item in (source, node))
    return _name(node) == "type_as" and before is not None and before != after


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def writes(node: fx.Node) -> bool:
    """Return whether a node of Dynamo's graph writes to an argument, by its name."""
    name = _name(node)
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
    return in_place or augmented or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _bases(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the inputs that a value comes from through first arguments. All members of a list argument count."""
    seen: set[fx.Node] = set()
    open_nodes = [node]
    while open_nodes:
        node = open_nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        sources = _first_nodes(node)
        if not sources:
            yield node
        open_nodes += sources


def _first_nodes(node: fx.Node) -> list[fx.Node]:
    if _name(node) in _HIDDEN_VIEWS:
        return node.all_input_nodes
    for item in (*node.args, *node.kwargs.values()):
        if isinstance(item, fx.Node):
            return [item]
        if isinstance(item, (list, tuple)) and (found := [part for part in item if isinstance(part, fx.Node)]):
            return found
    return []
