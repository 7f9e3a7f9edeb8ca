"""What is known about prices while one graph is planned: measured here before learned from the past before estimated."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pvariance
from typing import Any

from hub.cache.measurements import Measurement, Subject, machine_digest
from hub.errors import text_of
from hub.partition.group import EAGER, Group, is_trifle
from hub.plan import Event, EventKind, Stage
from hub.planning.context import Draft, PlanningContext
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost
from hub.pricing.compile_times import UNKNOWN_S, Compiled, CompileTimes
from hub.pricing.features import EAGER_S, features_of
from hub.pricing.learned import CPU, MIN_SAMPLES, REACH, LearnedPrices, Sample
from hub.pricing.roofline import cluster_estimate, eager_estimate, least_seconds, peaks
from hub.pricing.shipped import shipped_table
from hub.pricing.timing import median
from hub.report.numbers import count
from hub.workers.candidate import Candidate


class PriceBook:
    """Return the best known price of any cluster, and writes measured ones down for later plans and processes.

    Clusters of equal structure share a price, wherever they stand and whatever their weights hold.
    """

    def __init__(self, context: PlanningContext) -> None:
        self.events: list[Event] = []
        self._context = context
        self._eager_s: Mapping[str, float] = {}
        self._unmeasured: Sequence[str] = ()
        self._costs: dict[tuple[str, str, CompileSettings], Cost] = {}
        """Measured prices, by structure, backend and settings."""
        self._guesses: dict[tuple[str, str, int], Cost] = {}
        self._models: dict[tuple[str, int, float], LearnedPrices | None] = {}
        """By backend, threads, and the kind of device as features number it."""
        self._known: dict[tuple[str, int], tuple[Measurement, ...]] = {}
        """What this machine measured so far, by backend and threads, oldest first."""
        self._times: dict[tuple[str, int], CompileTimes | None] = {}
        self._features: dict[tuple[str, ...], Mapping[str, float]] = {}
        self._missed: set[tuple[str, str, CompileSettings]] = set()
        self._failures: dict[Group, str] = {}
        self._failed_structures: set[tuple[str, str]] = set()
        self._n_kept = 0
        self._silent: set[str] = set()
        """Backends whose estimates failed: they are not asked again."""
        self._blind: set[tuple[str, str, int]] = set()
        """Keys of guesses that rest on the roofline alone."""
        self._has_timed_eager = False

    def structure(self, found: Group) -> str:
        """Return the structural digest of a cluster's nodes."""
        return self._context.structure(found)

    def measured(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return a price that was measured on this machine under these settings, now or by an earlier process, or None."""
        key = (self.structure(found), found.backend, settings)
        if key not in self._costs and key not in self._missed:
            stored = self._context.measurements.find(self._context.subject(found, settings))
            if stored is None:
                self._missed.add(key)
            else:
                self._costs[key] = replace(stored.cost, detail=f"{stored.cost.detail}, measured {stored.made[:10]}")
        return self._costs.get(key)

    def cost(self, found: Group, settings: CompileSettings) -> Cost:
        """Return the best known price: measured under these settings or under the other habit of spinning, else a guess."""
        known = self.measured_at_all(found, settings)
        return known if known is not None else self.guess(found, settings)

    def guess(self, found: Group, settings: CompileSettings) -> Cost:
        """Return what the past teaches about such clusters, else what the backend or the roofline estimates.

        A backend that predicts prices of its own knows more than what was measured on other machines, and less than what
        was measured on this one.
        """
        key = (self.structure(found), found.backend, settings.threads)
        if key not in self._guesses:
            is_proven = len(self._measurements(found.backend, settings.threads)) >= MIN_SAMPLES
            own = None if is_proven else self._own_estimate(found, settings)
            learned = own or self._learned(found.backend, self.features(found), settings.threads)
            self._guesses[key] = learned or self._roofline(found, settings)
            self._blind = self._blind - {key} if learned else self._blind | {key}
        return self._guesses[key]

    def expected(self, found: Group, settings: CompileSettings) -> Cost:
        """Return the best known price, or what is expected."""
        return self.measured_at_all(found, settings) or self.forecast(found, settings)

    def forecast(self, found: Group, settings: CompileSettings) -> Cost:
        """Return what is expected before a cluster is measured: a guess, or else what backends typically take.

        The roofline is a bound that hardly any plan comes near: by it, whoever is new would always be tried first.
        """
        guess = self.guess(found, settings)
        is_blind = (self.structure(found), found.backend, settings.threads) in self._blind
        return (self._typical(found, settings) if is_blind else None) or guess

    def is_blind(self, found: Group, settings: CompileSettings) -> bool:
        """Return whether nothing is known of what a backend takes: it may say so itself once it is asked."""
        if self.measured_at_all(found, settings) is not None:
            return False
        self.guess(found, settings)
        return (self.structure(found), found.backend, settings.threads) in self._blind

    def _typical(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return the geometric mean of what each backend in the shipped table would take, and how far they are apart."""
        features = self.features(found)
        names = dict.fromkeys(row.backend for row in shipped_table().rows if row.backend != EAGER)
        known = [self._learned(name, features, settings.threads) for name in names]
        costs = [cost for cost in known if cost is not None]
        if not costs:
            return None
        logs = [math.log(cost.run_s) for cost in costs]
        within = fmean((math.asinh(cost.spread_s / cost.run_s) / REACH) ** 2 for cost in costs)
        run_s, deviation = math.exp(fmean(logs)), math.sqrt(pvariance(logs) + within)
        spread_s = run_s * math.sinh(REACH * deviation)
        return Cost(run_s, spread_s, costs[0].transfer_bytes, "estimated", "what backends typically take")

    def forget_guesses(self, backends: Collection[str]) -> None:
        """Guess anew what these backends take: they can say now what they expect themselves."""
        self._guesses = {key: cost for key, cost in self._guesses.items() if key[1] not in backends}

    def compile_s(self, found: Group, settings: CompileSettings) -> float:
        """Return seconds that compiling and verifying a cluster is expected to take, a worker's start included."""
        key = found.backend, settings.threads
        table = shipped_table()
        if key not in self._times:
            rows = [*(row for row in table.rows if row.backend == found.backend), *self._measurements(*key)]
            self._times[key] = CompileTimes.fit([Compiled(row.features, row.compile_s) for row in rows])
        times = self._times[key]
        seconds = UNKNOWN_S if times is None else times.seconds(self.features(found))
        return seconds + table.starts_s.get(found.backend, 0.0)

    def features(self, found: Group) -> Mapping[str, float]:
        """Return what a cluster looks like to what learns from the past, eager's time among it."""
        plain = self._plain_features(found.nodes)
        eager_s = self.eager_s()
        return {**plain, EAGER_S: sum(eager_s[name] for name in found.nodes)}

    def _plain_features(self, nodes: tuple[str, ...]) -> Mapping[str, float]:
        if nodes not in self._features:
            found = [self._context.graph.by_name[name] for name in nodes]
            self._features[nodes] = features_of(found, self._context.graph.weights)
        return self._features[nodes]

    def least_s(self, found: Group, settings: CompileSettings) -> float:
        """Return seconds that no backend can stay below: the cluster's work at the machine's peaks."""
        return least_seconds((self._context.graph.by_name[name] for name in found.nodes), settings.threads)

    def keep(self, candidate: Candidate) -> None:
        """Write a measured price down, for this plan and for later processes."""
        if candidate.cost is None:
            return
        found, settings = candidate.key
        self._costs[self.structure(found), found.backend, settings] = candidate.cost
        self._n_kept += 1
        subject, compile_s = self._context.subject(found, settings), candidate.report.compile_s
        self._write(Measurement(subject, candidate.cost, compile_s, self.features(found), _now()))

    def _write(self, measurement: Measurement) -> None:
        """Keep a price for later processes, unless what was timed had to share its cores with the user's own calls."""
        if not self._context.session.is_disturbed:
            self._context.measurements.keep(measurement)

    def eager_s(self) -> Mapping[str, float]:
        """Return seconds of each node in eager: measured on this machine by any process, learned, or the roofline's."""
        if not self._eager_s:
            names = self._worth_an_eager_price()
            subjects = {name: self._eager_subject(name) for name in names}
            known = self._context.measurements.find_many(set(subjects.values()))
            measured = {name: known[subject].cost.run_s for name, subject in subjects.items() if subject in known}
            self._unmeasured = [name for name in names if name not in measured]
            learned = {name: self._learned_eager_s(name) for name in self._unmeasured}
            rough = {node.name: eager_estimate(node, self._context.threads) for node in self._context.graph.nodes}
            self._eager_s = rough | learned | measured
        return self._eager_s

    def _learned_eager_s(self, name: str) -> float:
        cost = self._learned(EAGER, self._plain_features((name,)), self._context.threads)
        return eager_estimate(self._context.graph.by_name[name], self._context.threads) if cost is None else cost.run_s

    def keep_eager(self, seconds: Mapping[str, float]) -> None:
        """Write down what each node took in eager, for later processes: nodes of equal structure share a price."""
        alike: dict[Subject, list[str]] = {}
        for name in self._worth_an_eager_price():
            if name in seconds:
                alike.setdefault(self._eager_subject(name), []).append(name)
        for subject, names in alike.items():
            samples = [seconds[name] for name in names]
            spread_s = (max(samples) - min(samples)) / 2
            cost = Cost(median(samples), spread_s, 0, "measured", f"{count(len(names), 'node')}, {subject.threads} threads")
            features = self._plain_features((names[0],))
            self._write(Measurement(subject, cost, 0.0, features, _now()))
        self._eager_s, self._guesses = {**self.eager_s(), **seconds}, {}
        self._has_timed_eager = True

    @property
    def has_timed_eager(self) -> bool:
        """Return whether eager was timed on this very graph."""
        return self._has_timed_eager

    @property
    def knows_eager(self) -> bool:
        """Return whether this machine has measured all operators in eager that weigh anything."""
        self.eager_s()
        return not self._unmeasured

    def _worth_an_eager_price(self) -> list[str]:
        return [node.name for node in self._context.graph.nodes if not is_trifle(node)]

    def _eager_subject(self, name: str) -> Subject:
        return self._context.subject(Group(EAGER, (name,)), self._eager_settings)

    @property
    def _eager_settings(self) -> CompileSettings:
        return CompileSettings(threads=self._context.threads, spin=True)

    @property
    def n_kept(self) -> int:
        """Price measured so far for this decision."""
        return self._n_kept

    def is_known(self, structure: str, backend: str, settings: CompileSettings) -> bool:
        """Return whether a price for this structure is at hand."""
        return (structure, backend, settings) in self._costs

    def measured_at_all(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return a measured price under these settings, or else under the other habit of spinning."""
        return self.measured(found, settings) or self.measured(found, replace(settings, spin=not settings.spin))

    def fail(self, found: Group, reason: str) -> None:
        """Remember that a backend cannot have clusters of this structure."""
        self._failures[found] = reason
        self._failed_structures.add((self.structure(found), found.backend))

    def has_failed(self, found: Group) -> bool:
        """Return whether a cluster of this structure failed in this backend."""
        return (self.structure(found), found.backend) in self._failed_structures

    @property
    def failures(self) -> Mapping[Group, str]:
        """Why clusters could not be had, in one line each."""
        return dict(self._failures)

    def note(self, events: Iterable[Event]) -> None:
        """Add events, each once."""
        self.events += [event for event in events if event not in self.events]

    def total_s(self, draft: Draft, eager_s: Mapping[str, float]) -> float:
        """Return seconds of one call of a draft: the best known price of each cluster, and its nodes in eager."""
        clusters_s = sum(self.cost(found, draft.settings).run_s for found in draft.assignment.clusters)
        return clusters_s + sum(eager_s[name] for name in draft.assignment.eager_nodes)

    def all_costs(self, drafts: Iterable[Draft]) -> Mapping[Group, Cost]:
        """Return the best known price of every cluster of some drafts; of two settings, the later draft's."""
        settings = {found: draft.settings for draft in drafts for found in draft.assignment.clusters}
        return {found: self.cost(found, wanted) for found, wanted in settings.items()}

    def _learned(self, backend: str, features: Mapping[str, float], threads: int) -> Cost | None:
        model = self._model(backend, threads, features["device"])
        return None if model is None else model.price(features)

    def _model(self, backend: str, threads: int, device: float) -> LearnedPrices | None:
        """Return what this machine's measurements teach, after those that the hub ships for the CPU."""
        key = backend, threads, device
        if key not in self._models:
            shipped = shipped_table().samples(backend, peaks(threads)) if device == CPU else ()
            own = (Sample(row.features, row.cost.run_s) for row in self._measurements(backend, threads))
            self._models[key] = LearnedPrices.fit([*shipped, *own], device)
        return self._models[key]

    def _measurements(self, backend: str, threads: int) -> tuple[Measurement, ...]:
        key = backend, threads
        if key not in self._known:
            self._known[key] = self._context.measurements.samples(backend, machine_digest(), threads)[::-1]
        return self._known[key]

    def _roofline(self, found: Group, settings: CompileSettings) -> Cost:
        return cluster_estimate(self._context.cluster(found, "estimate"), settings.threads)

    def _own_estimate(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return the backend's own estimate, if it has one. What a plugin raises costs it only its say."""
        if found.backend in self._silent:
            return None
        try:
            said = self._context.workers.estimate(found, settings)
            self._note_changed(found.backend, said.changed)
            cost: Any = said.answer
            if cost is not None and not isinstance(cost, Cost):
                raise TypeError(f"estimate() gave a {type(cost).__name__}, no Cost")
            return cost
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the roofline takes its place
            self._silent.add(found.backend)
            self._failed(found.backend, f"estimate raised {text_of(error)}")
            return None

    def _note_changed(self, backend: str, changed: str) -> None:
        if changed:
            self.note([Event(kind=EventKind.NOTE, stage=Stage.ESTIMATE, backend=backend, message=changed)])

    def _failed(self, backend: str, message: str) -> None:
        self.note([Event(kind=EventKind.FAILED, stage=Stage.ESTIMATE, backend=backend, message=message)])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
