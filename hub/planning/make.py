"""Decides, builds in this process, verifies; and decides again without whoever failed, until a plan runs."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hub.cache.keys import digest_of, plan_parts
from hub.cache.measurements import Measurements
from hub.cache.store import Store
from hub.compilation.build import build_cluster, load_and_verify
from hub.compilation.transfer import Sample
from hub.compilation.values import values_at
from hub.dispatch.assemble import Loaded
from hub.dispatch.codegen import Step
from hub.errors import CacheError, InputRefused, PlanError, PluginError
from hub.graph import Graph
from hub.options import Options
from hub.partition.assignments import Assignment
from hub.partition.extract import extract
from hub.partition.group import EAGER, Group, is_trifle
from hub.partition.verdicts import Verdicts, ask_backends
from hub.plan import Event, Plan
from hub.planning.decide import decide
from hub.planning.decision import Decision
from hub.planning.evidence import Mode, fits, groups_of, plan_of, settings_of
from hub.planning.replay import moved_to_eager, plan_from_file, under_plan
from hub.planning.scene import Scene
from hub.planning.schedule import plain_names, reads, steps_for
from hub.registry import Registry
from hub.report.progress import Progress
from hub.support import operator_name

_log = logging.getLogger("hub")


@dataclass(frozen=True, slots=True)
class Made:
    """A decided plan with its verified executables."""

    plan: Plan
    steps: tuple[Step, ...]
    loaded: Mapping[str, Loaded]


class Maker:
    """Makes plans for one captured graph; remembers nothing between calls."""

    def __init__(self, graph: Graph, mode: Mode, options: Options, registry: Registry, progress: Progress) -> None:
        self.graph = graph
        self.mode: Mode = mode
        self.options = options
        self.registry = registry
        self.progress = progress
        self.threads = options.threads or torch.get_num_threads()
        self._notes: list[Event] = []

    def make(self, values: Sequence[Any], plan: Plan | None = None) -> Made:
        """Gives a running plan for this graph on one real call's inputs.

        `plan` is built again as it is, where given (for new weights). Raises PlanError or PluginError only where the
        options are strict, and PlanError where they name a plan file that cannot be replayed.
        """
        start = time.perf_counter()
        plan = self._asked_for(plan)
        with tempfile.TemporaryDirectory(prefix="hub-") as spare:
            store, note = self._store(Path(spare))
            verdicts = ask_backends(self.graph, self.registry, self.options)
            scene, notes = self._scene(values, store)
            note = (*note, *notes)
            with contextlib.closing(scene.measurements):
                decision = (
                    self._kept(plan)
                    or self._replayed(self._found(store, verdicts))
                    or decide(scene, verdicts, may_measure=plan is None)
                )
                made = self._build_until_it_runs(scene, store, verdicts, decision, note)
        made = replace(made, plan=made.plan.model_copy(update={"plan_s": time.perf_counter() - start}))
        if plan is None and made.plan.decided_by == "measured whole plans":
            store.keep_plan(self._key(verdicts, self.options.tune), made.plan)
        if made.plan.decided_by != "replayed":  # then nothing was compiled
            store.prune(self.options.cache_gb * 1e9)
        self.progress.done()
        return made

    def predict(self, values: Sequence[Any]) -> Plan:
        """Gives the plan by estimates, or a kept one, or a plan file's, without compiling or running anything."""
        if (asked := self._asked_for(None)) is not None:
            return asked
        with tempfile.TemporaryDirectory(prefix="hub-") as spare:
            store, note = self._store(Path(spare))
            verdicts = ask_backends(self.graph, self.registry, self.options)
            kept = self._found(store, verdicts)
            if kept is not None and fits(kept, self.graph):
                return kept
            scene, notes = self._scene(values, store)
            with contextlib.closing(scene.measurements):
                decision = decide(scene, verdicts, may_measure=False)
            self._check_strict(verdicts, decision.assignment, decision.events)
            return plan_of(
                self.graph, self.mode, decision, verdicts, self.options, (*note, *notes, *_troubles(scene), *self._notes)
            )

    def _asked_for(self, plan: Plan | None) -> Plan | None:
        """Gives the plan of the plan file that the options name, whose settings then hold; without one, `plan`."""
        if self.options.plan is None:
            return plan
        if plan is None or not fits(plan, self.graph):
            plan = plan_from_file(self.graph, self.mode, self.options, self.registry)
        self.options = under_plan(self.options, plan)
        self.threads = plan.threads
        return plan

    def _scene(self, values: Sequence[Any], store: Store) -> tuple[Scene, tuple[Event, ...]]:
        sample = Sample(self.graph, tuple(values))
        measurements, text = Measurements.open(store.root)
        notes = (Event(kind="note", stage="load", message=text),) if text else ()
        folder = store.root / "artifacts"
        return Scene(sample, self.options, self.threads, self.registry, folder, measurements, self.progress), notes

    def _store(self, spare: Path) -> tuple[Store, tuple[Event, ...]]:
        try:
            return Store(self.options.cache_root), ()
        except CacheError as error:
            return Store(spare), (Event(kind="note", stage="load", message=f"no cache: {error}"),)

    def _found(self, store: Store, verdicts: Verdicts) -> Plan | None:
        """Gives the plan that was kept for such a graph: one that was tuned fully also serves those who ask for less."""
        if self.options.renew:
            return None
        efforts = ("full",) if self.options.tune == "full" else ("full", self.options.tune)
        plans = (store.plan(self._key(verdicts, effort)) for effort in efforts)
        found = next((plan for plan in plans if plan is not None), None)
        self._notes += [Event(kind="note", stage="load", message=text) for text in store.take_notes()]
        return found

    def _key(self, verdicts: Verdicts, effort: str) -> str:
        entries = [self.registry.entries[name] for name in verdicts.by_backend]
        return digest_of(plan_parts(self.graph, self.mode, self.options, self.threads, effort, entries))

    def _kept(self, plan: Plan | None) -> Decision | None:
        """Gives the decision behind a plan that was made before, if it fits."""
        if plan is None or not fits(plan, self.graph):
            return None
        groups = groups_of(plan)
        if any(found.backend != EAGER and found.backend not in self.registry.available() for found in groups):
            return None
        names = dict.fromkeys(found.backend for found in groups if found.backend != EAGER)
        assignment = Assignment(" + ".join(names) or EAGER, groups)
        return Decision(assignment, plan.decided_by, settings_of(plan), kept=plan)

    def _replayed(self, plan: Plan | None) -> Decision | None:
        return self._kept(None if plan is None else plan.model_copy(update={"decided_by": "replayed"}))

    def _build_until_it_runs(
        self, scene: Scene, store: Store, verdicts: Verdicts, decision: Decision, events: tuple[Event, ...]
    ) -> Made:
        while True:
            verdicts = decision.verdicts or verdicts
            self._check_strict(verdicts, decision.assignment, decision.events)
            try:
                steps, loaded = self._build(scene, store, decision)
            except _ClusterFailed as failed:
                if self.options.strict and not isinstance(failed.error, InputRefused):
                    raise failed.error from failed.error.__cause__
                events = (*events, failed.event)
                reason = str(failed.error).splitlines()[0]
                verdicts = verdicts.without(failed.group.backend, failed.nodes, reason)
                decision = self._patched(decision, failed, reason) or decide(scene, verdicts, may_measure=False)
                continue
            return Made(self._plan(decision, verdicts, (*events, *_troubles(scene), *self._notes)), steps, loaded)

    def _patched(self, decision: Decision, failed: _ClusterFailed, reason: str) -> Decision | None:
        """Gives the user's plan with what failed in eager; None where the plan is the hub's own, which is made again."""
        if self.options.plan is None or decision.kept is None:
            return None
        return self._kept(moved_to_eager(self.graph, decision.kept, failed.group, failed.nodes, reason))

    def _plan(self, decision: Decision, verdicts: Verdicts, events: tuple[Event, ...]) -> Plan:
        if decision.kept is not None:
            news = (event for event in events if event not in decision.kept.events)
            return decision.kept.model_copy(update={"graph": self.graph.name}).with_events(*news)
        return plan_of(self.graph, self.mode, decision, verdicts, self.options, events)

    def _build(self, scene: Scene, store: Store, decision: Decision) -> tuple[tuple[Step, ...], dict[str, Loaded]]:
        groups = decision.assignment.groups
        names = plain_names(groups)
        steps = steps_for(self.graph, groups, names)
        clusters = [(name, found) for name, found in zip(names, groups, strict=True) if found.backend != EAGER]
        self.progress.stage("building the plan", len(clusters))
        needed = {name for _, found in clusters for name in reads(self.graph, found)}
        values = values_at(self.graph, scene.sample.values, needed) if clusters else {}
        loaded: dict[str, Loaded] = {}
        for name, found in clusters:
            try:
                loaded[name] = self._build_cluster(scene, store, decision, name, found, values)
            except PluginError as error:
                raise _ClusterFailed(found, error) from error
            self.progress.advance(f"{found.backend} {name}")
        return steps, loaded

    def _build_cluster(
        self, scene: Scene, store: Store, decision: Decision, name: str, found: Group, values: Mapping[str, Any]
    ) -> Loaded:
        settings = decision.settings
        weights = {weight: scene.sample.by_name[weight] for weight in self.graph.weights}
        cluster = extract(self.graph, found.nodes, name, weights)
        inputs = [values[node] for node in cluster.input_names]
        folder = scene.folder(found, settings)
        start = time.perf_counter()
        if store.has_artifact(folder):
            try:
                return load_and_verify(cluster, found.backend, settings, folder, inputs=inputs)[0]
            except PluginError as error:
                store.discard(folder)
                message = f"the saved executable is of no use, compiled again: {error.message}"
                self._notes.append(Event(kind="note", stage="load", backend=found.backend, cluster=name, message=message))
        for text in store.take_notes():
            message = f"{text}, compiled again"
            self._notes.append(Event(kind="note", stage="load", backend=found.backend, cluster=name, message=message))
        loaded, _, saved = build_cluster(cluster, found.backend, settings, inputs=inputs, folder=folder)
        if saved.problem:
            message = f"the executable could not be saved, so the next process compiles it again: {saved.problem}"
            self._notes.append(Event(kind="note", stage="compile", backend=found.backend, cluster=name, message=message))
        self._tell("hub_cluster_compiled", backend=found.backend, cluster=name, compile_s=time.perf_counter() - start)
        return loaded

    def _tell(self, hook: str, **facts: Any) -> None:
        observe(self.registry, hook, **facts)

    def _check_strict(self, verdicts: Verdicts, assignment: Assignment, events: Sequence[Event]) -> None:
        """Under `strict`, raises PlanError for the first failure, or for a node that nobody asked to run in eager."""
        if not self.options.strict:
            return
        failed = [event for event in (*verdicts.events, *events) if event.kind == "failed"]
        if failed:
            raise PlanError(f"strict: {failed[0].stage} failed: {failed[0].message}", backend=failed[0].backend)
        if self.options.plan is not None:
            return  # what is in eager there was asked to be
        for found in assignment.groups:
            if found.backend == EAGER:
                self._check_asked(verdicts, found)

    def _check_asked(self, verdicts: Verdicts, found: Group) -> None:
        for name in found.nodes:
            node = self.graph.by_name[name]
            forced = self.options.forced(operator_name(node))
            wanted = forced if forced is not None else (self.options.backends or (None,))[0]
            if name in self.graph.pinned or is_trifle(node) or wanted is None or wanted == EAGER or forced == EAGER:
                continue
            if any(verdicts.takes(backend, name) for backend in verdicts.by_backend):
                continue  # eager was the fastest, which is no fallback
            reasons = [verdicts.by_backend[backend][name].reason for backend in verdicts.by_backend]
            text = next(filter(None, reasons), "no backend could be used")
            raise PlanError(
                f"strict: would run in eager: {text}", node=name, hint="allow it with strict=False, or force it to eager"
            )


def _troubles(scene: Scene) -> tuple[Event, ...]:
    """Says what went wrong with the store of measurements while it was used."""
    return tuple(Event(kind="note", stage="load", message=text) for text in scene.measurements.notes)


class _ClusterFailed(Exception):  # noqa: N818 - a signal between two methods of Maker, never seen outside
    def __init__(self, group: Group, error: PluginError) -> None:
        super().__init__(str(error))
        self.group = group
        self.error = error

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes to take from the backend: the one the error names, else the whole cluster."""
        return (self.error.node,) if self.error.node in self.group.nodes else self.group.nodes

    @property
    def event(self) -> Event:
        stage = {"AccuracyError": "verify", "ContractError": "verify", "RunError": "run"}.get(
            type(self.error).__name__, "compile"
        )
        return Event(
            kind="refused" if isinstance(self.error, InputRefused) else "fallback",
            stage=stage,
            backend=self.group.backend,
            cluster=self.error.cluster,
            message=str(self.error),
        )


def observe(registry: Registry, hook: str, **facts: Any) -> None:
    """Calls an observer hook of every plugin; what one raises is its own affair and stops nobody."""
    for implementation in getattr(registry.manager.hook, hook).get_hookimpls():
        try:
            implementation.function(**{name: facts[name] for name in implementation.argnames})
        except Exception as error:  # noqa: BLE001 - observers must not disturb planning
            _log.warning("%s of plugin %s raised %r", hook, implementation.plugin_name, error)
