"""Accelerators that tensors lie on: which ones, waiting for them, their random numbers, and their memory.

Nothing here imports torch: where nobody has, nothing lies on one.
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
"""What PyTorch, the drivers and libraries on them say where an accelerator's memory is full."""
_HOSTS = ("cpu", "meta")
"""Devices that have done their work when a call of them returns."""


def is_accelerator(device: torch.device) -> bool:
    """Return True for a device that computes beside the CPU, which has to wait for it."""
    return device.type not in _HOSTS


def accelerators_of(values: Iterable[Any]) -> tuple[torch.device, ...]:
    """Return the accelerators that tensors among some values lie on, each once, in order; looks into containers."""
    return tuple(dict.fromkeys(tensor.device for tensor in _tensors_in(values) if is_accelerator(tensor.device)))


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until accelerators have done all that they were given; for none it takes no time."""
    for device in devices:
        torch = sys.modules["torch"]
        own = torch.accelerator.current_accelerator()
        if own is not None and own.type == device.type:  # others bring no way to wait, or are only simulated here
            torch.accelerator.synchronize(device)


def wait_for_values(values: Iterable[Any]) -> None:
    """Wait for every accelerator that tensors among some values lie on."""
    wait_for(accelerators_of(values))


def name_of(device: torch.device) -> str:
    """Return what an accelerator calls itself, "NVIDIA A100-SXM4-40GB"; its kind where it does not say."""
    try:
        return str(sys.modules["torch"].get_device_module(device).get_device_name(device))
    except Exception:  # noqa: BLE001 - kinds without such a function, and builds of PyTorch without the kind
        return device.type


@dataclass(frozen=True, slots=True, eq=False)
class RandomState:
    """Where the random numbers of each CUDA device stand; of none, before anybody has used CUDA.

    Equal to others where no device that both know differs: to use CUDA for the first time changes nobody's numbers.
    """

    states: tuple[bytes, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        return all(one == two for one, two in zip(self.states, other.states, strict=False))


def random_state() -> RandomState:
    """Return where the random numbers of all CUDA devices stand. Starts CUDA for nobody."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return RandomState(())
    return RandomState(tuple(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()))


def set_random_state(wanted: RandomState) -> None:
    """Put the random numbers of CUDA devices back to where they stood."""
    for index, state in enumerate(wanted.states):
        torch = sys.modules["torch"]
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8), index)


def is_full(text: str) -> bool:
    """Return whether an error's text, or the last words of a process, say that an accelerator's memory was full.

    Only by text: libraries under plugins raise types of their own, and drivers end processes. The one place that reads it.
    """
    return any(words in text for words in _FULL)


def free_unused() -> None:
    """Return memory of CUDA devices back that PyTorch keeps for tensors to come."""
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
