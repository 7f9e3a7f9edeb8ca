"""What is known of one registered backend before it is loaded."""

from __future__ import annotations

import importlib.metadata as metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub.plugin.backend import BackendInfo
from hub.plugin.table import Support

if TYPE_CHECKING:
    from hub.plugin.settings import BackendSettings


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered backend, or the reason why a plugin brought none."""

    info: BackendInfo
    package: str
    """Distribution that brought it."""
    package_version: str
    status: Support
    """Accepted where every requirement is met; else the exact reason."""
    note: str = ""
    """What its plugin did to this process while it was imported."""
    settings: BackendSettings | None = None
    """Its own settings; None where it has none."""

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.info.name


def installed_version(distribution: str) -> str | None:
    """Return a distribution's version from its metadata, or None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
