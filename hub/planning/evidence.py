"""Record of a decision as a `Plan`: which backend runs what, why, and what every other one would have cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hub.config.options import Options
from hub.partition.group import EAGER, Group
from hub.partition.verdicts import Verdicts
from hub.plan import Bid, DecidedBy, Event, Plan, PlannedCluster, Price
from hub.planning.decision import Decision
from hub.planning.steps import plain_names
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Graph, spec_of
from hub.plugin.table import operator_name
from hub.report.numbers import duration

Mode = Literal["inference", "forward", "backward"]


def plan_of(
    graph: Graph,
    mode: Mode,
    decision: Decision,
    verdicts: Verdicts,
    options: Options,
    events: Sequence[Event],
) -> Plan:
    """Return the plan as a value. Its events are those of the verdicts, then of the decision, then `events`."""
    groups = decision.assignment.groups
    laps = decision.proof.laps_s if decision.proof is not None else (None,) * len(groups)
    clusters = tuple(
        _cluster(graph, name, found, decision, verdicts, options, lap)
        for name, found, lap in zip(plain_names(groups), groups, laps, strict=True)
    )
    contenders = decision.proof.contenders if decision.proof is not None else ()
    predicted = [cluster.predicted_s for cluster in clusters]
    return Plan(
        graph=graph.name,
        graph_digest=graph.digest,
        mode=mode,
        inputs=inputs_of(graph),
        clusters=clusters,
        threads=decision.settings.threads,
        busy_wait=decision.settings.busy_wait,
        effort="full" if decision.settings.effort == "full" else "fast",
        search=decision.search,
        accuracy=options.accuracy,
        predicted_s=decision.predicted_s or _sum(predicted),
        measured_s=next((contender.median_s for contender in contenders if contender.won), None),
        decided_by=decision.decided_by,
        is_provisional=decision.is_provisional,
        contenders=contenders,
        events=(*verdicts.events, *decision.events, *events),
    )


def _sum(seconds: Sequence[float | None]) -> float | None:
    """Return the sum; None if a part is unknown or there is none."""
    known = [value for value in seconds if value is not None]
    return sum(known) if known and len(known) == len(seconds) else None


def inputs_of(graph: Graph) -> tuple[str, ...]:
    """Return dtype and shape of every input that is not a weight, in order."""
    weights = frozenset(graph.weights)
    values = (node.meta.get("val") for node in graph.placeholders if node.name not in weights)
    return tuple(str(spec_of(value)) for value in values if value is not None)


def _cluster(
    graph: Graph,
    name: str,
    found: Group,
    decision: Decision,
    verdicts: Verdicts,
    options: Options,
    lap: float | None,
) -> PlannedCluster:
    nodes = [graph.by_name[node] for node in found.nodes]
    return PlannedCluster(
        name=name,
        backend=found.backend,
        nodes=found.nodes,
        operators=tuple(map(operator_name, nodes)),
        source=_sources(graph, found),
        predicted_s=_predicted(found, decision),
        measured_s=lap,
        reason=_reason(graph, found, decision, verdicts, options),
        bids=_bids(found, decision, verdicts),
    )


def _predicted(found: Group, decision: Decision) -> float | None:
    if found.backend == EAGER:
        known = [decision.eager_s.get(name) for name in found.nodes]
        return sum(seconds for seconds in known if seconds is not None) if decision.eager_s else None
    cost = decision.costs.get(found)
    return None if cost is None else cost.run_s


def _reason(graph: Graph, found: Group, decision: Decision, verdicts: Verdicts, options: Options) -> str:
    if found.backend == EAGER:
        return _eager_reason(graph, found, verdicts)
    if decision.decided_by is DecidedBy.OPTIONS:
        return "requested by the options"
    if any(options.forced(operator_name(graph.by_name[name])) == found.backend for name in found.nodes):
        return "forced by the options"
    if decision.proof is not None:
        best = decision.proof.winner
        rivals = [item for item in decision.proof.contenders if not item.won]
        if not rivals:
            return "the only plan that could be timed"
        next_best = min(rivals, key=lambda item: item.median_s)
        won = next(item for item in decision.proof.contenders if item.won)
        against = f"{next_best.name} {duration(next_best.median_s)}"
        return f"plan {best.name} took {duration(won.median_s)} whole, next {against}"
    if _is_underbid(found, decision, verdicts):
        return f"part of the cheapest plan by {decision.decided_by}: changing between backends costs time, too"
    return f"cheapest by {decision.decided_by}"


def _is_underbid(found: Group, decision: Decision, verdicts: Verdicts) -> bool:
    """Return whether another backend would run these nodes in less time."""
    bids = {name: decision.costs.get(Group(name, found.nodes)) for name in verdicts.by_backend}
    known = {name: cost.run_s for name, cost in bids.items() if cost is not None}
    return min(known.values(), default=0.0) < known.get(found.backend, 0.0)


def _eager_reason(graph: Graph, found: Group, verdicts: Verdicts) -> str:
    pinned = [graph.pinned[name] for name in found.nodes if name in graph.pinned]
    if pinned:
        return _first_of(pinned)
    refusals = [reason for backend in verdicts.by_backend for reason in verdicts.refusals(backend, found.nodes)]
    return refusals[0] if refusals else "cheapest in eager"


def _first_of(reasons: Sequence[str]) -> str:
    return reasons[0] if len(reasons) == 1 else f"{reasons[0]} (and {len(reasons) - 1} more)"


def _bids(found: Group, decision: Decision, verdicts: Verdicts) -> tuple[Bid, ...]:
    return tuple(_bid(backend, found, decision, verdicts) for backend in verdicts.by_backend)


def _bid(backend: str, found: Group, decision: Decision, verdicts: Verdicts) -> Bid:
    same = Group(backend, found.nodes)
    cost = decision.costs.get(same) if same not in decision.failures else None
    if cost is not None:
        return Bid(
            backend=backend, price=Price(run_s=cost.run_s, spread_s=cost.spread_s, source=cost.source, detail=cost.detail)
        )
    if same in decision.failures:
        return Bid(backend=backend, refusal=decision.failures[same])
    refusals = verdicts.refusals(backend, found.nodes)
    if refusals:
        return Bid(backend=backend, refusal=_first_of(refusals))
    return Bid(backend=backend, refusal="not priced: no assignment has a cluster of exactly these nodes")


_HUB = Path(__file__).parent.parent


def _sources(graph: Graph, found: Group) -> tuple[str, ...]:
    lines = (_last_line(graph.by_name[name].meta.get("stack_trace") or "") for name in found.nodes)
    return tuple(dict.fromkeys(line for line in lines if line))


def _last_line(trace: str) -> str:
    frames: list[tuple[str, str, str]] = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', trace)
    # An operator that capture rewrote into others has frames of the hub on top of the model's.
    matches = [frame for frame in frames if not Path(frame[0]).is_relative_to(_HUB)]
    if not matches:
        return ""
    file, line, function = matches[-1]
    return f"{Path(file).name}:{line} in {function}"


def groups_of(plan: Plan) -> tuple[Group, ...]:
    """Return a plan's schedule as groups."""
    return tuple(Group(cluster.backend, cluster.nodes) for cluster in plan.clusters)


def settings_of(plan: Plan) -> CompileSettings:
    """Return the settings that a plan's clusters are compiled with."""
    return CompileSettings(threads=plan.threads, busy_wait=plan.busy_wait, accuracy=plan.accuracy, effort=plan.effort)


def fits(plan: Plan, graph: Graph) -> bool:
    """Return whether a plan is for exactly this graph: same structure, same node names."""
    planned = [name for cluster in plan.clusters for name in cluster.nodes]
    return plan.graph_digest == graph.digest and sorted(planned) == sorted(node.name for node in graph.nodes)
