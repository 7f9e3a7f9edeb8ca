"""Patterns that plugins propose as one cluster: collects them, checks them, and finds them in a graph."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from hub.capture.simplify import simplify
from hub.config.options import Options
from hub.discovery.plugin_fault import is_plugins
from hub.discovery.plugins import Plugin
from hub.discovery.registry import Registry
from hub.errors import ContractError, PlanError, text_of, type_of
from hub.partition.group import Group
from hub.partition.members import Unusable, usable
from hub.partition.shown import Shown
from hub.partition.verdicts import Verdicts
from hub.plan import Event, EventKind, Stage
from hub.plugin.backend import Proposal
from hub.plugin.graph import Graph
from hub.process.tracing import tracing
from hub.torch_private import aot_export_module


@dataclass(frozen=True, slots=True)
class Offered:
    """One plugin's proposals, or the reason why they were dropped."""

    plugin: str
    proposals: tuple[Proposal, ...] = ()
    fault: str = ""


def offered_by_plugins(graph: Graph, registry: Registry) -> tuple[Offered, ...]:
    """Ask every plugin that makes proposals, in this process, in registration order. Raises nothing."""
    return tuple(_asked(plugin, graph) for plugin in registry.plugins if plugin.has("hub_candidates"))


def has_proposers(registry: Registry) -> bool:
    """Return whether any plugin proposes candidates."""
    return any(plugin.has("hub_candidates") for plugin in registry.plugins)


def proposed(
    graph: Graph, offers: Iterable[Offered], verdicts: Verdicts, options: Options
) -> tuple[tuple[Group, ...], tuple[Event, ...]]:
    """Return the usable proposals of plugins, each once, in order, and events about the dropped ones.

    An event of kind "refused" gives the reason why a proposal cannot be used. One of kind "failed" names a plugin that
    raised or returned something other than proposals. Such a plugin loses all its proposals; others are not affected.
    """
    groups: dict[Group, None] = {}
    events: list[Event] = []
    for offered in offers:
        if offered.fault:
            message = f"hub_candidates of plugin {offered.plugin} {offered.fault}"
            events.append(Event(kind=EventKind.FAILED, stage=Stage.SUPPORT, message=message))
        for proposal in offered.proposals:
            try:
                groups[_checked(proposal, graph, verdicts, options)] = None
            except Unusable as reason:
                message = f"proposal {proposal.name or proposal.nodes[:1]!r} of plugin {offered.plugin}: {reason}"
                events.append(Event(kind=EventKind.REFUSED, stage=Stage.SUPPORT, backend=proposal.backend, message=message))
    return tuple(groups), tuple(events)


def _asked(plugin: Plugin, graph: Graph) -> Offered:
    try:
        return Offered(plugin.name, _offers(plugin, graph))
    except BaseException as error:
        if not is_plugins(error):
            raise
        return Offered(plugin.name, fault=f"raised {text_of(error)}")


def _offers(plugin: Plugin, graph: Graph) -> tuple[Proposal, ...]:
    """Ask one plugin. Raises its exceptions, TypeError for anything but proposals, ContractError for a changed graph."""
    shown = Shown(graph)
    offered = tuple(itertools.chain.from_iterable(plugin.call("hub_candidates", graph=shown.graph())))
    if shown.is_changed:
        raise ContractError("it changed the graph that it was shown")
    for item in offered:
        if not isinstance(item, Proposal):
            raise TypeError(f"{item!r} is {type_of(item)}, not a Proposal")
        texts: tuple[Any, ...] = (item.backend, item.name, *item.nodes)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{item!r} has a name that is not text")
    return offered


def _checked(proposal: Proposal, graph: Graph, verdicts: Verdicts, options: Options) -> Group:
    """Return a proposal as a group in topological order. Raises Unusable."""
    backend = proposal.backend
    if backend not in verdicts.by_backend:
        raise Unusable(
            f"backend {backend!r} is not used here" if options.allows(backend) else f"{backend!r} is not allowed"
        )
    found = usable(graph, backend, proposal.nodes, verdicts.by_backend[backend])
    if (chosen := verdicts.chosen(backend)) and found not in chosen:
        raise Unusable(f"{backend} takes only the clusters that its partitioner chose")
    return found


# --- Finding a pattern ------------------------------------------------------------------------------------------------


def matches(
    graph: Graph,
    pattern: Callable[..., Any] | fx.Graph,
    example_inputs: Sequence[Any] = (),
    *,
    ignore_literals: bool = False,
) -> tuple[tuple[str, ...], ...]:
    """Return the places where a pattern occurs in a graph, without overlaps: node names, all in topological order.

    `pattern` is a function of tensors or a module, traced on `example_inputs` into the operators that captured graphs have,
    or such a graph. Its inputs and weights match any value, two inputs two different ones; shapes and dtypes do not matter.
    Other arguments must be equal (an `eps`, the sizes of a view), unless `ignore_literals`. A match's inner values are not
    read elsewhere. Raises PlanError for a pattern without operators, or one that cannot be traced.
    """
    traced = _with_wildcards(pattern if isinstance(pattern, fx.Graph) else _traced(pattern, example_inputs))
    if not any(node.op == "call_function" for node in traced.nodes):
        raise PlanError("the pattern has no operators", hint="give a function that computes something from its inputs")
    try:
        matcher = SubgraphMatcher(traced, ignore_literals=ignore_literals)
    except AssertionError as error:  # from its check for dead code
        raise PlanError(
            f"the pattern cannot be searched for: {error}", hint="return every value that it computes"
        ) from error
    found = [sorted(_nodes_of(match)) for match in matcher.match(graph.module.graph)]
    return tuple(tuple(node.name for node in nodes) for nodes in sorted(found, key=operator.itemgetter(0)))


def _traced(pattern: Callable[..., Any], example_inputs: Sequence[Any]) -> fx.Graph:
    """Trace as `hub.capture` does for inference, so that equal programs give equal operators."""
    try:
        with tracing(), torch.no_grad():
            exported, _ = aot_export_module(_Pattern(pattern), tuple(example_inputs), trace_joint=False, pre_dispatch=True)
    except Exception as error:
        hint = "patterns are functions of tensors, and of nothing else, without data-dependent control flow"
        raise PlanError(f"the pattern cannot be traced: {text_of(error)}", hint=hint) from error
    module = cast("fx.GraphModule", exported)
    simplify(module)
    return module.graph


class _Pattern(torch.nn.Module):
    """Module that wraps a function or module and returns a tuple, which is the form that export expects."""

    def __init__(self, pattern: Callable[..., Any]) -> None:
        super().__init__()
        self.pattern = pattern

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        result = self.pattern(*inputs)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _with_wildcards(pattern: fx.Graph) -> fx.Graph:
    """Return a copy with constants replaced by inputs, like weights in captured graphs."""
    copied = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in pattern.nodes:
        if node.op == "get_attr":
            nodes[node] = copied.placeholder(node.name)
        else:
            nodes[node] = copied.node_copy(node, nodes.__getitem__)
    return copied


def _nodes_of(match: InternalMatch) -> Iterator[fx.Node]:
    """Yield a match's own nodes, without those that match the pattern's inputs."""
    for inside, found in match.nodes_map.items():
        if inside.op == "call_function":
            yield found
