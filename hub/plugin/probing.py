"""A one-operator program that shows whether a backend works here."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from hub.errors import HubError
from hub.plugin.backend import OUTSIDE, Backend, CompileSettings, overrides
from hub.plugin.graph import Cluster, Graph, TensorSpec
from hub.plugin.table import ACCEPTED, Support, refused
from hub.torch_private import FakeTensorMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run_addition(backend: Backend, device: torch.device | None = None) -> Support:
    """Compile and run x + x over two elements, on the CPU by default; return ACCEPTED, or the reason of the failure.

    A backend that does not support this addition is accepted: there is nothing to run.
    """
    device = device or torch.device("cpu")
    cluster = addition(device)
    if not verdicts_on(backend, cluster)(cluster.nodes[0]).accepted:
        return ACCEPTED
    value = torch.tensor([1.0, 2.0], device=device)
    try:
        outputs: Sequence[Any] = backend.compile(cluster, CompileSettings(threads=1))(value)
    except HubError as error:
        return refused(str(error))
    found = [output.tolist() for output in outputs]
    return ACCEPTED if found == [[2.0, 4.0]] else refused(f"1+1 and 2+2 gave {found}")


def verdicts_on(backend: Backend, cluster: Cluster) -> Callable[[fx.Node], Support]:
    """Return the function that tells whether a backend takes each node of a cluster: its method `supports`.

    A backend that partitions graphs itself takes all nodes if it chooses the whole cluster, and else none.
    """
    chosen = backend.partition(Graph(cluster.module, cluster.name)) if overrides(backend, "partition") else None
    if chosen is None:
        return backend.supports
    wanted = {node.name for node in cluster.nodes if node.target is not operator.getitem}
    answer = ACCEPTED if any(wanted.issubset(nodes) for nodes in chosen) else refused(OUTSIDE)
    return lambda _: answer


def addition(device: torch.device) -> Cluster:
    """Return a cluster that computes x + x over two elements on a device."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    total = graph.call_function(torch.ops.aten.add.Tensor, (value, value))
    graph.output((total,))
    with FakeTensorMode():  # on that device: a table of a GPU's operators refuses values of any other
        for node in (value, total):
            node.meta["val"] = torch.empty(2, device=device)
    spec = TensorSpec((2,), (1,), torch.float32, device)
    module = fx.GraphModule(torch.nn.Module(), graph)
    return Cluster("probe", module, (total.name,), ("x",), (total.name,), (spec,), (spec,))
