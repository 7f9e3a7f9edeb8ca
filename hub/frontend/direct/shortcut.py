"""Fewer guards before a call of `torch.compile(model, backend="hub")`: most are checked only after something has changed.

Dynamo checks all guards of a program before each call, which takes up to a millisecond for a model of some hundred
modules. With a shortcut it checks those on the call's inputs and on the thread's state, and one more: nothing that the
other guards read has changed since they last passed (`watch.py`). If something has, Dynamo's own check of all guards
decides. So a program serves exactly the calls that it would serve without the shortcut.

A watch keeps alive what it watches. It therefore belongs to the compiled model, and is made only for modules of that model.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hub.frontend.bindings import CALLED, Binding
from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.general import apart, checked
from hub.frontend.direct.reads import Needs, Reads, Step, find, needs_of, root_of
from hub.frontend.direct.trial import Pause
from hub.frontend.direct.watch import CHANGED, SAME, Watch, why_unwatched
from hub.torch_private import (
    ConvertFrameReturn,
    DynamoContext,
    EnableTorchFunction,
    Hooks,
    InstructionTranslator,
    Source,
    is_torch_function_enabled,
)

MIN_STEPS = 8
"""Number of watched sources from which on a shortcut saves more than its own check costs."""
MIN_USES = 128
"""Number of calls after which a watch has paid off, so that the next one need not wait.

Making one for MiniLM takes 42 ms, and saves 0.4 ms of each call (`benchmarks.dynamo_share`)."""
MAX_WATCHES = 64
"""Maximum number of watches of one compiled model: one for each program and module. The oldest is dropped first."""
_WATCHES = "hub_watches"
"""Attribute of the context object of one call of `torch.compile` that holds its watches."""
_TEXT = "hub: the other guards passed, and nothing that they read has changed since"


class Shortcut:
    """A context in which Dynamo captures one frame. Afterwards `install` puts the shortcut before the frame's guards."""

    def __init__(self, code: types.CodeType) -> None:
        self._code = code
        self._output: weakref.ref[Any] | None = None
        self._inputs: tuple[Source, ...] = ()
        self._graph: weakref.ref[CompiledGraph] | None = None
        self._found: tuple[Any, Guards] | None = None

    def __enter__(self) -> Shortcut:
        _current.stack = (*_current.stack, self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.stack = _current.stack[:-1]

    def hooks(self, given: Hooks) -> Hooks:
        """Return Dynamo's hooks with one more, which splits the guards. The user's own choice of guards stays alone."""
        if given.guard_export_fn is not None or given.guard_filter_fn is not None or why_unwatched():
            return given
        return Hooks(guard_export_fn=self._guarded, guard_fail_fn=given.guard_fail_fn)

    def translated(self, output: Any) -> None:
        """Note Dynamo's state of the frame and the inputs of its graph, which Dynamo passes to no hook."""
        self._output = weakref.ref(output)
        self._inputs = tuple(
            one.source
            for one in output.graphargs
            if one.is_tensor and not one.pass_arg_as_tensor and one.source is not None
        )

    def calls(self, graph: CompiledGraph) -> None:
        """Note the graph that the frame's code calls. One that writes to its inputs compares its weights itself."""
        if not graph.graph.mutated:
            self._graph = weakref.ref(graph)

    def _guarded(self, guards: Any) -> None:
        """Make the checks that replace the check of all guards. Called when Dynamo has built that one."""
        output = self._output and self._output()
        if output is None or not is_torch_function_enabled():
            return
        scope = {"L": output.local_scope, "G": output.global_scope}
        modules = {f"L[{name!r}]": name for name, one in output.local_scope.items() if isinstance(one, torch.nn.Module)}
        inputs = frozenset(f"L[{name!r}]" for name in output.local_scope) - modules.keys()
        needs = needs_of(((guard.create_fn_name(), guard) for guard in guards), inputs, scope)
        if len(needs.steps) < MIN_STEPS:
            return
        read = {root_of(step.source).name for step in needs.steps}
        kept = (*needs.kept, *needs.of_the_thread)
        for guard in kept:
            guard.obj_weakref = None  # else a tensor that Dynamo makes from an array would be compared with ==
        if (check := checked(self._code, output, kept)) is None:
            return
        tensors = [one for one in self._inputs if root_of(one).name in inputs]
        names = tuple(name for root, name in modules.items() if root in read)
        made = Guards(self._code, needs, names, tensors, output.global_scope, self._graph)
        self._found = check.guard_manager.root, made

    def install(self, captured: ConvertFrameReturn) -> None:
        """Make the calls of a captured frame check less."""
        made = captured.guarded_code
        if self._found is None or made is None:
            return
        root, guards = self._found
        manager: Any = made.guard_manager
        guards.all = manager.root
        _add_last(root, guards.hold)
        manager.root = root
        manager.check_verbose = guards.all.check_verbose  # the reason for a new capture names the guard that failed


class _Current(threading.local):
    stack: tuple[Shortcut, ...] = ()


_current = _Current()


def translated() -> None:
    """Tell the shortcut of the frame that Dynamo captures now what is known only while Dynamo calls the backend."""
    if _current.stack:
        _current.stack[-1].translated(InstructionTranslator.current_tx().output)


def called(graph: CompiledGraph) -> None:
    """Tell that shortcut which graph the frame's code calls."""
    if _current.stack:
        _current.stack[-1].calls(graph)


class Guards:
    """The guards of one program that a watch implies, and the watches of the modules that it was called for."""

    def __init__(
        self,
        code: types.CodeType,
        needs: Needs,
        names: tuple[str, ...],
        inputs: Sequence[Source],
        global_names: dict[str, Any],
        graph: weakref.ref[CompiledGraph] | None,
    ) -> None:
        self.all: Any = None
        """Dynamo's check of all guards of the program."""
        self._code = weakref.ref(code)
        self._steps: tuple[Step, ...] = needs.steps
        self._names, self._inputs, self._globals, self._graph = names, inputs, global_names, graph
        self._watches: dict[tuple[int, ...], weakref.ref[_Held]] = {}
        self._pause = Pause()

    def hold(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the guards hold for a call, given as its local variables. Dynamo asks this before each call."""
        CALLED.witness = None
        key = tuple([id(scope[name]) for name in self._names])
        reference = self._watches.get(key)
        held = None if reference is None else reference()
        if held is not None and held.holds(scope):
            if self._graph is not None:
                CALLED.witness = _Witness(self._graph, held)
            return True
        if reference is not None:
            self._drop(key, held)
        if not self._all_hold(scope):
            return False
        try:
            if self._pause.is_over() and not self._watch(key, scope):
                self._pause.grow()
        except Exception:  # noqa: BLE001 - Dynamo would take it for a guard that fails, and the guards hold
            self._pause.grow()
        return True

    def _drop(self, key: tuple[int, ...], held: _Held | None) -> None:
        """Forget a watch, and wait with the next one unless it has paid off."""
        self._watches.pop(key, None)
        if held is not None:
            held.end()
        if held is None or held.n_uses < MIN_USES:
            self._pause.grow()
        else:
            self._pause.n_calls = 0

    def _all_hold(self, scope: Mapping[str, Any]) -> bool:
        """Return whether all guards hold. One is on `__torch_function__`, which Dynamo disables while it checks guards."""
        with EnableTorchFunction():
            return self.all.check(scope)

    def _watch(self, key: tuple[int, ...], scope: Mapping[str, Any]) -> bool:
        """Watch what the guards read, as it is now. Return False if that is impossible."""
        roots = tuple(scope[name] for name in self._names)
        watches = _watches_for(self._code(), self._names, roots)
        found = None if watches is None else find(self._steps, {"L": scope, "G": self._globals})
        if watches is None or not isinstance(found, Reads):
            return False
        watch = Watch(found)
        held = _Held(watches, roots, watch, apart(self._inputs, watch))
        if not self._all_hold(scope):  # another thread has changed something since the last check
            return False
        watches.add((id(self), key), held)
        living = {one: kept for one, kept in list(self._watches.items()) if kept() is not None}
        self._watches = {**living, key: weakref.ref(held)}
        return True


class _Held:
    """A watch for calls of some modules."""

    __slots__ = ("__weakref__", "_are_apart", "_owner", "_roots", "bound", "n_uses", "watch", "weights")

    def __init__(
        self, owner: _Watches, roots: tuple[Any, ...], watch: Watch, are_apart: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        self._owner = weakref.ref(owner)
        self._roots = roots  # so that no other object has the identity of one of them
        self.watch, self._are_apart = watch, are_apart
        self.weights = frozenset(map(id, watch.tensors))
        self.n_uses = 0
        self.bound: tuple[weakref.ref[Binding], int] | None = None
        """A binding whose weights were as they are now at one number of renewals of the watch."""

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """Return whether nothing has changed, and no input is a part of the model. Count the call."""
        found = self.watch.compare()
        if found == CHANGED or not self._are_apart(scope):
            return False
        if found != SAME:
            self.watch.renew()
        self.n_uses += 1
        return True

    def end(self) -> None:
        """Drop all watches of the compiled model: they would keep alive what the model has dropped."""
        if (owner := self._owner()) is not None:
            owner.clear()


class _Witness:
    """The state of a watch before one call: weights are as they were when it was renewed last."""

    __slots__ = ("_graph", "_held", "_n_renewals")

    def __init__(self, graph: weakref.ref[CompiledGraph], held: _Held) -> None:
        self._graph, self._held, self._n_renewals = graph, weakref.ref(held), held.watch.n_renewals

    def holds(self, graph: object, binding: Binding, args: Sequence[Any]) -> bool:
        """Return whether the weights of a call are those of a binding. Compare each only if it may have changed.

        A write after the renewal, in another thread, is noticed before the next call.
        """
        held = self._held()
        if held is None or graph is not self._graph():
            return binding.guard.holds(args)
        bound = held.bound
        if bound is not None and bound[1] == self._n_renewals and bound[0]() is binding:
            return True
        if not binding.guard.holds(args):
            return False
        if binding.guard.is_among(held.weights):
            held.bound = weakref.ref(binding), self._n_renewals
        return True


class _Watches:
    """The watches of one compiled model, which live as long as it does."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held: dict[Any, _Held] = {}

    def __reduce__(self) -> tuple[type[_Watches], tuple[()]]:
        """Copy and pickle as empty: they watch the objects of this model."""
        return _Watches, ()

    def add(self, key: Any, held: _Held) -> None:
        """Keep a watch in the place of an earlier one with the same key."""
        others = [(one, kept) for one, kept in list(self._held.items()) if one != key]
        self._held = dict([*others, (key, held)][-MAX_WATCHES:])

    def clear(self) -> None:
        """Drop all."""
        self._held = {}


def _watches_for(code: types.CodeType | None, names: Sequence[str], roots: Sequence[Any]) -> _Watches | None:
    """Return where to keep watches of these objects: with the compiled model that is called, if all are parts of it.

    Otherwise return None. The model is looked up on the stack, since PyTorch tells nothing of it before a call.
    """
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - inspect.stack() reads source files
    while frame is not None:
        if {"self", "fn"} <= {*frame.f_code.co_freevars}:
            variables = frame.f_locals
            if isinstance(context := variables.get("self"), DynamoContext):
                if _has_parts(variables.get("fn"), code, names, roots):
                    return vars(context).setdefault(_WATCHES, _Watches())
                return None
        frame = frame.f_back
    return None


def _has_parts(function: Any, code: types.CodeType | None, names: Sequence[str], roots: Sequence[Any]) -> bool:
    """Return whether a compiled function keeps these objects alive: as parts of its module, or in its cells."""
    model = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if isinstance(model, torch.nn.Module):
        parts = {id(part) for part in model.modules()}
        return all(id(root) in parts for root in roots)
    return code is not None and getattr(function, "__code__", None) is code and {*names} <= {*code.co_freevars}


def _add_last(root: Any, check: Callable[[Mapping[str, Any]], bool]) -> None:
    """Add a guard that is checked after all others."""
    try:
        root.add_epilogue_lambda_guard(check, [_TEXT], None)
    except TypeError:  # before PyTorch 2.13
        root.add_epilogue_lambda_guard(check, [_TEXT])
