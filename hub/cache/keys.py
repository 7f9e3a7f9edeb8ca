"""Cache keys: digests of named parts, so that nothing that changes a result can be left out unseen."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hub.backend import API_VERSION, CompileSettings
from hub.registry import Entry, installed_version


def digest_of(parts: Mapping[str, Any]) -> str:
    """Gives the digest of named parts (plain JSON values)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def artifact_parts(cluster_digest: str, entry: Entry, settings: CompileSettings) -> dict[str, Any]:
    """Gives every named part that decides what a saved executable does.

    `cluster_digest` covers structure, attributes, wiring, shapes and their symbolic relations, dtypes, layouts, constants.
    """
    return {"cluster": cluster_digest, "settings": asdict(settings), **backend_parts(entry), **machine_parts()}


def backend_parts(entry: Entry) -> dict[str, Any]:
    """Gives the parts that name a backend: its plugin and the libraries under it, each with its version."""
    libraries = [requirement.split(">")[0].split("=")[0].split("<")[0].strip() for requirement in entry.info.requires]
    return {
        "backend": entry.name,
        "plugin": f"{entry.package} {entry.package_version}",
        "libraries": {name: installed_version(name) for name in libraries},
    }


@cache
def _machine() -> str:
    lines: list[str] = []
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text().splitlines()
        lines = [next((line for line in text if line.startswith(key)), "") for key in ("model name", "flags", "Features")]
    return " | ".join(
        (platform.machine(), platform.system(), platform.processor(), torch.backends.cpu.get_cpu_capability(), *lines)
    )


def machine_parts() -> dict[str, Any]:
    """Gives the parts that name this machine and the software under every backend."""
    devices = (
        [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return {
        "hub": installed_version("compiler-hub"),
        "api": list(API_VERSION),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _machine(),
        "accelerators": devices,
    }
