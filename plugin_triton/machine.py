"""The GPU of this machine: the target of compilation, and the resources that a program may use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from .choices import Limits
from .targets import Target


@dataclass(frozen=True)
class Machine:
    """A GPU."""

    target: Target
    limits: Limits
    name: str
    """Its product name."""


def machine_of(device: torch.device) -> Machine:
    """Return the GPU of a device, with the limit of shared memory above which Triton itself refuses a launch."""
    from triton.runtime import driver

    active: Any = driver.active
    with torch.cuda.device(device):
        target = active.get_current_target()
    most = active.utils.get_device_properties(device.index)["max_shared_mem"]
    limits = replace(limits_of(device), shared=int(most))
    return Machine(Target(target.backend, str(target.arch)), limits, torch.cuda.get_device_name(device))


def limits_of(device: torch.device) -> Limits:
    """Return the resources of a multiprocessor of a GPU."""
    found = cast("Any", torch.cuda).get_device_properties(device)
    return Limits(
        getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block),  # AMD's have no opt-in limit
        found.shared_memory_per_multiprocessor,
        found.regs_per_multiprocessor,
        found.max_threads_per_multi_processor,
    )
