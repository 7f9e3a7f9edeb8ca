"""Differences between two sets of plans: backends of nodes, cuts between clusters, settings, times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from hub.plan import EAGER, Plan, PlannedCluster
from hub.report.numbers import count, duration, names_text, ratio
from hub.report.text import operators_text

_SETTINGS = ("mode", "inputs", "threads", "busy_wait", "accuracy", "effort")


@dataclass(frozen=True, slots=True)
class Moved:
    """Nodes of one cluster that another backend has in the second plan."""

    cluster: str
    backend: str
    to_cluster: str
    to_backend: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recut:
    """A cluster whose nodes are in several clusters of the other plan."""

    cluster: str
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs: a setting, or the seconds of the whole plan or of a cluster that is in both."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """Differences for one graph. All fields are empty if the plans are equal."""

    graph: str
    only_in: str = ""
    """ "first" or "second" if the other file has no plan for this graph; then nothing else is reported."""
    moved: tuple[Moved, ...] = ()
    split: tuple[Recut, ...] = ()
    """Clusters of the first plan whose nodes are in several of the second."""
    merged: tuple[Recut, ...] = ()
    """Clusters of the second plan whose nodes come from several of the first."""
    removed: tuple[str, ...] = ()
    """Nodes that only the first plan has."""
    added: tuple[str, ...] = ()
    """Nodes that only the second plan has."""
    settings: tuple[Change, ...] = ()
    times: tuple[Change, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing differs."""
        return self == GraphDiff(self.graph)


def plan_diff(first: Sequence[Plan], second: Sequence[Plan]) -> tuple[GraphDiff, ...]:
    """Return one difference for each graph, in the first's order, then those that only the second has.

    Plans of equal digest are compared, then plans that share a node, each in order. Names of graphs and clusters, reasons,
    bids, contenders and events do not count as differences.
    """
    partner = _partners(first, second)
    rest = [plan for index, plan in enumerate(second) if index not in partner.values()]
    return (
        *(
            _graph_diff(plan, second[partner[index]]) if index in partner else GraphDiff(plan.graph, "first")
            for index, plan in enumerate(first)
        ),
        *(GraphDiff(plan.graph, "second") for plan in rest),
    )


def _partners(first: Sequence[Plan], second: Sequence[Plan]) -> Mapping[int, int]:
    """Return the position in `second` of each plan of `first` that has a partner there."""
    found: dict[int, int] = {}
    for belongs in (_have_equal_digest, _share_a_node):
        for index, plan in enumerate(first):
            free = (other for other in range(len(second)) if other not in found.values())
            if (
                index not in found
                and (match := next((one for one in free if belongs(plan, second[one])), None)) is not None
            ):
                found[index] = match
    return found


def _have_equal_digest(one: Plan, other: Plan) -> bool:
    return one.graph_digest == other.graph_digest != "" and one.mode == other.mode


def _share_a_node(one: Plan, other: Plan) -> bool:
    return not _homes(one).keys().isdisjoint(_homes(other))


def _homes(plan: Plan) -> dict[str, int]:
    """Return the position of each node's cluster."""
    return {node: index for index, cluster in enumerate(plan.clusters) for node in cluster.nodes}


def _graph_diff(one: Plan, other: Plan) -> GraphDiff:
    before, after = _homes(one), _homes(other)
    return GraphDiff(
        graph=one.graph,
        moved=tuple(_moved(one, other, before, after)),
        split=tuple(_recut(one, other, after)),
        merged=tuple(_recut(other, one, before)),
        removed=tuple(node for node in before if node not in after),
        added=tuple(node for node in after if node not in before),
        settings=tuple(_changes((name, getattr(one, name), getattr(other, name)) for name in _SETTINGS)),
        times=tuple(_changes(_times(one, other))),
    )


def _moved(one: Plan, other: Plan, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[Moved]:
    ways: dict[tuple[int, int], list[str]] = {}
    for node, home in before.items():
        if node in after and one.clusters[home].backend != other.clusters[after[node]].backend:
            ways.setdefault((home, after[node]), []).append(node)
    for (home, new_home), nodes in ways.items():
        cluster, target = one.clusters[home], other.clusters[new_home]
        names = _names(one)[home], _names(other)[new_home]
        yield Moved(names[0], cluster.backend, names[1], target.backend, tuple(nodes), _operators(cluster, nodes))


def _names(plan: Plan) -> tuple[str, ...]:
    return tuple(cluster.name or f"cluster {index}" for index, cluster in enumerate(plan.clusters))


def _operators(cluster: PlannedCluster, nodes: Sequence[str]) -> tuple[str, ...]:
    if len(cluster.operators) != len(cluster.nodes):  # edited plans may leave them out
        return tuple(nodes)
    operator_of = dict(zip(cluster.nodes, cluster.operators, strict=True))
    return tuple(operator_of[node] for node in nodes)


def _recut(one: Plan, other: Plan, homes: Mapping[str, int]) -> Iterator[Recut]:
    names = _names(other)
    for name, cluster in zip(_names(one), one.clusters, strict=True):
        others = sorted({homes[node] for node in cluster.nodes if node in homes})
        if len(others) > 1:
            yield Recut(name, tuple(names[index] for index in others))


def _changes(values: Iterator[tuple[str, Any, Any]]) -> Iterator[Change]:
    return (Change(name, before, after) for name, before, after in values if before != after)


def _times(one: Plan, other: Plan) -> Iterator[tuple[str, float | None, float | None]]:
    yield "predicted", one.predicted_s, other.predicted_s
    yield "measured", one.measured_s, other.measured_s
    same = {(cluster.backend, frozenset(cluster.nodes)): cluster for cluster in other.clusters}
    for name, cluster in zip(_names(one), one.clusters, strict=True):
        if (found := same.get((cluster.backend, frozenset(cluster.nodes)))) is not None:
            yield f"{name} predicted", cluster.predicted_s, found.predicted_s
            yield f"{name} measured", cluster.measured_s, found.measured_s


# --- For programs and for people --------------------------------------------------------------------------------------


def diff_facts(diffs: Sequence[GraphDiff]) -> dict[str, Any]:
    """Return the differences as plain JSON values; `equal` is true if there are none."""
    return {"equal": all(diff.is_empty for diff in diffs), "graphs": [asdict(diff) for diff in diffs if not diff.is_empty]}


def diff_text(diffs: Sequence[GraphDiff], first: str, second: str) -> Text:
    """Return the differences for the terminal, in colour; `first` and `second` name the files."""
    if all(diff.is_empty for diff in diffs):
        return Text(f"{first} and {second}: the same plan")
    lines = [Text.assemble((f"--- {first}", "red")), Text.assemble((f"+++ {second}", "green"))]
    for diff in diffs:
        if not diff.is_empty:
            lines += [Text(diff.graph, style="bold"), *_lines(diff, {"first": first, "second": second})]
    return Text("\n").join(lines)


def _lines(diff: GraphDiff, files: Mapping[str, str]) -> Iterator[Text]:
    if diff.only_in:
        yield Text(f"  only in {files[diff.only_in]}")
        return
    for item in diff.moved:
        yield _moved_line(item)
    yield from (Text(f"  {item.cluster} is split into {', '.join(item.others)}") for item in diff.split)
    yield from (Text(f"  {item.cluster} is merged from {', '.join(item.others)}") for item in diff.merged)
    for sign, nodes, style in (("-", diff.removed, "red"), ("+", diff.added, "green")):
        if nodes:
            yield Text(f"  {sign} {count(len(nodes), 'node')}: {names_text(nodes)}", style=style)
    yield from (_change_line(item.name, _setting(item.before), _setting(item.after)) for item in diff.settings)
    for item in diff.times:
        factor = f" ({ratio(item.after, item.before)})" if item.before and item.after is not None else ""
        yield _change_line(item.name, duration(item.before), duration(item.after) + factor)


def _moved_line(item: Moved) -> Text:
    return Text.assemble(
        f"  {item.cluster} ",
        (item.backend, "dim" if item.backend == EAGER else "red"),
        f" -> {item.to_cluster} ",
        (item.to_backend, "dim" if item.to_backend == EAGER else "green"),
        f": {count(len(item.nodes), 'node')}, {operators_text(item.operators)} ({names_text(item.nodes)})",
    )


def _change_line(name: str, before: str, after: str) -> Text:
    return Text.assemble(f"  {name}: ", (before, "red"), " -> ", (after, "green"))


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType] - any tuple prints
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
