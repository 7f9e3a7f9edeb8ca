"""What is known about prices while one graph is planned: measured here before learned from the past before estimated."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hub.backend import CompileSettings
from hub.cache.measurements import Measurement, Subject, machine_digest
from hub.cost import Cost
from hub.errors import text_of
from hub.partition.group import EAGER, Group, is_trifle
from hub.partition.structure import structure_digest
from hub.plan import Event, EventKind, Stage
from hub.planning.scene import Draft, Scene
from hub.pricing.features import device_number, features_of
from hub.pricing.learned import LearnedPrices, Sample
from hub.pricing.roofline import cluster_estimate, eager_estimate, least_seconds
from hub.pricing.session import Offer
from hub.pricing.timing import median
from hub.report.numbers import count


class PriceBook:
    """Gives the best known price of any cluster, and writes measured ones down for later plans and processes.

    Clusters of equal structure share a price, wherever they stand and whatever their weights hold.
    """

    def __init__(self, scene: Scene) -> None:
        self.events: list[Event] = []
        self._scene = scene
        self._structures: dict[tuple[str, ...], str] = {}
        self._costs: dict[tuple[str, str, CompileSettings], Cost] = {}
        """Measured prices, by structure, backend and settings."""
        self._guesses: dict[tuple[str, str, int], Cost] = {}
        self._models: dict[tuple[str, int, float], LearnedPrices | None] = {}
        """By backend, threads, and the kind of device as features number it."""
        self._missed: set[tuple[str, str, CompileSettings]] = set()
        self._failures: dict[Group, str] = {}
        self._failed_structures: set[tuple[str, str]] = set()
        self._n_kept = 0
        self._silent: set[str] = set()
        """Backends whose estimates failed: they are not asked again."""

    def structure(self, found: Group) -> str:
        """Gives the structural digest of a cluster's nodes."""
        if found.nodes not in self._structures:
            self._structures[found.nodes] = structure_digest(self._scene.graph, found.nodes)
        return self._structures[found.nodes]

    def measured(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Gives a price that was measured on this machine under these settings, now or by an earlier process, or None."""
        key = (self.structure(found), found.backend, settings)
        if key not in self._costs and key not in self._missed:
            stored = self._scene.measurements.find(self._subject(found, settings))
            if stored is None:
                self._missed.add(key)
            else:
                self._costs[key] = replace(stored.cost, detail=f"{stored.cost.detail}, measured {stored.made[:10]}")
        return self._costs.get(key)

    def cost(self, found: Group, settings: CompileSettings) -> Cost:
        """Gives the best known price: measured under these settings or under the other habit of spinning, else a guess."""
        known = self.measured_at_all(found, settings)
        return known if known is not None else self.guess(found, settings)

    def guess(self, found: Group, settings: CompileSettings) -> Cost:
        """Gives what the past teaches about such clusters, else what the backend or the roofline estimates."""
        key = (self.structure(found), found.backend, settings.threads)
        if key not in self._guesses:
            self._guesses[key] = self._learned(found, settings) or self._estimate(found, settings)
        return self._guesses[key]

    def least_s(self, found: Group, settings: CompileSettings) -> float:
        """Gives seconds that no backend can stay below: the cluster's work at the machine's peaks."""
        return least_seconds((self._scene.graph.by_name[name] for name in found.nodes), settings.threads)

    def keep(self, offer: Offer) -> None:
        """Writes a measured price down, for this plan and for later processes."""
        if offer.cost is None:
            return
        found, settings = offer.order.group, offer.order.settings
        self._costs[self.structure(found), found.backend, settings] = offer.cost
        self._n_kept += 1
        nodes = [self._scene.graph.by_name[name] for name in found.nodes]
        features = features_of(nodes, self._scene.graph.weights)
        self._scene.measurements.keep(
            Measurement(self._subject(found, settings), offer.cost, offer.compile_s, features, _now())
        )

    def eager_s(self) -> Mapping[str, float]:
        """Gives seconds of each node in eager: measured on this machine by any process so far, else the roofline's."""
        scene = self._scene
        subjects = {name: self._eager_subject(name) for name in self._worth_an_eager_price()}
        known = scene.measurements.find_many(set(subjects.values()))
        found = {name: known[subject].cost.run_s for name, subject in subjects.items() if subject in known}
        return {node.name: found.get(node.name) or eager_estimate(node, scene.threads) for node in scene.graph.nodes}

    def keep_eager(self, seconds: Mapping[str, float]) -> None:
        """Writes down what each node took in eager, for later processes: nodes of equal structure share a price."""
        alike: dict[Subject, list[str]] = {}
        for name in self._worth_an_eager_price():
            if name in seconds:
                alike.setdefault(self._eager_subject(name), []).append(name)
        for subject, names in alike.items():
            samples = [seconds[name] for name in names]
            spread_s = (max(samples) - min(samples)) / 2
            cost = Cost(median(samples), spread_s, 0, "measured", f"{count(len(names), 'node')}, {subject.threads} threads")
            self._scene.measurements.keep(Measurement(subject, cost, 0.0, {}, _now()))  # nothing is learned about eager

    def _worth_an_eager_price(self) -> list[str]:
        return [node.name for node in self._scene.graph.nodes if not is_trifle(node)]

    def _eager_subject(self, name: str) -> Subject:
        return self._subject(Group(EAGER, (name,)), CompileSettings(threads=self._scene.threads, spin=True))

    @property
    def n_kept(self) -> int:
        """Prices measured so far for this decision."""
        return self._n_kept

    def is_known(self, structure: str, backend: str, settings: CompileSettings) -> bool:
        """True where a price for this structure is at hand."""
        return (structure, backend, settings) in self._costs

    def measured_at_all(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Gives a measured price under these settings, or else under the other habit of spinning."""
        return self.measured(found, settings) or self.measured(found, replace(settings, spin=not settings.spin))

    def fail(self, found: Group, reason: str) -> None:
        """Remembers that a backend cannot have clusters of this structure."""
        self._failures[found] = reason
        self._failed_structures.add((self.structure(found), found.backend))

    def has_failed(self, found: Group) -> bool:
        """True where a cluster of this structure failed in this backend."""
        return (self.structure(found), found.backend) in self._failed_structures

    @property
    def failures(self) -> Mapping[Group, str]:
        """Why clusters could not be had, in one line each."""
        return dict(self._failures)

    def note(self, events: Iterable[Event]) -> None:
        """Adds events, each once."""
        self.events += [event for event in events if event not in self.events]

    def total_s(self, draft: Draft, eager_s: Mapping[str, float]) -> float:
        """Gives seconds of one call of a draft: the best known price of each cluster, and its nodes in eager."""
        clusters_s = sum(self.cost(found, draft.settings).run_s for found in draft.assignment.clusters)
        return clusters_s + sum(eager_s[name] for name in draft.assignment.eager_nodes)

    def all_costs(self, drafts: Iterable[Draft]) -> Mapping[Group, Cost]:
        """Gives the best known price of every cluster of some drafts; of two settings, the later draft's."""
        settings = {found: draft.settings for draft in drafts for found in draft.assignment.clusters}
        return {found: self.cost(found, wanted) for found, wanted in settings.items()}

    def _subject(self, found: Group, settings: CompileSettings) -> Subject:
        return self._scene.subject(found, self.structure(found), settings)

    def _learned(self, found: Group, settings: CompileSettings) -> Cost | None:
        nodes = [self._scene.graph.by_name[name] for name in found.nodes]
        model = self._model(found.backend, settings.threads, device_number(nodes))
        return None if model is None else model.price(features_of(nodes, self._scene.graph.weights))

    def _model(self, backend: str, threads: int, device: float) -> LearnedPrices | None:
        key = backend, threads, device
        if key not in self._models:
            rows = self._scene.measurements.samples(backend, machine_digest(), threads)
            self._models[key] = LearnedPrices.fit([Sample(row.features, row.cost.run_s) for row in rows], device)
        return self._models[key]

    def _estimate(self, found: Group, settings: CompileSettings) -> Cost:
        """Gives the backend's own estimate, else the roofline. What a plugin raises costs it only its say."""
        cost: Any = None
        if found.backend not in self._silent:
            try:
                said = self._scene.estimate(found, settings)
                self._note_changed(found.backend, said.changed)
                cost = said.answer
                if cost is not None and not isinstance(cost, Cost):
                    raise TypeError(f"estimate() gave a {type(cost).__name__}, no Cost")
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the roofline takes its place
                self._silent.add(found.backend)
                self._failed(found.backend, f"estimate raised {text_of(error)}")
                cost = None
        return cost if cost is not None else cluster_estimate(self._scene.cluster(found, "estimate"), settings.threads)

    def _note_changed(self, backend: str, changed: str) -> None:
        if changed:
            self.note([Event(kind=EventKind.NOTE, stage=Stage.ESTIMATE, backend=backend, message=changed)])

    def _failed(self, backend: str, message: str) -> None:
        self.note([Event(kind=EventKind.FAILED, stage=Stage.ESTIMATE, backend=backend, message=message)])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
