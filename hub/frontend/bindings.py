"""Plans built for certain weights: which one a call runs, and when none holds any more."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, Protocol

from hub.dispatch.recorded import Run
from hub.dispatch.weights import WeightGuard
from hub.process.forks import never_freed

MAX_BINDINGS = 4
"""Maximum number of sets of weights with executables of their own: models of one class share a captured graph."""
MAX_CHANGES = 3
"""Number of weight changes after which weights become inputs: recompiling at each optimizer step would never pay."""


class Witness(Protocol):
    """What was checked before a program is called, and spares the check of each weight."""

    def holds(self, graph: object, binding: Binding | None, args: Sequence[Any]) -> bool:
        """Return whether the weights among the arguments of a graph are those of a binding. Raise what was held back."""
        ...


class _Called(threading.local):
    witness: Witness | None = None
    dropped: tuple[object, ...] = ()
    """What guards no longer need. It is freed here: if an object dies while guards are checked, Dynamo may free them."""
    recording: FrameType | None = None
    """The frame that calls what `torch.compile` made, while that call is recorded."""
    entered: object | None = None
    """The guards that let the first frame of that call through, if nothing but PyTorch's own code is between them."""

    def free(self) -> None:
        """Free what guards no longer need."""
        if self.dropped:
            self.dropped = ()


CALLED = _Called()
"""What the guards before a call leave for the graph that this thread calls next. The graph takes it away."""


class Binding:
    """One plan built for one set of weights. The plan is freed with them, even if this object is still referenced."""

    __slots__ = ("__weakref__", "guard", "is_final", "run", "takes_any")

    def __init__(self, positions: Sequence[int], args: Sequence[Any]) -> None:
        """Guard the weights at `positions` among the arguments of a call. `run` is set once the plan is built."""
        own = weakref.ref(self)

        def end() -> None:
            if (binding := own()) is not None:
                binding.run = _ended

        self.guard = WeightGuard(positions, args, end)
        self.takes_any = not positions
        """True if it guards no weights: any model's may come."""
        self.is_final = True
        """False if it serves only while the plan for its weights is being made."""
        self.run: Run = _ended


def _ended(_: Sequence[Any]) -> tuple[Any, ...]:
    """Replace a plan whose weights are freed. It is never called, since the guard no longer holds."""
    raise RuntimeError("a plan was called whose weights are freed")


class Bindings:
    """The bindings of one graph. Its owner holds a lock around every method that changes them."""

    __slots__ = ("_all", "current", "n_changes", "n_cleared")

    def __init__(self) -> None:
        """Begin without any."""
        self._all: list[Binding] = []
        self.current: Binding | None = None
        """What the next call tries first."""
        self.n_changes = 0
        """How often weights have changed under a binding."""
        self.n_cleared = 0
        """How often all were discarded: what is being built meanwhile may hold weights from before."""

    @property
    def is_full(self) -> bool:
        """Whether as many sets of weights have executables as may have."""
        return sum(one.is_final and not one.takes_any for one in self._all) >= MAX_BINDINGS

    @property
    def are_several(self) -> bool:
        """Whether there are plans for more than one set of weights."""
        return len(self._all) > 1

    def find(self, args: Sequence[Any]) -> Binding | None:
        """Return the binding for the weights among these arguments, a final one if there is one, and let calls try it."""
        for binding in sorted(self._all, key=lambda one: (not one.is_final, one.takes_any)):
            if binding.guard.holds(args):
                self._make_current(binding)
                return binding
        return None

    def add(self, binding: Binding) -> None:
        """Add a binding and make it current. The oldest of its kind goes if there are too many."""
        alike = [one for one in self._all if one.takes_any == binding.takes_any and one.is_final == binding.is_final]
        gone = alike if binding.takes_any else alike[: max(0, len(alike) - MAX_BINDINGS + 1)]
        self._all = [*(one for one in self._all if one not in gone), binding]
        self._make_current(binding)

    def replace_waiting(self, *bindings: Binding) -> None:
        """Put bindings in the place of those that serve only meanwhile. The next call chooses among them."""
        fresh = [one for one in self._all if one.is_final and one.guard.is_fresh()]
        self._all, self.current = [*fresh[-(MAX_BINDINGS - 1) :], *bindings], None

    def drop_waiting(self) -> None:
        """Drop those that serve only meanwhile."""
        self._all = [one for one in self._all if one.is_final]

    def drop_stale(self) -> None:
        """Drop those whose weights have changed, and count them."""
        fresh = [one for one in self._all if one.guard.is_fresh()]
        self.n_changes += len(self._all) - len(fresh)
        self._all = fresh

    def clear(self) -> None:
        """Discard all, so that the next call reads every weight again."""
        self._all, self.current = [], None
        self.n_cleared += 1

    def abandon(self) -> None:
        """Discard all without freeing what they hold. Called in a fork, where that would wait for lost threads."""
        never_freed([one.run for one in self._all])
        self._all, self.current = [], None

    def _make_current(self, binding: Binding) -> None:
        """Let the next call try this one first, unless it would take weights for which there is a better one."""
        if binding.takes_any and not all(one.takes_any for one in self._all):
            self.drop_stale()  # else one that never holds again would be asked at each call
        is_last = binding.is_final or not any(one.is_final for one in self._all)
        is_own = not binding.takes_any or all(one.takes_any for one in self._all)
        self.current = binding if is_last and is_own else None
