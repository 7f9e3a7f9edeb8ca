"""How every command ends: one line about an error and one with a hint, on standard error, and the exit status.

Details are shown on request, with `--verbose`: the whole message and the traceback.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Generator
from typing import Any

import typer

from hub.errors import HubError, HubWarning, OptionError

FAILED = 1
"""Exit status if the command could not do what it was asked for."""
WRONG_USE = 2
"""Exit status if it was asked for in a wrong way: an unknown name, a wrong value, a file that is not there."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""
MAX_LINE = 500
"""Characters of a message that the terminal shows; more is a detail."""

WrongUse: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer's errors about the arguments of a command, for which it has no public name."""

_REPORT = "this is a mistake in the hub or in a library: please report it with the traceback that --verbose shows"
_REPORT_PLUGIN = "this is a mistake in the plugin that brings the command, or in a library: please report it there"
_PATH = "check that the path is right, that you may use it, and that the disk has room"


@contextlib.contextmanager
def ending(*, is_verbose: bool, has_verbose: bool = True) -> Generator[None]:
    """Run a command: errors and Ctrl-C become a message and `typer.Exit`, warnings of the hub become one line.

    Without the option --verbose (`has_verbose`) messages are whole, and no hint names it.
    A closed standard output (`| head`) is left to typer, which ends the process without a message.
    """
    with _plain_warnings(is_verbose=is_verbose):
        try:
            yield
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, WrongUse, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, a person reads it
            raise ended(error, is_verbose=is_verbose, has_verbose=has_verbose) from None


def ended(error: Exception, *, is_verbose: bool = False, has_verbose: bool = True) -> typer.Exit:
    """Print what happened, where, and what to do. Return the exception that ends the process with the right status."""
    if is_verbose:
        typer.echo("".join(traceback.format_exception(error)), err=True)
    message, place, hint = _facts(error)
    text = message if is_verbose or not has_verbose else _line(message)
    hint = _REPORT_PLUGIN if hint == _REPORT and not has_verbose else hint
    say("error", f"{text} {place}".rstrip(), typer.colors.RED)
    typer.echo(f"hint: {hint}", err=True)
    return typer.Exit(WRONG_USE if isinstance(error, OptionError) else FAILED)


def say(kind: str, text: str, colour: str) -> None:
    """Print a line whose first word is coloured, unless NO_COLOR is set (https://no-color.org)."""
    label = f"{kind}:" if os.environ.get("NO_COLOR") else typer.style(f"{kind}:", fg=colour, bold=True)
    typer.echo(f"{label} {text}", err=True)  # it strips colours if standard error is no terminal


def _line(text: str) -> str:
    """Return the first line of a text, shortened if it is very long; a remark says so."""
    first = text.partition("\n")[0][:MAX_LINE]
    return text if first == text else f"{first} ... (--verbose shows the rest)"


def _text_and_hint(warning: Warning | str) -> tuple[str, str]:
    """Return the text of a warning of the hub, and its hint; "" if it has none."""
    text, _, hint = str(warning).partition("\n  hint: ")
    return text, hint


def _facts(error: Exception) -> tuple[str, str, str]:
    """Return the message, the place and the hint."""
    if isinstance(error, HubError):
        return error.message, error.place, error.hint
    if isinstance(error, HubWarning):  # the user has turned warnings into errors
        text, hint = _text_and_hint(error)
        return text, "", hint or "warnings are errors in this process"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}", "", _PATH
    return f"{type(error).__name__}: {error}", "", _REPORT


@contextlib.contextmanager
def _plain_warnings(*, is_verbose: bool) -> Generator[None]:
    """Show warnings of the hub as a line and a hint, without the line of code that other warnings have."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, HubWarning):
            text, hint = _text_and_hint(message)
            shown = text if is_verbose else _line(text)
            say("warning", f"{shown}\nhint: {hint}" if hint else shown, typer.colors.YELLOW)
        else:
            usual(message, category, *place, **more)

    usual, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = usual
