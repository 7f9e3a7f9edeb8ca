"""The ONNX Runtime backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from hub.plugin import (
    ACCEPTED,
    Backend,
    Cluster,
    CompileSettings,
    Executable,
    HubError,
    Support,
    TensorSpec,
    refused,
)

from .lower import lower
from .program import NAME
from .runtime import build, restore
from .support import OPERATORS


class OnnxRuntime(Backend):
    """The backend that compiles clusters into ONNX Runtime sessions on the CPU."""

    def probe(self) -> Support:
        """Compile and run one addition."""
        value = torch.tensor([1.0, 2.0])
        try:
            result: Any  # torch's stub does not type the elements of lists
            (result,) = self.compile(_doubling(), CompileSettings(threads=1))(value)
        except HubError as error:
            return refused(str(error))
        return ACCEPTED if torch.equal(result, value + value) else refused(f"1+1 and 2+2 gave {result.tolist()}")

    def supports(self, node: fx.Node) -> Support:
        """Return the verdict of the operator table on a node."""
        return OPERATORS.supports(node)

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


def _doubling() -> Cluster:
    """Return the cluster of x + x over two elements."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    total = graph.call_function(torch.ops.aten.add.Tensor, (value, value))
    graph.output((total,))
    for node in (value, total):
        node.meta["val"] = torch.empty(2, device="meta")
    spec = TensorSpec((2,), (1,), torch.float32, torch.device("cpu"))
    return Cluster(
        "probe", fx.GraphModule(torch.nn.Module(), graph), (total.name,), ("x",), (total.name,), (spec,), (spec,)
    )
