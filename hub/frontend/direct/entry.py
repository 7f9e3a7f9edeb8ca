"""One form of a call: the inputs that it takes, and the path from them through a captured graph to the model's result."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from hub.errors import FreezeError
from hub.frontend.bindings import CALLED, Binding
from hub.frontend.direct.feeding import PLAIN, containers_in, fed, rebuilt
from hub.frontend.direct.modes import Modes
from hub.frontend.direct.recorder import Seen
from hub.frontend.direct.watch import SAME, Watch, forms_of, have_no_attributes
from hub.process.forks import freed_in_forks
from hub.torch_private import is_any_autocast_enabled, pytree

MAX_ENTRIES = 16
"""Maximum number of entries, one per form of call that skips Dynamo. The oldest is evicted first."""
MAX_MISSED = 64
"""Maximum number of forms of calls that are remembered until they come a second time."""


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
            self.leaves, self.structure = _flat(args, kwargs)

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


class Forms:
    """Forms of calls that came without an entry."""

    __slots__ = ("_missed",)

    def __init__(self) -> None:
        self._missed: dict[Any, None] = {}

    def has_come(self, inputs: Inputs) -> bool:
        """Return whether a call of this form came before. Sizes that come once are not worth an entry."""
        try:
            key = inputs.key()
            if key in self._missed:
                return True
        except TypeError:  # an input that cannot be hashed or compared
            return False
        keep_newest(self._missed, key, None)
        return False


def keep_newest(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value under the newest key, and not more than `MAX_MISSED` values."""
    with _NOTING:
        kept.pop(key, None)
        kept[key] = value
        while len(kept) > MAX_MISSED:
            kept.pop(next(iter(kept)))


_NOTING = freed_in_forks(threading.Lock())


class Entry:
    """One form of a call, and the graph that serves it."""

    __slots__ = (
        "_args",
        "_binding",
        "_fit",
        "_graph",
        "_is_bound_at",
        "_is_flat",
        "_modes",
        "_names",
        "_places",
        "_plain",
        "_rebuild",
        "_structure",
        "_tensors",
        "_watch",
        "_weights",
    )

    def __init__(self, inputs: Inputs, seen: Seen, result: Any, watch: Watch, modes: Modes) -> None:
        """Make an entry for a recorded call. `watch` covers what the program read, including tensors that are not inputs.

        Raise FreezeError with the reason if calls cannot be compared by their inputs, or the result cannot be rebuilt.
        """
        self._is_flat = inputs.is_flat  # not the inputs themselves: those of a finished call must be freed
        self._names, self._structure = inputs.names, inputs.structure
        self._plain = tuple((at, leaf) for at, leaf in enumerate(inputs.leaves) if not isinstance(leaf, torch.Tensor))
        if strange := [type(leaf).__name__ for _, leaf in self._plain if type(leaf) not in PLAIN]:
            raise FreezeError(f"an input of type {strange[0]} cannot be compared from call to call")
        if not inputs.is_flat and not _has_plain_keys(inputs.structure):
            raise FreezeError("an input is a dict with keys that are not strings: equal ones can differ, as 1 and 1.0 do")
        weights = watch.tensors
        tensors = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
        if any(one.layout is not torch.strided or one.is_nested for one in (*tensors, *weights)):
            raise FreezeError("a sparse or nested tensor is read")
        if any(one.is_complex() or one.is_neg() for one in weights):  # `Stamps` cannot detect a conjugated tensor
            raise FreezeError("a complex weight is read")
        if len({id(one) for one in (*tensors, *weights)}) < len(tensors) + len(weights):
            raise FreezeError("one tensor is given twice, or is a part of the model")
        self._tensors = tuple(at for at, leaf in enumerate(inputs.leaves) if isinstance(leaf, torch.Tensor))
        self._weights = frozenset(map(id, weights))
        self._fit = forms_of(tensors)
        self._watch = watch
        self._binding: Binding | None = None
        self._is_bound_at = -1
        self._modes = modes
        self._graph = seen.graph
        self._args, self._places = fed(seen.graph, seen.args, inputs.leaves, pinned={id(one) for one in weights})
        self._rebuild = rebuilt(result, seen.outputs, held={*watch.objects, *map(id, inputs.containers())})

    def leaves_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return the leaves of a call's inputs if the call has this form, in these modes; else None."""
        if self._is_flat:
            if len(args) != self._structure or tuple(kwargs) != self._names:
                return None
            leaves: Sequence[Any] = (*args, *kwargs.values()) if kwargs else args
        else:
            leaves, structure = _flat(args, kwargs)
            if structure != self._structure or tuple(kwargs) != self._names:
                return None
        for at, first in self._plain:
            leaf = leaves[at]
            if not are_equal(leaf, first):
                return None
        tensors = tuple([leaves[at] for at in self._tensors])
        if not self._fit(*tensors) or not have_no_attributes(tensors) or not self._modes.hold():
            return None
        if not self._weights.isdisjoint(map(id, tensors)):  # an input that is a part of the model
            return None
        return leaves

    def run(self, leaves: Sequence[Any], *, is_same: bool) -> Any:
        """Run the graph on the leaves that `leaves_of` returned. `is_same` is True if no weight was written to."""
        args = list(self._args)
        for leaf, position in self._places:
            args[position] = leaves[leaf]
        graph, binding = self._graph, self._binding
        is_bound = is_same and binding is not None and binding is graph.current() and graph.observer is None
        if is_bound and self._is_bound_at == self._watch.n_renewals:
            return self._rebuild(cast("Binding", binding).run(args))
        return self._rebuild(self._run_unbound(args, is_same=is_same))

    def _run_unbound(self, args: Sequence[Any], *, is_same: bool) -> Sequence[Any]:
        """Run the graph, which checks every weight, and keep the binding that it used until a weight is written to."""
        graph, watch = self._graph, self._watch
        if not is_same and not graph.graph.mutated:
            watch.renew()
        n_renewals = watch.n_renewals
        CALLED.witness = None  # of a call of Dynamo's that ended between its guards and the graph
        outputs = graph(*args)
        binding = graph.current()
        if binding is not None and not is_any_autocast_enabled() and watch.compare() == SAME and binding.guard.holds(args):
            self._binding, self._is_bound_at = binding, n_renewals
        return outputs


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return leaves and structure. If an input has none, return one leaf that nothing equals, and None.

    An input may contain itself, and functions that were registered for its class may raise.
    """
    try:
        return cast("Any", pytree).tree_flatten((args, dict(kwargs)))
    except Exception:  # noqa: BLE001 - RecursionError, and whatever those functions raise
        return [_NOTHING], None


_NOTHING = object()


def _has_plain_keys(structure: Any) -> bool:
    """Return whether all keys of dicts in a structure are strings."""
    if issubclass(structure.type or object, dict):
        keys: Any = structure.context
        keys = keys[1] if structure.type is collections.defaultdict else keys
        if any(type(key) is not str for key in keys):
            return False
    return all(map(_has_plain_keys, structure.children()))


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
