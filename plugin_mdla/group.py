"""Collect the nodes that the device takes into groups, each one operator in the graph: `mdla::CompilationGroup`."""

from __future__ import annotations

import itertools
import logging
import operator
import threading
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from hub.plugin import (
    EAGER,
    Cluster,
    CompileSettings,
    Executable,
    Graph,
    Group,
    InputRefused,
    OptionError,
    extract,
    group,
)

from .backend import Mdla

_GROUPS: dict[str, tuple[Executable, Cluster]] = {}
"""Name in the graph -> the executable that `mdla::CompilationGroup` runs.

Groups live as long as the process, because exported programs refer to them.
"""
_REFUSED: set[str] = set()
"""Groups with a refused call that was already logged as a warning: each gets only one."""
_numbers = itertools.count()
_lock = threading.Lock()


@torch.library.custom_op("mdla::CompilationGroup", mutates_args=())
def compilation_group(inputs: Sequence[torch.Tensor], group: str) -> list[torch.Tensor]:
    """Run a group on the device, or in eager if its values do not fit fixed point."""
    executable, cluster = _found(group)
    try:
        return list(executable(*inputs))
    except InputRefused as error:
        _log_refusal(cluster, error)
        with torch.no_grad():
            return [output.clone() for output in cluster.module(*inputs)]


@compilation_group.register_fake  # pyright: ignore[reportUnknownMemberType] - torch's
def _(inputs: Sequence[torch.Tensor], group: str) -> list[torch.Tensor]:
    _, cluster = _found(group)
    return [inputs[0].new_empty(spec.shape) for spec in cluster.outputs]


def _found(name: str) -> tuple[Executable, Cluster]:
    if name not in _GROUPS:
        raise OptionError(
            f"no group {name!r} in this process", backend="mdla", hint="groups do not travel; compile the model here"
        )
    return _GROUPS[name]


def grouped(graph: Graph, weights: Mapping[str, torch.Tensor], backend: Mdla) -> fx.GraphModule:
    """Return a captured graph as a program in which groups are calls of `mdla::CompilationGroup`.

    `weights` are the values of the graph's weights; they become constants. The other placeholders are the inputs, in order.
    A group that cannot be compiled stays in eager; no error is raised for it.
    """
    taken = {node.name: _taker(backend, graph, node) for node in graph.nodes}
    for node in graph.nodes:
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and source.name in taken:
            taken[node.name] = taken[source.name]
    return _Rewriting(graph, weights, backend).program(group(graph, taken))


def _taker(backend: Mdla, graph: Graph, node: fx.Node) -> str:
    if node.name in graph.pinned or node.target is operator.getitem:
        return EAGER
    return "mdla" if backend.supports(node).accepted else EAGER


class _Rewriting:
    """The rewriting of a graph into a program with groups."""

    def __init__(self, graph: Graph, weights: Mapping[str, torch.Tensor], backend: Mdla) -> None:
        self._graph, self._weights, self._backend = graph, weights, backend
        self._new = fx.Graph()
        self._root = torch.nn.Module()
        self._made: dict[fx.Node, fx.Node] = {}

    def program(self, groups: Sequence[Group]) -> fx.GraphModule:
        """Return the program; `groups` cover the graph and can run in order."""
        for node in self._graph.module.graph.nodes:
            if node.op == "placeholder" and node.name not in self._weights:
                self._made[node] = self._new.node_copy(node)
            elif node.op in ("placeholder", "get_attr"):
                self._made[node] = self._constant(node)
        for item in groups:
            name = self._compiled(item)
            if name is None:
                self._copy(item)
            else:
                self._call(name)
        self._new.node_copy(self._graph.module.graph.output_node(), self._made.__getitem__)
        self._new.eliminate_dead_code()
        return fx.GraphModule(self._root, self._new)

    def _constant(self, node: fx.Node) -> fx.Node:
        value = self._weights[node.name] if node.op == "placeholder" else getattr(self._graph.module, str(node.target))
        name = f"weight_{node.name}"
        if isinstance(value, torch.Tensor):
            self._root.register_buffer(name, value.detach())
        else:
            setattr(self._root, name, value)
        made = self._new.get_attr(name)
        made.meta.update(node.meta)
        return made

    def _compiled(self, item: Group) -> str | None:
        """Compile a group and return its name; None for an eager group, and for one that the device refuses after all."""
        if item.backend == EAGER:
            return None
        cluster = extract(self._graph, item.nodes, f"group{next(_numbers)}", self._weights)
        try:
            executable = self._backend.compile(cluster, CompileSettings(threads=torch.get_num_threads()))
        except Exception as error:  # noqa: BLE001 - a group that cannot be compiled runs in eager and is logged
            _log_failure(cluster, error)
            return None
        with _lock:
            _GROUPS[cluster.name] = (executable, cluster)
        return cluster.name

    def _copy(self, item: Group) -> None:
        for name in item.nodes:
            node = self._graph.by_name[name]
            self._made[node] = self._new.node_copy(node, self._made.__getitem__)

    def _call(self, name: str) -> None:
        _, cluster = _GROUPS[name]
        inputs = [self._made[self._graph.by_name[source]] for source in cluster.input_names]
        call = self._new.call_function(torch.ops.mdla.CompilationGroup.default, (inputs, name))
        call.meta["val"] = [self._graph.by_name[output].meta["val"] for output in cluster.output_names]
        for position, output in enumerate(cluster.output_names):
            node = self._graph.by_name[output]
            self._made[node] = self._new.call_function(operator.getitem, (call, position))
            self._made[node].meta["val"] = node.meta["val"]


def _log_refusal(cluster: Cluster, error: InputRefused) -> None:
    from .executable import LOG

    with _lock:
        is_news = cluster.name not in _REFUSED
        _REFUSED.add(cluster.name)
    LOG.log(
        logging.WARNING if is_news else logging.DEBUG, "%s runs in eager for such calls: %s", cluster.name, error.message
    )


def _log_failure(cluster: Cluster, error: Exception) -> None:
    from .executable import LOG

    LOG.warning("%s stays in eager: %s", cluster.name, error)
