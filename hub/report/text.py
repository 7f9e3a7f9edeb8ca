"""A plan as plain text, as returned by `str(plan)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hub.plan import Contender, Event, Plan, PlannedCluster, Price, Search
from hub.report.columns import columns
from hub.report.numbers import count, duration, names_text, ratio, spread


def plan_text(plan: Plan) -> str:
    """Return the whole report on a plan: decision, clusters, why not the others, contenders, events. No colours."""
    sections = (
        ("", heading(plan)),
        ("clusters", columns(CLUSTER_HEADERS, [cluster_cells(cluster) for cluster in plan.clusters], right=NUMBERS)),
        ("comes from", source_lines(plan)),
        ("why not", why_not_lines(plan)),
        *reports(plan),
        ("contenders", columns(CONTENDER_HEADERS, contender_rows(plan), right=NUMBERS) if plan.contenders else []),
        ("events", [event_line(event) for event in plan.events]),
    )
    return "\n\n".join("\n".join(_section(title, lines)) for title, lines in sections if lines)


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if title:
        yield title
    yield from (f"  {line}" for line in lines) if title else lines


def heading(plan: Plan) -> list[str]:
    """Return the lines that show what the plan is for and how it was decided."""
    busy = "may busy-wait" if plan.busy_wait else "no busy-waiting"
    facts = (
        ("inputs", ", ".join(plan.inputs) or "none, or not given"),
        ("threads", f"{plan.threads or 'as PyTorch'}, {busy} between calls"),
        (
            "accuracy",
            "as exact as float32 eager" if plan.accuracy is None else f"max|error| / max|reference| <= {plan.accuracy:g}",
        ),
        ("decided by", (plan.decided_by or "nothing yet") + (f", in {duration(plan.plan_s)}" if plan.plan_s else "")),
        ("one call", f"predicted {duration(plan.predicted_s)}, measured {duration(plan.measured_s)}"),
    )
    if plan.search is not None:
        facts = (*facts, ("search", search_text(plan.search)))
    clusters = f"{count(len(plan.clusters), 'cluster')} on {', '.join(plan.backends) or 'nothing'}"
    title = plan.graph or "any graph with its nodes"
    return [f"plan of {title} ({plan.mode}): {clusters}", *(f"  {name:<10}  {text}" for name, text in facts)]


def search_text(search: Search) -> str:
    """Return a one-line summary of the planner's search: "26 regions of 5 structures, 10 of 15 prices measured, ..."."""
    proof = {None: "", 0.0: ", proven cheapest"}.get(search.gap, f", within {search.gap or 0:.1%} of the cheapest")
    method = {"chain": "; assigned by dynamic program", "milp": "; assigned by binary program"}.get(search.method, "")
    return (
        f"{count(search.regions, 'region')} of {count(search.structures, 'structure')}, "
        f"{search.measured} of {count(search.candidates, 'price')} measured{method}{proof}"
    )


# --- Clusters ---------------------------------------------------------------------------------------------------------

CLUSTER_HEADERS = ("name", "backend", "nodes", "operators", "predicted", "measured", "why")
NUMBERS = frozenset({"nodes", "predicted", "measured", "one call", "to best", "clusters", "calls"})
"""Columns that are right-aligned."""


def cluster_cells(cluster: PlannedCluster) -> tuple[str, ...]:
    """Return one row of the table of clusters."""
    return (
        cluster.name,
        cluster.backend,
        str(len(cluster.nodes)),
        operators_text(cluster.operators),
        duration(cluster.predicted_s),
        duration(cluster.measured_s),
        cluster.reason,
    )


def operators_text(operators: Sequence[str]) -> str:
    """Return the operators of a cluster in short: "linear", "relu x4" or "embedding ... linear"."""
    short = [name.removeprefix("aten.").removesuffix(".default") for name in operators]
    if len(set(short)) <= 1:
        return (short[0] if len(short) == 1 else f"{short[0]} x{len(short)}") if short else "-"
    return f"{short[0]} ... {short[-1]}"


def source_lines(plan: Plan) -> list[str]:
    """Return the first and last line of the user's model that each cluster comes from."""
    named = [(cluster.name, cluster.source) for cluster in plan.clusters if cluster.source]
    width = max((len(name) for name, _ in named), default=0)
    return [f"{name:<{width}}  {_first_and_last(source)}" for name, source in named]


def _first_and_last(lines: Sequence[str]) -> str:
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]} ({len(lines)} lines)"


# --- Why not the others -----------------------------------------------------------------------------------------------


def why_not_lines(plan: Plan) -> list[str]:
    """Return, for each backend, its bids for clusters that it did not get, with equal refusals together."""
    found: dict[str, dict[str, list[str]]] = {}
    for cluster, backend, text in _lost_bids(plan):
        found.setdefault(backend, {}).setdefault(text, []).append(cluster)
    width = max(map(len, found), default=0)
    return [
        f"{backend if first else '':<{width}}  {names_text(clusters)}: {text}"
        for backend, reasons in found.items()
        for first, (text, clusters) in zip((True, *[False] * len(reasons)), reasons.items(), strict=False)
    ]


def _lost_bids(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for cluster in plan.clusters:
        for bid in cluster.bids:
            if bid.backend != cluster.backend:
                text = bid.refusal if bid.price is None else _price_text(bid.price, cluster)
                yield cluster.name, bid.backend, text or "no bid"


def _price_text(price: Price, cluster: PlannedCluster) -> str:
    own = next(
        (bid.price.run_s for bid in cluster.bids if bid.backend == cluster.backend and bid.price), cluster.predicted_s
    )
    against = f", {ratio(price.run_s, own)} {cluster.backend}'s" if own else ""
    return f"{spread(price.run_s, price.spread_s)} ({price.source}){against}"


def reports(plan: Plan) -> list[tuple[str, list[str]]]:
    """Return title and lines of backends' reports on their clusters."""
    return [
        (f"{cluster.name} on {cluster.backend}", cluster.report.splitlines()) for cluster in plan.clusters if cluster.report
    ]


# --- Contenders and events --------------------------------------------------------------------------------------------

CONTENDER_HEADERS = ("", "plan", "one call", "to best", "clusters", "calls")


def contender_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return the rows of the table of contenders."""
    ordered = sorted(plan.contenders, key=lambda contender: contender.median_s)
    return [_contender_cells(contender, ordered[0].median_s) for contender in ordered]


def _contender_cells(contender: Contender, best_s: float) -> tuple[str, ...]:
    return (
        "*" if contender.won else "",
        contender.name,
        spread(contender.median_s, contender.spread_s),
        ratio(contender.median_s, best_s),
        str(contender.n_clusters),
        str(contender.calls),
    )


def event_line(event: Event) -> str:
    """Return one event: kind, stage, backend or cluster, and what happened."""
    whom = ", ".join(name for name in (event.backend, event.cluster) if name)
    return f"{event.kind} at {event.stage}{f' ({whom})' if whom else ''}: {event.message}"
