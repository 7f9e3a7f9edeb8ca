"""The machine and the software that a benchmark ran on."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from hub.discovery.listing import list_backends
from hub.plugin.entry import installed_version

_ROOT = Path(__file__).parents[2]
"""The repository, or the folder in which packages are installed."""


class Machine(BaseModel):
    """Facts needed to interpret timings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    vectors: str = ""
    """Vector instructions that PyTorch detects, such as "AVX2". Processors of the same name may differ in them."""
    cores: int
    """Number of cores that this process may use."""
    memory_bytes: int
    system: str
    python: str
    libraries: dict[str, str]
    """Versions of the hub, of torch, and of the library of every available backend."""
    commit: str = ""
    """Commit of the hub's repository, if it runs from one: "1a2b3c4", or "1a2b3c4 with changes"."""
    code: str = ""
    """Digest of the sources of the hub and of its own plugins: with another digest, times may differ."""
    load: float
    """Load average over the minute before the run; above 0, the machine was not idle."""


def this_machine() -> Machine:
    """Return the facts about the current machine."""
    return Machine(
        cpu=_cpu_model(),
        vectors=torch.backends.cpu.get_cpu_capability(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        libraries={"compiler-hub": installed_version("compiler-hub") or ""}
        | {
            backend.library: backend.library_version
            for backend in list_backends()
            if backend.library and backend.library_version
        },
        commit=this_commit(),
        code=code_digest(),
        load=os.getloadavg()[0],
    )


def this_commit() -> str:
    """Return the commit from which the hub runs; "" if it was installed as a package."""
    commit = _git("rev-parse", "--short", "HEAD")
    return f"{commit} with changes" if commit and _git("status", "--porcelain", "--", *map(str, _packages())) else commit


def code_digest() -> str:
    """Return a digest of the sources of the hub and of its own plugins, committed or not."""
    found = hashlib.sha256()
    for path in sorted(path for package in _packages() for path in package.rglob("*.py")):
        found.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _packages() -> tuple[Path, ...]:
    names = ("hub", "plugin_disc", "plugin_mdla", "plugin_triton", "plugins")
    return tuple(path for name in names if (path := _ROOT / name).is_dir())


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_model() -> str:
    facts = _cpu_facts()
    return facts.get("model name") or facts.get("Hardware") or platform.processor() or platform.machine()


def _cpu_facts() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))
    return {key.strip(): value.strip() for key, _, value in pairs}
