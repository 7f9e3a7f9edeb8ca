"""Mapping of a call's inputs to the arguments of a captured graph, and of its outputs to the model's result."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

import torch

from hub.errors import FreezeError
from hub.frontend.compiled import CompiledGraph
from hub.torch_private import pytree

PLAIN = (int, float, bool, str, type(None))
"""Types, in addition to tensors, whose values can be compared and returned again."""


def check_inputs(leaves: Sequence[Any]) -> None:
    """Raise FreezeError if a later call cannot be compared with these inputs."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise FreezeError(
            "one tensor is given twice, and the graph was captured for that", hint="freeze with a tensor for each input"
        )
    if strange := [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, (torch.Tensor, *PLAIN))]:
        raise FreezeError(f"an input of type {strange[0]} cannot be compared from call to call")


def fed(
    graph: CompiledGraph, args: Sequence[Any], leaves: Sequence[Any], pinned: Collection[int] | None = None
) -> tuple[tuple[Any, ...], tuple[tuple[int, int], ...]]:
    """Return the graph's arguments with gaps, and for each gap the leaf of the inputs that fills it, as (leaf, position).

    `pinned` holds the identities of tensors that the caller knows to be the same in every call. If it is None, the graph's
    guard on its weights decides. The caller compares all numbers that the program reads, or takes them as they are. Raise
    FreezeError for a tensor that is neither of these nor an input.
    """

    def is_fixed(value: torch.Tensor, name: str) -> bool:
        if name in graph.numbers:
            return True
        return name in weights or isinstance(value, torch.nn.Parameter) if pinned is None else id(value) in pinned

    weights = frozenset(graph.graph.weights)
    place = {id(leaf): index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    kept: list[Any] = list(args)
    gaps: list[tuple[int, int]] = []
    for position, (node, value) in enumerate(zip(graph.graph.placeholders, args, strict=True)):
        if isinstance(value, torch.Tensor) and id(value) in place:
            kept[position] = None
            gaps.append((place[id(value)], position))
        elif isinstance(value, torch.Tensor) and not is_fixed(value, node.name):
            raise FreezeError(
                f"the graph reads {node.name}, which is neither an input of the model nor a weight",
                hint="make it a buffer, or an input",
            )
    return tuple(kept), tuple(gaps)


def containers_in(value: Any) -> list[Any]:
    """Return the lists, dicts and other mutable containers in a value, outer ones first."""
    nodes: list[Any] = []
    pytree.tree_flatten(value, is_leaf=lambda node: nodes.append(node) or False)
    return [node for node in nodes if type(node) is not tuple and not pytree.tree_is_leaf(node)]


def rebuilt(result: Any, outputs: Sequence[Any], held: Set[int] = frozenset()) -> Callable[[Sequence[Any]], Any]:
    """Return a function from the graph's outputs to the model's result.

    `held` contains the identities of the objects that the model or its inputs hold. Raise FreezeError if a list or dict of
    the result is one of them, since eager returns the same object in every call.
    """
    place = {id(output): index for index, output in enumerate(outputs) if isinstance(output, torch.Tensor)}
    if any(isinstance(output, torch.Tensor) and vars(output) for output in outputs):
        raise FreezeError("the program sets attributes of a tensor in its result")
    if id(result) in place:
        only = place[id(result)]
        return lambda found: found[only]
    try:
        leaves, structure = pytree.tree_flatten(result)
    except RecursionError:
        raise FreezeError("the result contains itself") from None
    if len(place) < len(outputs) and any(isinstance(leaf, (int, float)) for leaf in leaves):
        raise FreezeError("the result holds numbers, and the graph computes some: they may depend on the inputs' values")
    if strange := [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and id(leaf) not in place]:
        raise FreezeError(f"{len(strange)} tensors of the result are not made by the captured graph")
    if not all(isinstance(leaf, (torch.Tensor, *PLAIN)) for leaf in leaves):
        raise FreezeError(f"the result holds values that cannot be rebuilt: {type(result).__name__}")
    made = [id(one) for one in containers_in(result)]
    if not {*made}.isdisjoint(held) or len({*made}) < len(made):
        raise FreezeError("the result holds a list or dict that the model or an input keeps, or the same one twice")
    found_at = [place.get(id(leaf)) for leaf in leaves]
    plan = [(index, leaf if index is None else None) for index, leaf in zip(found_at, leaves, strict=True)]

    def rebuild(found: Sequence[Any]) -> Any:
        filled = [leaf if index is None else found[index] for index, leaf in plan]
        return pytree.tree_unflatten(filled, structure)

    if not _is_rebuilt(result, rebuild(outputs)):
        raise FreezeError("the result holds more than PyTorch's tree functions carry over")
    later = [output.detach() if isinstance(output, torch.Tensor) else output for output in outputs]
    if _share(rebuild(outputs), rebuild(later)):
        raise FreezeError("results of two calls would share an object that can change")
    return rebuild


def _is_rebuilt(result: Any, other: Any) -> bool:
    """Return whether the containers of a result were rebuilt with all their attributes."""
    try:
        pairs = list(zip(containers_in(result), containers_in(other), strict=True))
        return all(_has_same_state(one, again) for one, again in pairs)
    except (ValueError, RecursionError):  # other containers, or attributes that contain themselves
        return False


def _has_same_state(one: Any, other: Any) -> bool:
    """Return whether the attributes of two containers with the same contents are the same, too."""
    if type(one) in _BUILT_IN:
        return not getattr(one, "__dict__", None)  # an OrderedDict may have attributes
    state, others = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
    if state is None or others is None:  # a named tuple has none
        return isinstance(one, tuple)
    leaves, structure = pytree.tree_flatten(state)
    other_leaves, other_structure = pytree.tree_flatten(others)
    return structure == other_structure and all(map(_is_same, leaves, other_leaves))


def _share(result: Any, later: Any) -> bool:
    """Return whether the results of two calls have an attribute in common that can change: eager makes new ones."""
    return any(
        not _changing_in(one).isdisjoint(_changing_in(other))
        for one, other in zip(containers_in(result), containers_in(later), strict=True)
    )


def _changing_in(container: Any) -> set[int]:
    """Return the identities of what a container's attributes hold, except for objects that cannot change."""
    state = getattr(container, "__dict__", {})
    found = [*containers_in(state), *pytree.tree_leaves(state)]
    return {id(one) for one in found if not isinstance(one, _FIXED)}


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and one == other)


_BUILT_IN = (list, dict, collections.OrderedDict, collections.defaultdict, collections.deque)
_FIXED = (*PLAIN, torch.dtype, torch.device, torch.Size, type, enum.Enum)
"""Types of attributes that containers may have in common."""
