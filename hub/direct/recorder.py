"""Listens while Dynamo captures and runs a program: what it guards, which graph it made, how that graph is called.

What the generated code does beside calling the graph is known only while Dynamo's translator stands on the stack, so the
hub's backend tells this module of each graph just then; the guards follow once the backend has returned.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.types import GuardFilterEntry

from hub.compiled import CompiledGraph
from hub.direct.reads import Step, Unwatched, steps_of

HOOKS_ON_ALL = frozenset({
    "_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
})  # fmt: skip
"""Names of the dicts in which `torch.nn.modules.module` keeps hooks on all modules."""
INPUTS = frozenset({"L['args']", "L['kwargs']"})
"""Roots of Dynamo's expressions that are a call's inputs, in the code that `hub.direct.program` gives it."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One program that Dynamo captured: its graph, and what it read from Python, or why it stays with Dynamo."""

    graph: weakref.ref[CompiledGraph]
    steps: tuple[Step, ...] | Unwatched


class Captures:
    """The programs that Dynamo captured from one piece of code. Dynamo compiles in one thread at a time."""

    def __init__(self, code: types.CodeType) -> None:
        self._all: tuple[Capture, ...] = ()
        self._made: tuple[weakref.ref[CompiledGraph], str] | None = None
        self.n_made = 0
        """Programs that were captured so far."""
        self.steps: tuple[Step, ...] = ()
        """All places that programs read which need not stay with Dynamo, each once."""
        _by_code[code] = self

    def made(self, graph: CompiledGraph, more: str) -> None:
        """Hear of a graph, and of what the code around it does beside calling it."""
        self._made = (weakref.ref(graph), more)

    def guarded_by(self, entries: Sequence[GuardFilterEntry]) -> Sequence[bool]:
        """Hear of the guards on the code whose graph was made last, and keep them all: a `guard_filter_fn`."""
        for entry in entries:
            entry.orig_guard.obj_weakref = None  # else a tensor that Dynamo makes of an array would be compared with ==
        _guard_hooks(entries)
        made, self._made = self._made, None
        if made is not None:
            self.n_made += 1
            graph, more = made
            steps = Unwatched("", more) if more else steps_of(entries, INPUTS)
            self._all = (*(one for one in self._all if one.graph() is not None), Capture(graph, steps))
            found = (step for one in self._all if not isinstance(one.steps, Unwatched) for step in one.steps)
            self.steps = tuple({(step.source, step.is_read, step.is_deep): step for step in found}.values())
        return [True] * len(entries)

    def forget(self) -> None:
        """Forget all programs: their code is captured anew."""
        self._all, self.steps = (), ()

    def why_last(self) -> str:
        """Return what keeps the program that was captured last with Dynamo; "" where nothing is known to."""
        last = self._all[-1].steps if self._all else ()
        return str(last) if isinstance(last, Unwatched) else ""

    def graphs(self) -> list[CompiledGraph]:
        """Return the graphs that live."""
        return [graph for one in self._all if (graph := one.graph()) is not None]

    def of(self, graph: CompiledGraph) -> Capture | None:
        """Return the capture that made a graph."""
        return next((one for one in self._all if one.graph() is graph), None)


def _guard_hooks(entries: Sequence[GuardFilterEntry]) -> None:
    """Have Dynamo compare how many hooks modules have, where it would leave that out (`skip_nnmodule_hook_guards`).

    `torch.compile` need not for a model's own hooks, which run outside of what it captures; here they are captured.
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
    """Note a graph that Dynamo will call as it is. Called while Dynamo translates."""
    translator = InstructionTranslator.current_tx() if _by_code else None
    if translator is not None and (found := _by_code.get(cast("Any", translator.output).root_tx.f_code)) is not None:
        found.made(graph, _more_than_the_graph(cast("Any", translator.output)))


@dataclass(frozen=True, slots=True)
class Seen:
    """One call of a graph: its arguments, what it gave."""

    graph: CompiledGraph
    args: Sequence[Any]
    outputs: Sequence[Any]


class Recorder:
    """The calls of graphs in one call of the model. Used by the thread that makes the call."""

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


def _more_than_the_graph(output: Any) -> str:
    """Return what the code that Dynamo generates does beside calling the graph and building the result; "" for nothing."""
    reason = output.compile_subgraph_reason
    if reason is not None and reason.graph_break:
        return "Python runs after a part of the model"
    if output.random_calls:
        return "every call draws numbers from Python's generator"
    effects = output.side_effects
    if effects.tensor_hooks or effects.save_for_backward:
        return "it gives tensors hooks"
    written = [one for one in effects.id_to_variable.values() if effects.is_modified(one) and _lasts(one, effects)]
    return f"every call writes to {_place(written[0])}" if written else ""


def _lasts(variable: Any, effects: Any) -> bool:
    """Return whether a change that the program makes to a Python object is there after the call."""
    kind = type(variable.mutation_type).__name__
    if kind.endswith("New"):
        return False  # made by the program: a part of the result, or nothing
    changes = effects.store_attr_mutations.get(variable)
    if not changes or not kind.startswith("Attribute"):
        return True
    held = getattr(variable, "value", None)
    return any(not _is_put_back(held, name, new) for name, new in changes.items())


def _is_put_back(held: Any, name: str, new: Any) -> bool:
    """Return whether an attribute is given the constant that it has."""
    old = getattr(held, name, _NOTHING)
    return new.is_python_constant() and old is not _NOTHING and new.as_python_constant() is old


_NOTHING = object()


def _place(variable: Any) -> str:
    source = getattr(variable, "source", None)
    return source.name if source is not None else type(variable).__name__
