"""Find the captured graphs that belong to a compiled model, for `hub.plans(model)` and others."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any, cast

import torch

from hub.capture.call import program_behind, unbypassed, uncompiled
from hub.capture.frames import Frames, frames_of
from hub.capture.nothing import Cause, Nothing, why_nothing
from hub.errors import CaptureError, OptionError, warn_user
from hub.frontend.compiled import CompiledGraph
from hub.plan import Plan
from hub.process.forks import in_forks
from hub.process.phases import Phase
from hub.torch_private import TorchCompileWrapper

_graphs: list[weakref.ref[CompiledGraph]] = []
_FRAMES = 12


def register(graph: CompiledGraph) -> None:
    """Remember a captured graph, in the order of capture, for as long as PyTorch keeps it."""
    _graphs[:] = [reference for reference in _graphs if reference() is not None]
    _graphs.append(weakref.ref(graph))
    if graph.owner is not None and (owner := graph.owner()) is not None:
        frames_of(owner).has_programs = True


def calling_wrapper() -> object | None:
    """Return the wrapper object of the `torch.compile` call for which PyTorch now calls the backend.

    PyTorch does not pass it to backends, so it is looked up on the stack. Return None if it is not found.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - inspect.stack() reads source files
    for _ in range(_FRAMES):
        found = frame.f_locals.get("self")
        if isinstance(found, TorchCompileWrapper):
            return found
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def graphs_of(compiled: Any) -> tuple[CompiledGraph, ...]:
    """Return the captured graphs of a compiled model or function, in order of capture.

    Raise OptionError for something that was not compiled with the hub.
    """
    wrapper = _wrapper_of(compiled)
    if wrapper is None:
        raise OptionError(
            f"{type(compiled).__name__} was not made by hub.compile, nor by torch.compile(..., backend='hub')",
            hint="pass what hub.compile or torch.compile returned, not the module itself",
        )
    has_own_code = program_behind(compiled) is not None  # shared with no other model
    tensors = frozenset[int]() if has_own_code else _tensors_of(compiled)
    own = (graph for graph in _living() if _belongs(graph, wrapper, tensors))
    found = (one for graph in own for one in (graph, *graph.for_sizes()))
    belonging = tuple(one for one in found if _belongs(one, wrapper, tensors))
    return belonging or (() if has_own_code else _shared(compiled, wrapper, tensors))


@in_forks
def _leave_to_eager() -> None:
    for graph in _living():
        for one in (graph, *graph.for_sizes()):
            one.leave_to_eager()


def plans(compiled: Any) -> tuple[Plan, ...]:
    """Return the plans in use by a compiled model or function, one for each captured graph that has run, in order.

    Warn with the cause (HubWarning) if the model ran and nothing of it was captured. Raise OptionError for something that
    was not made by `hub.compile` or `torch.compile`.
    """
    try:
        return captured_plans(compiled)
    except CaptureError as error:
        warn_user(str(error))
        return ()


def captured_plans(compiled: Any) -> tuple[Plan, ...]:
    """Return what `plans` does. Raise CaptureError, with the cause, if the model ran and nothing of it was captured."""
    graphs = graphs_of(compiled)
    if not graphs and (why := why_no_graphs(compiled)).cause is not Cause.NOT_TRIED:
        raise why.error()
    return tuple(plan for graph in graphs if (plan := graph.plan_now()) is not None)


def phases_of(compiled: Any) -> tuple[Phase, ...]:
    """Return the phases of capturing and planning a compiled model so far. Raise OptionError as `plans` does."""
    records = dict.fromkeys(graph.phases for graph in graphs_of(compiled))  # the bodies of a graph share its record
    return tuple(phase for record in records for phase in record.found)


def why_no_graphs(compiled: Any) -> Nothing:
    """Return why a compiled model has no captured graphs."""
    return why_nothing(compiled, frames_behind(compiled))


def frames_behind(compiled: Any) -> Frames:
    """Return the record of what was captured for a compiled model."""
    return frames_of(_wrapper_of(compiled))


def refresh(compiled: Any) -> None:
    """Make the next call read every weight again, after a write that PyTorch does not count (`w.data.mul_()`, NumPy views).

    Raise OptionError as `plans` does.
    """
    for graph in graphs_of(compiled):
        graph.refresh()


def wait(compiled: Any, timeout_s: float | None = None) -> bool:
    """Wait until planning is over, and the checks that run after the first answer have updated the plans in use.

    Show progress as planning does. Return False if the timeout comes first. Raise OptionError as `plans` does. Warn
    (HubWarning) if `hub.compile` made the model and nothing of it is captured yet.
    """
    if timeout_s is not None and not (isinstance(cast("Any", timeout_s), (int, float)) and timeout_s >= 0):
        raise OptionError(f"the timeout is {timeout_s!r}", hint="give seconds, or None to wait without a limit")
    if program_behind(compiled) is not None and not graphs_of(compiled):
        text = "nothing is captured yet, so nothing is planned"
        warn_user(f"{text}\n  hint: call the model twice, or give hub.compile its example_inputs")
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    return all(graph.wait(None if end_s is None else max(0.0, end_s - time.monotonic())) for graph in graphs_of(compiled))


def _living() -> Iterator[CompiledGraph]:
    for reference in _graphs:
        if (graph := reference()) is not None:
            yield graph


def _belongs(graph: CompiledGraph, wrapper: object, tensors: frozenset[int]) -> bool:
    owner = graph.owner() if graph.owner is not None else None
    # Models of one class with equal options have equal wrappers and share captured graphs. Weights distinguish them.
    return owner is wrapper or (owner in (None, wrapper) and bool(tensors & graph.known_weights()))


def _shared(compiled: Any, wrapper: object, tensors: frozenset[int]) -> tuple[CompiledGraph, ...]:
    """Return the graphs that PyTorch captured for another call of `torch.compile`, with equal options, of the same code.

    No weights tell whose they are: functions with other variables around them, and models in training.
    """
    plain: Any = uncompiled(compiled)
    code = getattr(plain.forward if isinstance(plain, torch.nn.Module) else plain, "__code__", None)
    in_place: Any = torch.nn.Module
    if code is None or code is in_place._call_impl.__code__:  # of every model that is compiled in place
        return ()
    own = (graph for graph in _living() if not (tensors and graph.known_weights()))
    owners = ((graph, graph.owner() if graph.owner is not None else None) for graph in own)
    found = (graph for graph, owner in owners if owner is not None and owner == wrapper and _began_in(owner) is code)
    return tuple(one for graph in found for one in (graph, *graph.for_sizes()))


def _began_in(owner: object) -> CodeType | None:
    """Return the code of the first frame that was captured for one call of `torch.compile`."""
    codes = frames_of(owner).codes
    return codes[0]() if codes else None


def _tensors_of(compiled: Any) -> frozenset[int]:
    if not isinstance(compiled, torch.nn.Module):
        return frozenset()
    return frozenset(id(tensor) for group in (compiled.parameters(), compiled.buffers()) for tensor in group)


def _wrapper_of(compiled: Any) -> object | None:
    if (program := program_behind(compiled)) is not None:
        compiled = program.compiled
    compiled = getattr(compiled, "_compiled_call_impl", None) or compiled  # by `Module.compile`
    callback = getattr(getattr(compiled, "dynamo_ctx", None), "callback", None)
    if callback is None:
        callback = _closed_over(unbypassed(compiled))
    for _ in range(_FRAMES):
        if callback is None or isinstance(callback, TorchCompileWrapper):
            return callback
        callback = getattr(callback, "_torchdynamo_orig_backend", None) or getattr(
            callback, "_torchdynamo_orig_callable", None
        )
    return None


def _closed_over(function: Any) -> object | None:
    """Return the Dynamo callback in the closure of a compiled function, which has no attribute for it."""
    for cell in getattr(function, "__closure__", None) or ():
        value = cell.cell_contents
        if hasattr(value, "_torchdynamo_orig_backend") or hasattr(value, "_torchdynamo_orig_callable"):
            return value
        inner = getattr(value, "callback", None)
        if inner is not None and (
            hasattr(inner, "_torchdynamo_orig_backend") or hasattr(inner, "_torchdynamo_orig_callable")
        ):
            return inner
    return None
