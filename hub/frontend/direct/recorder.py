"""Listens while Dynamo captures and runs a program: what it guards, which graph it made, how that graph is called.

What the generated code does beside calling the graph is known only while Dynamo's translator stands on the stack, so the
hub's backend tells this module of each graph just then; the guards follow once the backend has returned.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.types import GuardFilterEntry
from torch._guards import CompileContext, Source

from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.general import Check, checked
from hub.frontend.direct.reads import Needs, Step, needs_of, root_of

HOOKS_ON_ALL = frozenset({
    "_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
})  # fmt: skip
"""Names of the dicts in which `torch.nn.modules.module` keeps hooks on all modules."""
INPUTS = frozenset({"L['args']", "L['kwargs']"})
"""Roots of Dynamo's expressions that are a call's inputs, in the code that `hub.frontend.direct.program` gives it."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What the code that Dynamo generates does beside calling the graph and building the result; "" for nothing."""

    breaks: str = ""
    """What only Dynamo can do: go on with the rest of the model after a graph break."""
    writes: str = ""
    """What the code does itself: change objects, hang hooks on tensors, draw numbers."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One program that Dynamo captured: its graph, what it needs of Python, and what Dynamo made of it."""

    graph: weakref.ref[CompiledGraph]
    needs: Needs
    more: Beside
    compile_id: object
    """Dynamo's name for the compilation, by which its code can be found."""
    check: Check | None
    """Checks the guards that no watch implies; None where nothing but Dynamo can call the code."""
    inputs: tuple[Source, ...]
    """Where the graph's tensors stand among the inputs of a call."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A graph of which the guards are not known yet."""

    graph: weakref.ref[CompiledGraph]
    output: weakref.ref[Any]
    """Dynamo's `OutputGraph`."""
    more: Beside
    inputs: tuple[Source, ...]


class Captures:
    """The programs that Dynamo captured from one piece of code. Dynamo compiles in one thread at a time."""

    def __init__(self, code: types.CodeType, functions: Sequence[Any] = ()) -> None:
        self._all: tuple[Capture, ...] = ()
        self._made: _Made | None = None
        self._code = weakref.ref(code)
        self.functions = functions
        """Functions by which a call enters the model; of a change of these Dynamo makes no guard."""
        self.n_made = 0
        """Programs that were captured so far."""
        self.steps: tuple[Step, ...] = ()
        """All places whose watch implies guards, each once."""
        _by_code[code] = self

    def made(self, graph: CompiledGraph, output: Any) -> None:
        """Hear of a graph, and of what Dynamo knows of the program it is made of."""
        inputs = tuple(found for one in output.graphargs if (found := _input_tensor(one)) is not None)
        self._made = _Made(weakref.ref(graph), weakref.ref(output), _beside_the_graph(output), inputs)

    def guarded_by(self, entries: Sequence[GuardFilterEntry]) -> Sequence[bool]:
        """Hear of the guards on the code whose graph was made last, and keep them all: a `guard_filter_fn`."""
        for entry in entries:
            entry.orig_guard.obj_weakref = None  # else a tensor that Dynamo makes of an array would be compared with ==
        _guard_hooks(entries)
        made, self._made = self._made, None
        if made is not None:
            self.n_made += 1
            capture = self._captured(made, entries)
            self._all = (*(one for one in self._all if one.graph() is not None), capture)
            found = (step for one in self._all for step in one.needs.steps)
            self.steps = tuple({(step.source, step.is_read, step.is_deep): step for step in found}.values())
        return [True] * len(entries)

    def _captured(self, made: _Made, entries: Sequence[GuardFilterEntry]) -> Capture:
        output, code = made.output(), self._code()
        assert output is not None and code is not None, "Dynamo compiles it just now"
        scope = {"L": output.local_scope, "G": output.global_scope}
        needs = needs_of(entries, INPUTS, scope, self.functions)
        check = None if made.more.breaks else checked(code, output, needs.kept)
        needs = replace(needs, kept=())  # they hold what the program read
        return Capture(made.graph, needs, made.more, CompileContext.current_compile_id(), check, made.inputs)

    def forget(self) -> None:
        """Forget all programs: their code is captured anew."""
        self._all, self.steps = (), ()

    def why_last(self) -> str:
        """Return what keeps the program that was captured last with Dynamo; "" where nothing is known to."""
        return self._all[-1].more.breaks if self._all else ""

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
        found.made(graph, translator.output)


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


def _input_tensor(graph_argument: Any) -> Source | None:
    """Return where a graph's argument comes from, if that is a tensor in the inputs of a call."""
    source = graph_argument.source
    is_tensor = graph_argument.is_tensor and not graph_argument.pass_arg_as_tensor
    return source if is_tensor and source is not None and root_of(source).name in INPUTS else None


def _beside_the_graph(output: Any) -> Beside:
    """Return what the code that Dynamo generates does beside calling the graph and building the result."""
    reason = output.compile_subgraph_reason
    if reason is not None and reason.graph_break:
        return Beside(breaks="Python runs after a part of the model")
    if output.random_calls:
        return Beside(writes="every call draws numbers from Python's generator")
    effects = output.side_effects
    if effects.tensor_hooks or effects.save_for_backward:
        return Beside(writes="it gives tensors hooks")
    written = [one for one in effects.id_to_variable.values() if effects.is_modified(one) and _lasts(one, effects)]
    return Beside(writes=f"every call writes to {_place(written[0])}" if written else "")


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
