"""The code that Dynamo generated for a program, called without Dynamo: any sizes, caches that are written to, any result.

An entry (`entry.py`) knows one form of the inputs and calls the graph itself. This is for the rest: Dynamo's own code does
all that is beside the graph. Of its guards only those are checked, by Dynamo's own checker, that the watch does not
imply: those on the call's inputs, mostly.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list  # pyright: ignore[reportPrivateUsage] - no public form
from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper
from torch._guards import Guard, GuardsSet, Source
from torch.utils._ordered_set import OrderedSet

from hub.frontend.direct.modes import Modes
from hub.frontend.direct.watch import Watch


@contextlib.contextmanager
def _only(output: Any, guards: Iterable[Guard]) -> Generator[None]:
    """Let a program that Dynamo compiles in this thread have these guards alone. The caller holds Dynamo's lock."""
    context = output.tracing_context.guards_context
    all_of_it = context.dynamo_guards
    context.dynamo_guards = GuardsSet(OrderedSet(guards))
    try:
        yield
    finally:
        context.dynamo_guards = all_of_it


class Check(CheckFunctionManager):
    """Dynamo's checker for some guards of a program, made while Dynamo compiles it."""

    def __init__(self, code: types.CodeType, output: Any, guards: Iterable[Guard]) -> None:
        self._living: list[weakref.ref[Any]] = []
        self._is_over = False
        with _only(output, guards):
            super().__init__(code, output)
        self._holds = cast("Any", self.guard_manager).root.check

    def id_ref(self, obj: object, obj_str: str) -> int:  # noqa: ARG002 - as Dynamo calls it
        """Note an object that is compared by its identity: once it is gone, another one may have that."""
        with contextlib.suppress(TypeError):  # a number, None and the like
            self._living.append(weakref.ref(obj, partial(_end, weakref.ref(self))))
        return id(obj)

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the guards hold in a scope: the arguments of a call by name."""
        return not self._is_over and self._holds(scope)

    def end(self) -> None:
        """Let no call pass any more."""
        self._is_over = True


def checked(code: types.CodeType, output: Any, guards: Iterable[Guard]) -> Check | None:
    """Return a checker for some guards of a program that Dynamo compiles; None where it makes none of these alone."""
    try:
        return Check(code, output, guards)
    except Exception:  # noqa: BLE001 - calls go through Dynamo then, with all guards: nobody else need know
        return None


def _end(check: weakref.ref[Check], _: object) -> None:
    if (found := check()) is not None:
        found.end()


@dataclass(frozen=True, slots=True)
class General:
    """One program's code, and what must hold for it beside the watch."""

    check: Check
    modes: Modes
    run: Callable[..., Any]
    are_apart: Callable[[Mapping[str, Any]], bool] | None
    """Whether no input is a part of the model; None where that makes no difference."""
    may_have_entry: bool
    """Whether a form of its inputs may go the faster way; False where that was tried."""

    def takes(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the code is right for a call, given as its arguments by name, while the watch holds."""
        return self.modes.hold() and self.check.holds(scope) and (self.are_apart is None or self.are_apart(scope))


def generated(code: types.CodeType, compile_id: Any, names: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the function that Dynamo made of `code` in one compilation; None where PyTorch has dropped it."""
    for entry in _debug_get_cache_entry_list(code):
        if entry.compile_id == compile_id:
            return types.FunctionType(entry.code, names, code.co_name)
    return None


def is_known(code: types.CodeType, scope: Mapping[str, Any]) -> bool:
    """Return whether Dynamo has compiled `code` for such a call, given as its arguments by name."""
    kept = (cast("Any", entry).guard_manager for entry in _debug_get_cache_entry_list(code))
    return any(not isinstance(guards, DeletedGuardManagerWrapper) and guards.check(scope) for guards in kept)


def apart(sources: Sequence[Source], watch: Watch) -> Callable[[Mapping[str, Any]], bool]:
    """Return what tells whether none of the tensors at these places in a call's inputs is one that the watch is of."""
    expression = "".join(f"{source.name}," for source in sources)
    read = eval(f"lambda L: ({expression})", {})
    watched = frozenset(map(id, watch.tensors))
    return lambda scope: watched.isdisjoint(map(id, read(scope)))
