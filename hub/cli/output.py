"""Standard output of commands that print JSON: it holds the JSON alone, whatever models and plugins print."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Generator
from typing import Any

import typer

_kept: list[Any] = []
"""The stream that JSON is written to while standard output is kept for it."""


@contextlib.contextmanager
def output_for_json() -> Generator[None]:
    """Keep standard output for `echo_json`. Meanwhile what anything else prints goes to standard error."""
    with contextlib.ExitStack() as stack:
        stream, target = sys.stdout, sys.stderr
        with contextlib.suppress(OSError, ValueError, AttributeError):  # streams that are no files, as in tests
            if (number := stream.fileno()) != target.fileno():
                stream.flush()
                copied = os.dup(number)
                os.dup2(target.fileno(), number)  # for printing in C, and by child processes
                stack.callback(os.close, copied)
                stack.callback(os.dup2, copied, number)
                stack.callback(_flush, stream)
                stream = stack.enter_context(os.fdopen(os.dup(copied), "w", encoding=stream.encoding))
        _kept.append(stream)
        stack.callback(_kept.pop)
        stack.enter_context(contextlib.redirect_stdout(target))
        yield


def _flush(stream: Any) -> None:
    """Write what was printed meanwhile, in Python or in C, before standard output is what it was."""
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    ctypes.CDLL(None).fflush(None)


def echo_json(text: str) -> None:
    """Print JSON on standard output."""
    typer.echo(text, file=_kept[-1] if _kept else None)
