"""The backend: selects nodes by its table, compiles through OpenVINO's CPU plugin, and loads saved models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov

from hub.plugin import (
    Backend,
    CompileSettings,
    HubError,
    compile_failure,
)
from plugin_openvino.core import core
from plugin_openvino.fused import NOT_FUSED, has_fatal_chain
from plugin_openvino.lower import lower
from plugin_openvino.runtime import BLOB, META, OpenVINOExecutable
from plugin_openvino.support import OPERATORS

if TYPE_CHECKING:
    from hub.plugin import Cluster

BF16_ERROR = 1e-2
"""Largest expected max|error| / max|reference| of bf16. A 2-core Xeon with AMX measured 3e-3 on BERT and Llama (November
2026); this leaves a factor of 3."""


def create() -> OpenVINOBackend:
    """Return the backend; called once per process."""
    return OpenVINOBackend()


class OpenVINOBackend(Backend):
    """OpenVINO on the CPU."""

    operators = OPERATORS

    def __init__(self) -> None:
        self._core = core()

    def compile(self, cluster: Cluster, settings: CompileSettings) -> OpenVINOExecutable:
        """Lower and compile a cluster. Raise CompileError with OpenVINO's reason."""
        try:
            lowered = lower(cluster)
            properties = self.properties(settings) | (NOT_FUSED if has_fatal_chain(lowered.model) else {})
            compiled = self._core.compile_model(lowered.model, "CPU", properties)
            return OpenVINOExecutable(compiled, cluster, lowered.fed, alarms=lowered.alarms, source=lowered.model)
        except HubError:
            raise
        except Exception as error:
            raise compile_failure("openvino", cluster, "OpenVINO cannot compile it", error) from error

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> OpenVINOExecutable:
        """Restore a compiled model and its weights from the files of `save`, memory-mapped: half the time of a read."""
        try:
            meta = json.loads((folder / META).read_text())
            # Copy on write, because OpenVINO accepts only writable memory; the file itself is unchanged.
            blob = ov.Tensor(np.memmap(folder / BLOB, np.uint8, "c"), shared_memory=True)
            loading: Any = self._core  # the stub does not type the sources of a model
            compiled = loading.import_model(blob, "CPU", self.properties(settings))
            return OpenVINOExecutable(compiled, cluster, meta["fed"], alarms=meta["alarms"], memory=blob)
        except Exception as error:
            raise compile_failure("openvino", cluster, "OpenVINO cannot load it", error) from error

    def properties(self, settings: CompileSettings) -> dict[str, Any]:
        """Return OpenVINO's own options for the hub's settings.

        Computes in float32 unless the user accepts more error than bf16 has and the CPU supports it. Dynamic quantisation
        and compressed KV caches stay off, because they change numbers. Pinning binds threads to cores, which helps a
        backend that runs alone and harms one that shares the cores. OpenVINO's pool (TBB) has no option for busy-waiting.
        """
        is_bf16 = settings.accuracy is not None and settings.accuracy >= BF16_ERROR and self._has_bf16()
        return {
            "INFERENCE_PRECISION_HINT": "bf16" if is_bf16 else "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": settings.threads,
            "ENABLE_CPU_PINNING": settings.busy_wait,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
            "KV_CACHE_PRECISION": "bf16" if is_bf16 else "f32",
        }

    def _has_bf16(self) -> bool:
        return "BF16" in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
