"""Record what Dynamo does as it captures and runs a program: its guards, the graph it makes, the calls of that graph.

What the generated code does in addition to calling the graph is known only while Dynamo's translator is on the stack. So
the hub's backend passes each graph to this module at that point. The guards follow once the backend has returned.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.general import Check, checked
from hub.frontend.direct.reads import Needs, Step, needs_of, tensors_of
from hub.torch_private import (
    CompileContext,
    GuardFilterEntry,
    InstructionTranslator,
    Source,
    VariableTracker,
    dynamo_config,
    get_cache_entry_list,
)

HOOKS_ON_ALL = frozenset({
    "_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
})  # fmt: skip
"""Names of the dicts in `torch.nn.modules.module` that hold hooks on all modules."""
INPUTS = frozenset({"L['args']", "L['kwargs']"})
"""Root sources of a call's inputs, in the code that `hub.frontend.direct.program` has Dynamo compile."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of Dynamo's generated code in addition to calling the graph and building the result; "" for none."""

    breaks: str = ""
    """An effect that needs Dynamo: continuing with the rest of the model after a graph break."""
    writes: str = ""
    """An effect of the code itself: changing objects, registering hooks on tensors, drawing random numbers."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One program that Dynamo captured: its graph, what it needs from Python, and the code that Dynamo generated."""

    graph: weakref.ref[CompiledGraph]
    needs: Needs
    more: Effects
    compile_id: object
    """Dynamo's ID of the compilation, by which its code can be found."""
    check: Check | None
    """A checker of the guards that no watch implies; None if only Dynamo can call the code."""
    inputs: tuple[Source, ...]
    """Sources of the tensors that the program reads from the inputs of a call."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A graph whose guards are not known yet."""

    graph: weakref.ref[CompiledGraph]
    output: weakref.ref[Any]
    """Dynamo's `OutputGraph`."""
    more: Effects
    unguarded: tuple[Source, ...]


class Captures:
    """The programs that Dynamo captured from one code object. Dynamo compiles in one thread at a time."""

    def __init__(self, code: types.CodeType, functions: Sequence[Any] = ()) -> None:
        self._all: tuple[Capture, ...] = ()
        self._made: _Made | None = None
        self._code = weakref.ref(code)
        self.functions = functions
        """Functions by which a call enters the model. Dynamo makes no guard on them."""
        self.n_made = 0
        """Number of programs captured so far."""
        self.steps: tuple[Step, ...] = ()
        """All sources that are watched in place of guards, each once."""
        _by_code[code] = self

    def made(self, graph: CompiledGraph, output: Any) -> None:
        """Record a new graph and Dynamo's state of the program that it was made from."""
        self._made = _Made(weakref.ref(graph), weakref.ref(output), effects_of(output), unguarded_in(output))

    def guarded_by(self, entries: Sequence[GuardFilterEntry]) -> Sequence[bool]:
        """Record the guards on the code whose graph was made last, and keep all of them. This is a `guard_filter_fn`."""
        for entry in entries:
            entry.orig_guard.obj_weakref = None  # else a tensor that Dynamo makes from an array would be compared with ==
        _guard_hooks(entries)
        made, self._made = self._made, None
        if made is not None:
            capture = self._captured(made, entries)
            self._all = (*(one for one in self._all if one.graph() is not None), capture)
            found = (step for one in self._all for step in one.needs.steps)
            self.steps = tuple({step.key: step for step in found}.values())
            self.n_made += 1  # last: another thread that sees this number sees the steps, too
        return [True] * len(entries)

    def _captured(self, made: _Made, entries: Sequence[GuardFilterEntry]) -> Capture:
        output, code = made.output(), self._code()
        assert output is not None and code is not None, "Dynamo compiles it just now"
        scope = {"L": output.local_scope, "G": output.global_scope}
        guards = ((entry.guard_type, entry.orig_guard) for entry in entries)
        needs = needs_of(guards, made.unguarded, INPUTS, scope, self.functions)
        check = None if made.more.breaks else checked(code, output, needs.kept)
        inputs = tensors_of(needs, INPUTS)
        needs = replace(needs, kept=(), of_the_thread=())  # they hold what the program read
        return Capture(made.graph, needs, made.more, CompileContext.current_compile_id(), check, inputs)

    def forget(self) -> None:
        """Forget all programs: their code will be captured again."""
        self._all, self.steps = (), ()

    def why_last(self) -> str:
        """Return why the program that was captured last needs Dynamo; "" if no reason is known."""
        return self._all[-1].more.breaks if self._all else ""

    def why_no_more(self) -> str:
        """Return why Dynamo captures no more programs of the code; "" if it does."""
        code, limit = self._code(), dynamo_config.recompile_limit
        if code is None or len(get_cache_entry_list(code)) < limit:
            return ""
        setting = "torch._dynamo.config.recompile_limit"
        return f"{limit} programs of it are captured, and PyTorch captures no more ({setting}); other calls run in eager"

    def graphs(self) -> list[CompiledGraph]:
        """Return the graphs that are still alive."""
        return [graph for one in self._all if (graph := one.graph()) is not None]

    def of(self, graph: CompiledGraph) -> Capture | None:
        """Return the capture that made a graph."""
        return next((one for one in self._all if one.graph() is graph), None)


def _guard_hooks(entries: Sequence[GuardFilterEntry]) -> None:
    """Make Dynamo compare the number of hooks of modules even if it would skip that (`skip_nnmodule_hook_guards`).

    `torch.compile` need not compare a model's own hooks, which run outside the captured code. Here they are captured.
    """
    for entry in entries:
        guard = entry.orig_guard
        is_of_all = getattr(guard.originating_source, "member", "") in HOOKS_ON_ALL
        if entry.guard_type == "EMPTY_NN_MODULE_HOOKS_DICT" or (is_of_all and entry.guard_type == "TYPE_MATCH"):
            guard.create_fn = _type_and_length


def _type_and_length(builder: Any, guard: Any) -> None:
    builder.TYPE_MATCH(guard)
    builder.SEQUENCE_LENGTH(guard)


_by_code: weakref.WeakKeyDictionary[types.CodeType, Captures] = weakref.WeakKeyDictionary()


def made_for_dynamo(graph: CompiledGraph) -> None:
    """Record a graph that Dynamo will call without a wrapper. Called while Dynamo translates."""
    translator = InstructionTranslator.current_tx() if _by_code else None
    if translator is not None and (found := _by_code.get(cast("Any", translator.output).root_tx.f_code)) is not None:
        found.made(graph, translator.output)


@dataclass(frozen=True, slots=True)
class Seen:
    """One recorded call of a graph, with its arguments and outputs."""

    graph: CompiledGraph
    args: Sequence[Any]
    outputs: Sequence[Any]


class Recorder:
    """A recorder of the calls of graphs in one call of the model. Used by the thread that makes the call."""

    def __init__(self, graphs: Iterable[CompiledGraph]) -> None:
        self.calls: list[Seen] = []
        self._graphs = tuple(graphs)
        self._thread = threading.get_ident()

    def __enter__(self) -> Recorder:
        for graph in self._graphs:
            graph.observer = self._saw
        return self

    def __exit__(self, *_: object) -> None:
        for graph in self._graphs:
            graph.observer = None

    def _saw(self, graph: CompiledGraph, args: Sequence[Any], outputs: Sequence[Any]) -> None:
        if threading.get_ident() == self._thread:  # other threads may call it meanwhile
            self.calls.append(Seen(graph, args, outputs))


def effects_of(output: Any) -> Effects:
    """Return what Dynamo's generated code does in addition to calling the graph and building the result."""
    reason = output.compile_subgraph_reason
    if reason is not None and reason.graph_break:
        return Effects(breaks="Python runs after a part of the model")
    if output.random_calls:
        return Effects(writes="every call draws numbers from Python's generator")
    if output.root_tx.debug_locals:
        return Effects(writes="every call prints or logs")
    effects = output.side_effects
    if effects.tensor_hooks or effects.save_for_backward:
        return Effects(writes="it gives tensors hooks")
    written = [one for one in effects.id_to_variable.values() if effects.is_modified(one) and _lasts(one, effects)]
    return Effects(writes=f"every call writes to {_place(written[0])}" if written else "")


def unguarded_in(output: Any) -> tuple[Source, ...]:
    """Return where Dynamo's generated code reads numbers and strings of the result at each call, without a guard on them.

    PyTorch 2.13 makes no guard on a value that a program only passes on (`LazyConstantVariable`).
    """
    found: list[Source] = []

    def look(variable: Any) -> None:
        if type(variable).__name__ == "LazyConstantVariable":  # one that is used is replaced by what it stands for
            found.append(variable.source)

    values = [output.root_tx.stack[-1:], *output.side_effects.store_attr_mutations.values()]
    VariableTracker.visit(look, values)
    return tuple(found)


def _lasts(variable: Any, effects: Any) -> bool:
    """Return whether a change that the program makes to a Python object outlasts the call."""
    kind = type(variable.mutation_type).__name__
    if kind.endswith("New"):
        return False  # created by the program: a part of the result, or temporary
    changes = effects.store_attr_mutations.get(variable)
    if not changes or not kind.startswith("Attribute"):
        return True
    held = getattr(variable, "value", None)
    return any(not _is_put_back(held, name, new) for name, new in changes.items())


def _is_put_back(held: Any, name: str, new: Any) -> bool:
    """Return whether an attribute is set to the constant that it holds already, in an object whose dict is watched.

    Dynamo makes no guard on the old value. Of a class or Python module, or in a slot, no watch may notice another one.
    """
    is_shared = issubclass(type(held), (type, types.ModuleType))
    old = _NOTHING if is_shared else getattr(held, "__dict__", {}).get(name, _NOTHING)
    return new.is_python_constant() and old is not _NOTHING and new.as_python_constant() is old


_NOTHING = object()


def _place(variable: Any) -> str:
    source = getattr(variable, "source", None)
    try:
        return source.name if source is not None else type(variable).__name__
    except NotImplementedError:  # of sources that Dynamo has no expression for, as of temporary objects
        return type(variable).__name__
