"""A plugin's hooks, and the calls of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pluggy

from hub.errors import ContractError
from hub.plugin import hooks


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin in a pluggy manager of its own.

    A call through a manager of all plugins ends at the first implementation that raises, and a plugin that does not fit
    makes the manager refuse those after it. One manager each keeps a plugin's failure to itself.
    """

    name: str
    """Name of its entry point."""
    manager: pluggy.PluginManager

    @classmethod
    def of(cls, name: str, plugin: object) -> Plugin:
        """Return a module or object as a plugin.

        Raises PluginValidationError for a hook that does not exist or has another signature, and ContractError for a
        function that is named as a hook and not marked as one.
        """
        manager = pluggy.PluginManager(hooks.PROJECT)
        manager.add_hookspecs(hooks)
        manager.register(plugin, name=name)
        manager.check_pending()
        for hook in vars(manager.hook):
            if hasattr(plugin, hook) and manager.parse_hookimpl_opts(plugin, hook) is None:
                raise ContractError(f"{hook} is not marked by hub.plugin.hookimpl")
        return cls(name, manager)

    def has(self, hook: str) -> bool:
        """Return whether it implements a hook."""
        return bool(getattr(self.manager.hook, hook).get_hookimpls())

    def call(self, hook: str, **facts: Any) -> list[Any]:
        """Call its implementations of a hook; return their results without None. Raises what they raise."""
        return getattr(self.manager.hook, hook)(**facts)
