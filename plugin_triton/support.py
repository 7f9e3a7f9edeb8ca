"""Operators that Triton takes: those with a rule that lowers them to tensor programs. Imports neither torch nor triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hub.plugin import OperatorTable, on_cpu, tensors_of
from hub.toolkit.operators import ROWS

if TYPE_CHECKING:
    from torch import fx


MIN_CAPABILITY = (7, 0)
"""Least compute capability of NVIDIA's GPUs, as PyTorch requires for Triton. Triton 3.9 compiles all templates for it."""


def too_old(capability: tuple[int, int] | None) -> str | None:
    """Return why kernels are not compiled for a GPU of NVIDIA; None if they are, or if its capability is unknown."""
    if capability is None or capability >= MIN_CAPABILITY:
        return None
    found, least = (".".join(map(str, each)) for each in (capability, MIN_CAPABILITY))
    return f"a GPU of capability {found}, at least {least} for Triton"


def capability_of(device: Any) -> tuple[int, int] | None:
    """Return the compute capability of a GPU of NVIDIA; None for other GPUs, whose numbers mean something else."""
    import torch

    is_known = device.type == "cuda" and torch.version.hip is None and torch.cuda.is_available()
    return torch.cuda.get_device_capability(device) if is_known else None


def on_gpu(node: fx.Node) -> str | None:
    """Require every tensor to lie on a GPU that is new enough, as far as this process knows the GPU."""
    for device in dict.fromkeys(tensor.device for tensor in tensors_of(node)):
        if device.type != "cuda":
            return f"device {device}, only cuda here: HUB_TRITON_INTERPRET=1 interprets kernels on the CPU"
        if _is_started() and (reason := too_old(capability_of(device))):
            return reason
    return None


def _is_started() -> bool:
    """Return whether this process already uses CUDA: reading a GPU's capability would initialize it, as no query may."""
    import torch

    return torch.cuda.is_initialized()


OPERATORS = OperatorTable(ROWS, everywhere=(on_gpu,))
INTERPRETED = OperatorTable(ROWS, everywhere=(on_cpu,))
"""The same operators on the CPU, for the interpreter."""
