"""Finds backends through entry points, checks their health, and loads each when it is first wanted.

Nothing here imports torch or a library under a backend, except `Registry.backend`, which loads one.
"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pluggy
from packaging.requirements import Requirement

from hub import hookspecs
from hub.backend import API_VERSION, Backend, BackendInfo
from hub.compilation.state import kept_state
from hub.errors import ContractError, HubError, PluginLoadError, text_of
from hub.plugin_fault import is_plugins
from hub.support import ACCEPTED, Support, refused
from hub.trial import import_faults, registered


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

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.info.name


class Registry:
    """Every backend that plugins brought, by name, in entry-point order."""

    def __init__(self, manager: pluggy.PluginManager, entries: Iterable[Entry]) -> None:
        self.manager = manager
        self.entries: Mapping[str, Entry] = {entry.name: entry for entry in entries}
        self._loaded: dict[str, Backend | HubError] = {}
        self._lock = threading.Lock()

    def available(self) -> tuple[str, ...]:
        """Names of the backends whose requirements are met."""
        return tuple(name for name, entry in self.entries.items() if entry.status.accepted)

    def backend(self, name: str) -> Backend:
        """Gives the backend, created on first use. Raises PluginLoadError, the same one every time, if that fails."""
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = _create(self._entry(name))
            found = self._loaded[name]
        if isinstance(found, HubError):
            raise found.with_traceback(None)
        return found

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise PluginLoadError(
                f"no backend named {name!r}",
                backend=name,
                hint=f"choose from {', '.join(self.entries) or 'none installed'}",
            )
        return self.entries[name]


@cache
def registry() -> Registry:
    """Gives this process's registry, filled from the entry-point group `hub` on first use."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    entries: dict[str, Entry] = {}
    points = tuple(metadata.entry_points(group=hookspecs.PROJECT))
    faults = import_faults(points)
    for point in points:
        for entry in _entries_of(point, manager, faults.get(point.name, "")):
            if entry.name in entries:
                entry = _clash(entry, entries[entry.name])
            entries[entry.name] = entry
    return Registry(manager, entries.values())


def load_attribute(path: str) -> Any:
    """Imports "package.module:attribute" and gives the attribute."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def requirement_status(info: BackendInfo) -> Support:
    """Says whether every distribution that a backend requires is installed in a fitting version, without importing any."""
    for text in info.requires:
        requirement = Requirement(text)
        found = installed_version(requirement.name)
        if found is None:
            return refused(f"{requirement.name} is not installed")
        if not requirement.specifier.contains(found, prereleases=True):
            return refused(f"{requirement.name} {found} is installed, {requirement.specifier} is needed")
    return ACCEPTED


def installed_version(distribution: str) -> str | None:
    """Gives a distribution's version from its metadata, or None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _entries_of(point: metadata.EntryPoint, manager: pluggy.PluginManager, fault: str) -> Iterable[Entry]:
    package = point.dist.name if point.dist else point.value
    version = point.dist.version if point.dist else "unknown"
    if fault:
        return (_broken(point.name, package, version, fault),)
    try:
        with kept_state() as changed:
            module = point.load()
            manager.register(module, name=point.name)
            manager.check_pending()
            infos = registered(module) if hasattr(module, "hub_backends") else ()
        note = f"importing it changed {', '.join(changed)} of this process, which was restored" if changed else ""
        return tuple(Entry(_checked(info), package, version, _status(info), note) for info in infos)
    except BaseException as error:
        if not is_plugins(error):
            raise
        return (_broken(point.name, package, version, text_of(error)),)


def _checked(info: Any) -> BackendInfo:
    if not isinstance(info, BackendInfo):
        raise ContractError(f"hub_backends() gave a {type(info).__name__}, no BackendInfo")
    return info


def _status(info: BackendInfo) -> Support:
    if info.api[0] != API_VERSION[0]:
        mine, theirs = (".".join(map(str, version)) for version in (API_VERSION, info.api))
        return refused(f"built for plugin API {theirs}, this hub has {mine}")
    return requirement_status(info)


def _broken(name: str, package: str, version: str, reason: str) -> Entry:
    info = BackendInfo(name=name, factory="", summary="", install=f"pip install --upgrade {package}")
    return Entry(info, package, version, refused(f"the plugin failed to load: {reason}"))


def _clash(late: Entry, early: Entry) -> Entry:
    reason = f"{late.package} and {early.package} both register {early.name!r}; uninstall one"
    return Entry(early.info, early.package, early.package_version, refused(reason))


def _create(entry: Entry) -> Backend | HubError:
    if not entry.status.accepted:
        return PluginLoadError(entry.status.reason, backend=entry.name, hint=entry.info.install or None)
    try:
        backend = load_attribute(entry.info.factory)()
    except BaseException as error:
        if not is_plugins(error):
            raise
        return PluginLoadError(text_of(error), backend=entry.name, hint=entry.info.install or None)
    missing = [
        name for name in ("probe", "supports", "estimate", "compile", "load") if not callable(getattr(backend, name, None))
    ]
    if missing:
        return ContractError(f"the backend object lacks {', '.join(missing)}", backend=entry.name)
    return backend
