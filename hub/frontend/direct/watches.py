"""The watches of a compiled model: where they are kept, and which modules it keeps alive."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from hub.capture.call import unbypassed
from hub.frontend.bindings import CALLED, Binding
from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.entry import Entry
from hub.frontend.direct.feeding import PLAIN
from hub.frontend.direct.reads import Reads
from hub.frontend.direct.recorder import HOOKS_ON_ALL
from hub.frontend.direct.watch import Watch
from hub.torch_private import DynamoContext, OptimizedModule

MAX_WATCHES = 256
"""Maximum number of watches of one compiled model: one for each program and module. The oldest is dropped first."""
_WATCHES = "hub_watches"
"""Attribute of the context object of one call of `torch.compile` that holds its watches."""


class Guarded(Protocol):
    """The guards of one program. They may outlive it: Dynamo keeps them with objects that they identify."""

    graph: weakref.ref[CompiledGraph] | None
    """The graph that the program's code calls; None if something is between them."""

    @property
    def program(self) -> types.CodeType | None:
        """The code that Dynamo generated; None if it has dropped the program."""
        ...


@dataclass(slots=True)
class Uses:
    """How many calls a watch has served."""

    n: int = 0


class Held:
    """A watch for calls of some modules."""

    __slots__ = (
        "__weakref__", "_owner", "_program", "are_apart", "bound", "entries", "guards", "is_whole", "roots", "uses",
        "watch", "weights",
    )  # fmt: skip

    def __init__(
        self,
        owner: Watches,
        guards: Guarded,
        roots: tuple[Any, ...],
        watch: Watch,
        are_apart: Callable[[Mapping[str, Any]], bool],
        *,
        is_whole: bool,
    ) -> None:
        own = weakref.ref(self)

        def forget(_: object) -> None:
            if (held := own()) is not None:
                held.entries = ()  # they keep the graph

        self._owner, self.guards = weakref.ref(owner), weakref.ref(guards)
        self._program = None if guards.program is None else weakref.ref(guards.program, forget)
        self.roots = roots  # so that no other object has the identity of one of them
        self.watch, self.are_apart = watch, are_apart
        self.weights = frozenset(map(id, watch.tensors))
        self.is_whole = is_whole
        """Whether a call of the compiled model runs the graph and nothing else, as long as the watch holds."""
        self.bound: tuple[weakref.ref[Binding], int] | None = None
        """A binding whose weights were as they are now at one number of renewals of the watch."""
        self.entries: tuple[Entry, ...] = ()
        """Forms of calls that need no Dynamo while the watch holds."""
        self.uses = Uses()

    def is_current(self) -> bool:
        """Return whether Dynamo still keeps the program."""
        return self._program is not None and self._program() is not None

    def graph(self) -> CompiledGraph | None:
        """Return the graph that the program's code calls; None if Dynamo has dropped the program."""
        guards = self.guards() if self.is_current() else None
        return None if guards is None or guards.graph is None else guards.graph()

    def end(self) -> None:
        """Drop all watches of the compiled model: they would keep alive what the model has dropped."""
        if (owner := self._owner()) is not None:
            owner.clear()


class Watches:
    """The watches of one compiled model, which live as long as it does."""

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held: tuple[Held, ...] = ()

    def __reduce__(self) -> tuple[type[Watches], tuple[()]]:
        """Copy and pickle as empty: they watch the objects of this model."""
        return Watches, ()

    def add(self, new: Held, parts: frozenset[int]) -> None:
        """Keep a watch. Drop those of programs that PyTorch has dropped, and of modules that are no `parts` any more."""
        living = (
            one
            for one in self.held
            if one.is_current()
            and {*map(id, one.roots)} <= parts
            and (one.guards() is not new.guards() or [*map(id, one.roots)] != [*map(id, new.roots)])
        )
        before, self.held = self.held, (*living, new)[-MAX_WATCHES:]
        CALLED.dropped = (*CALLED.dropped, before)

    def clear(self) -> None:
        """Drop all."""
        before, self.held = self.held, ()
        CALLED.dropped = (*CALLED.dropped, before)


@dataclass(frozen=True, slots=True)
class Called:
    """A compiled module that is called, and where it keeps the function that `torch.compile` made for it."""

    model: torch.nn.Module
    """The module that was compiled."""
    attributes: dict[str, Any]
    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where to keep watches, and the modules that the compiled model keeps alive, by identity."""

    watches: Watches
    parts: frozenset[int]
    called: Called | None = None
    """The compiled module that is called; None if a function was compiled, or if it runs more than the captured code."""

    def has_all(self, found: Reads) -> bool:
        """Return whether the compiled model keeps all modules alive that a watch would keep alive."""
        return all(id(one) in self.parts for one in found.objects.values() if isinstance(one, torch.nn.Module))


def place_for(code: types.CodeType | None, names: Sequence[str], roots: Sequence[Any]) -> Place | None:
    """Return where to keep watches of these modules: with the compiled model that is called, if all are parts of it.

    Otherwise return None. The model is looked up on the stack, since PyTorch tells nothing of it before a call. `code` is
    the captured code, in which `names` hold the modules.
    """
    for frame in _callers():
        variables = frame.f_locals
        if isinstance(context := variables.get("self"), DynamoContext):
            function = variables.get("fn")
            model = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
            if isinstance(model, torch.nn.Module):
                parts = frozenset(map(id, model.modules()))
            elif code is not None and getattr(function, "__code__", None) is code and {*names} <= {*code.co_freevars}:
                parts = frozenset(id(part) for root in roots for part in root.modules())
            else:
                return None
            if not {*map(id, roots)} <= parts:
                return None
            called = _called(context, frame, function)
            is_all = called is not None and code is not None and _is_all(code, function, called, roots)
            return Place(vars(context).setdefault(_WATCHES, Watches()), parts, called if is_all else None)
    return None


def _callers() -> Iterator[types.FrameType]:
    """Yield the frame of each caller that may be the function that `torch.compile` made."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - inspect.stack() reads source files
    while frame is not None:
        if {"self", "fn"} <= {*frame.f_code.co_freevars}:
            yield frame
        frame = frame.f_back


_MAX_FRAMES = 8
"""Number of frames between the call of a compiled module and the function that `torch.compile` made for it."""


def _called(context: DynamoContext, frame: types.FrameType, function: Any) -> Called | None:
    """Return the compiled module whose call leads to a frame of the function made for it; None for other calls."""
    model = getattr(function, "__self__", None)
    if isinstance(model, torch.nn.Module) and _is_of(vars(model).get(_IN_PLACE), context, frame):
        return Called(model, vars(model), _IN_PLACE)
    caller = frame.f_back
    for _ in range(_MAX_FRAMES):
        if caller is None:
            break
        if caller.f_code in OF_MODULES:  # others are the user's: reading their variables would keep these alive
            found = caller.f_locals.get("self")
            if type(found) is OptimizedModule:
                is_called = _is_of(vars(found).get("forward"), context, frame)
                return Called(cast("Any", found)._orig_mod, vars(found), "forward") if is_called else None
        caller = caller.f_back
    return None


def _is_of(function: Any, context: DynamoContext, frame: types.FrameType) -> bool:
    """Return whether what a compiled module calls is the function of a call of `torch.compile` that has this frame."""
    made = unbypassed(function)
    if not isinstance(made, types.FunctionType) or made.__code__ is not frame.f_code:
        return False
    return any(cell.cell_contents is context for cell in made.__closure__ or ())


_MODULE: Any = torch.nn.Module
OF_MODULES = frozenset({_MODULE._call_impl.__code__, _MODULE._wrapped_call_impl.__code__})
"""Code through which each call of a module goes."""
_IN_PLACE = "_compiled_call_impl"
"""Where a module that was compiled in place (`Module.compile`) keeps the function."""


def _is_all(code: types.CodeType, function: Any, called: Called, roots: Sequence[Any]) -> bool:
    """Return whether calls of a compiled module run some captured code of its module and nothing else.

    Of its own modules PyTorch captures the whole call, with hooks, by a function around them; of others `forward`.
    """
    model: Any = called.model
    if len(roots) != 1 or roots[0] is not model:
        return False
    if getattr(function, "__code__", None) is code:
        return True
    attributes: dict[str, Any] = model.__dict__
    kind = cast("Any", type(model))
    is_entered = called.name == _IN_PLACE or (kind.__call__ is _MODULE.__call__ and attributes.get(_IN_PLACE) is None)
    is_plain = is_entered and kind._call_impl is _MODULE._call_impl
    has_hooks = any(attributes[name] for name in _HOOKS) or any(hooks_on_all())
    forward = getattr(model.forward, "__func__", None)
    return is_plain and not has_hooks and getattr(forward, "__code__", None) is code and _has_plain_defaults(forward)


def _has_plain_defaults(function: Any) -> bool:
    """Return whether no default of an argument can change. Dynamo takes them for inputs, which entries compare."""
    values: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return all(type(value) in PLAIN for value in values)


_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


def hooks_on_all() -> Sequence[dict[Any, Any]]:
    """Return the dicts that hold hooks on all modules."""
    names: Mapping[str, Any] = vars(torch.nn.modules.module)
    return [names[name] for name in HOOKS_ON_ALL]


def entered_by(model: Any) -> tuple[Any, ...]:
    """Return the functions by which a call enters a module. Dynamo makes no guard on them."""
    functions = [type(model).__call__, getattr(model.forward, "__func__", None)]
    return tuple(one for one in functions if isinstance(one, types.FunctionType))
