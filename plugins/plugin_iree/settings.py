"""What the user sets of IREE: in options, `HUB_IREE_*` variables or hub.toml. Imports nothing heavy."""

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
"""For each target, the library that IREE's runtime looks for, and what people call it."""
_CHIPS: Mapping[str, str] = {"cpu": "host", "cuda": "sm_80", "vulkan": ""}


class Settings(BackendSettings):
    """Which processor clusters are compiled for."""

    target: Annotated[Target, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)] = "cpu"
    """Where clusters run. Tensors stay in the CPU's memory: a GPU gets copies, and copies of its results come back."""
    chip: Annotated[str, Field(pattern=r"^[\w.+\-]*$")] = ""
    """Which one, in IREE's words: "host" or "znver4" for the CPU, "sm_86" for CUDA, "rdna3" for Vulkan. Empty means this
    CPU, sm_80, or what every Vulkan device understands."""

    @property
    def missing(self) -> str:
        """Return which driver is not here, so that nobody plans with what cannot run."""
        if self.target not in _DRIVERS:
            return ""
        library, words = _DRIVERS[self.target]
        return "" if find_library(library) else f"target {self.target}: {words} is not here"

    @property
    def processor(self) -> str:
        """Return the processor to compile for; "" leaves it to IREE."""
        return self.chip or _CHIPS[self.target]
