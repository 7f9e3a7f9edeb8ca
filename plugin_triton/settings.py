"""What the user sets of Triton: in options, `HUB_TRITON_*` variables or hub.toml. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from hub.backend_settings import BackendSettings

REFERENCE = "the interpreter: reference only"
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Files of the kernel's drivers for NVIDIA's and AMD's GPUs, and for both under WSL."""


class Settings(BackendSettings):
    """How kernels are run."""

    interpret: bool = False
    """True runs kernels on the CPU's tensors in Triton's interpreter: a reference to check against, and slow."""

    @property
    def missing(self) -> str:
        """Says so where there is no GPU, so that nobody plans with what cannot run."""
        return "" if self.interpret or any(map(Path.exists, _DRIVERS)) else "no GPU is here"

    @property
    def remark(self) -> str:
        """Says so where nothing but the interpreter is used."""
        return REFERENCE if self.interpret and not any(map(Path.exists, _DRIVERS)) else ""
