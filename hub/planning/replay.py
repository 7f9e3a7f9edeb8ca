"""Replay of plan files: find the plan of a graph, check that it can run here, fill in what its author omitted."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from itertools import pairwise
from pathlib import Path

import torch
from torch import fx

from hub.config.options import DEFAULT, Options
from hub.config.suggest import did_you_mean
from hub.discovery.registry import Registry
from hub.errors import PlanError
from hub.partition.group import EAGER, Group
from hub.partition.order import Place, needs, ordered
from hub.partition.verdicts import Ask, Verdicts, ask_backends
from hub.plan import DecidedBy, Event, EventKind, Plan, PlannedCluster, Stage
from hub.plan_file import EDITED, read_plans
from hub.planning.context import is_size
from hub.planning.evidence import Mode, inputs_of
from hub.planning.steps import plain_names
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name

_AGAIN = "make the plan again with `hub explain MODEL -o FILE`"


def plan_from_file(graph: Graph, mode: Mode, options: Options, registry: Registry, ask: Ask | None = None) -> Plan:
    """Return the plan for a graph from the file `options.plan`, ready to build.

    Raises PlanError if the file cannot be read, contains no plan that fits, or contains one that cannot run here.
    """
    assert options.plan is not None, "the caller looks whether there is a plan file"
    path = options.plan
    plan = chosen_plan(read_plans(path), graph, mode, path)
    _check_backends(plan, options, registry, path)
    clusters = _clusters_of(plan, graph)
    _check_forced(clusters, graph, options, path)
    _check_takers(clusters, ask_backends(graph, registry, under_plan(options, plan), ask), path)
    ordered = _scheduled(clusters, graph, path)
    return _completed(
        plan, ordered, graph, mode, under_plan(options, plan), _notes(plan, clusters, ordered, graph, options)
    )


def under_plan(options: Options, plan: Plan) -> Options:
    """Return the options restricted to the plan's backends, with the plan's settings for those the user did not set."""
    update: dict[str, object] = {"backends": tuple(name for name in plan.backends if name != EAGER)}
    if options.threads is None:
        update["threads"] = plan.threads or torch.get_num_threads()
    if options.accuracy is None:
        update["accuracy"] = plan.accuracy
    if options.origin("tune") == DEFAULT:
        update["tune"] = plan.effort
    return options.model_copy(update=update)


# --- Which plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Misfit:
    """First place where a plan and a graph differ."""

    position: int
    """Number of graph nodes that precede it."""
    message: str
    node: str | None = None
    hint: str | None = None


def chosen_plan(plans: Sequence[Plan], graph: Graph, mode: Mode, path: Path) -> Plan:
    """Return the plan made for exactly this graph, else the first that fits it.

    Raises PlanError about the plan that matches the longest prefix of the graph.
    """
    own = sorted((plan for plan in plans if plan.graph_digest == graph.digest), key=lambda plan: plan.mode != mode)
    misfits: list[Misfit] = []
    for plan in own or plans:
        misfit = misfit_of(plan, graph)
        if misfit is None:
            return plan
        misfits.append(misfit)
    nearest = max(misfits, key=lambda misfit: misfit.position)
    raise PlanError(f"{path} does not fit {graph.name}: {nearest.message}", node=nearest.node, hint=nearest.hint)


def misfit_of(plan: Plan, graph: Graph) -> Misfit | None:
    """Return the first node, else input, that differs; None if the plan fits, even if it was made for other input sizes."""
    planned = _planned_operators(plan)
    unknown = [name for name in planned if name not in {node.name for node in graph.nodes}]
    for position, node in enumerate(graph.nodes):
        if node.name not in planned and is_size(graph, node.name):
            continue
        if node.name not in planned:
            message = f"node {node.name!r} is in the graph and not in the plan"
            return Misfit(position, message, node.name, _hint_for_missing(unknown))
        message = _node_misfit(node, planned, has_same_digest=plan.graph_digest == graph.digest)
        if message:
            hint = f"{_AGAIN}, or delete `operators` where they no longer belong to `nodes`"
            return Misfit(position, message, node.name, hint)
    if unknown:
        message = f"node {unknown[0]!r} is not in the graph"
        return Misfit(len(graph.nodes), message, unknown[0], f"delete it, or {_AGAIN}")
    message = _input_misfit(plan, graph)
    return Misfit(len(graph.nodes), message, None, _AGAIN) if message else None


def _planned_operators(plan: Plan) -> dict[str, str]:
    """Return each planned node's operator; "" if the file omits it, since nodes can be moved without it."""
    return {
        name: overload
        for cluster in plan.clusters
        for name, overload in zip(
            cluster.nodes,
            cluster.operators if len(cluster.operators) == len(cluster.nodes) else ("",) * len(cluster.nodes),
            strict=True,
        )
    }


def _node_misfit(node: fx.Node, planned: Mapping[str, str], *, has_same_digest: bool) -> str:
    written = planned[node.name]
    if has_same_digest or written in ("", operator_name(node)):
        return ""  # if digests are equal, a mismatch only means that `operators` was not moved along with `nodes`
    return f"node {node.name!r} is {written} in the plan and {operator_name(node)} here"


def _hint_for_missing(unknown: Sequence[str]) -> str:
    return f"the plan's {unknown[0]!r} is not in the graph: rename it, or {_AGAIN}" if unknown else f"add it, or {_AGAIN}"


def _input_misfit(plan: Plan, graph: Graph) -> str:
    here = inputs_of(graph)
    if plan.graph_digest == graph.digest or len(plan.inputs) != len(here):
        return ""  # users may omit inputs, and weights that cannot be guarded are added to them
    for number, (before, now) in enumerate(zip(plan.inputs, here, strict=True)):
        if _dtype(before) != _dtype(now):
            return f"input {number} changed its dtype: {before} in the plan and {now} here"
    return ""


def _dtype(text: str) -> str:
    return text.partition("[")[0].partition(" ")[0]


# --- Whether it can run -----------------------------------------------------------------------------------------------


def _check_backends(plan: Plan, options: Options, registry: Registry, path: Path) -> None:
    """Raise PlanError for the first backend that is unknown, unavailable, or excluded by another option."""
    for name in plan.backends:
        if name == EAGER:
            continue
        if name not in registry.entries:
            known = (*registry.entries, EAGER)
            raise PlanError(
                f"{path}: no backend is named {name!r}{did_you_mean(name, known)}",
                backend=name,
                hint=f"install the plugin that brings it, or choose from {', '.join(known)}",
            )
        entry = registry.entries[name]
        if not entry.status.accepted:
            raise PlanError(
                f"{path} needs {name!r}, which cannot be used here: {entry.status.reason}",
                backend=name,
                hint=entry.info.install or "`hub list-backends` says more",
            )
        if not options.allows(name):
            key = "exclude" if name in options.exclude else "backends"
            raise PlanError(
                f"{path} needs {name!r}, which option {key!r} (from {options.origin(key)}) does not allow",
                backend=name,
                hint=f"change {key!r} or the plan",
            )


def _clusters_of(plan: Plan, graph: Graph) -> tuple[PlannedCluster, ...]:
    """Return the non-empty clusters with their nodes in graph order and their operators.

    A tuple's elements always follow their producer, regardless of the file, because a tuple cannot cross a cluster
    boundary. Arithmetic on sizes that the file lacks comes first, in eager.
    """
    reason = "arithmetic on sizes, which the plan file lacks"
    clusters = (PlannedCluster(name="sizes", backend=EAGER, nodes=(), reason=reason), *plan.clusters)
    place: dict[str, int] = {}
    for number, cluster in enumerate(clusters):
        for name in cluster.nodes:
            if name in place:
                first = clusters[place[name]]
                raise PlanError(
                    f"node {name!r} is in the plan twice: in {_title(first)} and in {_title(cluster)}",
                    node=name,
                    hint="delete it from one of them",
                )
            place[name] = number
    members: list[list[fx.Node]] = [[] for _ in clusters]
    for node in graph.nodes:
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0].name in place:
            place[node.name] = place[node.args[0].name]
        members[place.setdefault(node.name, 0)].append(node)
    return tuple(_with_nodes(cluster, nodes) for cluster, nodes in zip(clusters, members, strict=True) if nodes)


def _with_nodes(cluster: PlannedCluster, nodes: Sequence[fx.Node]) -> PlannedCluster:
    names, operators = tuple(node.name for node in nodes), tuple(map(operator_name, nodes))
    return cluster.model_copy(update={"nodes": names, "operators": operators})


def _title(cluster: PlannedCluster) -> str:
    return cluster.name or f"the cluster on {cluster.backend} with {', '.join(cluster.nodes[:3])}"


def _check_forced(clusters: Iterable[PlannedCluster], graph: Graph, options: Options, path: Path) -> None:
    """Raise PlanError if option `force` contradicts the plan; pinned nodes are exempt, since they cannot be forced."""
    for cluster in clusters:
        for name, overload in zip(cluster.nodes, cluster.operators, strict=True):
            forced = options.forced(overload)
            if forced not in (None, cluster.backend) and name not in graph.pinned:
                raise PlanError(
                    f"{path} and option 'force' (from {options.origin('force')}) contradict each other: "
                    f"{overload} is on {cluster.backend!r} in the plan and forced to {forced!r}",
                    node=name,
                    hint="change 'force' or the plan",
                )


def _check_takers(clusters: Iterable[PlannedCluster], verdicts: Verdicts, path: Path) -> None:
    """Raise PlanError for the first node that its backend does not support, with the backend's own reason.

    A backend that chooses clusters itself gets them whole.
    """
    for cluster in clusters:
        if cluster.backend == EAGER:
            continue
        for name, overload in zip(cluster.nodes, cluster.operators, strict=True):
            if name in verdicts.graph.pinned:
                raise PlanError(
                    f"{path}: node {name!r} ({overload}) has to run in eager: {verdicts.graph.pinned[name]}",
                    node=name,
                    hint="move it to a cluster of eager",
                )
            if reason := _refusal(verdicts, cluster.backend, name):
                raise PlanError(
                    f"{path}: {cluster.backend} does not take node {name!r} of {_title(cluster)}: {reason}",
                    node=name,
                    backend=cluster.backend,
                    hint="move it to a cluster of eager, or of a backend that takes it",
                )
        chosen = verdicts.chosen(cluster.backend)
        if chosen and Group(cluster.backend, cluster.nodes) not in chosen:
            raise PlanError(
                f"{path}: {_title(cluster)} is no cluster that the partitioner of {cluster.backend} chose",
                backend=cluster.backend,
                hint=f"keep its clusters whole: {' or '.join(', '.join(one.nodes) for one in chosen)}",
            )


def _refusal(verdicts: Verdicts, backend: str, node: str) -> str:
    if backend in verdicts.by_backend:
        support = verdicts.by_backend[backend][node]
        return "" if support.accepted else support.reason
    return next((event.message for event in verdicts.events if event.backend == backend), "it is not used for this graph")


# --- In which order ---------------------------------------------------------------------------------------------------


def _scheduled(clusters: Sequence[PlannedCluster], graph: Graph, path: Path) -> tuple[PlannedCluster, ...]:
    """Return the clusters in the file's order, as far as dependencies allow.

    Eager clusters are split if that lets the others run, since another eager cluster costs nothing. Raises PlanError if two
    clusters depend on each other.
    """
    whole = {name: (number, 0) for number, cluster in enumerate(clusters) for name in cluster.nodes}
    try:
        return tuple(clusters[number] for number, _ in ordered(needs(graph, whole)))
    except CycleError:
        split = {
            name: (number, position if cluster.backend == EAGER else 0)
            for number, cluster in enumerate(clusters)
            for position, name in enumerate(cluster.nodes)
        }
    needed = needs(graph, split)
    try:
        return _joined(clusters, split, ordered(needed), graph)
    except CycleError as error:
        raise _circle(clusters, needed, error.args[1], path) from None


def _joined(
    clusters: Sequence[PlannedCluster], place: Mapping[str, Place], order: Sequence[Place], graph: Graph
) -> tuple[PlannedCluster, ...]:
    """Return the clusters of a schedule with split eager clusters; adjacent parts of one cluster are merged again."""
    at: dict[Place, list[fx.Node]] = {}
    for node in graph.nodes:
        at.setdefault(place[node.name], []).append(node)
    runs: list[tuple[int, list[fx.Node]]] = []
    for number, position in order:
        if runs and runs[-1][0] == number:
            runs[-1][1].extend(at[number, position])
        else:
            runs.append((number, list(at[number, position])))
    return tuple(_piece(clusters[number], nodes) for number, nodes in runs)


def _piece(cluster: PlannedCluster, nodes: Sequence[fx.Node]) -> PlannedCluster:
    """Return a cluster, or a part of it without times, since those are known of the whole cluster only."""
    if len(nodes) == len(cluster.nodes):
        return cluster
    piece = cluster.model_copy(update={"predicted_s": None, "measured_s": None, "bids": (), "source": ()})
    return _with_nodes(piece, nodes)


def _circle(
    clusters: Sequence[PlannedCluster],
    needed: Mapping[Place, Mapping[Place, tuple[str, str]]],
    circle: Sequence[Place],
    path: Path,
) -> PlanError:
    names = list(dict.fromkeys(_title(clusters[number]) for number, _ in circle))
    steps = [(*needed[later][earlier], later, earlier) for earlier, later in pairwise(circle)]
    facts = [
        f"{reader!r} of {_title(clusters[later[0]])} needs {source!r} of {_title(clusters[earlier[0]])}"
        for source, reader, later, earlier in steps
    ]
    return PlanError(
        f"{path}: {' and '.join(names)} need each other: {', and '.join(facts)}",
        node=steps[0][1],
        hint="split one of them, so that each part can run before or after the other",
    )


# --- The plan to build ------------------------------------------------------------------------------------------------


def _notes(
    plan: Plan, written: Sequence[PlannedCluster], ordered: Sequence[PlannedCluster], graph: Graph, options: Options
) -> tuple[Event, ...]:
    """Return notes on how the plan runs differently from what its file says."""
    notes: list[str] = []
    here = inputs_of(graph)
    if plan.inputs and plan.graph_digest != graph.digest and plan.inputs != here:
        notes.append(f"the plan's times are for other sizes: {', '.join(plan.inputs)}; here: {', '.join(here)}")
    elif plan.graph_digest not in ("", graph.digest):
        notes.append("the plan's times are for another graph: nodes and inputs are the same, attributes or weights are not")
    if len(ordered) != len(written) or any(one is not other for one, other in zip(ordered, written, strict=True)):
        notes.append(f"the clusters cannot run in the plan's order; they run as {', '.join(map(_title, ordered))}")
    for name, asked, planned in _overridden(plan, options):
        notes.append(f"{name} {asked} (from {options.origin(name)}) and not {planned} as in the plan")
    return tuple(Event(kind=EventKind.NOTE, stage=Stage.LOAD, message=message) for message in notes)


def _overridden(plan: Plan, options: Options) -> Iterator[tuple[str, object, object]]:
    """Yield each option that overrides what the plan says, with its value and the plan's."""
    if options.threads is not None and plan.threads and options.threads != plan.threads:
        yield "threads", options.threads, plan.threads
    is_written = "accuracy" in plan.model_fields_set
    if options.accuracy is not None and is_written and options.accuracy != plan.accuracy:
        yield "accuracy", options.accuracy, "exact" if plan.accuracy is None else plan.accuracy
    effort = "full" if options.tune == "full" else "fast"
    if options.origin("tune") != DEFAULT and "effort" in plan.model_fields_set and effort != plan.effort:
        yield "tune", options.tune, plan.effort


def _completed(
    plan: Plan, clusters: Sequence[PlannedCluster], graph: Graph, mode: Mode, options: Options, notes: Sequence[Event]
) -> Plan:
    """Return the plan with everything that its author may omit. Events of past runs are dropped."""
    named = _named([cluster if cluster.reason else _because(cluster, "as in the plan file") for cluster in clusters])
    return plan.model_copy(
        update={
            "graph": graph.name,
            "graph_digest": graph.digest,
            "mode": mode,
            "inputs": inputs_of(graph),
            "clusters": named,
            "threads": options.threads,
            "accuracy": options.accuracy,
            "effort": "full" if options.tune == "full" else "fast",
            "decided_by": DecidedBy.PLAN_FILE,
            "events": (*(event for event in plan.events if event.kind is EventKind.REFUSED or event == EDITED), *notes),
            "plan_s": 0.0,
        }
    )


def _because(cluster: PlannedCluster, reason: str) -> PlannedCluster:
    return cluster.model_copy(update={"reason": reason})


def _named(clusters: Sequence[PlannedCluster]) -> tuple[PlannedCluster, ...]:
    """Name clusters as the dispatcher does."""
    names = plain_names([Group(cluster.backend, cluster.nodes) for cluster in clusters])
    return tuple(cluster.model_copy(update={"name": name}) for cluster, name in zip(clusters, names, strict=True))


def moved_to_eager(graph: Graph, plan: Plan, failed: Group, nodes: Sequence[str], reason: str) -> Plan:
    """Return the plan with some nodes of one cluster moved to eager; other clusters stay unchanged.

    Nodes of the cluster that depend on the moved ones form a cluster of their own, so both parts and the schedule stay
    valid.
    """
    clusters: list[PlannedCluster] = []
    for cluster in plan.clusters:
        parts = _around(graph, cluster, nodes, reason) if Group(cluster.backend, cluster.nodes) == failed else (cluster,)
        clusters.extend(parts)
    return plan.model_copy(update={"clusters": _named(clusters)})


def _around(graph: Graph, cluster: PlannedCluster, nodes: Sequence[str], reason: str) -> tuple[PlannedCluster, ...]:
    members = [graph.by_name[name] for name in cluster.nodes]
    away: set[fx.Node] = set()
    after: set[fx.Node] = set()
    for node in members:  # in topological order
        sources = node.all_input_nodes
        if node.name in nodes or (node.target is operator.getitem and sources[0] in away):
            away.add(node)
        elif any(source in away or source in after for source in sources):
            after.add(node)
    # A moved node that reads a node from `after` would close a cycle, so everything in `after` moves as well.
    if any(source in after for node in away for source in node.all_input_nodes):
        away, after = away | after, set()
    before = [node for node in members if node not in away and node not in after]
    eager = cluster.model_copy(update={"backend": EAGER, "reason": reason, "predicted_s": None, "measured_s": None})
    parts = (
        (cluster, before),
        (eager, [node for node in members if node in away]),
        (cluster, [node for node in members if node in after]),
    )
    return tuple(_piece(part, found) for part, found in parts if found)
