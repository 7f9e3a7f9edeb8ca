"""The user's settings of IREE: from options, `HUB_IREE_*` variables or hub.toml. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes.util import find_library
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hub.plugin import BackendSettings

Target = Literal["cpu", "cuda", "vulkan"]
_DRIVERS: Mapping[str, tuple[str, str]] = {
    "cuda": ("cuda", "NVIDIA's driver (libcuda)"),
    "vulkan": ("vulkan", "Vulkan's loader (libvulkan)"),
}
"""For each target, the library that IREE's runtime loads, and its common name."""
_CHIPS: Mapping[str, str] = {"cpu": "host", "cuda": "sm_80", "vulkan": ""}


class Settings(BackendSettings):
    """The processor that clusters are compiled for."""

    target: Annotated[Target, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)] = "cpu"
    """Processor that runs clusters. Tensors stay in the CPU's memory: a GPU gets copies, and its results are copied
    back."""
    chip: Annotated[str, Field(pattern=r"^[\w.+\-]*$")] = ""
    """Chip, by IREE's name: "host" or "znver4" for the CPU, "sm_86" for CUDA, "rdna3" for Vulkan. Empty means this CPU,
    sm_80, or the features that every Vulkan device has."""

    @property
    def missing(self) -> str:
        """The missing driver of the target, so that no plan uses what cannot run; "" if it is installed."""
        if self.target not in _DRIVERS:
            return ""
        library, words = _DRIVERS[self.target]
        return "" if find_library(library) else f"target {self.target}: {words} is not available here"

    @property
    def processor(self) -> str:
        """Processor to compile for; "" if IREE decides."""
        return self.chip or _CHIPS[self.target]
