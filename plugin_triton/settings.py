"""What the user sets of Triton: in options, `HUB_TRITON_*` variables or hub.toml. Imports nothing heavy."""

from __future__ import annotations

from hub.backend_settings import BackendSettings


class Settings(BackendSettings):
    """How kernels are run."""

    interpret: bool = False
    """True runs kernels on the CPU's tensors in Triton's interpreter: a reference, thousands of times slower than a GPU."""
