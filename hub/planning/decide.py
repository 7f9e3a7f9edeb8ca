"""Decides which assignment wins: because it is the only one, by estimates, or by measuring prices and then whole plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hub.assign.cover import Priced, cheapest_cover
from hub.backend import CompileSettings
from hub.cache.keys import artifact_parts, digest_of
from hub.compilation.transfer import Sample
from hub.cost import Cost
from hub.errors import InputRefused, PluginError
from hub.options import Options
from hub.partition.assignments import Assignment, assignments
from hub.partition.extract import extract
from hub.partition.group import EAGER, Group, group
from hub.partition.verdicts import Verdicts
from hub.plan import Event, Plan
from hub.planning.schedule import may_spin, plain_names, reads, settings_for, steps_for
from hub.pricing.proof import Proof, prove
from hub.pricing.roofline import cluster_estimate, eager_estimate
from hub.pricing.session import Lane, Offer, Order, Session
from hub.registry import Registry
from hub.report.progress import Progress
from hub.support import operator_name

MOST_REPAIRS = 8
"""Times that a cluster is compiled again without a node that made it fail."""
MOST_LANES = 6
"""Whole plans that are timed: every single backend, eager, and the best mixed ones by price."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a decision is about."""

    sample: Sample
    options: Options
    threads: int
    registry: Registry
    artifacts: Path
    """Folder under which executables are saved: `BACKEND/KEY`."""
    progress: Progress

    def folder(self, found: Group, settings: CompileSettings) -> Path:
        """Gives where a cluster's executable is, or would be, saved. Reads the weights to name it by content."""
        graph = self.sample.graph
        weights = {name: self.sample.by_name[name] for name in graph.weights}
        cluster = extract(graph, found.nodes, "key", weights)
        parts = artifact_parts(cluster.digest, self.registry.entries[found.backend], settings)
        return self.artifacts / found.backend / digest_of(parts)


Key = tuple[Group, bool]
"""A group, and whether its threads may spin."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The winning assignment, with everything learned on the way."""

    assignment: Assignment
    decided_by: str
    spin: bool
    offers: Mapping[Key, Offer] = field(default_factory=dict[Key, Offer])
    estimates: Mapping[Group, Cost] = field(default_factory=dict[Group, Cost])
    eager_s: Mapping[str, float] = field(default_factory=dict[str, float])
    proof: Proof | None = None
    events: tuple[Event, ...] = ()
    verdicts: Verdicts | None = None
    """The verdicts after failures, where some nodes were taken from their backend; None where nothing changed."""
    kept: Plan | None = None
    """The plan that is replayed, if one is."""


def decide(scene: Scene, verdicts: Verdicts, *, may_measure: bool) -> Decision:
    """Gives the decision for one graph. A plugin's failure raises nothing: it costs the plugin's candidate, as an event."""
    choices = assignments(verdicts, scene.options)
    if len(choices) == 1:
        return by_estimates(scene, choices, "options" if choices[0].clusters else "no backend takes any node")
    if may_measure and scene.options.tune != "off":
        try:
            return _by_measuring(scene, verdicts, choices)
        except Exception as error:  # noqa: BLE001 - measuring is a help, not a need: the estimates remain
            note = Event(kind="failed", stage="time", message=f"could not measure: {type(error).__name__}: {error}")
            estimated = by_estimates(scene, choices)
            return replace(estimated, events=(*estimated.events, note))
    return by_estimates(scene, choices)


def by_estimates(scene: Scene, choices: Sequence[Assignment], decided_by: str = "estimates") -> Decision:
    """Decides by predicted seconds, if there is a choice: each backend's own estimate, else the roofline."""
    graph = scene.sample.graph
    events: list[Event] = []
    estimates: dict[Group, Cost] = {}
    for choice in choices:
        settings = settings_for(scene.options, scene.threads, spin=may_spin(graph, choice))
        for found in choice.clusters:
            if found not in estimates:
                estimates[found] = _estimate(scene, found, settings, events)
    eager_s = {node.name: eager_estimate(node, scene.threads) for node in graph.nodes}
    priced = [Priced(found, cost.run_s) for found, cost in estimates.items()]
    best = choices[0] if len(choices) == 1 else _cheapest(scene, choices, priced, eager_s)
    decision = _decision(scene, best, decided_by)
    return replace(decision, estimates=estimates, eager_s=eager_s, events=tuple(events))


def _decision(scene: Scene, assignment: Assignment, decided_by: str) -> Decision:
    return Decision(assignment, decided_by, may_spin(scene.sample.graph, assignment))


def _estimate(scene: Scene, found: Group, settings: CompileSettings, events: list[Event]) -> Cost:
    graph = scene.sample.graph
    cluster = extract(graph, found.nodes, "estimate", {name: scene.sample.by_name[name] for name in graph.weights})
    try:
        cost = scene.registry.backend(found.backend).estimate(cluster, settings)
        if cost is not None and not isinstance(cost, Cost):  # pyright: ignore[reportUnnecessaryIsInstance] - plugins are not trusted
            raise TypeError(f"estimate() gave a {type(cost).__name__}, no Cost")
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the roofline takes its place
        message = f"estimate raised {type(error).__name__}: {error}"
        events.append(Event(kind="failed", stage="estimate", backend=found.backend, message=message))
        cost = None
    return cost if cost is not None else cluster_estimate(cluster, scene.threads)


def _cheapest(
    scene: Scene, choices: Sequence[Assignment], priced: Sequence[Priced], eager_s: Mapping[str, float]
) -> Assignment:
    """Gives the cheapest of the given assignments and of the exact cover over all their clusters."""
    cost_of = {item.group: item.cost_s for item in priced}
    possible = [choice for choice in choices if all(found in cost_of for found in choice.clusters)]
    mixed = _mixed(scene, priced, eager_s)
    if mixed is not None and all(found in cost_of for found in mixed.clusters):
        possible.append(mixed)
    return min(possible, key=lambda choice: (_total(choice, cost_of, eager_s), len(choice.clusters)))


def _total(choice: Assignment, cost_of: Mapping[Group, float], eager_s: Mapping[str, float]) -> float:
    clusters_s = sum(cost_of[found] for found in choice.clusters)
    return clusters_s + sum(
        eager_s.get(name, 0.0) for found in choice.groups if found.backend == EAGER for name in found.nodes
    )


def _forced(scene: Scene, priced: Sequence[Priced]) -> frozenset[str]:
    """Names of the nodes that the options force to a backend which takes them, and so not to eager."""
    possible = {(item.group.backend, name) for item in priced for name in item.group.nodes}
    nodes = scene.sample.graph.nodes
    return frozenset(node.name for node in nodes if (scene.options.forced(operator_name(node)), node.name) in possible)


def _mixed(scene: Scene, priced: Sequence[Priced], eager_s: Mapping[str, float]) -> Assignment | None:
    """Gives the exact cheapest cover as an assignment, or None where it cannot be scheduled as priced."""
    graph = scene.sample.graph
    prices = {node.name: eager_s.get(node.name, 0.0) for node in graph.nodes}
    chosen = cheapest_cover(graph, priced, prices, required=_forced(scene, priced))
    if chosen is None:
        return None
    backend_of = {node.name: EAGER for node in graph.nodes}
    for item in chosen:
        backend_of.update(dict.fromkeys(item.group.nodes, item.group.backend))
    groups = group(graph, backend_of)
    names = dict.fromkeys(found.backend for found in groups if found.backend != EAGER)
    return Assignment(" + ".join(names) or EAGER, groups)


# --- Measuring --------------------------------------------------------------------------------------------------------


def _by_measuring(scene: Scene, verdicts: Verdicts, choices: Sequence[Assignment]) -> Decision:
    events: list[Event] = []
    with Session(scene.sample, scene.threads) as session:
        session.start([*verdicts.backends, EAGER])
        verdicts, choices, offers = _compiled(scene, session, verdicts, choices)
        session.await_start(EAGER)
        eager_s = session.eager_prices()
        scene.progress.stage("timing clusters", len(offers))
        priced = {_key(offer.order): _priced(session, offer, scene.progress) for offer in offers}
        events += [_failure(offer) for offer in priced.values() if offer.failure is not None]
        lanes_for = _finalists(scene, choices, priced, eager_s)
        proof = _prove(scene, session, lanes_for, priced, events)
    if proof is None:
        return replace(_best_priced(scene, choices, priced, eager_s), events=tuple(events), verdicts=verdicts)
    winner = next(choice for choice in lanes_for if choice.name == proof.winner.name)
    decision = _decision(scene, winner, "measured whole plans")
    return replace(decision, offers=priced, eager_s=eager_s, proof=proof, events=tuple(events), verdicts=verdicts)


def _compiled(
    scene: Scene, session: Session, verdicts: Verdicts, choices: Sequence[Assignment]
) -> tuple[Verdicts, Sequence[Assignment], list[Offer]]:
    """Compiles every cluster of every assignment.

    A node that a failure names is taken from its backend, and what is left of the cluster is tried again: one bad operator
    must not cost a backend the whole graph.
    """
    offers: dict[Key, Offer] = {}
    for _ in range(MOST_REPAIRS + 1):
        orders = _orders(scene, choices, offers)
        scene.progress.stage("compiling", len(orders))
        by_backend: dict[str, list[Order]] = {}
        for order in orders.values():
            by_backend.setdefault(order.group.backend, []).append(order)
        found = session.compile_all(by_backend, scene.progress.advance)
        offers |= {_key(offer.order): offer for offer in found}
        named = [offer for offer in found if offer.failure is not None and offer.failure.node in offer.order.group.nodes]
        if not named:
            break
        for offer in named:
            verdicts = verdicts.without(offer.order.group.backend, (str(offer.failure.node),), offer.failure.message)  # pyright: ignore[reportOptionalMemberAccess] - `named` has failures only
        choices = assignments(verdicts, scene.options)
    return verdicts, choices, list(offers.values())


def _orders(scene: Scene, choices: Sequence[Assignment], known: Mapping[Key, Offer]) -> dict[Key, Order]:
    """Gives one order for each cluster of any assignment that is not known yet, under the settings it would have there."""
    graph = scene.sample.graph
    orders: dict[Key, Order] = {}
    for choice in choices:
        spin = may_spin(graph, choice)
        for found in choice.clusters:
            if (found, spin) not in orders and (found, spin) not in known:
                settings = settings_for(scene.options, scene.threads, spin=spin)
                name = f"k{len(known) + len(orders)}"
                orders[found, spin] = Order(name, found, settings, scene.folder(found, settings), reads(graph, found))
    return orders


def _key(order: Order) -> Key:
    return order.group, order.settings.spin


def _priced(session: Session, offer: Offer, progress: Progress) -> Offer:
    progress.advance(f"{offer.order.group.backend} {offer.order.name}")
    return offer if offer.failure is not None else session.price(offer)


def _failure(offer: Offer) -> Event:
    return Event(
        kind="refused" if isinstance(offer.failure, InputRefused) else "failed",
        stage="verify" if type(offer.failure).__name__ in ("AccuracyError", "ContractError") else "compile",
        backend=offer.order.group.backend,
        cluster=offer.order.name,
        message=str(offer.failure),
    )


def _finalists(
    scene: Scene, choices: Sequence[Assignment], offers: Mapping[Key, Offer], eager_s: Mapping[str, float]
) -> list[Assignment]:
    """Gives the assignments worth timing whole: all with one backend, eager, then mixed ones by price."""
    cost_of = _cost_of(offers)
    possible = [choice for choice in choices if all(found in cost_of for found in choice.clusters)]
    mixed = _mixed(scene, [Priced(found, cost) for found, cost in cost_of.items()], eager_s)
    if (
        mixed is not None
        and mixed.groups not in {choice.groups for choice in possible}
        and all(f in cost_of for f in mixed.clusters)
    ):
        possible.append(mixed)
    singles = [choice for choice in possible if len(choice.backends) < 2]
    others = sorted(
        (choice for choice in possible if len(choice.backends) > 1), key=lambda choice: _total(choice, cost_of, eager_s)
    )
    return _with_own_names((singles + others)[: max(MOST_LANES, len(singles))])


def _with_own_names(choices: Sequence[Assignment]) -> list[Assignment]:
    """Numbers assignments of equal names, since the same backends can share a graph in several ways."""
    seen: Counter[str] = Counter()
    named: list[Assignment] = []
    for choice in choices:
        seen[choice.name] += 1
        named.append(choice if seen[choice.name] == 1 else replace(choice, name=f"{choice.name} ({seen[choice.name]})"))
    return named


def _cost_of(offers: Mapping[Key, Offer]) -> dict[Group, float]:
    """Gives each group's measured seconds; of two settings, the quieter one's (no spinning)."""
    found: dict[Group, float] = {}
    for (item, spin), offer in offers.items():
        if offer.cost is not None and (item not in found or not spin):
            found[item] = offer.cost.run_s
    return found


def _best_priced(
    scene: Scene, choices: Sequence[Assignment], offers: Mapping[Key, Offer], eager_s: Mapping[str, float]
) -> Decision:
    priced = [Priced(found, cost) for found, cost in _cost_of(offers).items()]
    best = _cheapest(scene, choices, priced, eager_s)
    return replace(_decision(scene, best, "measured prices"), offers=offers, eager_s=eager_s)


def _prove(
    scene: Scene, session: Session, finalists: Sequence[Assignment], offers: Mapping[Key, Offer], events: list[Event]
) -> Proof | None:
    scene.progress.stage("timing whole plans", len(finalists))
    lanes: list[Lane] = []
    for choice in finalists:
        try:
            lanes.append(_lane(scene, session, choice, offers))
        except PluginError as error:
            events.append(Event(kind="failed", stage="time", backend=error.backend, message=f"plan {choice.name}: {error}"))
        scene.progress.advance(choice.name)
    proof = prove(session, lanes, scene.options.budget_s) if lanes else None
    if proof is not None:
        events += [Event(kind="failed", stage="time", message=f"plan {name}: {error}") for name, error in proof.failures]
    return proof


def _lane(scene: Scene, session: Session, choice: Assignment, offers: Mapping[Key, Offer]) -> Lane:
    spin = may_spin(scene.sample.graph, choice)
    found = {item: offers[_offer_key(offers, item, spin)] for item in choice.clusters}
    names = [
        found[item].order.name if item in found else name
        for item, name in zip(choice.groups, plain_names(choice.groups), strict=True)
    ]
    steps = steps_for(scene.sample.graph, choice.groups, names)
    home = choice.backends[0] if len(choice.backends) == 1 else EAGER if not choice.backends else None
    return session.lane(choice.name, steps, tuple(found.values()), home)


def _offer_key(offers: Mapping[Key, Offer], item: Group, spin: bool) -> Key:
    return (item, spin) if (item, spin) in offers else (item, not spin)
