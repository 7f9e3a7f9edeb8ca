"""Make PyTorch capture Python frames for the hub: recurrent modules, too, and with a record of where capture stopped.

Dynamo runs `nn.RNN`, `nn.GRU` and `nn.LSTM` in eager unless `torch._dynamo.config.allow_rnn` is set. It reads that setting
before it calls any backend, so a model that is one such module never reaches its backend. A backend cannot set it:
`torch.compile` reads no attributes of backends (`backend_ctx_ctor` works with `torch._dynamo.optimize` alone), and each
`torch.compiler.reset()` drops compile callbacks. So this module wraps the one function in which Dynamo captures a frame.
Frames of other backends pass through unchanged. For the hub's backends the settings hold while that frame is captured.
Nothing else is captured meanwhile: Dynamo holds its lock, and from PyTorch 2.13 on settings are thread-local.

A call that fails while it is captured runs in eager, which gives the answer or the program's own error. PyTorch would mark
the code as never to be captured again, after one wrong request, or log and raise an error about tensors without data.

In training recurrent modules stay in eager, as in PyTorch, unless the user sets `allow_rnn`: PyTorch's decomposition for
gradients unrolls them over time (two layers and 32 steps took three minutes to compile).
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol, Self, TypeVar, cast

import torch
from torch import fx, nn

from hub.errors import warn_user
from hub.torch_private import (
    ConvertFrameReturn,
    FakeTensorMode,
    FrameAction,
    FrameExecStrategy,
    Hooks,
    InternalTorchDynamoError,
    ObservedException,
    TorchRuntimeError,
    Unsupported,
    convert_frame,
    dynamo_config,
    graph_break_reasons,
)

Backend = TypeVar("Backend", bound=Callable[..., Any])

MAX_STOPS = 20
"""Maximum number of stops recorded for one compiled model. The first one matters most to a user."""

_CAPTURE = "hub_capture"
"""Attribute of the hub's backend functions that holds how frames are captured for them."""
_FRAMES = "hub_frames"
"""Attribute of the wrapper object of one call of `torch.compile` that holds its record."""
_warned: set[str] = set()
"""Kinds of recurrent modules that run in eager and that this process has warned about."""
_NOT_CAPTURED = ConvertFrameReturn(apply_to_code=False)
"""Result returned to PyTorch for a frame that runs in eager this time."""
_IN_EAGER = ConvertFrameReturn(FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP), apply_to_code=False)
"""Result returned to PyTorch for a frame that runs in eager this time, with all that it calls."""
_MAX_WAIT = 255
"""Number of calls after which capture is attempted again at the latest."""
_WRONG_CALLS = 2
"""Number of failures in a row that may be wrong calls. After that, what the frame calls is captured by itself."""


@dataclass(slots=True)
class _Left:
    """How often code was left to eager, by whichever model."""

    calls: int = 0
    """Number of calls that PyTorch counts as attempts to capture it."""
    is_recurrent: bool = False
    """True if it stays in eager in training because of a recurrent module."""


@dataclass(slots=True)
class _Failures:
    """Failures of one model to have some code captured."""

    in_a_row: int = 0
    to_wait: int = 0
    """Number of calls until the next attempt: it doubles with each failure, so that calls that always fail cost little."""

    def failed(self) -> ConvertFrameReturn:
        """Count a failure, and return the answer to PyTorch."""
        self.in_a_row += 1
        self.to_wait = min(2 ** (self.in_a_row - 1) - 1, _MAX_WAIT)
        return self.answer()

    def answer(self) -> ConvertFrameReturn:
        """Return the answer to PyTorch for a call that runs in eager."""
        return _IN_EAGER if self.in_a_row <= _WRONG_CALLS else _NOT_CAPTURED


class _Quiet(logging.Filter, threading.local):
    """A filter of errors that are logged while this thread captures a frame that may run in eager."""

    is_on = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for records to drop."""
        return not self.is_on or record.levelno < logging.ERROR


class _Capturing(threading.local):
    """The record of the frame that this thread is capturing."""

    frames: Frames | None = None


_capturing = _Capturing()
_quiet = _Quiet()
logging.getLogger(FakeTensorMode.__module__).addFilter(_quiet)
_left: weakref.WeakKeyDictionary[CodeType, _Left] = weakref.WeakKeyDictionary()
"""Code that was left to eager, which PyTorch would mark as never to be captured."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A place at which capture stopped."""

    reason: str
    """The reason in PyTorch's words."""
    place: str
    """ "file.py:12 in forward"; empty if PyTorch names none."""


@dataclass(slots=True)
class Frames:
    """A record of the frames that were captured for one compiled model."""

    tried: int = 0
    made: int = 0
    """Number of frames that were captured, or some part of them."""
    has_programs: bool = False
    """True once the hub has received a program."""
    stops: list[Stop] = field(default_factory=list[Stop])
    in_eager: str = ""
    """Kind of a recurrent module that stays in eager because gradients are recorded."""
    codes: list[weakref.ref[CodeType]] = field(default_factory=list[weakref.ref[CodeType]])
    """Code whose compiled form PyTorch may keep for this model."""
    failures: weakref.WeakKeyDictionary[CodeType, Any] = field(default_factory=weakref.WeakKeyDictionary[CodeType, Any])
    """Code that could not be captured for this model the last time."""

    def __reduce__(self) -> tuple[type[Frames], tuple[()]]:
        """Copy and pickle as an empty record: nothing has been captured yet for a copied or unpickled model."""
        return Frames, ()

    def begin(self, code: CodeType, in_eager: str) -> None:
        """Count a frame, and warn if a recurrent module stays in eager."""
        self.tried += 1
        self.codes.append(weakref.ref(code))
        if in_eager:
            self.in_eager = in_eager
            _warn_of(in_eager)

    def stop(self, stop: Stop) -> None:
        """Record a stop, each one once."""
        if stop not in self.stops and len(self.stops) < MAX_STOPS:
            self.stops.append(stop)


def is_part_of_a_call(module: fx.GraphModule) -> bool:
    """Return whether one call of the model runs more than the program that this thread has just captured.

    It does if capture stopped within a frame, or began in another one than the model's own.
    """
    reason = getattr(module, "compile_subgraph_reason", None)
    codes = [] if _capturing.frames is None else _capturing.frames.codes
    return bool(getattr(reason, "graph_break", False)) or any(code() is not codes[-1]() for code in codes[:1])


class Around(Protocol):
    """What is done around the capture of one frame; a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def hooks(self, given: Hooks) -> Hooks:
        """Return the hooks for Dynamo, given those of the call of `torch.compile`."""
        ...

    def install(self, captured: ConvertFrameReturn) -> None:
        """Change what Dynamo will keep of the captured frame."""
        ...


@dataclass(frozen=True, slots=True)
class _Capture:
    settings: Mapping[str, Any]
    frames: Frames | None
    around: Callable[[CodeType], Around] | None


def captured_for_hub(
    backend: Backend,
    *,
    frames: Frames | None = None,
    around: Callable[[CodeType], Around] | None = None,
    **settings: Any,
) -> Backend:
    """Mark a backend as one of the hub's, for which frames are captured as this module describes. Return it.

    `frames` is the record for a backend of one model; if it is None, `frames_of` provides it. `around` is called for each
    frame. `settings` are Dynamo's.
    """
    setattr(backend, _CAPTURE, _Capture(settings, frames, around))
    return backend


def frames_of(wrapper: object) -> Frames:
    """Return the record of one call of `torch.compile`, given its wrapper object."""
    return vars(wrapper).setdefault(_FRAMES, Frames())


def _innermost(backend: object) -> object:
    """Return the wrapper object of a call of `torch.compile`, without the layers that Dynamo adds around it."""
    while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = inner
    return backend


def _capture_of(wrapper: object) -> _Capture | None:
    """Return how frames are captured for one of the hub's backends; None for other backends."""
    backend = getattr(wrapper, "compiler_fn", wrapper)
    while isinstance(backend, functools.partial):
        backend = cast("functools.partial[Any]", backend).func
    return getattr(backend, _CAPTURE, None)


def _wrapped(capture: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Dynamo's function that captures one frame, so that it applies the settings for the hub's backends."""
    names = list(inspect.signature(capture).parameters)
    code, variables, cells, backend, one_graph, hooks = map(
        names.index, ("code", "locals", "closure", "compiler_fn", "one_graph", "hooks")
    )

    @functools.wraps(capture)
    def capture_frame(*args: Any, **kwargs: Any) -> Any:
        wrapper = _innermost(args[backend])
        own = _capture_of(wrapper)
        if own is None:
            return capture(*args, **kwargs)
        frames = frames_of(wrapper) if own.frames is None else own.frames
        allowed = dynamo_config.allow_rnn or not torch.is_grad_enabled()
        in_eager = "" if allowed or args[one_graph] else _trained(args[variables], args[cells])
        left = _left.setdefault(args[code], _Left())
        failures: _Failures = frames.failures.get(args[code]) or _Failures()
        may_fail = not args[one_graph] and not _is_strict(wrapper)
        if may_fail and failures.to_wait > 0:
            left.calls += 1
            failures.to_wait -= 1
            return failures.answer()
        if in_eager and left.is_recurrent:
            left.calls += 1
            return _NOT_CAPTURED
        frames.begin(args[code], in_eager)
        limit = dynamo_config.accumulated_recompile_limit + left.calls
        known = len(graph_break_reasons)
        settings = {"allow_rnn": allowed, "accumulated_recompile_limit": limit, **own.settings}
        with cast("Any", dynamo_config).patch(**settings):
            was_quiet, _quiet.is_on = _quiet.is_on, may_fail
            outer, _capturing.frames = _capturing.frames, frames
            try:
                captured = _captured(capture, own, hooks, code, args, kwargs)
            except Unsupported as error:
                frames.stop(_stop(error.msg, error.real_stack))
                left.calls += 1
                if isinstance(error.__cause__, ObservedException) and not args[one_graph]:
                    frames.failures[args[code]] = failures
                    return failures.failed()
                if not in_eager:
                    raise
                left.is_recurrent = True
                return _NOT_CAPTURED
            except (TorchRuntimeError, InternalTorchDynamoError, IndexError, AssertionError) as error:
                if not may_fail or _is_the_hubs(error):
                    raise
                frames.stop(_stop(str(error), getattr(error, "real_stack", ())))
                left.calls += 1
                frames.failures[args[code]] = failures
                return failures.failed()
            else:
                frames.failures.pop(args[code], None)
                frames.made += 1
                return captured
            finally:
                _quiet.is_on, _capturing.frames = was_quiet, outer
                for reason in graph_break_reasons[known:]:
                    frames.stop(_stop(reason.reason, reason.user_stack))

    return capture_frame


def _captured(
    capture: Callable[..., Any], own: _Capture, hooks: int, code: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Capture one frame, and let `own.around` take part. `hooks` and `code` are positions in `args`."""
    if own.around is None:
        return capture(*args, **kwargs)
    with own.around(args[code]) as around:
        captured = capture(*args[:hooks], around.hooks(args[hooks]), *args[hooks + 1 :], **kwargs)
        around.install(captured)
        return captured


def _is_strict(wrapper: object) -> bool:
    """Return whether the options of a call of `torch.compile` or `hub.compile` are strict: failures are errors then."""
    given: Any = getattr(wrapper, "kwargs", None) or {}
    options: Any = given.get("options") or {}
    return bool(options.get("strict"))


def _is_the_hubs(error: BaseException) -> bool:
    """Return whether an error comes from the hub's own code, which PyTorch calls while it captures a frame."""
    places = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(place.partition(".")[0] == "hub" for place in places if place != __name__)


def _stop(reason: str, stack: Iterable[Any]) -> Stop:
    """Return a stop with those lines of the reason that are for users: the construct, and an explanation."""
    lines = [line.strip().removeprefix("Explanation: ") for line in reason.strip().splitlines()[:2]]
    frames = list(stack)
    place = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return Stop(": ".join(filter(None, lines)), place)


def _trained(variables: Mapping[str, Any], cells: Iterable[Any] | None) -> str:
    """Return the kind of the first recurrent module with trained weights that a frame can reach; "" if there is none."""
    modules = (value for value in (*variables.values(), *_contents(cells or ())) if isinstance(value, nn.Module))
    layers = (part for module in modules for part in module.modules() if isinstance(part, nn.RNNBase))
    return next((type(part).__name__ for part in layers if any(weight.requires_grad for weight in part.parameters())), "")


def _contents(cells: Iterable[Any]) -> Iterator[Any]:
    """Yield the contents of the cells of a closure, except empty ones."""
    for cell in cells:
        with suppress(ValueError):
            yield cell.cell_contents


def _warn_of(kind: str) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warn_user(f"nn.{kind} runs in eager: {IN_TRAINING}\n  hint: {HOW_TO_CAPTURE}")


IN_TRAINING = "where gradients are recorded, PyTorch would unroll recurrent modules over time"
HOW_TO_CAPTURE = (
    "for inference call the model under torch.no_grad(); "
    "torch._dynamo.config.allow_rnn = True has them captured in training too"
)

convert_frame._compile = _wrapped(convert_frame._compile)  # pyright: ignore[reportPrivateUsage] - see above
