"""Commands provided by plugins: `hub NAME ...`, from the entry-point group `hub.commands`."""

from __future__ import annotations

import importlib.metadata as metadata
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hub.cli.ending import ended, ending
from hub.errors import PluginLoadError, text_of, type_of

GROUP = "hub.commands"


class WithPlugins(TyperGroup):
    """The hub's commands, followed by those of plugins. A plugin's module is imported only when its command runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the command names for `hub --help`."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in _points() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a placeholder that names the plugin it comes from."""
        own = super().get_command(ctx, cmd_name)
        point = _points().get(cmd_name)
        if own is not None or point is None:
            return own
        return TyperCommand(cmd_name, help=f"Plugin command, from {point.dist.name if point.dist else point.value}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run. Exit with an error message if a plugin's command cannot be loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or super().get_command(ctx, name) is not None:
            return name, command, rest
        return name, _loaded(name), rest


def _points() -> Mapping[str, metadata.EntryPoint]:
    return {point.name: point for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)}


def _loaded(name: str) -> Any:
    try:
        found = _points()[name].load()
        if not isinstance(found, typer.Typer):
            raise TypeError(f"it is {type_of(found)}")
        command = typer.main.get_command(found)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        text = f"the command {name!r} cannot be loaded: {text_of(error)}"
        failure = PluginLoadError(
            text, backend=name, hint=f"its entry point in {GROUP!r} must be a typer.Typer that can be imported"
        )
        raise ended(failure) from None
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        with ending(is_verbose=False):
            return run(ctx)

    command.invoke = invoke  # errors end plugins' commands in the same way as the hub's own
    return command
