"""A model or function that is called without Dynamo while nothing that its program read has changed."""

from __future__ import annotations

import builtins
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch.fx import _symbolic_trace

from hub.capture.call import forget_compiled
from hub.capture.frames import captured_for_hub
from hub.direct.entry import Entry, Inputs
from hub.direct.modes import Modes, are_plain, is_for_eager
from hub.direct.reads import Unwatched, find
from hub.direct.recorder import Captures, Recorder, Seen
from hub.direct.watch import CHANGED, SAME, Watch, why_unwatched
from hub.dynamo import hub_backend
from hub.errors import FreezeError
from hub.options import check_backends, resolve
from hub.process import environment
from hub.process.forks import freed_in_forks
from hub.registry import registry

MAX_ENTRIES = 16
"""Forms of calls that go without Dynamo; the one made first makes room."""
MAX_MISSED = 64
"""Forms of calls that are remembered until they come a second time."""
MAX_PAUSE = 1024
"""Calls through Dynamo, at most, between two attempts to go without: for models that change themselves in every call."""
MIN_USES = 16
"""Calls without Dynamo after which an attempt has paid, and the next one need not wait."""
_numbers = itertools.count()
MODEL, ARGS, KWARGS = "model", "args", "kwargs"
"""Names of what `_call` is called with, by which Dynamo's expressions begin."""


def _call(model: Any, args: Any, kwargs: Any) -> Any:
    """Stand for a call in Dynamo: with it, the roots of all that a program reads are known (`recorder.INPUTS`)."""
    return model(*args, **kwargs)


def _backend(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile one program that Dynamo captured, as `torch.compile(backend="hub")` does."""
    return hub_backend(module, inputs, options=options)


captured_for_hub(_backend, skip_nnmodule_hook_guards=False)  # Dynamo would not notice hooks that are added later


@dataclass(frozen=True, slots=True)
class _Armed:
    """What calls may go without Dynamo, while the watch holds."""

    watch: Watch
    entries: tuple[Entry, ...]


class Program:
    """The calls of one model or function. Each goes the shortest way that is known to give eager's answer."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], *, dynamic: bool | None) -> None:
        self.function = function
        self.options, self.dynamic = options, dynamic
        # Code of its own, unequal to every other: Dynamo counts what it compiles, and remembers sizes that vary, by code.
        code = _call.__code__.replace(co_name=f"call_{next(_numbers)}")
        self._globals = {"__builtins__": builtins, "__name__": "hub.direct.call"}
        self._captures = Captures(code)
        self._code, self._entered = code, _entered(function)
        self.compiled: Callable[..., Any] = cast("Any", torch).compile(
            types.FunctionType(code, self._globals, code.co_name),
            backend=_backend,
            dynamic=dynamic,
            options={**options, "guard_filter_fn": self._captures.guarded_by},
        )
        """The function through Dynamo: called with it, the inputs and the keyword inputs."""
        weakref.finalize(self, forget_compiled, code, "its model is gone").atexit = False  # PyTorch would keep the plans
        self.why_dynamo = why_unwatched() or "it has not been called often enough: the third call of a form goes without"
        """Why the last call that went through Dynamo did; "" where the next one of its form does not."""
        self._can_watch = not why_unwatched()
        self._is_called = self._is_captured = False
        self._starts_in_eager = True
        self._armed: _Armed | None = None
        self._missed: dict[Any, None] = {}
        self._pause = self._to_wait = self._n_uses = 0
        self.lock = freed_in_forks(threading.Lock())
        """Held while calls of graphs are watched: a graph has one observer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call, without Dynamo where one of this form went through it and nothing has changed since."""
        armed = self._armed
        if armed is not None and (found := armed.watch.compare()) != CHANGED:
            for entry in armed.entries:
                if (leaves := entry.leaves_of(args, kwargs)) is not None:
                    self._n_uses += 1
                    return entry.run(leaves, is_same=found == SAME)
        return self._call_slowly(args, kwargs)

    def through_dynamo(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call as `torch.compile` would."""
        return self.compiled(self.function, args, kwargs)

    def capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Capture and plan the program for inputs of this form now; their result is thrown away.

        A module in eval mode is captured without gradients.
        """
        self._is_called = True
        is_served = isinstance(self.function, torch.nn.Module) and not self.function.training
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_served):
            self.compiled(self.function, args, kwargs)

    def _call_slowly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch.compiler.is_compiling() or is_for_eager() or _symbolic_trace.is_fx_symbolic_tracing():
            return self.function(*args, **kwargs)  # another compiler goes through it, and has to see the model itself
        if not self._is_called and self._is_first_in_eager():
            return self.function(*args, **kwargs)
        if (entered := _entered(self.function)) != self._entered:
            self._forget(entered)
        if not self._is_captured and self._starts_in_eager and self.lock.locked():
            return self.function(*args, **kwargs)  # another thread has it captured: all that ask Dynamo do it again
        if not self._is_worth_watching() or not self.lock.acquire(blocking=False):
            return self.compiled(self.function, args, kwargs)
        try:
            return self._watched(args, kwargs)
        finally:
            self._is_captured = True
            self.lock.release()

    def _is_first_in_eager(self) -> bool:
        """Return whether the first answer does not wait for capture. Raise OptionError for options that are wrong."""
        options = resolve(self.options, environment.snapshot(), Path.cwd())
        if options.backends or options.exclude or options.force:
            check_backends(options, registry().configured(options).entries)
        self._is_called, self._starts_in_eager = True, options.may_answer_in_eager
        return self._starts_in_eager

    def _forget(self, entered: tuple[Any, ...]) -> None:
        """Have everything captured anew, since the model's own code was replaced: of that Dynamo makes no guard."""
        self._entered, self._armed = entered, None
        reset_code(self._code)
        self._captures.forget()

    def _is_worth_watching(self) -> bool:
        """Return whether to learn from this call; count down to the next one where not."""
        if self._to_wait > 0:
            self._to_wait -= 1
            return False
        return self._can_watch and are_plain()

    def _watched(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call through Dynamo, and learn from it.

        What the program reads is noted before the call: Dynamo's guards then look at what was noted.
        """
        n_made = self._captures.n_made
        watch, modes, inputs = self._watch_now(args, kwargs), Modes(), Inputs(args, kwargs)
        with Recorder(self._captures.graphs()) as recorder:
            result = self.compiled(self.function, args, kwargs)
        if self._captures.n_made != n_made:  # it was captured only now: the next call is noted with all that it reads
            self._armed = None
            self.why_dynamo = (
                self._captures.why_last() or "its last call was captured, and the next one of its form is noted"
            )
            return result
        armed = self._armed
        is_first = armed is None or armed.watch is not watch
        if not is_first and not self._comes_again(inputs):
            return result
        entry = _entry(watch, modes, inputs, recorder.calls, result, self._captures)
        if isinstance(entry, Entry) and isinstance(watch, Watch):
            others = () if is_first or armed is None else armed.entries
            self._armed, self.why_dynamo = _Armed(watch, (entry, *others)[:MAX_ENTRIES]), ""
        else:
            self.why_dynamo = str(entry)
            self._wait_longer()
        return result

    def _watch_now(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Watch | Unwatched | None:
        """Return a watch of all that captured programs read: the one there is, while it holds. None before any capture."""
        if (armed := self._armed) is not None:
            if armed.watch.compare() != CHANGED:
                return armed.watch
            self._armed = None
            if self._n_uses >= MIN_USES:
                self._pause = 0
            self._n_uses = 0
        if not self._captures.steps:
            return None
        scope = {"L": {MODEL: self.function, ARGS: args, KWARGS: kwargs}, "G": self._globals}
        found = find(self._captures.steps, scope, self._entered[::2])
        return found if isinstance(found, Unwatched) else Watch(found)

    def _comes_again(self, inputs: Inputs) -> bool:
        """Return whether a call of this form went through Dynamo before; sizes that come once are not worth an entry."""
        try:
            key = inputs.key()
            if key in self._missed:
                return True
        except TypeError:  # an input that cannot be told apart
            return False
        self._missed[key] = None
        while len(self._missed) > MAX_MISSED:
            self._missed.pop(next(iter(self._missed)))
        return False

    def _wait_longer(self) -> None:
        self._pause = min(max(1, 2 * self._pause), MAX_PAUSE)
        self._to_wait = self._pause


def _entered(model: Any) -> tuple[Any, ...]:
    """Return the functions of a module by which a call enters it, each with its code."""
    if not isinstance(model, torch.nn.Module):
        return ()
    functions = [getattr(type(model), name, None) for name in ("__call__", "forward")]
    return tuple(part for one in functions if isinstance(one, types.FunctionType) for part in (one, one.__code__))


def _entry(
    watch: Watch | Unwatched | None,
    modes: Modes,
    inputs: Inputs,
    calls: list[Seen],
    result: Any,
    captures: Captures,
) -> Entry | Unwatched:
    """Return an entry for a call that went through Dynamo, or why others like it have to."""
    if not calls:
        return Unwatched(
            "", "its graphs are called by PyTorch's autograd: for gradients, under autocast, or for operators such as vmap"
        )
    if len(calls) > 1:
        return Unwatched("", f"a call runs {len(calls)} captured graphs, with Python between them")
    capture = captures.of(calls[0].graph)
    if capture is None:
        return Unwatched("", "its graph is a part of the model, with Python around it")
    if isinstance(capture.steps, Unwatched):
        return capture.steps
    if not isinstance(watch, Watch):
        return watch or Unwatched("", "nothing of it is captured")
    if calls[0].graph.mode != "inference":
        return Unwatched("", "it makes gradients")
    if watch.compare() == CHANGED:
        return Unwatched("", "the model, or something else that it reads, changed during the call")
    if not modes.hold():
        return Unwatched("", "every call changes PyTorch's modes")
    try:
        return Entry(inputs, calls[0], result, watch, modes)
    except FreezeError as error:
        return Unwatched("", error.message)
