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
from dataclasses import dataclass, replace
from typing import Any

import torch

from hub.frontend.bindings import CALLED, Binding
from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.bypass import bypass
from hub.frontend.direct.general import apart, checked
from hub.frontend.direct.reads import Needs, Reads, Step, Unwatched, find, needs_of, root_of, tensors_of
from hub.frontend.direct.recorder import Effects, effects_of, unguarded_in
from hub.frontend.direct.trial import Pause
from hub.frontend.direct.watch import CHANGED, SAME, native, watched, why_unwatched
from hub.frontend.direct.watches import OF_MODULES, Held, Uses, entered_by, hooks_on_all, place_for
from hub.torch_private import (
    ConvertFrameReturn,
    EnableTorchFunction,
    GuardManagerWrapper,
    Hooks,
    InstructionTranslator,
    Source,
    is_torch_function_enabled,
)

MIN_STEPS = 8
"""Number of watched sources from which on a program gets a shortcut. One layer has more."""
MIN_USES = 128
"""Number of calls after which a watch has paid off, so that the next one need not wait.

`python -m benchmarks.dynamo_share MODEL` prints what making one takes; each call saves some hundredths of that."""
_TEXT = "hub: the other guards passed, and nothing that they read has changed since"


class Shortcut:
    """A context in which Dynamo captures one frame. Afterwards `install` puts the shortcut before the frame's guards."""

    def __init__(self, code: types.CodeType) -> None:
        self._code = code
        self._output: weakref.ref[Any] | None = None
        self._effects = Effects()
        self._unguarded: tuple[Source, ...] = ()
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
        return replace(given, guard_export_fn=self._guarded)

    def made(self, output: Any) -> None:
        """Note that the frame's code calls a graph, and Dynamo's state of the frame, which it passes to no hook."""
        self._output, self._effects = weakref.ref(output), effects_of(output)
        self._unguarded = unguarded_in(output)

    def calls(self, graph: CompiledGraph) -> None:
        """Note the graph if nothing is between it and the code. One that writes to its inputs compares weights itself."""
        if not graph.graph.mutated:
            self._graph = weakref.ref(graph)

    def _guarded(self, guards: Any) -> None:
        """Make the checks that replace the check of all guards. Called when Dynamo has built that one."""
        output = self._output and self._output()
        if output is None or not is_torch_function_enabled():
            return
        try:
            self._found = _split(self._code, output, list(guards), self._unguarded, self._graph, self._effects)
        except Exception:  # noqa: BLE001 - it walks the user's objects; without a shortcut Dynamo checks all guards
            self._found = None

    def install(self, captured: ConvertFrameReturn) -> None:
        """Make the calls of a captured frame check less."""
        made: Any = captured.guarded_code
        manager: Any = getattr(made, "guard_manager", None)
        if self._found is None or type(manager) is not GuardManagerWrapper:
            return
        root, guards = self._found
        guards.whole, guards.generated = manager.root, weakref.ref(made.code)
        try:
            _SplitManager.change(manager, root)
        except TypeError:  # Dynamo's class has another layout in this PyTorch
            return
        _add_last(root, native.Guard(guards.hold, _hold_back))


class _Current(threading.local):
    stack: tuple[Shortcut, ...] = ()


_current = _Current()


def graph_made() -> None:
    """Tell the shortcut of the frame that Dynamo captures now that the frame's code will call a graph."""
    if _current.stack:
        _current.stack[-1].made(InstructionTranslator.current_tx().output)


def called(graph: CompiledGraph) -> None:
    """Tell that shortcut which graph the frame's code calls."""
    if _current.stack:
        _current.stack[-1].calls(graph)


def _split(
    code: types.CodeType,
    output: Any,
    guards: Sequence[Any],
    unguarded: Sequence[Source],
    graph: weakref.ref[CompiledGraph] | None,
    effects: Effects,
) -> tuple[Any, Guards] | None:
    """Return a check of the guards that no watch implies, and the others; None if a shortcut would not pay off."""
    scope = {"L": output.local_scope, "G": output.global_scope}
    modules = {f"L[{name!r}]": name for name, one in output.local_scope.items() if isinstance(one, torch.nn.Module)}
    inputs = frozenset(f"L[{name!r}]" for name in output.local_scope) - modules.keys()
    needs = needs_of(((guard.create_fn_name(), guard) for guard in guards), unguarded, inputs, scope)
    tensors = tensors_of(needs, inputs)
    # Dynamo compares the thread's dispatch keys together with the form of a tensor: without one it would not see them.
    if len(needs.steps) < MIN_STEPS or not tensors:
        return None
    read = {root_of(step.source).name for step in needs.steps}
    kept = (*needs.kept, *needs.of_the_thread)
    for guard in kept:
        guard.obj_weakref = None  # Dynamo compares it with that of the second check, by ==, which an array does not have
    if (check := checked(code, output, kept)) is None:
        return None
    names = tuple(name for root, name in modules.items() if root in read)
    free = {*code.co_freevars} - {*modules.values(), "__class__"}
    is_alone = needs.unwatched is None and effects == Effects() and not free
    return check.guard_manager.root, Guards(code, needs, names, tensors, output.global_scope, graph, is_alone=is_alone)


class _SplitManager(GuardManagerWrapper):
    """Dynamo's manager of a program's guards, of which calls check one part first (`root`)."""

    whole: Any
    """Dynamo's check of all guards."""

    @classmethod
    def change(cls, manager: Any, root: Any) -> None:
        """Let calls check `root` first. The object stays: what ends a program's code when an object dies refers to it."""
        manager.__class__, manager.whole, manager.root = cls, manager.root, root

    def check_verbose(self, x: Any) -> Any:
        """Return the guard that fails, for messages: the reason for a new capture names it as without the shortcut."""
        return self.whole.check_verbose(x)

    def collect_diff_guard_sources(self) -> Any:
        """Return the sources that distinguish programs, by the failures in both parts.

        Under `torch.compiler.set_stance(skip_guard_eval_unsafe=True)` calls check these alone.
        """
        super().collect_diff_guard_sources()
        return self._with_whole(super().collect_diff_guard_sources)

    def populate_diff_guard_manager(self) -> None:
        """Make the check of those sources."""
        self._with_whole(super().populate_diff_guard_manager)

    def _with_whole(self, function: Callable[[], Any]) -> Any:
        root, self.root = self.root, self.whole
        try:
            return function()
        finally:
            self.root = root


def _hold_back(error: BaseException) -> bool:
    """Keep an error like that of Ctrl-C until the graph is called: Dynamo would drop it. Others fail the guard."""
    if isinstance(error, Exception):
        return False
    CALLED.witness = _Interrupted(error)
    return True


@dataclass(frozen=True, slots=True)
class _Interrupted:
    """An error to be raised in place of the call of a graph."""

    error: BaseException

    def holds(self, graph: object, binding: Binding | None, args: Sequence[Any]) -> bool:  # noqa: ARG002 - as `Witness`
        """Raise the error."""
        raise self.error


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a watch is, and how many calls it has served, which counts also when it is gone."""

    held: weakref.ref[Held]
    uses: Uses


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
        *,
        is_alone: bool,
    ) -> None:
        self.whole: Any = None
        """Dynamo's check of all guards of the program. Set when Dynamo has captured it."""
        self.generated: weakref.ref[types.CodeType] | None = None
        """The code that Dynamo generated for the program. Set when Dynamo has captured it."""
        self._code = weakref.ref(code)
        self._steps: tuple[Step, ...] = needs.steps
        self._names, self._inputs, self._globals, self.graph = names, inputs, global_names, graph
        self._is_alone = is_alone
        """Whether a call needs nothing but the graph's results and an equal form of the inputs, while the watch holds."""
        self._watches: dict[tuple[int, ...], _Kept] = {}
        self._pause = Pause()

    @property
    def program(self) -> types.CodeType | None:
        """The code that Dynamo generated for the program; None if it has dropped the program."""
        return None if self.generated is None else self.generated()

    def hold(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the guards hold for a call, given as its local variables. Dynamo asks this before each call."""
        if isinstance(CALLED.witness, _Interrupted):
            return self._all_hold(scope)
        CALLED.witness = None
        try:
            holds = self._hold(scope)
        except Exception:  # noqa: BLE001 - Dynamo would take it for a guard that fails, and capture the frame again
            holds = self._all_hold(scope)
        if holds and CALLED.recording is not None and _is_first(CALLED.recording):
            CALLED.entered = self
        return holds

    def _hold(self, scope: Mapping[str, Any]) -> bool:
        key = tuple([id(scope.get(name)) for name in self._names])  # a variable of a closure may have no value
        kept = self._watches.get(key)
        if kept is None:
            return self._all_hold(scope) and self._try_to_watch(key, scope)
        held = kept.held()
        if held is None or (found := held.watch.compare()) == CHANGED:
            self._drop(key, kept, held)
            return self._all_hold(scope) and self._try_to_watch(key, scope)
        if not held.are_apart(scope):
            return self._all_hold(scope)
        kept.uses.n += 1
        if found != SAME:
            held.watch.renew()
        if self.graph is not None:
            CALLED.witness = _Witness(self.graph, held)
        return True

    def _drop(self, key: tuple[int, ...], kept: _Kept, held: Held | None) -> None:
        """Forget a watch, and wait with the next one unless it has paid off."""
        self._watches.pop(key, None)
        if held is not None:
            CALLED.dropped = (*CALLED.dropped, held)
            held.end()
        if kept.uses.n < MIN_USES:
            self._pause.grow()
        else:
            self._pause.reset()

    def _all_hold(self, scope: Mapping[str, Any]) -> bool:
        """Return whether all guards hold. One is on `__torch_function__`, which Dynamo disables while it checks guards."""
        with EnableTorchFunction():
            return self.whole.check(scope)

    def _try_to_watch(self, key: tuple[int, ...], scope: Mapping[str, Any]) -> bool:
        """Watch what the guards read, unless the pause is not over. Return True: the guards hold."""
        try:
            if self._pause.is_over() and not self._watch(key, scope):
                self._pause.grow()
        except Exception:  # noqa: BLE001 - it walks the user's objects
            self._pause.grow()
        return True

    def _watch(self, key: tuple[int, ...], scope: Mapping[str, Any]) -> bool:
        """Watch what the guards read, as it is now. Return False if that is impossible."""
        roots = tuple(scope[name] for name in self._names)
        place = place_for(self._code(), self._names, roots)
        if place is None:
            return False
        whole = place.called if self._is_alone else None
        if whole is not None:
            bypass(whole, place.watches)  # first, since it changes an attribute

        def walk() -> Reads | Unwatched:
            functions, hooks = (entered_by(whole.model), hooks_on_all()) if whole is not None else ((), ())
            found = find(self._steps, {"L": scope, "G": self._globals}, functions)
            if not isinstance(found, Reads):
                return found
            if not place.has_all(found):
                return Unwatched("", "the compiled model does not keep it alive")
            found.dicts.update((id(one), one) for one in hooks)
            return found

        watch = watched(walk)
        # Another thread may have changed something since the last check.
        if isinstance(watch, Unwatched) or not self._all_hold(scope):
            return False
        held = Held(place.watches, self, roots, watch, apart(self._inputs, watch), is_whole=whole is not None)
        place.watches.add(held, place.parts)
        living = {one: kept for one, kept in list(self._watches.items()) if kept.held() is not None}
        self._watches = {**living, key: _Kept(weakref.ref(held), held.uses)}
        return True


class _Witness:
    """The state of a watch before one call: weights are as they were when it was renewed last."""

    __slots__ = ("_graph", "_held", "_n_renewals")

    def __init__(self, graph: weakref.ref[CompiledGraph], held: Held) -> None:
        self._graph, self._held, self._n_renewals = graph, weakref.ref(held), held.watch.n_renewals

    def holds(self, graph: object, binding: Binding | None, args: Sequence[Any]) -> bool:
        """Return whether the weights of a call are those of a binding. Compare each only if it may have changed.

        A write after the renewal, in another thread, is noticed before the next call.
        """
        held = self._held()
        if binding is None:
            return False
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


def _is_first(recording: types.FrameType) -> bool:
    """Return whether guards are checked for the first frame of a recorded call that runs code of the model's own.

    Another frame could do more than that one, or call it with other inputs.
    """
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - the caller of `Guards.hold`
    while frame is not None and frame.f_code in OF_MODULES:
        frame = frame.f_back
    return frame is not None and frame.f_back is recording


def _add_last(root: Any, check: Callable[[Mapping[str, Any]], bool]) -> None:
    """Add a guard that is checked after all others."""
    try:
        root.add_epilogue_lambda_guard(check, [_TEXT], None)
    except TypeError:  # before PyTorch 2.13
        root.add_epilogue_lambda_guard(check, [_TEXT])
