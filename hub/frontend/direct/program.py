"""A model or function that is called without Dynamo while nothing that its program read has changed."""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx

from hub.capture.call import APART, forget_compiled
from hub.capture.frames import captured_for_hub
from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.errors import FreezeError, text_of, warn_user
from hub.frontend.checking import check_names
from hub.frontend.direct.entry import MAX_ENTRIES, Entry, Forms, keep_newest
from hub.frontend.direct.general import General, apart, generated, is_known
from hub.frontend.direct.inputs import Inputs
from hub.frontend.direct.modes import Modes, are_plain, is_for_eager, saves_by_hooks
from hub.frontend.direct.reads import Step, Unwatched, find
from hub.frontend.direct.recorder import Capture, Captures, Recorder, Seen
from hub.frontend.direct.trial import Pause, Trial, usual
from hub.frontend.direct.watch import CHANGED, SAME, Watch, watched, why_unwatched
from hub.frontend.dynamo import hub_backend
from hub.frontend.ownership import frames_behind, graphs_of
from hub.process.environment import environment_now
from hub.process.forks import freed_in_forks
from hub.process.traffic import TRAFFIC
from hub.torch_private import is_any_autocast_enabled, is_fx_symbolic_tracing, reset_code

MAX_GENERAL = 8
"""Maximum number of programs that serve many forms, each in one set of modes. The oldest is evicted first."""
MAX_TRIALS = 8
"""Maximum number of forms of calls that are compared with eager as a whole. Other forms go as most of these do."""
MIN_USES = 16
"""Number of calls without Dynamo after which an attempt has paid off, so that the next one need not wait."""
SAMPLE = 16
"""Interval of calls on the general path at which one is checked: if its form comes again, it gets an entry."""
PATIENCE = 0.25
"""Fraction of the last capture's seconds that calls of another form spend in eager before they are captured too. Capturing
each form at once would cost more on rare forms than they can gain. In the classic rent-or-buy problem the bound is 1."""
_numbers = itertools.count()
MODEL, ARGS, KWARGS = "model", "args", "kwargs"
"""Names of the arguments of `_call`, with which Dynamo's expressions begin."""


def _call(model: Any, args: Any, kwargs: Any) -> Any:
    """Call the model. Dynamo captures this function, so that all sources have known roots (`recorder.INPUTS`).

    It reads the names of keyword arguments one after the other: from `**kwargs` alone Dynamo makes no guard on their order.
    """
    return model(*args, **{name: kwargs[name] for name in kwargs})


def _backend(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile one program that Dynamo captured, as `torch.compile(backend="hub")` does."""
    return hub_backend(module, inputs, options=options)


captured_for_hub(_backend, skip_nnmodule_hook_guards=False)  # Dynamo would not notice hooks that are added later


@dataclass(frozen=True, slots=True)
class _Armed:
    """The entries and programs by which calls may skip Dynamo while the watch holds."""

    watch: Watch
    steps: tuple[Step, ...]
    """What the watch was made from: all that the programs captured until then read."""
    entries: tuple[Entry, ...] = ()
    general: tuple[General, ...] = ()

    def more(self, found: Entry | General) -> _Armed:
        """Return a copy with one more entry or program."""
        if isinstance(found, Entry):
            return replace(self, entries=(found, *self.entries)[:MAX_ENTRIES])
        others = (one for one in self.general if one.check is not found.check or not one.modes.hold())
        return replace(self, general=(found, *others)[:MAX_GENERAL])


class Program:
    """The calls of one model or function. Each takes the fastest path that is known to give eager's result."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], *, dynamic: bool | None) -> None:
        self.function = function
        self.options, self.dynamic = options, dynamic
        # A code object unequal to every other: Dynamo counts compilations, and remembers dynamic sizes, per code object.
        code = _call.__code__.replace(co_name=f"call_{next(_numbers)}")
        self._globals = {"__builtins__": builtins, "__name__": "hub.frontend.direct.call"}
        self._code, self._entered = code, _entered(function)
        self._captures = Captures(code, self._entered[::2])
        self.compiled: Callable[..., Any] = cast("Any", torch).compile(
            types.FunctionType(code, self._globals, code.co_name),
            backend=_backend,
            dynamic=dynamic,
            options={**options, "guard_filter_fn": self._captures.guarded_by},
            **APART,  # else models of one class share what follows a graph break, whose options may be equal
        )
        """`_call` compiled by Dynamo. It takes the model, the inputs and the keyword inputs."""
        self._frames = frames_behind(self.compiled)
        # Otherwise PyTorch would keep the plans.
        weakref.finalize(self, forget_compiled, code, "its model no longer exists").atexit = False
        self.why_dynamo = why_unwatched() or "it has not been called often enough: the third call of a form goes without"
        """Why the last call went through Dynamo; "" if the next one of its form does not."""
        self._can_watch = not why_unwatched()
        self._is_lazy = _is_lazy(function)
        if self._is_lazy:
            self.why_dynamo = "its body runs after the call, as a generator or coroutine, and stays in eager"
        self._is_called = self._is_captured = False
        self._starts_in_eager = True
        self._armed: _Armed | None = None
        self._forms = Forms()
        self._spent_s: dict[Any, float] = {}
        """Seconds spent in eager by calls whose kind of inputs is not captured yet, keyed by kind."""
        self._capture_s = 0.0
        """Seconds of the last capture."""
        self._trials: dict[Any, Trial] = {}
        """Comparisons of calls through Dynamo with eager ones, by form of call: of those that are several graphs."""
        self._n_captured = 0
        """Number of frames that had been captured when the trials began."""
        self._pauses = {False: Pause(), True: Pause()}
        """Calls without and with gradients: training steps need Dynamo, and evaluations between them do not."""
        self._n_uses = 0
        self.lock = freed_in_forks(threading.Lock())
        """Held while calls of graphs are recorded: a graph has only one observer."""

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run one call. Skip Dynamo if a call of this form went through it and nothing has changed since."""
        armed = self._armed
        if armed is not None and (found := armed.watch.compare()) != CHANGED:
            for entry in armed.entries:
                if (leaves := entry.leaves_of(args, kwargs)) is not None:
                    self._n_uses += 1
                    return entry.run(leaves, is_same=found == SAME)
            if armed.general:
                return self._call_generally(armed.general, args, kwargs)
        return self._call_slowly(args, kwargs)

    def _call_generally(self, known: Sequence[General], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run one call by the code of a program that takes it, or through Dynamo, or in eager if neither would pay off."""
        scope = {MODEL: self.function, ARGS: args, KWARGS: kwargs}
        for general in known:
            if general.takes(scope):
                self._n_uses += 1
                if general.may_have_entry and self._n_uses % SAMPLE == 0 and self._forms.has_come(Inputs(args, kwargs)):
                    break
                return general.run(self.function, args, kwargs)
        else:
            if self._may_spare_captures and not is_known(self._code, scope):
                kind = Inputs(args, kwargs).kind()
                if self._spent_s.get(kind, 0.0) < PATIENCE * self._capture_s:
                    return self._timed_in_eager(kind, args, kwargs)
        return self._call_slowly(args, kwargs)

    def through_dynamo(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run one call as `torch.compile` would."""
        return self.function(*args, **kwargs) if self._is_lazy else self.compiled(self.function, args, kwargs)

    def capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Capture and plan the program for inputs of this form now, and discard the result.

        A module in eval mode is captured without gradients.
        """
        self._is_called = True
        if self._is_lazy:
            return
        is_served = isinstance(self.function, torch.nn.Module) and not self.function.training
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_served):
            self.compiled(self.function, args, kwargs)
            if (why := self._captures.why_no_more()) and not self._is_known(args, kwargs):
                warn_user(f"an example was not captured: {why}")

    def _is_known(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether Dynamo has captured a program for such a call."""
        return is_known(self._code, {MODEL: self.function, ARGS: args, KWARGS: kwargs})

    def _call_slowly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._is_lazy or torch.compiler.is_compiling() or is_for_eager() or is_fx_symbolic_tracing():
            return self.function(*args, **kwargs)  # another compiler traces this call, and must see the model itself
        may_be_eager = not saves_by_hooks()
        if not self._is_called and self._is_first_in_eager() and may_be_eager:
            return self.function(*args, **kwargs)
        if (entered := _entered(self.function)) != self._entered:
            self._forget(entered)
        if not self._is_captured and self._starts_in_eager and may_be_eager and self.lock.locked():
            return self.function(*args, **kwargs)  # another thread captures it; every call through Dynamo would repeat that
        if (trial := self._trial(args, kwargs)) is not None and trial.is_eager:
            return self.function(*args, **kwargs)
        if not self._is_worth_watching() or not self.lock.acquire(blocking=False):
            if trial is not None:
                return self._tried(trial, args, kwargs)
            if self._starts_in_eager and may_be_eager and self.lock.locked() and not self._is_known(args, kwargs):
                return self.function(*args, **kwargs)  # as above: Dynamo would capture it once for each thread
            return self.compiled(self.function, args, kwargs)
        try:
            return self._watched(args, kwargs)
        finally:
            self._is_captured = True
            self.lock.release()

    def _is_first_in_eager(self) -> bool:
        """Return whether the first call runs in eager and capture waits. Raise OptionError for wrong options."""
        options = resolve(self.options, environment_now(), working_folder())
        if options.backends or options.exclude or options.force:
            check_names(options)
        self._is_called, self._starts_in_eager = True, options.may_answer_in_eager
        return self._starts_in_eager

    def _forget(self, entered: tuple[Any, ...]) -> None:
        """Recapture everything, since the model's own code was replaced: Dynamo makes no guard on that."""
        self._entered, self._armed = entered, None
        self._trials.clear()
        self._captures.functions = entered[::2]
        reset_code(self._code)
        self._captures.forget()

    def _trial(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Trial | None:
        """Return the comparison with eager for calls of this form; None if none is due.

        None is due for calls that are one graph, whose plan was compared with eager as a whole, where gradients are
        recorded, since the backward is a part of what a call costs, or where the options choose what runs.
        """
        if not self._trials or torch.is_grad_enabled() or torch.cuda.is_initialized() or not are_plain():
            return None
        if not self._may_try:
            return None
        if self._frames.made != self._n_captured:
            self._trials = {key: Trial() for key in list(self._trials)}  # a copy: other threads add to it
            self._n_captured = self._frames.made
        try:
            found = self._trials.get(Inputs(args, kwargs).key())
        except TypeError:  # an input that cannot be hashed
            return None
        return usual(list(self._trials.values())) if found is None and len(self._trials) >= MAX_TRIALS else found

    def _note_parts(self, inputs: Inputs, *, is_in_parts: bool) -> None:
        """Begin a comparison for calls of this form if one has run several graphs, or Python beside one; else end it."""
        if torch.is_grad_enabled():
            return
        try:
            key = inputs.key()
            if not is_in_parts:
                self._trials.pop(key, None)
            elif len(self._trials) < MAX_TRIALS:
                self._n_captured = self._n_captured if self._trials else self._frames.made
                self._trials.setdefault(key, Trial())
        except TypeError:  # an input that cannot be hashed
            return

    @functools.cached_property
    def _may_try(self) -> bool:
        chosen = resolve(self.options, environment_now(), working_folder())
        has_choice = chosen.backends or chosen.force or chosen.plan or chosen.shadow
        return not (chosen.strict or has_choice or chosen.tune == "off")

    def _is_planned(self) -> bool:
        return all(graph.is_over() for graph in graphs_of(self.compiled))

    def _tried(self, trial: Trial, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        was = trial.is_eager
        compiled = functools.partial(self.compiled, self.function, args, kwargs)
        result = trial.run(compiled, functools.partial(self.function, *args, **kwargs), self._is_planned)
        if was is None and trial.is_eager:
            taken = f"{1e3 * trial.eager_s:.3g} ms in eager, {1e3 * trial.compiled_s:.3g} ms through Dynamo"
            self.why_dynamo = f"calls run in eager, which is faster: {taken}"
            for graph in graphs_of(self.compiled)[:1]:
                graph.note_time(f"the model's calls run in eager, not as planned: a call takes {taken}")
        return result

    @property
    def _may_spare_captures(self) -> bool:
        """Return whether a program already serves many forms, so that the capture of others can wait."""
        return self._starts_in_eager and self._captures.n_made > 1 and are_plain()

    def _timed_in_eager(self, kind: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        start = time.perf_counter()
        with TRAFFIC:  # timing that goes on while the model runs waits for gaps between calls
            result = self.function(*args, **kwargs)
        keep_newest(self._spent_s, kind, self._spent_s.get(kind, 0.0) + time.perf_counter() - start)
        self.why_dynamo = f"inputs of this kind run in eager until that took {PATIENCE:.0%} of what a capture takes"
        return result

    def _is_worth_watching(self) -> bool:
        """Return whether to record this call. If the pause is not over, count it down."""
        if not are_plain():
            self.why_dynamo = "a mode of PyTorch intercepts its operators, such as the one of torch.set_default_device"
            return False
        return self._can_watch and self._pauses[torch.is_grad_enabled()].is_over()

    def _watched(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call through Dynamo, and prepare a path without Dynamo for calls like it.

        The objects that the program reads are noted before the call, so that Dynamo's guards check the noted state.
        """
        n_made, steps = self._captures.n_made, self._captures.steps
        watch, modes, inputs = self._watch_now(steps, args, kwargs), Modes(), Inputs(args, kwargs)
        start = time.perf_counter()
        with Recorder(self._captures.graphs()) as recorder:
            result = self.compiled(self.function, args, kwargs)
        if self._captures.n_made != n_made:  # it was captured only now: the next call is recorded with all that it reads
            self._capture_s = time.perf_counter() - start
            self._armed = None
            self.why_dynamo = (
                self._captures.why_last() or "its last call was captured, and the next one of its form is noted"
            )
            return result
        way = self._way(watch, modes, inputs, recorder.calls, result)
        if isinstance(way, Unwatched):
            self.why_dynamo = str(way)
            self._pauses[torch.is_grad_enabled()].grow()
        elif way is not None and isinstance(watch, Watch):
            armed = self._armed
            self._armed = (armed if armed is not None and armed.watch is watch else _Armed(watch, steps)).more(way)
            self.why_dynamo = ""
        return result

    def _way(
        self, watch: Watch | Unwatched | None, modes: Modes, inputs: Inputs, calls: list[Seen], result: Any
    ) -> Entry | General | Unwatched | None:
        """Return the entry or program for calls like this one, or why they need Dynamo; None if that is undecided."""
        capture = _only_capture(calls, self._captures)
        self._note_parts(inputs, is_in_parts=isinstance(capture, Unwatched))
        if isinstance(capture, Unwatched):
            return capture
        if not isinstance(watch, Watch):
            return watch or Unwatched("", "nothing of it is captured")
        if watch.compare() == CHANGED:
            return Unwatched("", capture.more.writes or "something that the model reads changed during the call")
        if not modes.hold():
            return Unwatched("", "every call changes PyTorch's modes")
        entry = None
        if capture.check is None or self._armed is None or self._armed.watch is not watch or self._forms.has_come(inputs):
            entry = _entry(watch, modes, inputs, calls[0], result, capture)
        if isinstance(entry, Entry) or capture.check is None:
            return entry
        general = _general(watch, modes, capture, self._code, self._globals, may_have_entry=entry is None)
        return general if general is not None else entry

    def _watch_now(
        self, steps: tuple[Step, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Watch | Unwatched | None:
        """Return a watch of all that captured programs read, the current one if it still holds. None before any capture."""
        if (armed := self._armed) is not None:
            # Programs are also captured by calls that are not recorded: in other threads, by `through_dynamo`, in a pause.
            is_whole = armed.steps is steps
            if is_whole and armed.watch.compare() != CHANGED:
                return armed.watch
            self._armed = None
            if is_whole:
                if self._n_uses >= MIN_USES:
                    self._pauses[torch.is_grad_enabled()].reset()
                self._n_uses = 0
        if not steps:
            return None
        scope = {"L": {MODEL: self.function, ARGS: args, KWARGS: kwargs}, "G": self._globals}
        return watched(lambda: find(steps, scope, self._entered[::2]))


def _is_lazy(model: Any) -> bool:
    """Return whether a call of the model makes a generator or coroutine, which Dynamo would run within the call."""
    function: Any = type(model).forward if isinstance(model, torch.nn.Module) else model
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, types.FunctionType):
        function = type(function).__call__
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def _entered(model: Any) -> tuple[Any, ...]:
    """Return the functions by which a call enters a module, each followed by its code object."""
    if not isinstance(model, torch.nn.Module):
        return ()
    functions = [getattr(type(model), name, None) for name in ("__call__", "_call_impl", "forward")]
    return tuple(part for one in functions if isinstance(one, types.FunctionType) for part in (one, one.__code__))


def _only_capture(calls: list[Seen], captures: Captures) -> Capture | Unwatched:
    """Return the program that a call through Dynamo ran, or why calls like it have to go through Dynamo, too."""
    if not calls and not torch.is_grad_enabled() and not is_any_autocast_enabled():
        if why := captures.why_no_more():
            return Unwatched("", why)
        return Unwatched(
            "", "Python runs between its graphs (TORCH_LOGS=graph_breaks shows where), or an operator such as vmap"
        )
    if not calls:
        return Unwatched("", "its graphs are called by PyTorch's autograd: for gradients, or under autocast")
    if len(calls) > 1:
        return Unwatched("", f"a call runs {len(calls)} captured graphs, with Python between them")
    capture = captures.of(calls[0].graph)
    if capture is None:
        return Unwatched("", "its graph is a part of the model, with Python around it")
    if capture.more.breaks:
        return Unwatched("", capture.more.breaks)
    if calls[0].graph.mode != "inference":
        return Unwatched("", "it makes gradients")
    return capture


def _entry(watch: Watch, modes: Modes, inputs: Inputs, call: Seen, result: Any, capture: Capture) -> Entry | Unwatched:
    """Return an entry for calls of this form, or why none is possible."""
    if capture.more.writes:
        return Unwatched("", capture.more.writes)
    if capture.needs.unwatched is not None:
        return capture.needs.unwatched
    try:
        return Entry(inputs, call, result, watch, modes)
    except FreezeError as error:
        return Unwatched("", error.message)
    except Exception as error:  # noqa: BLE001 - of functions that were registered for classes of results
        return Unwatched("", f"its result cannot be taken apart: {text_of(error)}")


def _general(
    watch: Watch, modes: Modes, capture: Capture, code: types.CodeType, names: dict[str, Any], *, may_have_entry: bool
) -> General | None:
    """Return the code that Dynamo generated for a program, to be called while the watch holds; None if there is none."""
    graph, run = capture.graph(), generated(code, capture.compile_id, names)
    if capture.check is None or graph is None or run is None:
        return None
    return General(capture.check, modes, run, apart(capture.inputs, watch), may_have_entry)
