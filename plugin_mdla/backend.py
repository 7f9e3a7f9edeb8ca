"""The backend: it decides support by its table, lowers clusters, and opens a board or the software device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from hub.plugin import (
    ACCEPTED,
    Backend,
    Cluster,
    CompileSettings,
    Cost,
    HubError,
    Support,
    TensorSpec,
    cluster_estimate,
    refused,
)

from .calibration import Calibration
from .evidence import evidence
from .executable import MdlaExecutable, blamed, restored
from .formats import check_weights
from .lower import lower
from .program import Program
from .runtime import Board, Library
from .settings import Settings, library_path
from .support import OPERATORS
from .timing import bus_bytes, predicted_s

EFFICIENCY = 0.1
"""Share of the float32 peak that the software device reaches, with float64 sums and several passes over each result."""
SIMULATED_CALL_S = 2e-4


class Mdla(Backend):
    """Micron's accelerator, or its software device."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def probe(self) -> Support:
        """Compile and run one relu on the device."""
        value = torch.tensor([[-1.0, 0.5]])
        try:
            uncalibrated = Mdla(self.settings.model_copy(update={"calibration": ""}))  # the file has no such value
            (found,) = uncalibrated.compile(_relu(), CompileSettings(threads=1))(value)
        except HubError as error:
            return refused(str(error))
        return ACCEPTED if torch.equal(found, value.relu()) else refused(f"relu of [-1, 0.5] gave {found.tolist()}")  # pyright: ignore[reportUnknownMemberType] - torch's

    def supports(self, node: fx.Node) -> Support:
        """Look up the node in the operator table."""
        return OPERATORS.supports(node)

    def estimate(self, cluster: Cluster, settings: CompileSettings) -> Cost:
        """Estimate one call: on a board by its model, bus included; in software by the roofline.

        Raise CompileError if lowering fails.
        """
        if self.settings.is_simulated:
            return cluster_estimate(cluster, settings.threads, efficiency=EFFICIENCY, call_s=SIMULATED_CALL_S)
        program = lower(cluster)
        return Cost(
            predicted_s(program, self.settings),
            transfer_bytes=bus_bytes(program, value_bytes=self.settings.value_bytes),
            detail="Snowflake's published clock and units, memory and bus",
        )

    def compile(self, cluster: Cluster, settings: CompileSettings) -> MdlaExecutable:  # noqa: ARG002 - no threads, no effort
        """Lower a cluster and open a device for it, now or when its first call has determined the ranges."""
        try:
            program = lower(cluster)
            check_weights(program, self.settings)
            return MdlaExecutable(program, cluster, self.settings, self._ranges(program, cluster), None)
        except HubError as error:
            error.backend, error.cluster, error.node = "mdla", cluster.name, blamed(cluster, error.node)
            raise

    def explain(self, cluster: Cluster, settings: CompileSettings, inputs: Sequence[Any]) -> str:  # noqa: ARG002 - as above
        """Return the predicted time, and by layer format, saturation, error and signal to noise on the software device."""
        program = lower(cluster)
        return evidence(program, self.settings, self._ranges(program, cluster), inputs)

    def _ranges(self, program: Program, cluster: Cluster) -> Mapping[str, float] | None:
        """Return the calibration file's ranges; None if no file is set. Raise ConstantsRefused if it does not fit."""
        if not self.settings.calibration or not program.layers:
            return None
        return Calibration.read(Path(self.settings.calibration).expanduser()).ranges_of(program, cluster)

    def load(self, folder: Path, cluster: Cluster, settings: CompileSettings) -> MdlaExecutable:  # noqa: ARG002 - as above
        """Open a saved program. Raise CompileError if that fails, or if the calibration file's ranges have changed."""
        program = lower(cluster)
        return restored(program, cluster, self.settings, self._ranges(program, cluster), folder)


def create(settings: Settings) -> Mdla:
    """Return the backend. Raise PluginLoadError if there is no library and the software device is not enabled."""
    return open_device(settings)


def open_device(settings: Settings) -> Mdla:
    """Return the backend for some settings; open the board once if one is used. Raise PluginLoadError if that fails."""
    if not settings.is_simulated:
        board = Board(Library(library_path(settings)), timeout_s=settings.timeout_s)
        board.close()
    return Mdla(settings)


def _relu() -> Cluster:
    """Return the cluster of relu of two elements."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    result = graph.call_function(torch.ops.aten.relu.default, (value,))
    graph.output((result,))
    for node in (value, result):
        node.meta["val"] = torch.empty(1, 2, device="meta")
    spec = TensorSpec((1, 2), (2, 1), torch.float32, torch.device("cpu"))
    return Cluster(
        "probe", fx.GraphModule(torch.nn.Module(), graph), (result.name,), ("x",), (result.name,), (spec,), (spec,)
    )
