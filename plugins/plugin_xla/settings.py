"""The user's settings of XLA: from options, `HUB_XLA_*` variables or hub.toml. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from hub.plugin import BackendSettings

Target = Literal["cpu", "cuda", "tpu"]
_CLIENTS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("jax_plugins.xla_cuda13/xla_cuda_plugin.so", "jax_plugins.xla_cuda12/xla_cuda_plugin.so"),
    "tpu": ("libtpu/libtpu.so",),
}
"""For each target, packages that contain the library of its client; the first installed one is used."""
_INSTALL: Mapping[str, str] = {
    "cuda": "pip install 'jax[cuda13]>=0.10,<0.11' (or jax[cuda12], as PyTorch's own CUDA)",
    "tpu": "pip install 'jax[tpu]>=0.10,<0.11'",
}


class Settings(BackendSettings):
    """The processor that clusters are compiled for."""

    target: Annotated[Target, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)] = "cpu"
    """Processor that runs clusters. "cuda" takes tensors in a GPU's memory; "tpu" takes the CPU's, and copies them both
    ways."""

    @property
    def missing(self) -> str:
        """The missing client of the target, so that no plan uses what cannot run; "" if it is installed."""
        if self.target == "cpu" or library(self.target) is not None:
            return ""
        return f"target {self.target}: XLA's client for it is not installed: {_INSTALL[self.target]}"


def library(target: str) -> Path | None:
    """Return the library of a target's client, or None if it is not installed."""
    for place in _CLIENTS[target]:
        package, _, name = place.partition("/")
        for folder in _folders(package):
            if (found := Path(folder) / name).is_file():
                return found
    return None


def _folders(package: str) -> tuple[str, ...]:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # the package that contains it
        return ()
    return tuple(spec.submodule_search_locations or ()) if spec else ()
