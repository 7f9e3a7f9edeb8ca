"""Costs known while one graph is planned: measured here, else learned from the past, else estimated."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, pvariance
from typing import Any

from hub.cache.measurements import Measurement, Subject, machine_digest
from hub.errors import text_of, type_of
from hub.partition.group import EAGER, Group, is_trivial
from hub.plan import Event, EventKind, Stage
from hub.planning.context import CandidatePlan, PlanningContext
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost
from hub.pricing.compile_times import UNKNOWN_S, Compiled, CompileTimes
from hub.pricing.features import EAGER_S, features_of
from hub.pricing.learned import CPU, MIN_SAMPLES, REACH, LearnedPrices, Sample, teaches
from hub.pricing.profile import Profile, mixing_s
from hub.pricing.roofline import (
    cluster_estimate,
    eager_estimate,
    least_seconds,
    only_accelerator,
    peaks,
    settle_peaks,
)
from hub.pricing.shipped import shipped_table
from hub.report.numbers import count
from hub.workers.candidate import Candidate


class PriceBook:
    """Best known cost of any cluster; measured costs are stored for later plans and processes.

    Clusters of equal structure share a cost, regardless of their position and their weights.
    """

    def __init__(self, context: PlanningContext) -> None:
        self.events: list[Event] = []
        self._context = context
        self._eager_s: Mapping[str, float] = {}
        self._unmeasured: Sequence[str] = ()
        self._costs: dict[tuple[str, str, CompileSettings], Cost] = {}
        """Measured costs, by structure, backend and settings."""
        self._guesses: dict[tuple[str, str, int], Cost] = {}
        self._models: dict[tuple[str, int, float], LearnedPrices | None] = {}
        """Learned cost models, by backend, threads and device kind as numbered in the features."""
        self._known: dict[tuple[str, int], tuple[Measurement, ...]] = {}
        """Measurements on this machine so far, by backend and threads, oldest first."""
        self._times: dict[tuple[str, int], CompileTimes | None] = {}
        self._features: dict[tuple[str, ...], Mapping[str, float]] = {}
        self._missed: set[tuple[str, str, CompileSettings]] = set()
        self._failures: dict[Group, str] = {}
        self._failed_structures: set[tuple[str, str]] = set()
        self.n_kept = 0
        """How many costs were measured for this decision so far."""
        self._silent: set[str] = set()
        """Backends whose estimates failed; they are not queried again."""
        self._blind: set[tuple[str, str, int]] = set()
        """Keys of guesses that rest on the roofline alone."""
        self._profile: Profile | None = None
        self.has_timed_eager = False
        """Whether eager was timed on this very graph."""

    def structure(self, found: Group) -> str:
        """Return the structural digest of a cluster's nodes."""
        return self._context.structure(found)

    def measured(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return the cost measured here under these settings, by this or an earlier process; None if there is none."""
        key = (self.structure(found), found.backend, settings)
        if key not in self._costs and key not in self._missed:
            stored = self._context.measurements.find(self._context.subject(found, settings))
            if stored is None:
                self._missed.add(key)
            else:
                self._costs[key] = replace(stored.cost, detail=f"{stored.cost.detail}, measured {stored.made[:10]}")
        return self._costs.get(key)

    def cost(self, found: Group, settings: CompileSettings) -> Cost:
        """Return the best known cost: measured with either busy-wait setting, else a guess."""
        known = self.measured_at_all(found, settings)
        return known if known is not None else self.guess(found, settings)

    def guess(self, found: Group, settings: CompileSettings) -> Cost:
        """Return the learned cost of such clusters, the backend's own estimate, or the roofline's.

        A backend's own estimate counts more than measurements on other machines, and less than those on this machine.
        """
        key = (self.structure(found), found.backend, settings.threads)
        if key not in self._guesses:
            features = self.features(found)
            rows = self._measurements(found.backend, settings.threads)
            is_proven = sum(teaches(row.features, features["device"]) for row in rows) >= MIN_SAMPLES
            own = None if is_proven else self._own_estimate(found, settings)
            learned = own or self._learned(found.backend, features, settings.threads)
            self._guesses[key] = learned or self._roofline(found, settings)
            self._blind = self._blind - {key} if learned else self._blind | {key}
        return self._guesses[key]

    def expected(self, found: Group, settings: CompileSettings) -> Cost:
        """Return the best known cost, else the forecast."""
        return self.measured_at_all(found, settings) or self.forecast(found, settings)

    def forecast(self, found: Group, settings: CompileSettings) -> Cost:
        """Return the cost expected before measurement: a guess, or the typical one if the guess is the roofline's.

        The roofline is a bound that hardly any plan reaches: judged by it, an unknown backend would always be tried first.
        """
        guess = self.guess(found, settings)
        is_blind = (self.structure(found), found.backend, settings.threads) in self._blind
        return (self._typical(found, settings) if is_blind else None) or guess

    def is_blind(self, found: Group, settings: CompileSettings) -> bool:
        """Return whether nothing is known of this backend's cost; it may provide an estimate once it is queried."""
        if self.measured_at_all(found, settings) is not None:
            return False
        self.guess(found, settings)
        return (self.structure(found), found.backend, settings.threads) in self._blind

    def _typical(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return the geometric mean, with its spread, of the learned costs of each backend in the shipped table."""
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
        """Drop the guesses for these backends, which can now provide their own estimates."""
        self._guesses = {key: cost for key, cost in self._guesses.items() if key[1] not in backends}

    def compile_s(self, found: Group, settings: CompileSettings) -> float:
        """Return the expected seconds to compile and verify a cluster, including a worker's start."""
        key = found.backend, settings.threads
        table = shipped_table()
        if key not in self._times:
            rows = [*(row for row in table.rows if row.backend == found.backend), *self._measurements(*key)]
            self._times[key] = CompileTimes.fit([Compiled(row.features, row.compile_s) for row in rows])
        times = self._times[key]
        seconds = UNKNOWN_S if times is None else times.seconds(self.features(found))
        return seconds + table.starts_s.get(found.backend, 0.0)

    def features(self, found: Group) -> Mapping[str, float]:
        """Return the features from which the cost models learn, eager's time included."""
        return {**self._plain_features(found.nodes), EAGER_S: self.eager_sum(found.nodes)}

    def _plain_features(self, nodes: tuple[str, ...]) -> Mapping[str, float]:
        if nodes not in self._features:
            found = [self._context.graph.by_name[name] for name in nodes]
            self._features[nodes] = features_of(found, self._context.graph.weights)
        return self._features[nodes]

    def least_s(self, found: Group, settings: CompileSettings) -> float:
        """Return the lower bound for every backend in seconds: the cluster's work at the machine's peaks."""
        return least_seconds((self._context.graph.by_name[name] for name in found.nodes), settings.threads)

    def keep(self, candidate: Candidate) -> None:
        """Store a measured cost for this plan and for later processes."""
        if candidate.cost is None:
            return
        found, settings = candidate.key
        self._costs[self.structure(found), found.backend, settings] = candidate.cost
        self.n_kept += 1
        subject, compile_s = self._context.subject(found, settings), candidate.report.compile_s
        self._write(Measurement(subject, candidate.cost, compile_s, self.features(found), _now()))

    def _write(self, measurement: Measurement) -> None:
        """Store a measurement for later processes, unless the user's own calls competed for cores while it was taken."""
        if not self._context.session.is_disturbed:
            self._context.measurements.keep(measurement)

    def eager_s(self) -> Mapping[str, float]:
        """Return seconds of each node in eager: measured here by any process, else learned, else the roofline's."""
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

    def eager_sum(self, names: Iterable[str]) -> float:
        """Return seconds of some nodes in eager, one after the other."""
        eager_s = self.eager_s()
        return sum(eager_s[name] for name in names)

    def _learned_eager_s(self, name: str) -> float:
        cost = self._learned(EAGER, self._plain_features((name,)), self._context.threads)
        return eager_estimate(self._context.graph.by_name[name], self._context.threads) if cost is None else cost.run_s

    def keep_eager(self, seconds: Mapping[str, float]) -> None:
        """Store each node's eager time for later processes, if there are any times; nodes of equal structure share one."""
        if not seconds:
            return
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
        self.has_timed_eager = True

    @property
    def knows_eager(self) -> bool:
        """Return whether every nontrivial operator has an eager measurement on this machine."""
        self.eager_s()
        return not self._unmeasured

    def _worth_an_eager_price(self) -> list[str]:
        return [node.name for node in self._context.graph.nodes if not is_trivial(node)]

    def _eager_subject(self, name: str) -> Subject:
        settings = CompileSettings(threads=self._context.threads, busy_wait=True)
        return self._context.subject(Group(EAGER, (name,)), settings)

    def is_known(self, structure: str, backend: str, settings: CompileSettings) -> bool:
        """Return whether a measured cost for this structure is loaded."""
        return (structure, backend, settings) in self._costs

    def measured_at_all(self, found: Group, settings: CompileSettings) -> Cost | None:
        """Return a cost measured under these settings, else with the opposite busy-wait setting; None if unmeasured."""
        return self.measured(found, settings) or self.measured(found, replace(settings, busy_wait=not settings.busy_wait))

    def fail(self, found: Group, reason: str) -> None:
        """Record that a backend does not support clusters of this structure."""
        self._failures[found] = reason
        self._failed_structures.add((self.structure(found), found.backend))

    def has_failed(self, found: Group) -> bool:
        """Return whether a cluster of this structure failed on this backend."""
        return (self.structure(found), found.backend) in self._failed_structures

    @property
    def failures(self) -> Mapping[Group, str]:
        """Return the reason why each failed cluster is unavailable, in one line."""
        return dict(self._failures)

    def note(self, events: Iterable[Event]) -> None:
        """Add events, each once."""
        self.events += [event for event in events if event not in self.events]

    def total_s(self, plan: CandidatePlan) -> float:
        """Return seconds of one call of a plan: the best known cost of each cluster, its eager nodes, and the switches."""
        run_s = {found: self.cost(found, plan.settings).run_s for found in plan.assignment.clusters}
        return sum(run_s.values()) + self.eager_sum(plan.assignment.eager_nodes) + self.switching_s(plan, run_s)

    def switching_s(self, plan: CandidatePlan, run_s: Mapping[Group, float]) -> float:
        """Return the seconds per call that threads lose where a backend, or eager, follows another in a plan.

        `run_s` holds the seconds of each cluster. What takes less than a switch wakes no other threads for it to cost more.
        """
        graph = self._context.graph
        if only_accelerator(graph) is not None:
            return 0.0
        if self._profile is None:
            self._profile = settle_peaks(self._context.measurements, self._context.threads)
        profile = self._profile
        parts = [
            (found.backend, run_s[found] if found in run_s else self.eager_sum(found.nodes))
            for found in plan.assignment.groups
            if not all(is_trivial(graph.by_name[name]) for name in found.nodes)
        ]
        pairs = pairwise(parts)
        return sum(min(mixing_s(profile, one, other), one_s, other_s) for (one, one_s), (other, other_s) in pairs)

    def all_costs(self, plans: Iterable[CandidatePlan]) -> Mapping[Group, Cost]:
        """Return the best known cost of each cluster of these plans; if settings differ, the later plan's."""
        settings = {found: plan.settings for plan in plans for found in plan.assignment.clusters}
        return {found: self.cost(found, wanted) for found, wanted in settings.items()}

    def _learned(self, backend: str, features: Mapping[str, float], threads: int) -> Cost | None:
        model = self._model(backend, threads, features["device"])
        return None if model is None else model.price(features)

    def _model(self, backend: str, threads: int, device: float) -> LearnedPrices | None:
        """Return the cost model fitted to the shipped measurements (CPU only) and to this machine's."""
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
        """Return the backend's own estimate, if it has one. An exception of the plugin costs it only this estimate."""
        if found.backend in self._silent:
            return None
        try:
            said = self._context.workers.estimate(found, settings)
            if said.changed:
                self._note(EventKind.NOTE, found.backend, said.changed)
            cost: Any = said.answer
            if cost is not None and not isinstance(cost, Cost):
                raise TypeError(f"estimate() returned {type_of(cost)}, not a Cost")
            return cost
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the roofline takes its place
            self._silent.add(found.backend)
            self._note(EventKind.FAILED, found.backend, f"estimate raised {text_of(error)}")
            return None

    def _note(self, kind: EventKind, backend: str, message: str) -> None:
        self.note([Event(kind=kind, stage=Stage.ESTIMATE, backend=backend, message=message)])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
