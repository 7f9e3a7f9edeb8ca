"""The backend: selects nodes by its table, compiles through OpenVINO's CPU plugin, and loads saved models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov

from hub.plugin import (
    ACCEPTED,
    Backend,
    CompileError,
    CompileSettings,
    HubError,
    Support,
    refused,
)
from plugin_openvino.core import core
from plugin_openvino.library import ops
from plugin_openvino.lower import lower
from plugin_openvino.runtime import BLOB, META, OpenVINOExecutable
from plugin_openvino.support import OPERATORS

if TYPE_CHECKING:
    from torch import fx

    from hub.plugin import Cluster

BF16_ERROR = 1e-2
"""Largest expected max|error| / max|reference| of bf16. A 2-core Xeon with AMX measured 3e-3 on BERT and Llama (November
2026); this leaves a factor of 3."""


def create() -> OpenVINOBackend:
    """Return the backend; called once per process."""
    return OpenVINOBackend()


class OpenVINOBackend(Backend):
    """OpenVINO on the CPU."""

    def __init__(self) -> None:
        self._core = core()

    def probe(self) -> Support:
        """Compile and run one relu."""
        parameter = ops.parameter([2], ov.Type.f32)
        model = ov.Model([ops.relu(parameter)], [parameter])  # pyright: ignore[reportGeneralTypeIssues] - its stub's base is another
        compiled = self._core.compile_model(model, "CPU")
        found = compiled([np.array([-1.0, 2.0], np.float32)])[0]
        return ACCEPTED if found.tolist() == [0.0, 2.0] else refused(f"relu of [-1, 2] gave {found.tolist()}")

    def supports(self, node: fx.Node) -> Support:
        """Return the verdict of the operator table on a node."""
        return OPERATORS.supports(node)

    def compile(self, cluster: Cluster, settings: CompileSettings) -> OpenVINOExecutable:
        """Lower and compile a cluster. Raise CompileError with OpenVINO's reason."""
        try:
            lowered = lower(cluster)
            compiled = self._core.compile_model(lowered.model, "CPU", self.properties(settings))
            return OpenVINOExecutable(compiled, cluster, lowered.fed, has_alarm=lowered.has_alarm, source=lowered.model)
        except HubError:
            raise
        except Exception as error:
            raise _failure("compile", error, cluster) from error

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> OpenVINOExecutable:
        """Restore a compiled model and its weights from the files of `save`, memory-mapped: half the time of a read."""
        try:
            meta = json.loads((folder / META).read_text())
            # Copy on write, because OpenVINO accepts only writable memory; the file itself is unchanged.
            blob = ov.Tensor(np.memmap(folder / BLOB, np.uint8, "c"), shared_memory=True)
            loading: Any = self._core  # the stub does not type the sources of a model
            compiled = loading.import_model(blob, "CPU", self.properties(settings))
            return OpenVINOExecutable(compiled, cluster, meta["fed"], has_alarm=meta["has_alarm"], memory=blob)
        except Exception as error:
            raise _failure("load", error, cluster) from error

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
            "ENABLE_CPU_PINNING": settings.spin,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
            "KV_CACHE_PRECISION": "bf16" if is_bf16 else "f32",
        }

    def _has_bf16(self) -> bool:
        return "BF16" in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _failure(stage: str, error: Exception, cluster: Cluster) -> CompileError:
    return CompileError(
        f"OpenVINO cannot {stage} it: {type(error).__name__}: {error}",
        backend="openvino",
        cluster=cluster.name,
        hint="`debug_dir` keeps the cluster's program",
    )
