"""Process-wide state: compared and restored around plugin code if that is safe.

It is safe in the hub's own worker processes, and in a user's process that has one thread. Other Python threads may draw a
random number, set a variable or add a filter at any moment. Their changes cannot be distinguished from a plugin's, and
restoring would undo them. Then only the state of the calling thread itself is compared and restored, and what a plugin
changes process-wide is known from the worker that ran it first (`refusal_due_to_threads`).

Nothing here imports torch or NumPy: plugins are also imported in processes without them, and cannot change them there.
"""

from __future__ import annotations

import concurrent.futures.thread as futures_threads
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub import torch_private
from hub.process.accelerators import random_state, set_random_state
from hub.process.environment import environment_now

_SIGNALS = tuple(map(signal.Signals, sorted(signal.valid_signals() & set(signal.Signals))))
_MAX_NAMES = 5
"""Most environment variables to name in a message."""


@dataclass(frozen=True, slots=True)
class _Thing:
    """One piece of state, with functions to read it and to write it back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    module: str = ""
    """Module that it belongs to; unless that is imported, there is nothing to read."""
    details: Callable[[Any, Any], str] = lambda _before, _after: ""
    """Function that describes a difference in a few words, if that is possible."""
    is_told: bool = True
    """False for state that good libraries change as well, which is harmless once it is restored."""
    is_own: bool = False
    """True for state of the calling thread, or that no other thread can write: safe to restore while other threads run."""

    def told(self, before: Any, after: Any) -> str:
        """Return the name, with what exactly differs."""
        details = self.details(before, after)
        return f"{self.name} ({details})" if details else self.name


def _folder() -> Path | None:
    """Return the working directory; None if it was removed."""
    with suppress(FileNotFoundError):
        return Path.cwd()
    return None


def _set_folder(wanted: Path | None) -> None:
    if wanted is not None:
        os.chdir(wanted)


def _set_environment(wanted: dict[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    time.tzset()  # the C library keeps what it read from TZ


def _changed_variables(before: dict[str, str], after: dict[str, str]) -> str:
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return ", ".join(names[:_MAX_NAMES]) + (" ..." if len(names) > _MAX_NAMES else "")


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_handlers(wanted: dict[signal.Signals, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; a plugin outside it could not have changed them either
    for number, handler in wanted.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux's `sigaltstack`."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_NO_STACK = (None, 2, 0)
"""Flag `SS_DISABLE`: handlers run on the thread's own stack."""


def _signal_stack() -> tuple[int | None, int, int]:
    """Return this thread's stack for signal handlers. OpenVINO sets one when it compiles, and any thread may free it.

    Python's handlers run on it: if the stack has been freed, the next Ctrl-C is a segmentation fault.
    """
    found = _SignalStack()
    if sys.platform != "linux" or ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) != 0:
        return _NO_STACK
    return found.address, found.flags, found.size


def _set_signal_stack(wanted: tuple[int | None, int, int]) -> None:
    """Set the stack, or none if it has become too small, because the process now uses wider registers."""
    for stack in (wanted, _NO_STACK):
        if ctypes.CDLL(None).sigaltstack(ctypes.byref(_SignalStack(*stack)), None) == 0:
            return


@dataclass(frozen=True, slots=True, eq=False)
class _Filters:
    """The warning filters, equal to others if the filters for all warnings are the same and none is missing.

    Libraries add filters for their own warnings on import, which affect nothing else.
    """

    entries: Sequence[Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Filters):
            return NotImplemented
        now, then = self.entries, other.entries
        return all(entry in now for entry in then) and list(filter(_is_general, now)) == list(filter(_is_general, then))


def _is_general(entry: tuple[Any, ...]) -> bool:
    _, message, category, module, line = entry
    return (message, category, module, line) == (None, Warning, None, 0)


def _set_filters(wanted: _Filters) -> None:
    with warnings.catch_warnings():  # resets Python's cache of filter look-ups
        pass
    warnings.filters[:] = wanted.entries  # pyright: ignore[reportIndexIssue] - a list, whatever its stub says


def _set_streams(wanted: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = wanted


def _hooks() -> tuple[Any, ...]:
    return sys.excepthook, sys.unraisablehook, threading.excepthook


def _set_hooks(wanted: tuple[Any, ...]) -> None:
    sys.excepthook, sys.unraisablehook, threading.excepthook = wanted


def _collection() -> tuple[bool, tuple[int, int, int]]:
    """Return whether Python collects garbage by itself, and how often."""
    return gc.isenabled(), gc.get_threshold()


def _set_collection(wanted: tuple[bool, tuple[int, int, int]]) -> None:
    is_on, threshold = wanted
    gc.set_threshold(*threshold)
    (gc.enable if is_on else gc.disable)()


def _cores() -> frozenset[int]:
    """Return the cores on which this thread may run: the thread pools of compilers bind their callers."""
    return frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else frozenset()


def _logging() -> tuple[int, int, tuple[Any, ...]]:
    """Return level, switched-off levels and handlers of all logging; a second `logging.basicConfig` does nothing."""
    root = sys.modules["logging"].root
    return root.level, root.manager.disable, tuple(root.handlers)


def _set_logging(wanted: tuple[int, int, tuple[Any, ...]]) -> None:
    logging: Any = sys.modules["logging"]
    level, switched_off, handlers = wanted
    logging.root.setLevel(level)
    logging.disable(switched_off)
    logging.root.handlers[:] = handlers


_SMALLEST = sys.float_info.min
"""The smallest normal number: half of it is denormal."""


def _is_flushing() -> bool:
    """Return whether this thread's processor takes denormal numbers as zero, which changes eager's results."""
    return _SMALLEST * 0.5 == 0.0


def _torch() -> Any:
    return sys.modules["torch"]


def _default_device() -> tuple[Any, ...]:
    """Return the three places in which PyTorch has the default device; the first also holds other function modes."""
    modes = [torch_private.pop_function_mode() for _ in range(torch_private.len_torch_function_stack())]
    for mode in reversed(modes):
        torch_private.push_function_mode(mode)
    context = getattr(torch_private.global_device_context, "device_context", None)
    return tuple(reversed(modes)), torch_private.device_context.CURRENT_DEVICE, context


def _set_default_device(wanted: tuple[Any, ...]) -> None:
    for _ in range(torch_private.len_torch_function_stack()):
        torch_private.pop_function_mode()
    modes, torch_private.device_context.CURRENT_DEVICE, torch_private.global_device_context.device_context = wanted
    for mode in modes:
        torch_private.push_function_mode(mode)


def _numpy_state() -> Any:
    name, keys, *rest = sys.modules["numpy"].random.get_state()
    return (name, keys.tobytes(), *rest)


def _set_numpy_state(wanted: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    name, keys, *rest = wanted
    numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def _modes() -> list[Any]:
    return torch_private.get_current_dispatch_mode_stack()


def _set_modes(wanted: list[Any]) -> None:
    while _modes():
        torch_private.pop_mode()
    for mode in wanted:
        torch_private.push_mode(mode)


def _numeric() -> Any:
    return sys.modules["hub.process.modes"].modes()


def _set_numeric(wanted: Any) -> None:
    sys.modules["hub.process.modes"].set_modes(wanted)


def _threads() -> tuple[int, bool]:
    """Return PyTorch's thread count, and whether MKL was told one."""
    return _torch().get_num_threads(), sys.modules["hub.process.threads"].is_told()


def _set_threads(wanted: tuple[int, bool]) -> None:
    threads: Any = sys.modules["hub.process.threads"]
    count, is_told = wanted
    if not is_told:
        threads.untell()
    threads.set_threads(count)


def _changed_settings(before: Any, after: Any) -> str:
    return ", ".join(name for name, value in before.numeric_parts.items() if after.numeric_parts[name] != value)


def _of_torch(name: str, read: str, write: str, *, is_own: bool = False) -> _Thing:
    """Return a setting of PyTorch, by the names of the functions that get and set it."""
    return _Thing(
        name, lambda: getattr(_torch(), read)(), lambda value: getattr(_torch(), write)(value), "torch", is_own=is_own
    )


_THINGS = (
    # First: some of the reads below make tensors, which an enabled mode would intercept.
    _Thing("PyTorch's modes", _modes, _set_modes, torch_private.NAMES["pop_mode"].module, is_own=True),
    _Thing("the default device", _default_device, _set_default_device, torch_private.NAMES["device_context"].module),
    _Thing("the environment", environment_now, _set_environment, details=_changed_variables),
    _Thing("the working directory", _folder, _set_folder),
    _Thing("signal handlers", _handlers, _set_handlers, is_own=True),  # only the main thread may set them
    _Thing("the stack of signal handlers", _signal_stack, _set_signal_stack, is_told=False, is_own=True),
    _Thing("Python's random numbers", random.getstate, random.setstate),
    _Thing("filters of warnings", lambda: _Filters(list(warnings.filters)), _set_filters),
    _Thing("the standard streams", lambda: (sys.stdin, sys.stdout, sys.stderr), _set_streams),
    _Thing("Python's hooks for exceptions", _hooks, _set_hooks, is_told=False),  # of TVM too
    _Thing("the garbage collection", _collection, _set_collection),
    _Thing("the limit of recursion", sys.getrecursionlimit, sys.setrecursionlimit, is_told=False),
    _Thing("the thread's cores", _cores, lambda cores: os.sched_setaffinity(0, cores), is_own=True),
    _Thing(
        "the locale",
        lambda: sys.modules["locale"].setlocale(sys.modules["locale"].LC_ALL),
        lambda name: sys.modules["locale"].setlocale(sys.modules["locale"].LC_ALL, name),
        "locale",
    ),
    _Thing("the root logger", _logging, _set_logging, "logging", is_told=False),  # of JAX too
    _Thing(
        "NumPy's handling of errors",
        lambda: sys.modules["numpy"].geterr(),
        lambda kept: sys.modules["numpy"].seterr(**kept),
        "numpy",
        is_own=True,
    ),
    _Thing("NumPy's random numbers", _numpy_state, _set_numpy_state, "numpy.random"),
    _Thing(
        "PyTorch's random numbers",
        lambda: _torch().get_rng_state().numpy().tobytes(),
        lambda state: _torch().set_rng_state(_torch().frombuffer(bytearray(state), dtype=_torch().uint8)),
        "torch",
    ),
    _Thing("CUDA's random numbers", random_state, set_random_state, "torch"),
    _Thing(
        "whether denormal numbers are zero",
        _is_flushing,
        lambda is_on: _torch().set_flush_denormal(is_on),
        "torch",
        is_own=True,
    ),
    _of_torch("the default dtype", "get_default_dtype", "set_default_dtype"),
    # PyTorch reads OpenMP's number, which is per thread.
    _Thing("the number of threads", _threads, _set_threads, "hub.process.threads", is_own=True),
    _of_torch("whether gradients are on", "is_grad_enabled", "set_grad_enabled", is_own=True),
    _of_torch("whether algorithms are deterministic", "get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    # Last: it covers two of those above, which are restored by then.
    _Thing("PyTorch's numeric settings", _numeric, _set_numeric, "hub.process.modes", _changed_settings),
)


WORKER, HERE = "its worker process", "this process"
"""Process whose state a plugin changed, for messages."""


@dataclass(frozen=True, slots=True)
class Said:
    """A plugin's answer, and what it changed in the process."""

    answer: object
    changed: str = ""
    """Sentence for people; "" if it changed nothing."""


def told_changes(changed: Sequence[str], where: str, who: str = "it") -> str:
    """Return the sentence about what was changed and restored; "" if nothing was."""
    return f"{who} changed {', '.join(changed)} of {where}, which was restored" if changed else ""


OWN_THREADS = "hub-"
"""Prefix of the names of the hub's own threads, which do not change process-wide state."""
_IDLE = ("tqdm_monitor",)
"""Names of other threads that do not change process-wide state: that of progress bars, which many programs have."""

_POOLS_LOOP = futures_threads._worker.__code__  # pyright: ignore[reportPrivateUsage]
"""Code that threads of a `ThreadPoolExecutor` run; if it is a thread's innermost frame, the thread waits for work."""
_is_workers = False


def claim_process() -> None:
    """Declare this process the hub's own, a worker: its threads are the plugins', whose changes must be detected."""
    global _is_workers
    _is_workers = True


def is_alone() -> bool:
    """Return whether process-wide state can be compared here: in a worker, or if no other Python thread runs."""
    own = threading.current_thread()
    return _is_workers or all(thread is own or _is_idle(thread) for thread in threading.enumerate())


def _is_idle(thread: threading.Thread) -> bool:
    """Return whether a thread runs nothing while this one does: a pool's thread waits until it gets work."""
    if thread.name.startswith(OWN_THREADS) or thread.name in _IDLE:
        return True
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage] - there is no other way
    return frame is not None and frame.f_code is _POOLS_LOOP


def refusal_due_to_threads(changed: Sequence[str]) -> str:
    """Return why code that makes these changes (found in a worker) must not run in this process now; "" if it may."""
    if not changed or is_alone():
        return ""
    return f"it changes {', '.join(changed)}, which other threads of this process would notice"


@contextmanager
def kept_state() -> Generator[list[str]]:
    """Restore state at the end: the process's if that is safe, else the calling thread's.

    The list that it yields then names what had changed.
    """
    changed: list[str] = []
    things = _THINGS if is_alone() else tuple(thing for thing in _THINGS if thing.is_own)
    before = [(thing, thing.read()) for thing in things if not thing.module or thing.module in sys.modules]
    try:
        yield changed
    finally:
        for thing, value in before:
            if (now := thing.read()) != value:
                changed += [thing.told(value, now)] if thing.is_told else []
                thing.write(value)
