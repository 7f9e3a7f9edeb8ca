"""Explanations of a plan's clusters by their own backends, for `hub explain`: evidence that only they have."""

from __future__ import annotations

from hub.discovery.plugin_fault import is_plugins
from hub.errors import HubError, text_of, type_of
from hub.partition.group import Group
from hub.plan import Event, EventKind, Plan, PlannedCluster, Stage
from hub.planning.context import PlanningContext
from hub.planning.evidence import settings_of


def explained(plan: Plan, context: PlanningContext) -> Plan:
    """Return a plan with the explanations of its clusters' backends; a backend that fails costs a note."""
    events: list[Event] = []
    clusters = tuple(_told(cluster, plan, context, events) for cluster in plan.clusters)
    return plan.model_copy(update={"clusters": clusters}).with_events(*events)


def _told(cluster: PlannedCluster, plan: Plan, context: PlanningContext, events: list[Event]) -> PlannedCluster:
    entry = context.registry.entries.get(cluster.backend)
    if entry is None or not entry.status.accepted:
        return cluster
    try:
        said = context.workers.explain(Group(cluster.backend, cluster.nodes), cluster.name, settings_of(plan))
    except HubError as error:
        problem = error.message
    except BaseException as error:
        if not is_plugins(error):
            raise
        problem = text_of(error)
    else:
        problem = said.changed
        if isinstance(said.answer, str):
            cluster = cluster.model_copy(update={"report": said.answer.rstrip()})
        else:
            problem = f"explain() returned {type_of(said.answer)}, not text"
    if problem:
        events.append(
            Event(kind=EventKind.NOTE, stage=Stage.EXPLAIN, message=problem, backend=cluster.backend, cluster=cluster.name)
        )
    return cluster
