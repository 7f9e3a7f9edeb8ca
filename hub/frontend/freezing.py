"""`hub.freeze`: run a compiled model without calling Dynamo at every call.

Dynamo's guards and its look-up of every parameter take 0.05 to 2 ms a call once their memory has left the caches
(`benchmarks/dynamo_share.py`): nothing against a second, a tenth of a small network's call. A frozen model checks its
inputs and goes straight to the plan.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hub.capture.call import program_behind
from hub.dispatch.recorded import Run
from hub.errors import FreezeError
from hub.frontend.compiled import OBSERVING, CompiledGraph
from hub.frontend.direct.feeding import check_inputs, fed, rebuilt
from hub.frontend.direct.inputs import Inputs, are_equal, takes
from hub.frontend.direct.modes import Modes, are_plain
from hub.frontend.direct.watch import native
from hub.frontend.ownership import graphs_of, why_no_graphs
from hub.process.forks import in_forks, never_freed
from hub.torch_private import is_any_autocast_enabled, is_fx_symbolic_tracing, pytree

MAX_KNOWN = 4
"""Maximum number of modes and forms of a call that are compared at once. All others are checked step by step."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a tensor input that the graph was captured for."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_neg: bool
    is_conj: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Form:
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg(), tensor.is_conj())

    def fits(self, value: Any) -> bool:
        return (
            type(value) is torch.Tensor
            and value.shape == self.shape
            and value.dtype is self.dtype
            and value.stride() == self.stride
            and value.device == self.device
            and value.is_neg() is self.is_neg
            and value.is_conj() is self.is_conj
        )


@dataclass(frozen=True, slots=True)
class _State:
    """What a frozen model runs."""

    graph: CompiledGraph
    run: Run
    args: tuple[Any, ...]
    """The graph's arguments, with gaps for the inputs."""
    places: tuple[tuple[int, int], ...]
    """For each gap, the leaf of the inputs that fills it, and its position."""
    rebuild: Callable[[Sequence[Any]], Any]


_frozen: weakref.WeakSet[Frozen] = weakref.WeakSet()


@in_forks
def _leave_to_eager() -> None:
    for one in _frozen:
        one.leave_to_eager()


class Frozen:
    """A compiled model in the state in which it was frozen. It is called like the model, and makes no gradients."""

    def __init__(self, compiled: Callable[..., Any], inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._compiled = compiled
        self._leaves, self._structure = pytree.tree_flatten((inputs, dict(kwargs)))
        check_inputs(self._leaves)
        self._is_plain = not kwargs and all(isinstance(value, torch.Tensor) for value in inputs)
        self._known: tuple[Callable[[tuple[Any, ...], Mapping[str, Any]], Sequence[Any] | None], ...] = ()
        """Each returns the leaves of a call that is like one that was checked in full, and made in the same modes."""
        self._forms = [_Form.of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in self._leaves]
        self.refresh()

    def refresh(self) -> None:
        """Freeze the present state of the model, after weights or attributes have changed. Raise as `freeze` does."""
        watched = _Watch(self._compiled)
        inputs, kwargs = pytree.tree_unflatten(self._leaves, self._structure)
        with torch.no_grad():
            result = watched.call(inputs, kwargs)
        graph, args, outputs = watched.only_call()
        held, places = fed(graph, args, self._leaves)
        # At once, at the end: other threads call it while the plan is made.
        self._state = _State(graph, graph.run_for(args), held, places, rebuilt(result, outputs))
        _frozen.add(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles: a plan's executables belong to this model's weights and this process."""
        raise FreezeError(
            "a frozen model cannot be copied or pickled", hint="copy or save the model itself, compile it, and freeze that"
        )

    def leave_to_eager(self) -> None:
        """Run in eager from now on what was built in the parent process. Called in a fork."""
        never_freed(self._state.run)
        self._state = replace(self._state, run=self._state.graph.run_in_eager)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run one call. Pass inputs of another form than at freezing, or that need gradients, to the compiled model."""
        state = self._state
        leaves: Sequence[Any] | None = None
        for takes_it in self._known if state.graph.observer is None else ():
            if (leaves := takes_it(inputs, kwargs)) is not None:
                break
        if leaves is None:
            leaves = self._leaves_of(inputs, kwargs)
            if leaves is None:
                return self._compiled(*inputs, **kwargs)
            if native is not None and len(self._known) < MAX_KNOWN:
                self._known = (*self._known, takes(Inputs(inputs, kwargs), Modes()))
        args = list(state.args)
        for leaf, position in state.places:
            args[position] = leaves[leaf]
        return state.rebuild(state.run(args))

    def _leaves_of(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        if self._is_plain and not kwargs:
            leaves: Sequence[Any] = inputs
        else:
            leaves, structure = pytree.tree_flatten((inputs, dict(kwargs)))
            if structure != self._structure:
                return None
        if len(leaves) != len(self._forms):
            return None
        for leaf, form, first in zip(leaves, self._forms, self._leaves, strict=True):
            if not (form.fits(leaf) if form is not None else are_equal(leaf, first)):
                return None
        graph = self._state.graph
        if is_any_autocast_enabled() or graph.observer is not None or not are_plain() or is_fx_symbolic_tracing():
            return None
        if torch.is_grad_enabled() and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            return None
        return leaves


def freeze(compiled: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Frozen:
    """Return a compiled model that checks its inputs only, and not whether the model has changed since.

    `compiled` is the result of `hub.compile(model)` or `torch.compile(model, backend="hub")`. It is called with `inputs`
    and `kwargs`, in inference. The present weights, attributes, hooks, flags and globals are frozen; `Frozen.refresh`
    updates them. Raise FreezeError, with the reason, if a call is more than one captured graph: graph breaks, values
    computed outside the graph, outputs that are not the graph's. Raise OptionError if `compiled` was not compiled
    with the hub.
    """
    graphs_of(compiled)  # raises OptionError for something that was not compiled with the hub
    return Frozen(compiled, inputs, kwargs)


class _Watch:
    """A recorder of the arguments and outputs of a compiled model's captured graphs."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self._compiled = compiled
        program = program_behind(compiled)  # called directly, it would skip Dynamo
        self._call: Callable[..., Any] = compiled if program is None else program.through_dynamo
        self._lock = contextlib.nullcontext() if program is None else program.lock
        self._thread = threading.get_ident()
        self._seen: list[tuple[CompiledGraph, Sequence[Any], Sequence[Any]]] = []

    def call(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the model twice and return the second result: the first call captures what is not captured yet."""
        self._call(*inputs, **kwargs)
        with OBSERVING, self._lock:
            graphs = [graph for graph in graphs_of(self._compiled) if not graph.is_body]
            for graph in graphs:
                graph.observer = self._saw
            try:
                return self._call(*inputs, **kwargs)
            finally:
                for graph in graphs:
                    graph.observer = None

    def _saw(self, graph: CompiledGraph, args: Sequence[Any], outputs: Sequence[Any]) -> None:
        if threading.get_ident() == self._thread:  # other threads may call the model meanwhile
            self._seen.append((graph, args, outputs))

    def only_call(self) -> tuple[CompiledGraph, Sequence[Any], Sequence[Any]]:
        """Return the only recorded call of a graph. Raise FreezeError if there was none or more than one."""
        if not self._seen and not graphs_of(self._compiled):
            why = why_no_graphs(self._compiled)
            raise FreezeError(f"nothing of the model was captured: {why.reason}", hint=why.hint)
        if len(self._seen) != 1:
            reason = f"one call of the model runs {len(self._seen)} captured graphs, and freezing takes exactly one"
            advice = "call the model once before compiling it: some prepare themselves in their first call"
            raise FreezeError(reason, hint=f"{advice}; TORCH_LOGS=graph_breaks shows where Dynamo splits the model")
        graph, args, outputs = self._seen[0]
        if graph.mode != "inference" or graph.graph.mutated:
            raise FreezeError("the graph trains or writes to its inputs", hint="freeze a model in eval mode")
        return graph, args, outputs
