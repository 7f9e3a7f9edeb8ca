"""Calls of `torch.compile(model, backend="hub")` that skip Dynamo: their form came before, and nothing has changed.

PyTorch's own function around a compiled module takes its time even if most guards are spared (`python -m
benchmarks.dynamo_share MODEL --guards`): it sets and restores the state of Dynamo, walks into the module, and fetches each
weight. So calls of a module first look for an entry (`entry.py`), as those of `hub.compile` do. It calls the graph itself.
Dynamo takes all other calls.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from hub.capture.call import BYPASSED, unbypassed
from hub.frontend.bindings import CALLED
from hub.frontend.compiled import OBSERVING
from hub.frontend.direct.entry import MAX_ENTRIES, Entry, Forms
from hub.frontend.direct.inputs import Inputs
from hub.frontend.direct.modes import Modes, are_plain
from hub.frontend.direct.recorder import Recorder, Seen
from hub.frontend.direct.trial import Pause
from hub.frontend.direct.watch import CHANGED, SAME
from hub.frontend.direct.watches import Called, Held, Watches
from hub.torch_private import FrameAction, FrameExecStrategy, set_code_exec_strategy

SAMPLE = 4
"""Interval, once there are entries, at which a call without one is checked: if its form comes again, it gets an entry."""
_AS_IT_IS = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
"""What Dynamo does with frames of such a function while another compiler captures: nothing, as with its own wrappers."""


def bypass(called: Called, watches: Watches) -> None:
    """Let calls of a compiled module look for an entry first. The function that `torch.compile` made takes the others."""
    made = called.attributes[called.name]
    if unbypassed(made) is not made:
        return
    calls = _Calls(made, watches, called.model)

    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        return calls(args, kwargs)

    vars(call)["_torchdynamo_wrapper_id"] = id(call)  # Dynamo tells its wrappers from other functions by it
    vars(call)[BYPASSED] = made
    set_code_exec_strategy(cast("types.FunctionType", call).__code__, _AS_IT_IS)
    called.attributes[called.name] = call


class _Calls:
    """The calls of one compiled module."""

    __slots__ = ("_dynamo", "_forms", "_model", "_n_missed", "_pauses", "_watches")

    def __init__(self, dynamo: Callable[..., Any], watches: Watches, model: torch.nn.Module) -> None:
        self._dynamo, self._watches, self._model = dynamo, watches, model
        self._forms = Forms()
        self._n_missed = 0
        self._pauses = {False: Pause(), True: Pause()}
        """Calls without and with gradients: training steps need Dynamo, and evaluations between them do not."""

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run one call by an entry for its form, if nothing that its program read has changed, or else through Dynamo."""
        CALLED.free()
        for held in self._held():
            if not held.entries or not held.is_current():
                continue
            if (found := held.watch.compare()) == CHANGED:
                held.end()
                break
            for entry in held.entries:
                if (leaves := entry.leaves_of(args, kwargs)) is not None:
                    held.uses.n += 1
                    return entry.run(leaves, is_same=found == SAME)
        if not self._is_worth_recording() or not OBSERVING.acquire(blocking=False):
            return self._dynamo(*args, **kwargs)
        try:
            return self._recorded(args, kwargs)
        finally:
            OBSERVING.release()

    def _held(self) -> Sequence[Held]:
        """Return the watches of this model: others may share its wrapper."""
        return [one for one in self._watches.held if one.is_whole and one.roots[0] is self._model]

    def _is_worth_recording(self) -> bool:
        """Return whether to record this call. If the pause is not over, count it down."""
        held = self._held()
        if any(one.entries for one in held):
            self._n_missed += 1
            if self._n_missed % SAMPLE:
                return False
        return bool(held) and are_plain() and self._pauses[torch.is_grad_enabled()].is_over()

    def _recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call through Dynamo, and an entry for calls like it. What they need is noted before the call."""
        holding = [one for one in self._held() if one.watch.compare() != CHANGED]
        graphs = [graph for one in holding if (graph := one.graph()) is not None]
        if any(graph.observer is not None for graph in graphs):  # this very call is observed
            return self._dynamo(*args, **kwargs)
        modes, inputs = Modes(), Inputs(args, kwargs)
        CALLED.recording, CALLED.entered = sys._getframe(), None  # pyright: ignore[reportPrivateUsage] - see `_is_first`
        try:
            with Recorder(graphs) as recorder:
                result = self._dynamo(*args, **kwargs)
        finally:
            entered, CALLED.recording, CALLED.entered = CALLED.entered, None, None
        held = next((one for one in holding if entered is not None and one.guards() is entered), None)
        if held is not None and held.entries and not self._forms.has_come(inputs):
            return result
        if held is None or (entry := _entry(held, modes, inputs, recorder.calls, result)) is None:
            self._pauses[torch.is_grad_enabled()].grow()
        else:
            held.entries = (entry, *held.entries)[:MAX_ENTRIES]
        return result


def _entry(held: Held, modes: Modes, inputs: Inputs, calls: Sequence[Seen], result: Any) -> Entry | None:
    """Return an entry for calls of this form; None if they need Dynamo."""
    if [call.graph for call in calls] != [held.graph()] or calls[0].graph.mode != "inference":
        return None
    if held.watch.compare() == CHANGED or not modes.hold():
        return None
    try:
        return Entry(inputs, calls[0], result, held.watch, modes)
    except Exception:  # noqa: BLE001 - FreezeError, and what functions raise that were registered for classes of results
        return None
