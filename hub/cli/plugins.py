"""Commands provided by plugins: `hub NAME ...`, from the entry-point group `hub.commands`."""

from __future__ import annotations

import importlib.metadata as metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hub.cli.ending import WRONG_USE, WrongUse, ended, ending, say
from hub.errors import PluginLoadError, text_of, type_of

GROUP = "hub.commands"
_OWN = "compiler-hub"
"""Name of the distribution whose commands are the hub's own."""


class WithPlugins(TyperGroup):
    """The hub's commands, followed by those of plugins. A plugin's module is imported only when its command runs."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Run the command of this process and exit. Wrong use ends as other errors do."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **more)
        try:
            status = super().main(*args, standalone_mode=False, **more)
        except WrongUse as error:
            sys.exit(_wrong_use(error))
        except OSError as error:  # the help or the version, on a full disk
            sys.exit(ended(error).exit_code)
        except typer.Abort:
            typer.echo("aborted", err=True)
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the command names for `hub --help`. Warn of plugins whose commands have names of the hub's own."""
        own = super().list_commands(ctx)
        for name in sorted(set(own) & _points().keys()):
            say("warning", f"{_brings(_points()[name])} a command {name!r}, which the hub has itself", typer.colors.YELLOW)
        return [*own, *(name for name in _points() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a placeholder that names the plugin it comes from."""
        own = super().get_command(ctx, cmd_name)
        points = _points().get(cmd_name)
        if own is not None or points is None:
            return own
        names = [_origin(point) for point in points]
        own_plugin = f"Commands of the hub's own {points[0].module.partition('.')[0]}"
        return TyperCommand(cmd_name, help=f"{own_plugin if names == [_OWN] else f'Plugin command, from {names[0]}'}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run. Exit with an error message if a plugin's command cannot be loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or super().get_command(ctx, name) is not None:
            return name, command, rest
        return name, _loaded(name), rest


def _wrong_use(error: Any) -> int:
    """Print what was wrong with the arguments, and where to read on. Return the exit status."""
    context = error.ctx
    if context is not None and error.format_message() == context.get_help():  # no arguments at all
        error.show()
        return WRONG_USE
    path = "hub" if context is None else context.command_path
    say("error", error.format_message().rstrip("."), typer.colors.RED)
    typer.echo(f"hint: `{path} --help` lists the arguments and options", err=True)
    return WRONG_USE


def _points() -> Mapping[str, Sequence[metadata.EntryPoint]]:
    """Return the entry points of plugins' commands, keyed by name; several for one name are a mistake."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, _origin(point))):
        found.setdefault(point.name, []).append(point)
    return found


def _origin(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _brings(points: Sequence[metadata.EntryPoint]) -> str:
    """Return who brings a command: "a brings", "a and b bring"."""
    names = [_origin(point) for point in points]
    return f"{' and '.join(names)} {'brings' if len(names) == 1 else 'bring'}"


def _loaded(name: str) -> Any:
    points = _points()[name]
    if len(points) > 1:
        text = f"{_brings(points)} a command {name!r}"
        raise ended(PluginLoadError(text, hint="uninstall all of them but one"))
    try:
        found = points[0].load()
        if not isinstance(found, typer.Typer):
            raise TypeError(f"it is {type_of(found)}")
        command = typer.main.get_command(found)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
        text = f"the command {name!r} cannot be loaded: {text_of(error)}"
        hint = f"its entry point in {GROUP!r} must be a typer.Typer that can be imported"
        raise ended(PluginLoadError(text, hint=hint)) from None
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        with ending(is_verbose=False, has_verbose=False):
            return run(ctx)

    command.invoke = invoke  # errors end plugins' commands in the same way as the hub's own
    return command
