"""Where the arguments of a captured graph come from in a call of the model, and where its outputs go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hub.compiled import CompiledGraph
from hub.errors import FreezeError

PLAIN = (int, float, bool, str, type(None))
"""Values beside tensors that can be compared, and handed out again."""


def check_inputs(leaves: Sequence[Any]) -> None:
    """Raise FreezeError for inputs of which no call could tell whether it is of the same form."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise FreezeError(
            "one tensor is given twice, and the graph was captured for that", hint="freeze with a tensor for each input"
        )
    if strange := [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, (torch.Tensor, *PLAIN))]:
        raise FreezeError(f"an input of type {strange[0]} cannot be compared from call to call")


def fed(
    graph: CompiledGraph, args: Sequence[Any], leaves: Sequence[Any], pinned: Collection[int] = ()
) -> tuple[tuple[Any, ...], tuple[tuple[int, int], ...]]:
    """Return the graph's arguments with gaps, and for each gap which leaf of the inputs goes there, as (leaf, position).

    `pinned` are the identities of tensors that the caller knows to be the same in every call. Raises FreezeError for a
    tensor that is none of them, no input and no weight.
    """
    weights = frozenset(graph.graph.weights)
    place = {id(leaf): index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    kept: list[Any] = list(args)
    gaps: list[tuple[int, int]] = []
    for position, (node, value) in enumerate(zip(graph.graph.placeholders, args, strict=True)):
        if isinstance(value, torch.Tensor) and id(value) in place:
            kept[position] = None
            gaps.append((place[id(value)], position))
        elif isinstance(value, torch.Tensor) and not _is_fixed(value, node.name, weights, pinned):
            raise FreezeError(
                f"the graph reads {node.name}, which is no input of the model and no weight",
                hint="make it a buffer, or an input",
            )
    return tuple(kept), tuple(gaps)


def _is_fixed(value: torch.Tensor, name: str, weights: Collection[str], pinned: Collection[int]) -> bool:
    return id(value) in pinned or name in weights or isinstance(value, torch.nn.Parameter)


def rebuilt(result: Any, outputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return what turns the graph's outputs into the model's result."""
    place = {id(output): index for index, output in enumerate(outputs) if isinstance(output, torch.Tensor)}
    if id(result) in place:
        only = place[id(result)]
        return lambda found: found[only]
    leaves, structure = pytree.tree_flatten(result)
    if len(place) < len(outputs) and any(isinstance(leaf, (int, float)) for leaf in leaves):
        raise FreezeError("the result holds numbers, and the graph computes some: they may depend on the inputs' values")
    if strange := [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and id(leaf) not in place]:
        raise FreezeError(f"{len(strange)} tensors of the result are not made by the captured graph")
    if not all(isinstance(leaf, (torch.Tensor, *PLAIN)) for leaf in leaves):
        raise FreezeError(f"the result holds values that cannot be rebuilt: {type(result).__name__}")
    found_at = [place.get(id(leaf)) for leaf in leaves]
    plan = [(index, leaf if index is None else None) for index, leaf in zip(found_at, leaves, strict=True)]

    def rebuild(found: Sequence[Any]) -> Any:
        filled = [leaf if index is None else found[index] for index, leaf in plan]
        return pytree.tree_unflatten(filled, structure)

    return rebuild
