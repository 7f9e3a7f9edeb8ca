"""Distinguishes a plugin's own exceptions from those that come from outside: Ctrl-C, and exceptions of signal handlers."""

from __future__ import annotations

import dis
import signal
from collections.abc import Iterator
from types import CodeType, TracebackType

_RAISE = dis.opmap["RAISE_VARARGS"]


def is_plugins(error: BaseException) -> bool:
    """Return whether an exception that came out of a plugin is the plugin's fault, so that eager can take over.

    SystemExit and every other exception is, unless a signal handler raised it while the plugin ran. KeyboardInterrupt is
    only if code says `raise`: Python itself raises it for Ctrl-C at an arbitrary instruction. One that a plugin raises
    while it handles a real one counts as real.
    """
    trace = tuple(_frames(error.__traceback__))
    if _codes_of_handlers() & {item.tb_frame.f_code for item in trace}:
        return False
    if not isinstance(error, KeyboardInterrupt):
        return True
    return bool(trace) and _is_raised_by_code(trace[-1]) and all(map(is_plugins, _interrupts_before(error)))


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_raised_by_code(innermost: TracebackType) -> bool:
    code = innermost.tb_frame.f_code.co_code
    return 0 <= innermost.tb_lasti < len(code) and code[innermost.tb_lasti] == _RAISE


def _interrupts_before(error: BaseException) -> Iterator[KeyboardInterrupt]:
    """Yield the interrupts that an exception replaced."""
    for earlier in (error.__cause__, error.__context__):
        if isinstance(earlier, KeyboardInterrupt):
            yield earlier


def _codes_of_handlers() -> set[CodeType]:
    """Return the code of every signal handler of this process that is written in Python."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    functions = (getattr(handler, "__func__", handler) for handler in handlers)
    codes = (getattr(function, "__code__", None) for function in functions)
    return {code for code in codes if isinstance(code, CodeType)}
