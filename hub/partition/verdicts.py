"""Collects every backend's verdict on every node, with the reasons."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from torch import fx

from hub.config.options import Options
from hub.discovery.plugin_fault import is_plugins
from hub.discovery.registry import Registry
from hub.errors import ContractError, HubError, PluginLoadError, text_of, type_of
from hub.partition.group import EAGER, Group
from hub.partition.partitioner import kept_clusters, partition_of
from hub.partition.shown import Shown
from hub.plan import Event, EventKind, Stage
from hub.plugin.backend import OUTSIDE, BackendInfo, abilities
from hub.plugin.entry import Entry
from hub.plugin.graph import Graph
from hub.plugin.table import ACCEPTED, Support, dtype_name, operator_name, refused, tensors_of
from hub.verification.ties import order_checked, verdict


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdict for each backend and node: supported, or refused with a reason. Tuple elements follow their producer."""

    graph: Graph
    by_backend: Mapping[str, Mapping[str, Support]]
    events: tuple[Event, ...] = ()
    unasked: Mapping[str, Mapping[str, Support]] = field(default_factory=dict[str, Mapping[str, Support]])
    """Best possible verdicts of backends that have not been asked yet: everything not refused without asking."""
    clusters: tuple[Group, ...] = ()
    """What backends' own partitioners chose: such a backend gets these clusters, each as a whole, and no others."""

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that support at least one node, in registration order."""
        return tuple(
            name for name, answers in self.by_backend.items() if any(support.accepted for support in answers.values())
        )

    def takes(self, backend: str, node: str) -> bool:
        """Return whether the backend supports the node; eager supports all."""
        return backend == EAGER or self.by_backend[backend][node].accepted

    def chosen(self, backend: str) -> tuple[Group, ...]:
        """Return the clusters that a backend's partitioner chose and that it has not lost; () if it has no partitioner."""
        return tuple(found for found in self.clusters if found.backend == backend and self.takes(backend, found.nodes[0]))

    def without(self, backend: str, nodes: Collection[str], reason: str) -> Verdicts:
        """Return the verdicts after a backend lost some nodes because it failed on them.

        A cluster that its partitioner chose is lost as a whole.
        """
        broken = (
            found.nodes for found in self.clusters if found.backend == backend and not set(nodes).isdisjoint(found.nodes)
        )
        lost = dict.fromkeys((*nodes, *chain.from_iterable(broken)), refused(reason))
        if backend in self.unasked:
            return replace(self, unasked={**self.unasked, backend: {**self.unasked[backend], **lost}})
        return replace(self, by_backend={**self.by_backend, backend: {**self.by_backend[backend], **lost}})

    def only(self, backends: Collection[str]) -> Verdicts:
        """Return only the verdicts of some of the backends that were asked."""
        kept = {name: found for name, found in self.by_backend.items() if name in backends}
        return replace(self, by_backend=kept, unasked={})

    def at_best(self) -> Verdicts:
        """Return the best possible verdicts of the backends that were not asked."""
        return replace(self, by_backend=self.unasked, unasked={})

    def with_hopes(self) -> Verdicts:
        """Return the verdicts of all backends, the best possible ones for those that were not asked."""
        return replace(self, by_backend={**self.by_backend, **self.unasked}, unasked={})

    def refusals(self, backend: str, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the reasons why a backend does not support some of these nodes, each once, in order."""
        answers = (self.by_backend[backend][node] for node in nodes)
        return tuple(dict.fromkeys(support.reason for support in answers if not support.accepted))


@dataclass(frozen=True, slots=True)
class Answers:
    """One backend's answers about one graph."""

    supports: Mapping[str, Support]
    """Its verdict on each node, by name."""
    events: tuple[Event, ...] = ()
    clusters: tuple[Group, ...] = ()
    """What its own partitioner chose, if it has one."""
    abilities: frozenset[str] = frozenset()
    """Optional methods that its class overrides."""


Ask = Callable[[str], Answers]
"""Function that returns a backend's answers. Raises HubError if the backend cannot be loaded, or dies when asked."""


def ask_backends(graph: Graph, registry: Registry, options: Options, ask: Ask | None = None) -> Verdicts:
    """Ask every backend that the options allow and that is usable here; return the verdicts."""
    verdicts = before_asking(graph, registry, options)
    return verdicts_of(verdicts, verdicts.unasked, registry, options, ask)


def before_asking(graph: Graph, registry: Registry, options: Options) -> Verdicts:
    """Return what is known before any plugin is loaded: backends that are excluded, and what others may support at best."""
    events: list[Event] = []
    asked: dict[str, Mapping[str, Support]] = {}
    unasked: dict[str, Mapping[str, Support]] = {}
    for name, entry in registry.entries.items():
        if not options.allows(name):
            continue
        if entry.note:
            events.append(Event(kind=EventKind.NOTE, stage=Stage.LOAD, backend=name, message=entry.note))
        if entry.status.accepted and (reason := _unfit(entry.info, graph, options)):
            events.append(Event(kind=EventKind.REFUSED, stage=Stage.SUPPORT, backend=name, message=reason))
        elif entry.status.accepted:
            found = _answers(graph, entry, lambda _: ACCEPTED, options, [])
            may_take = any(support.accepted for support in found.values())
            (unasked if may_take else asked)[name] = found
        elif _is_named(name, options):
            unasked[name] = {}  # asking will give the reason why it cannot be used
    return Verdicts(graph, asked, tuple(events), unasked)


def verdicts_of(
    verdicts: Verdicts, backends: Iterable[str], registry: Registry, options: Options, ask: Ask | None = None
) -> Verdicts:
    """Return the verdicts after asking some backends.

    A backend that cannot be loaded, or that raises, is asked nothing more; an event records it. `ask` queries a backend,
    possibly in another process; without it, the backend is asked in this process.
    """
    unasked, asked, events = dict(verdicts.unasked), dict(verdicts.by_backend), list(verdicts.events)
    clusters = list(verdicts.clusters)
    before: dict[str, Mapping[str, Support]] = {}
    for name in backends:
        entry, at_best = registry.entries[name], unasked.pop(name)
        try:
            elsewhere = ask if entry.status.accepted else None
            answer = elsewhere(name) if elsewhere else answers(verdicts.graph, registry, options, name)
        except HubError as error:
            stage = Stage.LOAD if isinstance(error, PluginLoadError | ContractError) else Stage.SUPPORT
            events.append(Event(kind=EventKind.FAILED, stage=stage, backend=name, message=str(error)))
            continue
        asked[name] = answer.supports
        events += answer.events
        clusters += answer.clusters
        before[name] = at_best
    in_order = {name: asked[name] for name in registry.entries if name in asked}
    found = Verdicts(verdicts.graph, in_order, tuple(events), unasked, tuple(clusters))
    for name, at_best in before.items():
        found = _without_lost(found, name, at_best)
    return found


def _without_lost(verdicts: Verdicts, backend: str, at_best: Mapping[str, Support]) -> Verdicts:
    """Return the verdicts without the nodes on which a backend failed before it was asked."""
    lost: dict[str, list[str]] = {}
    for node, support in at_best.items():
        if not support.accepted and verdicts.takes(backend, node):
            lost.setdefault(support.reason, []).append(node)
    for reason, nodes in lost.items():
        verdicts = verdicts.without(backend, nodes, reason)
    return verdicts


def answers(graph: Graph, registry: Registry, options: Options, backend: str) -> Answers:
    """Ask one backend about the graph, in this process: each node, or all at once. Raises HubError if it cannot be loaded.

    The backend gets a copy of the graph: eager also runs programs cut from the graph, so a change would go unnoticed.
    """
    loaded = registry.backend(backend)
    events: list[Event] = []
    shown = Shown(graph)
    entry = registry.entries[backend]
    partition = partition_of(loaded, shown)
    clusters: tuple[Group, ...] = ()
    if partition is None:
        supports = _answers(graph, entry, lambda node: verdict(loaded, shown.node(node)), options, events)
    else:
        supports = _answers(graph, entry, lambda node: order_checked(loaded, shown.node(node), ACCEPTED), options, events)
        clusters, reasons = kept_clusters(graph, backend, partition, supports)
        events += (Event(kind=EventKind.REFUSED, stage=Stage.SUPPORT, backend=backend, message=text) for text in reasons)
        left = _failed(backend, partition.fault, events) if partition.fault else refused(OUTSIDE)
        inside = {name for found in clusters for name in found.nodes}
        supports |= {name: left for name, answer in supports.items() if answer.accepted and name not in inside}
    if shown.is_changed:
        method = "supports" if partition is None else "partition"
        message = f"{method}() changed the graph that it was shown; that was a copy"
        events.append(Event(kind=EventKind.NOTE, stage=Stage.SUPPORT, backend=backend, message=message))
    return Answers(supports, tuple(events), clusters, abilities(loaded))


def _is_named(name: str, options: Options) -> bool:
    return name in (options.backends or ()) or name in options.force.values()


def _unfit(info: BackendInfo, graph: Graph, options: Options) -> str | None:
    """Return the reason why a backend cannot be used for this graph at all."""
    if graph.is_training and not info.training:
        return "does not support training graphs"
    if graph.is_dynamic and not info.dynamic_shapes:
        return "does not support dynamic shapes"
    error = info.max_relative_error
    if error > (options.accuracy or 0.0) and not _is_named(info.name, options):
        return f"its results may be off by {error:.1%}; allow that with options={{'accuracy': {error}}}"
    return None


def _answers(
    graph: Graph, entry: Entry, supports: Callable[[fx.Node], Support], options: Options, events: list[Event]
) -> dict[str, Support]:
    answers: dict[str, Support] = {}
    for node in graph.nodes:
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0].name in answers:
            answers[node.name] = answers[node.args[0].name]
            continue
        answers[node.name] = _before_asking(graph, entry, node, options) or _asked(entry.name, node, supports, events)
    return answers


def _before_asking(graph: Graph, entry: Entry, node: fx.Node, options: Options) -> Support | None:
    """Return a refusal that needs no plugin: pinned nodes, forced operators, devices, dtypes, reference-only devices."""
    info = entry.info
    if node.name in graph.pinned:
        return refused(f"{operator_name(node)}: {graph.pinned[node.name]}")
    forced = options.forced(operator_name(node))
    if forced is not None and forced != info.name:
        return refused(f"{operator_name(node)}: forced to {forced}")
    for tensor in tensors_of(node):
        if tensor.device.type not in info.devices:
            return refused(f"{operator_name(node)}: on {tensor.device.type}, only {', '.join(info.devices)} here")
        if dtype_name(tensor.dtype) not in info.dtypes:
            return refused(f"{operator_name(node)}: dtype {dtype_name(tensor.dtype)}")
    return _for_reference(entry, node, options)


def _for_reference(entry: Entry, node: fx.Node, options: Options) -> Support | None:
    """Return a refusal if the backend runs for reference only and could be chosen only because of its price."""
    kinds = () if entry.settings is None else entry.settings.reference_on
    device = next((tensor.device.type for tensor in tensors_of(node) if tensor.device.type in kinds), None)
    is_asked_for = entry.name == options.forced(operator_name(node)) or options.backends == (entry.name,)
    if device is None or is_asked_for or options.plan is not None:
        return None
    how = f"name {entry.name} alone in `backends`, or force operators to it"
    return refused(f"{operator_name(node)}: on {device} for reference only: {how}")


def _asked(backend: str, node: fx.Node, supports: Callable[[fx.Node], Support], events: list[Event]) -> Support:
    operator = operator_name(node)
    try:
        answer = supports(node)
    except BaseException as error:
        if not is_plugins(error):
            raise
        return _failed(backend, f"supports({operator}) raised {text_of(error)}", events)
    if not isinstance(answer, Support):  # pyright: ignore[reportUnnecessaryIsInstance] - plugins are not trusted
        return _failed(backend, f"supports({operator}) returned {type_of(answer)}, not a Support", events)
    return ACCEPTED if answer.accepted else answer


def _failed(backend: str, reason: str, events: list[Event]) -> Support:
    """Return a refusal for the node, and one event for all such nodes of the backend."""
    if not any(event.kind is EventKind.FAILED and event.backend == backend for event in events):
        events.append(Event(kind=EventKind.FAILED, stage=Stage.SUPPORT, backend=backend, message=reason))
    return refused(reason)
