"""The ONNX Runtime backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hub.plugin import (
    Backend,
    Cluster,
    CompileSettings,
    Executable,
    HubError,
)

from .lower import lower
from .program import NAME
from .runtime import build, restore
from .support import OPERATORS


class OnnxRuntime(Backend):
    """The backend that compiles clusters into ONNX Runtime sessions on the CPU."""

    operators = OPERATORS

    def compile(self, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Lower to ONNX and open a session, whose optimiser does the rest; `effort` has no effect."""
        try:
            return build(partial(lower, cluster), cluster, settings)
        except HubError as error:
            error.backend, error.cluster = NAME, cluster.name
            raise

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> Executable:
        """Open a session on saved files, without lowering again."""
        return restore(folder, cluster, settings)


def create() -> OnnxRuntime:
    """Return the backend."""
    return OnnxRuntime()
