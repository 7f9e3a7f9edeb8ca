"""The machine and the software that a benchmark ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from hub.listing import list_backends
from hub.registry import installed_version


class Machine(BaseModel):
    """What one needs to know to read timings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    vectors: str = ""
    """Vector instructions that PyTorch found: "AVX2", say. One name of a processor may stand for several kinds of it."""
    cores: int
    """Cores that this process may use."""
    memory_bytes: int
    system: str
    python: str
    libraries: dict[str, str]
    """Version of the hub, of torch, and of the library under every available backend."""
    load: float
    """Processes that wanted a core in the last minute, before the run began; above 0, the machine was not idle."""


def this_machine() -> Machine:
    """Gives the facts about the machine at hand."""
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
        load=os.getloadavg()[0],
    )


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
