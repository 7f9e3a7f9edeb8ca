"""The inputs of a call: their leaves, their form, and the check that a later call has the same form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from hub.frontend.direct.feeding import PLAIN, containers_in
from hub.frontend.direct.modes import Modes
from hub.frontend.direct.watch import native
from hub.torch_private import TensorGuards, pytree


class Inputs:
    """The inputs of one call, flattened: a sequence of leaves, and the structure of the containers around them."""

    __slots__ = ("_given", "is_flat", "leaves", "names", "structure")
    leaves: Sequence[Any]

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.names = tuple(kwargs)
        self._given = flat = (*args, *kwargs.values())
        self.is_flat = all(issubclass(type(value), (torch.Tensor, *PLAIN)) for value in flat)
        if self.is_flat:
            self.leaves = flat
            self.structure: Any = len(args)
        else:
            self.leaves, self.structure = flattened(args, kwargs)

    def containers(self) -> list[Any]:
        """Return the lists, dicts and other mutable containers in the inputs."""
        return [] if self.is_flat or self.structure is None else containers_in(self._given)

    def key(self) -> Any:
        """Return a key that calls of one form share. Raise TypeError for inputs that cannot be compared."""
        if any(not isinstance(leaf, (torch.Tensor, *PLAIN)) for leaf in self.leaves):
            raise TypeError
        return self.names, self.structure, tuple(map(_form, self.leaves))

    def kind(self) -> Any:
        """Return a key shared by calls that one symbolic program could serve. Dynamo specializes the sizes 0 and 1."""
        return self.names, str(self.structure), tuple(map(_kind, self.leaves))


def flattened(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return leaves and structure. If an input has none, return one leaf that nothing equals, and None.

    An input may contain itself, and functions that were registered for its class may raise.
    """
    try:
        return cast("Any", pytree).tree_flatten((args, dict(kwargs)))
    except Exception:  # noqa: BLE001 - RecursionError, and whatever those functions raise
        return [_NOTHING], None


_NOTHING = object()


def takes(
    inputs: Inputs, modes: Modes, others: tuple[torch.Tensor, ...] = ()
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Sequence[Any] | None]:
    """Return a function that returns the leaves of a call, given as tuple and dict, if it has the form of these inputs.

    Otherwise, or in other modes, it returns None. A call has the form if its structure and its leaves that are no tensors
    are equal (0.0 and -0.0 are not), and if its tensors have the same types, sizes, strides, devices and `requires_grad`.
    None of them may be given twice, be among `others`, or have attributes, such as `torch._dynamo.mark_dynamic` sets.
    """
    n_args = inputs.structure if inputs.is_flat else 0
    tensors = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
    sizes, strides = [list(tensor.shape) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
    fit = cast("Any", TensorGuards)(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    form = native.Form(n_args, inputs.names, tuple(inputs.leaves), torch.Tensor, others, fit, modes.comparison)
    if inputs.is_flat:
        return form.leaves
    names, structure = inputs.names, inputs.structure

    def leaves_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        leaves, found = flattened(args, kwargs)
        return leaves if found == structure and tuple(kwargs) == names and form.takes(leaves) else None

    return leaves_of


def _form(leaf: object) -> tuple[Any, Any]:
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:  # it has no shape
        raise TypeError
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf)


def _kind(leaf: object) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, None if leaf.is_nested else tuple(min(size, 2) for size in leaf.shape)
    return leaf if isinstance(leaf, (str, bool)) else type(leaf)


def are_equal(leaf: Any, first: Any) -> bool:
    """Return whether an input that is no tensor is what it was when the path was made. -0.0 and 0.0 differ."""
    return type(leaf) is type(first) and leaf == first and (type(leaf) is not float or str(leaf)[0] == str(first)[0])
