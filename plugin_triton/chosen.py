"""The block sizes that were fastest when timed, from the hub's store of measurements."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import torch

from hub.plugin import Measurements

from .blocks import Blocks
from .kernel import Kernel
from .source import Choose


def gpu_of(device: torch.device) -> str:
    """Return what the speed of code depends on, as text: the GPU, and the version of Triton that writes machine code."""
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    return f"{name}, Triton {triton.__version__}"


def key_of(kernel: Kernel, dtypes: Mapping[str, str], gpu: str) -> str:
    """Return a digest of all that decides which blocks are best, for a kernel with the blocks by rules.

    Equal kernels of different models share it: names and comments do not count.
    """
    places = {name: f"p{place}" for place, name in enumerate((kernel.name, *kernel.parameters))}
    names = re.compile(rf"\b({'|'.join(map(re.escape, places))})\b")
    code = "\n".join(line for line in kernel.text.splitlines() if not line.lstrip().startswith("#"))
    text = names.sub(lambda found: places[found[0]], f"{code}\n{kernel.grid}")
    kinds = [dtypes.get(name, "") for name in kernel.parameters]
    return hashlib.sha256(f"{text}\n{kinds}\n{kernel.blocks.to_json()}\n{gpu}".encode()).hexdigest()


def chosen_by(kept: Measurements, gpu: str) -> Choose:
    """Return a choice of the fastest timed blocks; rules choose if a kernel was never timed, or its entry is corrupt."""

    def choose(kernel: Kernel, dtypes: Mapping[str, str]) -> Blocks | None:
        key = key_of(kernel, dtypes, gpu)
        found = kept.find_choices([key]).get(key)
        try:
            blocks = None if found is None else Blocks.from_json(found.choice)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return blocks if blocks is not None and blocks.sizes.keys() == kernel.blocks.sizes.keys() else None

    return choose
