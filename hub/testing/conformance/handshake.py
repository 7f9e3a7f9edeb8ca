"""Checks of everything before compilation: registration, listing, loading, signatures, probe."""

from __future__ import annotations

import importlib.metadata as metadata
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from packaging.requirements import InvalidRequirement, Requirement

from hub.discovery.claims import problems_of
from hub.discovery.plugins import Plugin
from hub.discovery.registry import registry
from hub.discovery.trial import registered
from hub.errors import HubError, type_of
from hub.plugin.backend import Backend, BackendInfo, Executable, overrides
from hub.plugin.entry import Entry
from hub.plugin.hooks import PROJECT
from hub.plugin.table import Support
from hub.process.children import run_child
from hub.testing.conformance.finding import Finding, failed, judged, not_applicable, passed, trouble
from hub.testing.conformance.target import Target, load_target

REGISTRATION, LISTING, FACTORY, SIGNATURES, PROBE = "registration", "listing", "factory", "signatures", "probe"
SUBJECTS = (REGISTRATION, LISTING, FACTORY, SIGNATURES, PROBE)

_LISTING_LIMIT_S = 180.0
_NEVER_WHILE_LISTING = "torch"


def examine(name: str, subject: str, limit_s: float) -> tuple[Finding, ...]:
    """Return the finding for one step. From `FACTORY` on, the backend is loaded."""
    entry = registry().entries[name]
    if subject == REGISTRATION:
        return (judged("handshake", subject, _registration_problems(entry)),)
    if subject == LISTING:
        return (judged("handshake", subject, _listing_problems(entry)),)
    try:
        target = load_target(name, limit_s)
    except HubError as error:
        reason = trouble(error)
        is_about_loading = subject == FACTORY
        return (
            failed("handshake", subject, reason)
            if is_about_loading
            else not_applicable("handshake", subject, "the backend does not load"),
        )
    if subject == SIGNATURES:
        return (judged("handshake", subject, _signature_problems(target)),)
    return (_probed(target) if subject == PROBE else passed("handshake", subject),)


# --- Registration -----------------------------------------------------------------------------------------------------


def _registration_problems(entry: Entry) -> list[str]:
    """Return what is wrong with a registration; an unmet requirement is a problem too, reported with its remedy."""
    info = cast("Any", entry.info)
    if not entry.status.accepted:
        return [f"{entry.status.reason}{f'; to fix it: {info.install}' if info.install else ''}"]
    if not isinstance(info, BackendInfo):
        return [f"hub_backends() returned {type_of(info)}, not a BackendInfo"]
    unknown = (dtype for dtype in info.dtypes if not isinstance(getattr(torch, str(dtype), None), torch.dtype))
    named = [f"dtypes names {dtype!r}, which torch does not know" for dtype in unknown]
    return [*problems_of(info), *named, *_requirement_problems(info)]


def _requirement_problems(info: BackendInfo) -> Iterator[str]:
    for text in info.requires:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            yield f"requirement {text!r}: {error}"


# --- Listing ----------------------------------------------------------------------------------------------------------


def _listing_problems(entry: Entry) -> list[str]:
    """List the plugin in a fresh interpreter and report forbidden imports: torch, and its own library."""
    module = _module_of(entry.name)
    if module is None:
        return ["its entry point was not found"]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "imported.json"
        command = [sys.executable, "-P", "-m", "hub.testing.conformance.announced", module, str(answer)]
        if problem := run_child(command, _LISTING_LIMIT_S):
            return [f"listing it in a fresh interpreter failed: {problem}"]
        imported = set(json.loads(answer.read_text()))
    heavy = sorted(imported & {_NEVER_WHILE_LISTING, *_libraries(entry.info)})
    return [f"listing it imports {', '.join(heavy)}: import that where the factory is"] if heavy else []


def _module_of(backend: str) -> str | None:
    """Return the module of the entry point that registers a backend."""
    for point in metadata.entry_points(group=PROJECT):
        try:
            if any(info.name == backend for info in registered(Plugin.of(point.name, point.load()))):
                return point.value
        except Exception:  # noqa: BLE001 - another plugin, which may raise anything
            continue
    return None


def _libraries(info: BackendInfo) -> set[str]:
    """Return the top-level modules of the distributions that a backend requires."""
    names = {Requirement(text).name.lower().replace("_", "-") for text in info.requires}
    return {
        module
        for module, distributions in metadata.packages_distributions().items()
        if names & {found.lower().replace("_", "-") for found in distributions}
    }


# --- Signatures -------------------------------------------------------------------------------------------------------

_METHODS = ("probe", "supports", "keeps_order", "estimate", "compile", "load")
_OPTIONAL = ("explain", "partition", "tune")
_EXECUTABLE_METHODS = ("save", "dump")


def _signature_problems(target: Target) -> Iterator[str]:
    """Yield each method that cannot be called as the contract requires, with both signatures."""
    optional = (name for name in _OPTIONAL if overrides(target.backend, name))
    for name in (*_METHODS, *optional):
        yield from _misfit(f"{name}", getattr(Backend, name), getattr(target.backend, name))
    if target.main is None:
        return
    cluster, inputs = target.main.draw()
    executable = target.compile(cluster)
    if not _takes(type(executable).__call__, 1 + len(inputs)):
        yield f"the executable's __call__{_text(type(executable).__call__)} does not take {len(inputs)} inputs"
    for name in _EXECUTABLE_METHODS:
        method = getattr(executable, name, None)
        if callable(method):
            yield from _misfit(f"the executable's {name}", getattr(Executable, name), method)
        else:
            yield f"the executable has no {name}(folder)"


def _misfit(name: str, wanted: Callable[..., Any], found: Callable[..., Any]) -> Iterator[str]:
    names = list(inspect.signature(wanted).parameters)[1:]
    by_position = _takes(found, len(names))
    if not by_position:
        yield f"{name}{_text(found)} does not fit {name}{_text(wanted)}"


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # C++ functions have no signature
        return True
    return True


def _text(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    names = [str(item.replace(annotation=item.empty)) for item in signature.parameters.values() if item.name != "self"]
    return f"({', '.join(names)})"


# --- Probe ------------------------------------------------------------------------------------------------------------


def _probed(target: Target) -> Finding:
    """Run the probe; this process is already a child that may crash."""
    try:
        answer = cast("Any", target.backend.probe())
    except Exception as error:  # noqa: BLE001 - anything a plugin raises is the finding
        return failed("handshake", PROBE, trouble(error))
    if not isinstance(answer, Support):
        return failed("handshake", PROBE, f"probe() returned {type_of(answer)}, not a Support")
    return passed("handshake", PROBE) if answer.accepted else failed("handshake", PROBE, answer.reason)
