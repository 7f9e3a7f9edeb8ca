"""Cache keys: digests of named parts, so that nothing that changes a result can be left out unnoticed."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import InvalidRequirement, Requirement

from hub.config.forms import TABLES
from hub.config.options import Options
from hub.plugin.backend import API_VERSION, CompileSettings
from hub.plugin.entry import Entry, installed_version
from hub.plugin.graph import Graph
from hub.process.cgroups import quota_cores
from hub.process.environment import environment_now
from hub.process.modes import modes

LARGE_BYTES = 2**20
"""Size above which a plugin's files, which are libraries, count by size and modification time instead of by content."""
_DRIVER_BUILD = Path("/sys/module/nvidia/version")
"""File with the build of NVIDIA's driver ("550.54.15"), if Linux has loaded it; CUDA reports only its interface version."""
WITHOUT_EFFECT: Mapping[str, str] = {
    "strict": "says what a failure does to the user's call, not which plan is best",
    "shadow": "looks at calls of a plan that is made",
    "renew": "says when to decide, and replaces what is kept under the same key",
    "tune": "is the part `effort` of its own",
    "start": "says what runs until there is a plan",
    "budget_s": "says how long to look for the best plan; `renew` looks again",
    "isolate": "says in which process plugins are tried; it is for debugging them",
    "background": "looks at executables of a plan that is made",
    "plan": "takes the place of planning, and what is replayed is not kept",
    "debug_dir": "says where people read about what was done",
    "workers.count": "says how much is compiled at once",
    "cache.dir": "says where things are kept",
    "cache.gb": "says how much is kept",
}
"""Settings that affect neither the choice of plan nor what is compiled, each with the reason."""


def digest_of(parts: Mapping[str, Any]) -> str:
    """Return the digest of named parts (plain JSON values)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def artifact_parts(cluster_digest: str, entry: Entry, settings: CompileSettings) -> dict[str, Any]:
    """Return every named part that affects what a saved executable does.

    `cluster_digest` covers structure, attributes, wiring, shapes and their symbolic relations, dtypes, layouts, constants.
    """
    return {
        "cluster": cluster_digest,
        "settings": asdict(settings),
        **backend_parts(entry),
        **machine_parts(),
        **modes().numeric_parts,
        "hub_code": code_digest("hub"),
    }


def plan_parts(
    graph: Graph, mode: str, options: Options, threads: int, effort: str, entries: Iterable[Entry]
) -> dict[str, Any]:
    """Return every named part that affects which plan is cached for a graph; `entries` are the backends that may bid.

    The digest of the graph covers what `artifact_parts` lists, without the constants: a plan applies to any weights.
    """
    return {
        "graph": graph.digest,
        "mutated": list(graph.mutated),
        "constants": list(graph.weights),
        "pinned": sorted(graph.pinned),
        "is_part": graph.is_part,
        "mode": mode,
        "options": _with_effect(options),
        "effort": effort,
        "threads": threads,
        "cores": available_cores(),
        "backends": [backend_parts(entry) for entry in entries],
        **machine_parts(),
        **modes().parts,
        "hub_code": code_digest("hub"),
    }


def _with_effect(options: Options) -> dict[str, Any]:
    """Return the settings that may affect the choice of plan, those of tables as "TABLE.NAME"."""
    found = options.model_dump(mode="json")
    tables = {f"{table}.{name}": value for table in TABLES for name, value in found.pop(table).items()}
    return {name: value for name, value in (found | tables).items() if name not in WITHOUT_EFFECT}


def backend_parts(entry: Entry) -> dict[str, Any]:
    """Return the parts that identify a backend: its plugin and the libraries under it, each with its version.

    The version of an editable plugin does not change with its code, so its code counts too, and so do its own settings and
    its own environment variables.
    """
    names = filter(None, map(_distribution, entry.info.requires))
    prefix = f"HUB_{entry.name.upper()}_"
    return {
        "backend": entry.name,
        "plugin": f"{entry.package} {entry.package_version}",
        "plugin_code": code_digest(entry.info.factory.partition(":")[0].partition(".")[0]),
        "libraries": {name: installed_version(name) for name in names},
        "backend_settings": {} if entry.settings is None else entry.settings.model_dump(mode="json"),
        "state": "" if entry.settings is None else entry.settings.state,
        "variables": {name: value for name, value in sorted(environment_now().items()) if name.startswith(prefix)},
    }


def machine_parts() -> dict[str, Any]:
    """Return the parts that identify this machine and the software common to all backends."""
    return {
        "hub": installed_version("compiler-hub"),
        "api": list(API_VERSION),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libc": " ".join(platform.libc_ver()),
        "cpu": _processor(),
        "accelerators": _accelerators(),
    }


def available_cores() -> int:
    """Return the number of cores that this process may use, within what a container allows."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, quota_cores())))


def code_digest(package: str) -> str:
    """Return the digest of the files of a top-level package or module, without importing it; "" if it has none.

    Files are read once per process: imported code does not change with its files.
    """
    try:
        spec = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    return _digest_of_files(tuple(spec.submodule_search_locations or filter(None, (spec.origin,))))


@cache
def _digest_of_files(places: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for place in map(Path, places):
        for path in sorted(place.rglob("*")) if place.is_dir() else (place,):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(place).as_posix()}\0{_content(path)}\0".encode())
    return digest.hexdigest()


def _content(path: Path) -> str:
    try:
        facts = path.stat()
        if facts.st_size > LARGE_BYTES:
            return f"{facts.st_size} bytes of {facts.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return str(error)


def _distribution(requirement: str) -> str:
    try:
        return Requirement(requirement).name
    except InvalidRequirement:
        return ""


@cache
def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    capability = torch.backends.cpu.get_cpu_capability()
    return processor_text(platform.machine(), platform.system(), platform.processor(), capability, text)


def processor_text(machine: str, system: str, processor: str, capability: str, cpuinfo: str) -> str:
    """Return what code for a processor may depend on: its kind, and the first core's model and features in /proc/cpuinfo.

    ARM's processors have no model name, but numbers of implementer and part.
    """
    lines = cpuinfo.splitlines()
    always = [_first(lines, key) for key in ("model name", "flags", "Features")]
    numbers = filter(None, (_first(lines, key) for key in ("CPU implementer", "CPU part", "CPU variant")))
    return " | ".join((machine, system, processor, capability, *always, *numbers))


def _first(lines: Iterable[str], key: str) -> str:
    return next((line for line in lines if line.startswith(key)), "")


def _accelerators() -> list[str]:
    return accelerator_texts(torch.cuda, _accelerator_software) if torch.cuda.is_available() else []


def accelerator_texts(devices: Any, software: Callable[[], Mapping[str, str]]) -> list[str]:
    """Return what code for each GPU may depend on: name, capability, and the versions of the libraries under PyTorch.

    `devices` is `torch.cuda`, or a substitute.
    """
    versions = ", ".join(f"{name} {version}" for name, version in software().items())
    return [
        f"{devices.get_device_name(index)}, {devices.get_device_capability(index)}, {versions}"
        for index in range(devices.device_count())
    ]


@cache
def _accelerator_software() -> Mapping[str, str]:
    """Return the versions that stay the same while a process runs: querying cuDNN loads it."""
    return {
        "CUDA": str(torch.version.cuda),
        "ROCm": str(torch.version.hip),
        "driver": answer_of(_driver_version),
        "its build": answer_of(_DRIVER_BUILD.read_text),
        "cuDNN": answer_of(torch.backends.cudnn.version),
    }


def _driver_version() -> int:
    """Return the version of CUDA that the driver supports, 13000 for 13.0. Initializes no device."""
    version = ctypes.c_int()
    if code := ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
        raise RuntimeError(f"CUDA's driver answers with error {code}")
    return version.value


def answer_of(ask: Callable[[], object]) -> str:
    """Return a version as text, or that there is none: PyTorch was built without CUDA, or a library does not fit."""
    try:
        return str(ask()).strip()
    except (AttributeError, OSError, RuntimeError) as error:
        return f"unknown ({type(error).__name__})"
