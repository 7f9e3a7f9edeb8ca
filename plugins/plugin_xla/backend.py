"""The backend: selects nodes by its table, compiles through torch-mlir and XLA, and loads saved machine code."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hub.plugin import (
    ACCEPTED,
    Backend,
    CompileError,
    CompileSettings,
    HubError,
    Support,
    compile_failure,
    refused,
)
from hub.toolkit.arguments import Sizes, captured_sizes
from plugin_xla.client import client, options
from plugin_xla.lower import lower
from plugin_xla.settings import Settings
from plugin_xla.support import ON_GPU, OPERATORS

if TYPE_CHECKING:
    from torch import fx

    from hub.plugin import Cluster
    from plugin_xla.runtime import Program, XlaExecutable

NAME = "xla"
META = "xla.json"
_PROBE = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %sum = stablehlo.add %x, %x : tensor<2xf32>
  return %sum : tensor<2xf32>
}
"""


def create(settings: Settings | None = None) -> Xla:
    """Return the backend; called once per process for each distinct settings."""
    return Xla(settings or Settings())


class Xla(Backend):
    """XLA on the CPU, or on a GPU or TPU if its settings name one."""

    def __init__(self, settings: Settings) -> None:
        """Store the settings; import nothing heavy."""
        self._settings, self._target = settings, settings.target
        self._operators = ON_GPU if settings.target == "cuda" else OPERATORS

    def probe(self) -> Support:
        """Compile and run one addition."""
        if self._settings.missing:
            return refused(self._settings.missing)
        try:
            got = self._sum()
        except Exception as error:  # noqa: BLE001 - jaxlib raises anything
            return refused(f"XLA cannot run: {type(error).__name__}: {error}")
        return ACCEPTED if got == [2.0, 4.0] else refused(f"1+1 and 2+2 gave {got}")

    def supports(self, node: fx.Node) -> Support:
        """Return the verdict of the operator table on a node."""
        return self._operators.supports(node)

    def compile(self, cluster: Cluster, settings: CompileSettings) -> XlaExecutable:
        """Compile a cluster for the sizes of its capture. Raise CompileError with the compiler's reason."""
        try:
            self._require_target()
            sizes = captured_sizes(cluster)
            return self._executable(cluster, settings, {sizes: self._built(cluster, settings, sizes)})
        except HubError:
            raise
        except Exception as error:
            raise compile_failure(NAME, cluster, "XLA cannot compile it", error) from error

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> XlaExecutable:
        """Restore machine code from the files of `save`; the weights are the cluster's."""
        try:
            self._require_target()
            listed = json.loads((folder / META).read_text())["programs"]
            programs = dict(self._read(folder, place, entry, cluster, settings) for place, entry in enumerate(listed))
            return self._executable(cluster, settings, programs)
        except Exception as error:
            raise compile_failure(NAME, cluster, "XLA cannot load it", error) from error

    def _require_target(self) -> None:
        if self._settings.missing:
            raise CompileError(self._settings.missing, backend=NAME, hint="set xla.target to cpu, or install the client")

    def _sum(self) -> list[float]:
        from plugin_xla.exchange import exchange

        one, way = client(self._target, 1), exchange(self._target)
        where = one.local_devices()[0]
        loaded = one.compile_and_load(_PROBE, [where], options())
        summand = torch.tensor([1.0, 2.0], device="cuda" if self._target == "cuda" else "cpu")
        summed: Any = way.take(loaded.execute([way.give(summand, where)])[0])  # torch's stub does not type list elements
        return summed.tolist()

    def _device(self, cluster: Cluster, settings: CompileSettings) -> Any:
        """Return the device that runs a cluster: the GPU that holds its tensors; for other targets the first device."""
        one = client(self._target, settings.threads)
        return one.device_from_local_hardware_id(_place(cluster)) if self._target == "cuda" else one.local_devices()[0]

    def _executable(self, cluster: Cluster, settings: CompileSettings, programs: dict[Sizes, Program]) -> XlaExecutable:
        from plugin_xla.exchange import exchange
        from plugin_xla.runtime import XlaExecutable

        build = partial(self._built, cluster, settings)
        return XlaExecutable(cluster, self._device(cluster, settings), exchange(self._target), programs, build)

    def _built(self, cluster: Cluster, settings: CompileSettings, sizes: Sizes) -> Program:
        """Compile a cluster for given sizes. Raise CompileError, which names the compiler that refused it."""
        from plugin_xla.runtime import Program

        try:
            lowered = lower(cluster, sizes, self._target)
        except Exception as error:
            raise compile_failure(NAME, cluster, "torch-mlir cannot make StableHLO of it", error) from error
        try:
            where = self._device(cluster, settings)
            loaded = where.client.compile_and_load(lowered.text, [where], options())
        except Exception as error:
            raise compile_failure(NAME, cluster, "XLA cannot compile it", error) from error
        return Program(loaded, lowered.fed, lowered.text)

    def _read(
        self, folder: Path, place: int, entry: Any, cluster: Cluster, settings: CompileSettings
    ) -> tuple[Sizes, Program]:
        from plugin_xla.runtime import Program

        code = (folder / f"program{place}.xla").read_bytes()
        if hashlib.sha256(code).hexdigest() != entry["sha256"]:  # XLA runs any code that it deserialises
            raise ValueError(f"program{place}.xla is damaged")
        where = self._device(cluster, settings)
        loaded = where.client.deserialize_executable(code, [where], options())
        sizes: list[list[int] | float] = entry["sizes"]
        listed = tuple(tuple(size) if isinstance(size, list) else size for size in sizes)
        return listed, Program(loaded, tuple(entry["fed"]))


def _place(cluster: Cluster) -> int:
    """Return the index of the GPU that holds a cluster's results."""
    return next((spec.device.index or 0 for spec in cluster.outputs if spec.device.type == "cuda"), 0)
