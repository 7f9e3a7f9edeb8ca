"""Accelerators that hold tensors: detection, synchronization, random state, and memory.

Nothing here imports torch: if it has not been imported, no tensor is on an accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

_FULL = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED: Out of memory",
)
"""Texts by which PyTorch, drivers and libraries report that an accelerator is out of memory."""
_HOSTS = ("cpu", "meta")
"""Devices whose work is done when a call returns."""


def is_accelerator(device: torch.device) -> bool:
    """Return True for a device that computes asynchronously, so that the CPU has to wait for it."""
    return device.type not in _HOSTS


def accelerators_of(values: Iterable[Any]) -> tuple[torch.device, ...]:
    """Return the accelerators that hold tensors among some values, each once, in order; looks into containers."""
    return tuple(dict.fromkeys(tensor.device for tensor in _tensors_in(values) if is_accelerator(tensor.device)))


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until accelerators have finished all submitted work; free if there are none."""
    for device in devices:
        torch = sys.modules["torch"]
        own = torch.accelerator.current_accelerator()
        if own is not None and own.type == device.type:  # others have no way to wait, or are only simulated here
            torch.accelerator.synchronize(device)


def wait_for_values(values: Iterable[Any]) -> None:
    """Wait for every accelerator that holds tensors among some values."""
    wait_for(accelerators_of(values))


def name_of(device: torch.device) -> str:
    """Return an accelerator's own name, "NVIDIA A100-SXM4-40GB", or its type if it has none."""
    try:
        return str(sys.modules["torch"].get_device_module(device).get_device_name(device))
    except Exception:  # noqa: BLE001 - device types without such a function, and builds of PyTorch without the type
        return device.type


@dataclass(frozen=True, slots=True, eq=False)
class RandomState:
    """State of each CUDA device's random number generator; empty before CUDA is first used.

    Two states are equal if no device in both differs: using CUDA for the first time changes no random numbers.
    """

    states: tuple[bytes, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        return all(one == two for one, two in zip(self.states, other.states, strict=False))


def random_state() -> RandomState:
    """Return the state of all CUDA random number generators. Does not initialize CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return RandomState(())
    return RandomState(tuple(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()))


def set_random_state(wanted: RandomState) -> None:
    """Restore the state of CUDA random number generators."""
    for index, state in enumerate(wanted.states):
        torch = sys.modules["torch"]
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8), index)


def is_full(text: str) -> bool:
    """Return whether an error's text, or the last output of a process, says that an accelerator is out of memory.

    Only the text tells: libraries under plugins raise types of their own, and drivers end processes. All such checks call
    this function.
    """
    return any(words in text for words in _FULL)


def free_unused() -> None:
    """Free memory of CUDA devices that PyTorch's allocator caches."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    for value in values if torch is not None else ():
        if isinstance(value, torch.Tensor):  # pyright: ignore[reportOptionalMemberAccess] - nothing is walked without it
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors_in(cast("Mapping[Any, Any]", value).values())
        elif isinstance(value, (tuple, list, set, frozenset)):
            yield from _tensors_in(cast("Iterable[Any]", value))
