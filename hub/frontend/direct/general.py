"""The code that Dynamo generated for a program, called without Dynamo: any sizes, caches that are written to, any result.

An entry (`entry.py`) takes one form of the inputs and calls the graph itself. This module handles the rest: Dynamo's own
code does everything outside the graph. Dynamo's own checker checks the guards that the watch does not imply: mostly those
on the call's inputs.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from hub.frontend.direct.modes import Modes
from hub.frontend.direct.watch import Watch
from hub.torch_private import (
    CheckFunctionManager,
    DeletedGuardManagerWrapper,
    Guard,
    GuardsSet,
    OrderedSet,
    Source,
    get_cache_entry_list,
    get_closure_vars,
)


@contextlib.contextmanager
def _only(output: Any, guards: Iterable[Guard]) -> Generator[None]:
    """Restrict a program that Dynamo compiles in this thread to these guards. The caller holds Dynamo's lock."""
    context = output.tracing_context.guards_context
    all_of_it = context.dynamo_guards
    context.dynamo_guards = GuardsSet(OrderedSet(guards))
    try:
        yield
    finally:
        context.dynamo_guards = all_of_it


class Check(CheckFunctionManager):
    """Dynamo's checker for some guards of a program. It must be made while Dynamo compiles the program."""

    def __init__(self, code: types.CodeType, output: Any, guards: Iterable[Guard]) -> None:
        self._living: list[weakref.ref[Any]] = []
        self._is_over = False
        with _only(output, guards):
            super().__init__(code, output)
        self._holds = cast("Any", self.guard_manager).root.check

    def id_ref(self, obj: object, obj_str: str) -> int:  # noqa: ARG002 - as Dynamo calls it
        """Return the identity of an object, and end this check when it dies: another object may then get its identity."""
        with contextlib.suppress(TypeError):  # a number, None and the like
            self._living.append(weakref.ref(obj, partial(_end, weakref.ref(self))))
        return id(obj)

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the guards hold in a scope, the arguments of a call by name."""
        return not self._is_over and self._holds(scope)

    def end(self) -> None:
        """Fail for every call from now on."""
        self._is_over = True


def checked(code: types.CodeType, output: Any, guards: Iterable[Guard]) -> Check | None:
    """Return a checker for some guards of the program that Dynamo compiles now; None if Dynamo cannot make one."""
    try:
        return Check(code, output, guards)
    except Exception:  # noqa: BLE001 - calls then go through Dynamo, with all guards
        return None


def _end(check: weakref.ref[Check], _: object) -> None:
    if (found := check()) is not None:
        found.end()


@dataclass(frozen=True, slots=True)
class General:
    """One program's code, and what must hold for it in addition to the watch."""

    check: Check
    modes: Modes
    run: Callable[..., Any]
    are_apart: Callable[[Mapping[str, Any]], bool]
    """Return whether no input is a part of the model. Dynamo guards that, but among the tensors that it checks itself."""
    may_have_entry: bool
    """Whether a form of its inputs may get an entry, which is faster; False if that was tried."""

    def takes(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the code is valid for a call, given as its arguments by name, while the watch holds."""
        return self.modes.hold() and self.check.holds(scope) and self.are_apart(scope)


def generated(code: types.CodeType, compile_id: Any, names: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the function that Dynamo made of `code` in one compilation; None if PyTorch has dropped it."""
    for entry in get_cache_entry_list(code):
        if entry.compile_id == compile_id:
            return types.FunctionType(entry.code, names, code.co_name)
    return None


def is_known(code: types.CodeType, scope: Mapping[str, Any]) -> bool:
    """Return whether Dynamo has compiled `code` for such a call, given as its arguments by name."""
    kept = [cast("Any", entry).guard_manager for entry in get_cache_entry_list(code)]
    return any(not isinstance(guards, DeletedGuardManagerWrapper) and guards.check(scope) for guards in kept)


def apart(sources: Sequence[Source], watch: Watch) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that checks that no tensor at these sources in a call's inputs is one of the watched tensors."""
    expression = "".join(f"{source.name}," for source in sources)
    read = eval(f"lambda L: ({expression})", dict(get_closure_vars()))
    watched = frozenset(map(id, watch.tensors))
    return lambda scope: watched.isdisjoint(map(id, read(scope)))
