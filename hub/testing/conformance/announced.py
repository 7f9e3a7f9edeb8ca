"""What listing a plugin imports in a fresh interpreter: `python -m hub.testing.conformance.announced MODULE FILE`.

Writes the top-level modules that were imported for the plugin, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from hub.discovery.plugins import Plugin
from hub.discovery.registry import load_attribute
from hub.discovery.trial import registered


def imported_for(module_name: str) -> list[str]:
    """List a plugin's backends and count their operators; return the top-level modules imported meanwhile."""
    before = _loaded()
    module = importlib.import_module(module_name)
    for info in registered(Plugin.of(module_name, module)):
        if info.operators:
            len(load_attribute(info.operators))
    return sorted(_loaded() - before)


def _loaded() -> set[str]:
    return {name.partition(".")[0] for name in list(sys.modules)}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(imported_for(sys.argv[1])))
