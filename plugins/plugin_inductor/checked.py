"""Checks, in the program, of what its kernels must not meet: indices out of range and integer divisors of zero.

Inductor checks indices inside OpenMP's regions, which no exception may leave, and divides integers unchecked: the process
would end by SIGABRT or SIGFPE (torch 2.13). So the program replaces such values by harmless ones, and has one more result,
which says whether it did. The call is then refused, and eager raises its own error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from hub.plugin import Cluster, argument, declared_arguments, operator_name, tensors_of, value_of

_MASKS = (torch.bool, torch.uint8)
"""dtypes of which `index` takes tensors for masks."""
Guard = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Function that takes an argument, and what it must fit, and returns a harmless one and where it was not harmless."""


def insert_checks(node: fx.Node, copy: fx.Node) -> list[fx.Node]:
    """Make the copy of a node read harmless values. Return nodes that say, as one boolean each, whether any was not."""
    graph, alarms = copy.graph, list[fx.Node]()
    for name, guard, more in _checks(node):
        with graph.inserting_before(copy):
            given, old = [_argument(node, copy, other) for other in more], _argument(node, copy, name)
            if isinstance(old, fx.Node):
                new: Any = _guarded(graph, guard, (old, *given), alarms)
            else:
                new, dim = list[Any](), 0
                for original, item in zip(argument(node, name), old, strict=True):
                    is_variable = _is_variable(original)
                    new.append(_guarded(graph, guard, (item, *given, dim), alarms) if is_variable else item)
                    dim += _n_dims(original)
        _replace(node, copy, name, new)
    return alarms


def has_checks(cluster: Cluster) -> bool:
    """Return whether the program of a cluster has one more result."""
    return any(_checks(node) for node in cluster.nodes)


def whole_alarm(*alarms: torch.Tensor) -> torch.Tensor:
    """Return one boolean of those of all checks."""
    found = alarms[0]
    for alarm in alarms[1:]:
        found = found | alarm
    return found


def _guarded(graph: fx.Graph, guard: Guard, given: Sequence[Any], alarms: list[fx.Node]) -> fx.Node:
    both = graph.call_function(guard, tuple(given))
    alarms.append(graph.call_function(operator.getitem, (both, 1)))
    return graph.call_function(operator.getitem, (both, 0))


def _checks(node: fx.Node) -> Sequence[tuple[str, Guard, tuple[str, ...]]]:
    """Return what to check of a node: an argument, by which function, and that function's other arguments."""
    if any(tensor.device.type != "cpu" for tensor in tensors_of(node)):
        return ()
    name = operator_name(node)
    found = _CHECKS.get(name, _CHECKS.get(name.rpartition(".")[0], ()))
    if found is _DIVISION:
        return found if _is_of_integers(node) and _is_variable(argument(node, "other"), masks=()) else ()
    return [check for check in found if _is_variable(argument(node, check[0]))]


def _is_variable(value: Any, masks: Sequence[torch.dtype] = _MASKS) -> bool:
    """Return whether an argument is a tensor of integers, or a list of some, that depends on the inputs of the cluster."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_variable, cast("Sequence[Any]", value)))
    if not isinstance(value, fx.Node) or not isinstance(value_of(value), torch.Tensor):
        return False
    return _is_of_integers(value) and value_of(value).dtype not in masks and not _is_fixed(value)


def _is_of_integers(node: fx.Node) -> bool:
    dtype = value_of(node).dtype
    return not dtype.is_floating_point and not dtype.is_complex


def _is_fixed(node: fx.Node) -> bool:
    """Return whether a value is the same in every call: then verification has met it."""
    seen, left = set[fx.Node](), [node]
    while left:
        one = left.pop()
        if one.op == "placeholder":
            return False
        if one not in seen:
            seen.add(one)
            left.extend(one.all_input_nodes)
    return True


def _n_dims(index: Any) -> int:
    """Return how many dims an index stands for: a mask has as many as it has itself."""
    is_mask = isinstance(index, fx.Node) and value_of(index).dtype in _MASKS
    return value_of(index).dim() if is_mask else 1


def _argument(node: fx.Node, copy: fx.Node, name: str) -> Any:
    """Return an argument of the copy by name; the operator's default if it is not given."""
    names = [declared.name for declared in declared_arguments(node)]
    position = names.index(name)
    if position < len(copy.args):
        return copy.args[position]
    return copy.kwargs.get(name, argument(node, name))


def _replace(node: fx.Node, copy: fx.Node, name: str, value: Any) -> None:
    position = [declared.name for declared in declared_arguments(node)].index(name)
    if position < len(copy.args):
        copy.update_arg(position, value)
    else:
        copy.update_kwarg(name, value)


# --- Guards -----------------------------------------------------------------------------------------------------------


def _within(index: torch.Tensor, low: Any, size: Any) -> tuple[torch.Tensor, torch.Tensor]:
    is_out = (index < low) | (index >= size)
    return torch.where(is_out, 0, index), is_out.any()


def _along(index: torch.Tensor, source: torch.Tensor, dim: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    if dim is None:
        return _within(index, 0, source.numel())
    return _within(index, 0, source.shape[dim] if source.dim() else 1)


def _along_either_way(index: torch.Tensor, source: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = source.shape[dim] if source.dim() else 1
    return _within(index, -size, size)


def _row(index: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _within(index, 0, table.shape[0])


def _counted(index: torch.Tensor, size: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _within(index, 0, size)


def _flat(index: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _within(index, -source.numel(), source.numel())


def _label(target: torch.Tensor, scores: torch.Tensor, ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
    is_out = ((target < 0) | (target >= size)) & (target != ignored)
    return torch.where(is_out, 0, target), is_out.any()


def _divisor(by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    is_zero = by == 0
    return torch.where(is_zero, 1, by), is_zero.any()


_BY_DIM = (("index", _along, ("self", "dim")),)
_LABELS = (("target", _label, ("self", "ignore_index")),)
_DIVISION = (("other", _divisor, ()),)

_CHECKS: Mapping[str, Sequence[tuple[str, Guard, tuple[str, ...]]]] = {
    "aten.embedding.default": (("indices", _row, ("weight",)),),
    "aten.embedding_dense_backward.default": (("indices", _counted, ("num_weights",)),),
    "aten.index.Tensor": (("indices", _along_either_way, ("self",)),),
    "aten.index_put.default": (("indices", _along_either_way, ("self",)),),
    "aten.put.default": (("index", _flat, ("self",)),),
    **dict.fromkeys(
        (
            *("aten.gather.default", "aten.index_select.default"),
            *(f"aten.{name}" for name in ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy")),
        ),
        _BY_DIM,
    ),
    "aten.take_along_dim.default": (("indices", _along, ("self", "dim")),),
    "aten.index_fill": (("index", _along_either_way, ("self", "dim")),),
    "aten.index_reduce.default": _BY_DIM,
    **dict.fromkeys(
        (
            *("aten.cross_entropy_loss.default", "aten.nll_loss.default", "aten.nll_loss_nd.default"),
            *("aten.nll_loss2d.default", "aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"),
            *("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default"),
        ),
        _LABELS,
    ),
    **dict.fromkeys(
        (
            *("aten.div.Tensor_mode", "aten.floor_divide.default", "aten.fmod.Tensor"),
            *("aten.remainder.Tensor", "aten.remainder.Scalar_Tensor"),
        ),
        _DIVISION,
    ),
}
"""Checks by operator, with or without its overload. `index_put` and `index` read a list of indices, one for each dim."""
