"""The user's settings for Triton: in options, `HUB_TRITON_*` variables or hub.toml. Imports nothing heavy."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hub.plugin import BackendSettings, choices_state

REFERENCE = "the interpreter: reference only"
VERSIONS = ">=3.6,<3.10"
DISTRIBUTIONS = ("triton", "triton-rocm", "pytorch-triton-rocm", "triton-xpu", "pytorch-triton-xpu")
"""Wheels that contain the module `triton`: the general one, and those that PyTorch's wheels for AMD and Intel require."""
TARGET = r"cuda:(7[0-9]|[89][0-9]|1[0-9][0-9])|hip:gfx[0-9a-z]+"
"""Pattern of a GPU to compile for: Triton needs compute capability 7.0."""
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Device files of the drivers for NVIDIA's and AMD's GPUs, and for both under WSL."""


def _split(value: Any) -> Any:
    return tuple(filter(None, value.replace(",", " ").split())) if isinstance(value, str) else value


_Target = Annotated[str, Field(pattern=f"^({TARGET})$")]
_Targets = Annotated[tuple[_Target, ...], BeforeValidator(_split)]


class Settings(BackendSettings):
    """The settings of the Triton backend."""

    interpret: bool = False
    """True runs kernels on the CPU's tensors in Triton's interpreter: a reference to check against, and slow."""
    targets: _Targets = ()
    """GPUs for which `debug_dir` gets all stages of a kernel: "cuda:90,hip:gfx942". Empty means the current one, or
    cuda:90."""

    @property
    def requires(self) -> tuple[str, ...]:
        """The installed wheel of Triton with its versions; the general wheel if none is installed."""
        return (f"{next(filter(_is_installed, DISTRIBUTIONS), DISTRIBUTIONS[0])}{VERSIONS}",)

    @property
    def state(self) -> str:
        """The state of tuning's results: kernels are written with them."""
        return choices_state(self.cache_folder, "triton")

    @property
    def missing(self) -> str:
        """The reason if there is no GPU, so that no plan includes kernels that cannot run; else ""."""
        return "" if self.interpret or any(map(Path.exists, _DRIVERS)) else "this machine has no GPU"

    @property
    def remark(self) -> str:
        """A remark if only the interpreter is used; else ""."""
        return REFERENCE if self.interpret and not any(map(Path.exists, _DRIVERS)) else ""

    @property
    def reference_on(self) -> tuple[str, ...]:
        """The CPU if the interpreter is enabled, because only the interpreter takes its tensors."""
        return ("cpu",) if self.interpret else ()


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
