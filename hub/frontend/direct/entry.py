"""One form of a call: the inputs that it takes, and the path from them through a captured graph to the model's result."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any, cast

import torch

from hub.errors import FreezeError
from hub.frontend.bindings import CALLED, Binding
from hub.frontend.direct.feeding import PLAIN, fed, rebuilt
from hub.frontend.direct.inputs import Inputs, takes
from hub.frontend.direct.modes import Modes
from hub.frontend.direct.recorder import Seen
from hub.frontend.direct.watch import SAME, Watch
from hub.process.forks import freed_in_forks
from hub.torch_private import is_any_autocast_enabled

MAX_ENTRIES = 16
"""Maximum number of entries, one per form of call that skips Dynamo. The oldest is evicted first."""
MAX_MISSED = 64
"""Maximum number of forms of calls that are remembered until they come a second time."""


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
        "_graph",
        "_is_bound_at",
        "_places",
        "_rebuild",
        "_watch",
        "leaves_of",
    )

    def __init__(self, inputs: Inputs, seen: Seen, result: Any, watch: Watch, modes: Modes) -> None:
        """Make an entry for a recorded call. `watch` covers what the program read, including tensors that are not inputs.

        Raise FreezeError with the reason if calls cannot be compared by their inputs, or the result cannot be rebuilt.
        """
        plain = [leaf for leaf in inputs.leaves if not isinstance(leaf, torch.Tensor)]
        if strange := [type(leaf).__name__ for leaf in plain if type(leaf) not in PLAIN]:
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
        self.leaves_of = takes(inputs, modes, others=weights)  # an input that is a part of the model would change with it
        """Return the leaves of a call's inputs, given as tuple and dict, if it has this form, in these modes; else None."""
        self._watch = watch
        self._binding: Binding | None = None
        self._is_bound_at = -1
        self._graph = seen.graph
        self._args, self._places = fed(seen.graph, seen.args, inputs.leaves, pinned={id(one) for one in weights})
        self._rebuild = rebuilt(result, seen.outputs, held={*watch.objects, *map(id, inputs.containers())})

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


def _has_plain_keys(structure: Any) -> bool:
    """Return whether all keys of dicts in a structure are strings."""
    if issubclass(structure.type or object, dict):
        keys: Any = structure.context
        keys = keys[1] if structure.type is collections.defaultdict else keys
        if any(type(key) is not str for key in keys):
            return False
    return all(map(_has_plain_keys, structure.children()))
