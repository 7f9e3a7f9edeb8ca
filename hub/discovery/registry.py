"""Finds backends through entry points, checks their health, and loads each on first use.

Nothing here imports torch or a library under a backend, except `Registry.backend`, which loads one.
"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import re
import threading
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from hub.config.settings import Setting, from_environment, is_variable, of_backend, working_folder
from hub.discovery.claims import MAX_NAME, problems_of, problems_of_settings
from hub.discovery.plugin_fault import is_plugins
from hub.discovery.plugins import Plugin
from hub.discovery.trial import Trials, module_of, registered, try_imports
from hub.errors import ContractError, HubError, OptionError, PluginLoadError, text_of, type_of
from hub.plugin.backend import API_VERSION, Backend, BackendInfo, overrides
from hub.plugin.entry import Entry, installed_version
from hub.plugin.hooks import PROJECT
from hub.plugin.table import ACCEPTED, Support, refused
from hub.process.environment import environment_now
from hub.process.forks import freed_in_forks, note_runtimes
from hub.process.state import HERE, kept_state, refusal_due_to_threads, told_changes

if TYPE_CHECKING:
    from hub.config.options import Options

_MOVED = frozenset(
    f"hub.{name}"
    for name in (
        "backend", "backend_settings", "canonical", "conditions", "cost", "dynamo", "fusion", "graph", "hookspecs",
        "lowering", "options", "registry", "settings", "support",
    )
)  # fmt: skip
"""Modules that plugins could import in version 1 of the contract, and that are elsewhere now."""
_UNKNOWN_FACT = re.compile(r"BackendInfo\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_DROPPED = frozenset({"error_class", "explains", "saveable", "tunes"})
"""Facts of `BackendInfo` in version 1 that have another name now, or that follow from the backend's class."""
MIGRATION = "docs/reference/plugin-api.md"
"""Page that tells plugin authors what moved between versions of the contract."""


class Registry:
    """Every backend that plugins registered, by name, in entry-point order."""

    def __init__(self, entries: Iterable[Entry], plugins: tuple[Plugin, ...] = (), notes: tuple[str, ...] = ()) -> None:
        self.plugins = plugins
        """Plugins whose hooks are called, in entry-point order."""
        self.notes = notes
        """Problems with the cache that appeared when plugins were imported."""
        self.entries: Mapping[str, Entry] = {entry.name: entry for entry in entries}
        self._loaded: dict[str, Backend | HubError] = {}
        """Backends by name, followed by the backend's own settings if it has some."""
        self._lock = freed_in_forks(threading.Lock())

    def configured(self, options: Options) -> Registry:
        """Return the registry with the backends' own settings and the cache folder of these options.

        Backends are still created only once.

        Raises OptionError for settings that a backend does not have, and for values that it does not allow.
        """
        wanted = {name: given for name in options.own if name in self.entries and (given := options.own_of(name))}
        entries = [_configured(entry, wanted[name]) if name in wanted else entry for name, entry in self.entries.items()]
        found = Registry((_kept_in(entry, options.cache.root) for entry in entries), self.plugins, self.notes)
        found._loaded, found._lock = self._loaded, self._lock
        return found

    def available(self) -> tuple[str, ...]:
        """Names of the backends whose requirements are met."""
        return tuple(name for name, entry in self.entries.items() if entry.status.accepted)

    def backend(self, name: str) -> Backend:
        """Return the backend, created on first use. If that fails, raise an equal PluginLoadError every time."""
        settings = self.entries[name].settings if name in self.entries else None
        key = name if settings is None else f"{name} {settings.model_dump_json()} {settings.cache_folder}"
        note_runtimes()
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = _create(self._entry(name))
            found = self._loaded[key]
        if isinstance(found, HubError):
            raise copy(found)  # a raised exception gets a traceback, which holds every frame of its caller
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
    """Return this process's registry, filled from the entry-point group `hub` on first use."""
    entries: dict[str, Entry] = {}
    plugins: list[Plugin] = []
    points = tuple(metadata.entry_points(group=PROJECT))
    trials = try_imports(points)
    for point in points:
        for entry in _entries_of(point, plugins, _why_not(point, trials)):
            if entry.name in entries:
                entry = _clash(entry, entries[entry.name])
            entries[entry.name] = entry
    return Registry(entries.values(), tuple(plugins), trials.notes)


def load_attribute(path: str) -> Any:
    """Import "package.module:attribute" and return the attribute."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def requirement_status(info: BackendInfo) -> Support:
    """Return whether all distributions that a backend requires are installed in a suitable version. Import none."""
    for text in info.requires:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        found = installed_version(requirement.name)
        if found is None:
            return refused(f"{requirement.name} is not installed")
        if not requirement.specifier.contains(found, prereleases=True):
            return refused(f"{requirement.name} {found} is installed, {requirement.specifier} is needed")
    return ACCEPTED


def _why_not(point: metadata.EntryPoint, trials: Trials) -> str:
    """Return why this process must not import an entry point; "" if it may."""
    if not module_of(point):
        return f"its entry point is {point.value!r}, which names no module"
    if fault := trials.faults.get(point.name, ""):
        return fault
    reason = refusal_due_to_threads(trials.changes.get(point.name, ()))
    return reason and f"{reason}; call `hub.list_backends()` before they are started"


def _entries_of(point: metadata.EntryPoint, plugins: list[Plugin], fault: str) -> Iterable[Entry]:
    """Return what an entry point registers. Add its plugin to `plugins` unless it fails, and is listed with the reason."""
    package = (point.dist and point.dist.name) or point.value  # a folder that pip left has neither name nor version
    version = (point.dist and point.dist.version) or "unknown"
    if fault:
        return (_broken(point.name, package, version, f"the plugin failed to load: {fault}"),)
    try:
        with kept_state() as changed:
            plugin = Plugin.of(point.name, point.load())
            entries = [_described(_checked(info), package, version) for info in registered(plugin)]
            entries = [_under_variables(entry) for entry in entries]
        plugins.append(plugin)
        note = told_changes(changed, HERE, "importing it")
        return tuple(replace(entry, note=note) for entry in entries)
    except BaseException as error:
        if not is_plugins(error):
            raise
        return (_broken(point.name, package, version, f"the plugin failed to load: {_fault_of(error)}"),)


def _described(info: BackendInfo, package: str, version: str) -> Entry:
    """Return an entry; one that is refused and keeps only the name if its description is wrong."""
    if problems := problems_of(info):
        return _broken(info.name, package, version, "; ".join(problems))
    return Entry(info, package, version, _status(info))


def _under_variables(entry: Entry) -> Entry:
    """Return an entry under the settings in the environment; with wrong settings, it is refused with the reason."""
    if not entry.info.settings:
        return entry
    try:
        return _configured(entry, of_backend(entry.name, from_environment(_own_variables(entry.name), working_folder())))
    except OptionError as error:
        return replace(entry, status=refused(str(error)))


def _own_variables(name: str) -> Mapping[str, str]:
    prefix = f"HUB_{name.upper()}_"
    return {variable: text for variable, text in environment_now().items() if variable.startswith(prefix)}


def _kept_in(entry: Entry, cache_folder: Path) -> Entry:
    return entry if entry.settings is None else replace(entry, settings=entry.settings.kept_in(cache_folder))


def _configured(entry: Entry, given: Mapping[str, Setting]) -> Entry:
    """Return an entry under its own settings. Raises OptionError."""
    if entry.is_undeclared:  # it is unavailable, and has a reason: that costs a backend, and no call
        return entry
    if not entry.info.settings:
        asked = [key for key, setting in given.items() if not is_variable(setting.origin)]  # it may read variables itself
        if asked:
            text = f"option '{entry.name}.{asked[0]}' (from {given[asked[0]].origin}): {entry.name} has no settings"
            raise OptionError(text, backend=entry.name)
        return entry
    try:
        return _under(entry, given)
    except OptionError:
        raise
    except BaseException as error:
        if not is_plugins(error):
            raise
        reason = f"its settings {entry.info.settings} cannot be used: {_fault_of(error)}"
        return _broken(entry.name, entry.package, entry.package_version, reason)


def _under(entry: Entry, given: Mapping[str, Setting]) -> Entry:
    """Return an entry under its own settings. Raise OptionError, ContractError, and what the plugin's class raises."""
    from hub.plugin.settings import checked_settings  # imports pydantic, which entries without settings do not need

    settings = checked_settings(entry.name, load_attribute(entry.info.settings), given)
    found = {
        "requires": settings.requires,
        "max_relative_error": settings.max_relative_error,
        "saturates": settings.saturates,
    }
    info = replace(entry.info, **{key: value for key, value in found.items() if value is not None})
    if problems := [*problems_of(info), *problems_of_settings(settings)]:
        raise ContractError("; ".join(problems))
    settings.model_dump_json()  # they are part of every key: raises here if a value cannot be
    status = _status(info)
    if status.accepted and settings.missing:
        status = refused(settings.missing)
    return replace(entry, info=info, status=status, settings=settings)


def _checked(info: Any) -> BackendInfo:
    if not isinstance(info, BackendInfo):
        raise ContractError(f"hub_backends() returned {type_of(info)}, not a BackendInfo")
    return info


def _status(info: BackendInfo) -> Support:
    if info.api[0] != API_VERSION[0]:
        mine, theirs = (".".join(map(str, version)) for version in (API_VERSION, info.api))
        return refused(f"built for plugin API {theirs}, this hub has {mine}")
    return requirement_status(info)


def _fault_of(error: BaseException) -> str:
    """Return what a plugin's code raised; for code written for an earlier contract, say so."""
    name = _gone(error)
    if not name:
        return text_of(error)
    major, minor = API_VERSION
    moved = f"{name} no longer exists; {MIGRATION} says what replaced it"
    return f"built for plugin API {major - 1}, this hub has {major}.{minor}: {moved}"


def _gone(error: BaseException) -> str:
    """Return what a plugin used of an earlier contract, by an exception of its code; "" if it is another exception."""
    if isinstance(error, ModuleNotFoundError):
        return error.name if error.name and error.name in _MOVED else ""
    fact = _UNKNOWN_FACT.search(text_of(error)) if isinstance(error, TypeError) else None
    return f"BackendInfo.{fact[1]}" if fact and fact[1] in _DROPPED else ""


def _broken(name: object, package: str, version: str, reason: str) -> Entry:
    """Return the entry of a backend whose description cannot be used, without anything that its plugin filled in."""
    shown = name[:MAX_NAME] if isinstance(name, str) and name and name.isprintable() else package
    info = BackendInfo(name=shown, factory="", summary="", install=f"pip install --upgrade {package}")
    return Entry(info, package, version, refused(reason), is_undeclared=True)


def _clash(late: Entry, early: Entry) -> Entry:
    reason = f"{late.package} and {early.package} both register {early.name!r}; uninstall one"
    info = replace(early.info, settings="")
    return Entry(info, early.package, early.package_version, refused(reason), is_undeclared=True)


def _create(entry: Entry) -> Backend | HubError:
    if not entry.status.accepted:
        return PluginLoadError(entry.status.reason, backend=entry.name, hint=entry.info.install or None)
    try:
        factory = load_attribute(entry.info.factory)
        backend = factory() if entry.settings is None else factory(entry.settings)
    except BaseException as error:
        if not is_plugins(error):
            raise
        return PluginLoadError(_fault_of(error), backend=entry.name, hint=entry.info.install or None)
    missing = [
        name for name in ("probe", "supports", "estimate", "compile", "load") if not callable(getattr(backend, name, None))
    ]
    if missing:
        return ContractError(f"the backend object lacks {', '.join(missing)}", backend=entry.name)
    if isinstance(backend, Backend) and backend.operators is None and not _answers_itself(backend):
        return _with_table(backend, entry)
    return backend


def _answers_itself(backend: Backend) -> bool:
    return overrides(backend, "supports") or overrides(backend, "partition")


def _with_table(backend: Backend, entry: Entry) -> Backend | HubError:
    """Return a backend without a `supports` of its own, with the operator table that its registration names."""
    if not entry.info.operators:
        return ContractError(
            "the backend has neither an operator table nor a method `supports` or `partition`", backend=entry.name
        )
    try:
        backend.operators = load_attribute(entry.info.operators)
    except BaseException as error:
        if not is_plugins(error):
            raise
        return PluginLoadError(_fault_of(error), backend=entry.name, hint=entry.info.install or None)
    return backend
