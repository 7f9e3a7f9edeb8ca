"""Patterns that plugins propose as one cluster: collects them, checks them, and finds them in a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import fx
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from hub.capture.simplify import simplify
from hub.config.options import Options
from hub.discovery.plugin_fault import is_plugins
from hub.discovery.registry import Registry
from hub.errors import ContractError, PlanError, text_of
from hub.partition.extract import check_convex
from hub.partition.group import Group
from hub.partition.shown import Shown
from hub.partition.verdicts import Verdicts
from hub.plan import Event, EventKind, Stage
from hub.plugin.backend import Proposal
from hub.plugin.graph import Graph
from hub.plugin.table import devices_of
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
    return tuple(_asked(item, graph) for item in registry.manager.hook.hub_candidates.get_hookimpls())


def has_proposers(registry: Registry) -> bool:
    """Return whether any plugin proposes candidates."""
    return bool(registry.manager.hook.hub_candidates.get_hookimpls())


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
            except _Unusable as reason:
                message = f"proposal {proposal.name or proposal.nodes[:1]!r} of plugin {offered.plugin}: {reason}"
                events.append(Event(kind=EventKind.REFUSED, stage=Stage.SUPPORT, backend=proposal.backend, message=message))
    return tuple(groups), tuple(events)


class _Implementation(Protocol):
    """The part of pluggy's HookImpl that this module uses."""

    function: Callable[..., Any]
    argnames: tuple[str, ...]
    plugin_name: str


class _Unusable(Exception):  # noqa: N818 - a signal inside this module
    """Reason, in words, why a proposal cannot be used."""


def _asked(implementation: _Implementation, graph: Graph) -> Offered:
    try:
        return Offered(implementation.plugin_name, _offers(implementation, graph))
    except BaseException as error:
        if not is_plugins(error):
            raise
        return Offered(implementation.plugin_name, fault=f"raised {text_of(error)}")


def _offers(implementation: _Implementation, graph: Graph) -> tuple[Proposal, ...]:
    """Ask one plugin. Raises its exceptions, TypeError for anything but proposals, ContractError for a changed graph."""
    shown = Shown(graph)
    given = {"graph": shown.graph()}
    answer: Any = implementation.function(**{name: given[name] for name in implementation.argnames})
    offered: tuple[Any, ...] = tuple(answer or ())
    if shown.is_changed:
        raise ContractError("it changed the graph that it was shown")
    for item in offered:
        if not isinstance(item, Proposal):
            raise TypeError(f"{item!r} is a {type(item).__name__}, no Proposal")
        texts: tuple[Any, ...] = (item.backend, item.name, *item.nodes)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{item!r} has something else than text for a name")
    return offered


def _checked(proposal: Proposal, graph: Graph, verdicts: Verdicts, options: Options) -> Group:
    """Return a proposal as a group in topological order. Raises _Unusable."""
    backend = proposal.backend
    if backend not in verdicts.by_backend:
        raise _Unusable(
            f"backend {backend!r} takes no part here" if options.allows(backend) else f"{backend!r} is not allowed"
        )
    if not proposal.nodes:
        raise _Unusable("it names no node")
    known = {node.name for node in graph.nodes}
    if unknown := [name for name in proposal.nodes if name not in known]:
        raise _Unusable(f"no call nodes of {graph.name}: {', '.join(unknown)}")
    members = tuple(sorted(_with_elements(graph.by_name[name] for name in proposal.nodes)))
    names = tuple(node.name for node in members)
    if refusals := verdicts.refusals(backend, names):
        raise _Unusable(f"{backend} does not take it: {'; '.join(refusals)}")
    _check_whole(members)
    devices = dict.fromkeys(str(device) for node in members for device in devices_of(node))
    if len(devices) > 1:
        raise _Unusable(f"its results lie on {' and '.join(devices)}, those of a cluster on one device")
    try:
        check_convex(members, proposal.name or backend)
    except PlanError as error:
        raise _Unusable(error.message) from error
    return Group(backend, names)


def _with_elements(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes with the elements of the tuples that some of them make."""
    found = set(nodes)
    for node in tuple(found):
        found.update(user for user in node.users if user.target is operator.getitem and not _is_tensor(node))
    return found


def _check_whole(members: Sequence[fx.Node]) -> None:
    """Raise _Unusable for an element of a tuple that is made elsewhere: tuples cannot cross a cluster's boundary."""
    inside = set(members)
    for node in members:
        for source in node.all_input_nodes:
            if node.target is operator.getitem and not _is_tensor(source) and source not in inside:
                raise _Unusable(f"{node.name} is an element of {source.name}, which is not in it")


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


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
        raise PlanError(f"the pattern cannot be looked for: {error}", hint="return every value that it computes") from error
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
