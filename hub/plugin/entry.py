"""A registered backend, as known before it is loaded."""

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
    """One registered backend, or the reason why a plugin registered none."""

    info: BackendInfo
    package: str
    """Distribution that registered it."""
    package_version: str
    status: Support
    """Accepted if every requirement is met; else the exact reason."""
    note: str = ""
    """Changes that importing its plugin made to this process."""
    settings: BackendSettings | None = None
    """The backend's own settings; None if it has none."""
    is_undeclared: bool = False
    """True if what its plugin declares could not be read or used: then the settings that it has are unknown."""

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.info.name


def installed_version(distribution: str) -> str | None:
    """Return a distribution's version from its metadata, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
