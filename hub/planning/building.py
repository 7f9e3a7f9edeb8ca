"""Builds a decided plan: each cluster loaded, or compiled, after a worker process has run it safely."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hub.backend import CompileSettings
from hub.cache.store import Store
from hub.compilation.build import build_cluster, changes_of, load_and_verify, plugin_edge
from hub.compilation.values import values_at
from hub.dispatch.assemble import Loaded
from hub.dispatch.codegen import Step
from hub.errors import CompileError, ContractError, InputRefused, PluginError, WorkerError, text_of
from hub.graph import Cluster
from hub.partition.group import EAGER, Group
from hub.partition.structure import structure_digest
from hub.plan import Event, EventKind, Stage
from hub.planning.decision import Decision
from hub.planning.failures import Served, failure_in_service, known_failure, remember_failure, stage_of
from hub.planning.later import Item
from hub.planning.scene import Scene, limits_of
from hub.planning.schedule import plain_names, reads, steps_for
from hub.plugin_fault import is_plugins
from hub.process.state import HERE, WORKER, is_alone, kept_state, refusal_beside_threads, told_changes
from hub.registry import Registry
from hub.verification.standing import Standing
from hub.workers.orders import UNSAVED, Offer, Order
from hub.workers.session import Session
from hub.workers.transfer import cut_sample

_log = logging.getLogger("hub")


class ClusterFailed(Exception):  # noqa: N818 - a signal between Builder and Maker, never seen outside
    """Says which cluster of a decision cannot be had."""

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
        """What the plan says of it."""
        return Event(
            kind=EventKind.REFUSED if isinstance(self.error, InputRefused) else EventKind.FALLBACK,
            stage=stage_of(self.error),
            backend=self.group.backend,
            cluster=self.error.cluster,
            message=str(self.error),
            error=type(self.error).__name__,
        )


class Builder:
    """Builds plans for one scene. Executables are kept in the store, and looked for there."""

    def __init__(self, scene: Scene, store: Store) -> None:
        self.scene = scene
        self.store = store
        self.notes: list[Event] = []
        """What users should know of, and what costs them no backend."""
        self.verify_s = 0.0
        """Seconds in which executables were compared with eager, in workers as well."""
        self.served: dict[str, Served] = {}
        """What a later failure of each cluster is kept under."""
        self.items: dict[str, Item] = {}
        """What is verified after the first answer."""
        self._ahead: dict[tuple[Group, CompileSettings], Offer] = {}
        """What came of clusters that were compiled at once, until it is their turn."""
        self._told: set[str] = set()
        """Clusters of this decision whose compilation observers know of."""

    def build(self, decision: Decision) -> tuple[tuple[Step, ...], dict[str, Loaded]]:
        """Return the schedule and its verified executables. Raises ClusterFailed."""
        groups = decision.assignment.groups
        names = plain_names(groups)
        self._told.clear()
        self.served.clear()
        self.items.clear()
        self.scene.session.lanes.end_all()
        steps = steps_for(self.scene.graph, groups, names)
        clusters = [(name, found) for name, found in zip(names, groups, strict=True) if found.backend != EAGER]
        served = {name: self._served(found, decision.settings) for name, found in clusters}
        self._compile_ahead(decision.settings, served)
        self.scene.progress.stage("building the plan", len(clusters))
        needed = {name for _, found in clusters for name in reads(self.scene.graph, found)}
        values = values_at(self.scene.graph, self.scene.sample.values, needed) if clusters else {}
        loaded: dict[str, Loaded] = {}
        for name, found in clusters:
            try:
                loaded[name] = self._build_cluster(decision.settings, name, served[name], values)
            except PluginError as error:
                raise ClusterFailed(found, error) from error
            self.scene.progress.advance(f"{found.backend} {name}")
        return steps, loaded

    def _served(self, found: Group, settings: CompileSettings) -> Served:
        subject = self.scene.subject(found, structure_digest(self.scene.graph, found.nodes), settings)
        return Served(found, subject, self.scene.folder(found, settings))

    def _compile_ahead(self, settings: CompileSettings, served: Mapping[str, Served]) -> None:
        """Have workers compile clusters that are not there yet, several at once; what comes of each waits for its turn.

        Those behind one that is known to fail are left alone: without it, the plan will be another.
        """
        scene = self.scene
        orders = self._new_orders(settings, served)
        most = {order.group.backend: scene.compile_workers(order.group.backend) for order in orders}
        if not scene.workers.is_apart or len(orders) < 2 or max(most.values()) < 2:
            return
        scene.progress.stage("compiling", len(orders))
        homes = {order.group.backend: order.name for order in orders}

        def get_ready() -> None:
            for backend, name in homes.items():
                self._get_ready(backend, name)

        def advance(order: Order) -> None:
            scene.progress.advance(f"{order.group.backend} {order.name}")

        offers = scene.workers.try_out_all(orders, most, advance, get_ready)
        self._ahead |= {(order.group, settings): offer for order, offer in offers.items()}

    def _new_orders(self, settings: CompileSettings, served: Mapping[str, Served]) -> list[Order]:
        workers = self.scene.workers
        found: dict[Path, Order] = {}
        for name, item in served.items():
            group, folder = item.group, item.folder
            if folder.exists() or (group, settings) in self._ahead or workers.tried(group, settings) is not None:
                continue
            if failure_in_service(self.scene, item) is not None or known_failure(self.scene, group, settings) is not None:
                break
            order = Order(name, group, settings, folder, reads(self.scene.graph, group), is_needed=False)
            found.setdefault(folder, order)
        return list(found.values())

    def _build_cluster(self, settings: CompileSettings, name: str, served: Served, values: Mapping[str, Any]) -> Loaded:
        found, folder = served.group, served.folder
        cluster = self.scene.cluster(found, name)
        inputs = [values[node] for node in cluster.input_names]
        self.served[name] = served
        if (known := failure_in_service(self.scene, served)) is not None:
            raise known
        if (offer := self._ahead.pop((found, settings), None)) is not None:
            self._learn(offer, name, settings)
        elif (earlier := self.scene.workers.tried(found, settings)) is not None:
            self._heard(earlier, name)  # while plans were measured
        for _ in range(2):
            if not self._has_artifact(folder, found.backend, name):
                self._try_out(name, found, settings, folder, values)
                if not self._has_artifact(folder, found.backend, name):
                    break
            _check_threads(changes_of(folder), cluster, found.backend)
            try:
                return self._loaded(cluster, settings, inputs, folder, found)
            except InputRefused:
                raise  # it is about these values, and the executable is as good as before
            except PluginError as error:
                message = f"the saved executable is of no use, compiled again: {error.message}"
                self._note(message, Stage.LOAD, found.backend, name)
                self.store.discard(folder)
        earlier = self.scene.workers.tried(found, settings)
        return self._compiled_here(cluster, found.backend, settings, inputs, folder, earlier)

    def _has_artifact(self, folder: Path, backend: str, name: str) -> bool:
        has_one = self.store.has_artifact(folder)
        for text in self.store.take_notes():
            self._note(f"{text}, compiled again", Stage.LOAD, backend, name)
        return has_one

    def _heard(self, offer: Offer, name: str) -> None:
        """Note what a worker found out about a cluster that can be trusted."""
        self.verify_s += offer.verify_s
        for text in offer.notes:
            self._note(text, Stage.VERIFY, offer.order.group.backend, name)

    def _stands(self, loaded: Loaded, settings: CompileSettings, folder: Path | None) -> Loaded:
        """Note how far an executable is verified, and what is left to do after the first answer."""
        name, backend, standing = loaded.cluster.name, loaded.backend, loaded.standing
        if standing.later:
            self._note(standing.later, Stage.LATER, backend, name)
        elif standing.untried:
            self._note(f"no time was left for: {', '.join(standing.untried)}", Stage.LATER, backend, name)
        if not standing.later:
            nodes, is_guarded = loaded.cluster.node_names, loaded.guard is not None
            self.items[name] = Item(name, backend, nodes, settings, folder, standing, is_guarded)
        return loaded

    def _loaded(
        self, cluster: Cluster, settings: CompileSettings, inputs: Sequence[Any], folder: Path, found: Group
    ) -> Loaded:
        earlier = self.scene.workers.tried(found, settings)
        built = load_and_verify(
            cluster,
            found.backend,
            settings,
            folder,
            inputs=inputs,
            registry=self.scene.registry,
            fingerprint=None if earlier is None else earlier.fingerprint,
        )
        self._note_changed(built.changed, HERE, found.backend, cluster.name)
        self.verify_s += built.verify_s
        return self._stands(built.loaded, settings, folder)

    def _compiled_here(
        self,
        cluster: Cluster,
        backend: str,
        settings: CompileSettings,
        inputs: Sequence[Any],
        folder: Path,
        earlier: Offer | None,
    ) -> Loaded:
        own = None if self.scene.workers.is_apart else folder  # a worker has compiled it before, and could not save it
        known = None if earlier is None else earlier.is_finite_only
        _check_threads(() if earlier is None else earlier.changed, cluster, backend)
        start = time.perf_counter()
        registry = self.scene.registry
        built = build_cluster(
            cluster, backend, settings, inputs=inputs, registry=registry, folder=own, is_finite_only=known
        )
        self._note_changed(built.changed, HERE, backend, cluster.name)
        self.verify_s += built.verify_s
        self._note_unsaved(built.saved.problem, backend, cluster.name)
        if cluster.name not in self._told:  # a worker compiled it before, and that is told already
            self._tell_compiled(backend, cluster.name, time.perf_counter() - start)
        loaded = built.loaded
        if earlier is not None:
            loaded = replace(loaded, standing=Standing(earlier.untried, earlier.differs))
        return self._stands(loaded, settings, own if built.saved.is_done else None)

    def _tell_compiled(self, backend: str, name: str, compile_s: float) -> None:
        self._told.add(name)
        observe(self.scene.registry, "hub_cluster_compiled", backend=backend, cluster=name, compile_s=compile_s)

    def _try_out(self, name: str, found: Group, settings: CompileSettings, folder: Path, values: Mapping[str, Any]) -> None:
        """Let a worker compile, run, verify and save a cluster that none has tried. Raises PluginError with the cause."""
        scene = self.scene
        if not scene.workers.is_apart or scene.workers.tried(found, settings) is not None:
            return
        if (known := known_failure(scene, found, settings)) is not None:
            raise known
        order = Order(name, found, settings, folder, reads(self.scene.graph, found), is_needed=False)
        try:
            offer = scene.workers.try_out(order, lambda: self._get_ready(found.backend, name))
        except WorkerError:
            offer = self._tried_alone(order, values)
        self._learn(offer, name, settings)

    def _learn(self, offer: Offer, name: str, settings: CompileSettings) -> None:
        """Note what came of trying a cluster. Raises PluginError where it failed, which is remembered."""
        found = offer.order.group
        if offer.failure is not None:
            offer.failure.cluster = name
            remember_failure(self.scene, found, settings, offer.failure)
            raise offer.failure
        self._heard(offer, name)
        self._note_changed(offer.changed, WORKER, found.backend, name)
        self._note_unsaved(offer.problem, found.backend, name)
        self._tell_compiled(found.backend, name, offer.compile_s)

    def _get_ready(self, backend: str, name: str) -> None:
        """Import a backend's library while a worker, which has imported it safely, compiles with it.

        Beside other threads it waits until the worker has found out what that changes of a process.
        """
        if not is_alone():
            return
        with kept_state() as changed, contextlib.suppress(PluginError), plugin_edge(backend, name, "load"):
            self.scene.registry.backend(backend)
        self._note_changed(changed, HERE, backend, name)

    def _tried_alone(self, order: Order, values: Mapping[str, Any]) -> Offer:
        """Try a cluster in a worker that gets nothing else: the graph holds something that only this process knows.

        Raises CompileError where no worker can be had for it, which says nothing of the backend and is not remembered.
        """
        sample, options = cut_sample(self.scene.sample, order.group.nodes, values), self.scene.options
        try:
            with Session(sample, self.scene.threads, limits_of(options), options=options, is_timed=False) as session:
                return session.try_out(order)
        except WorkerError as error:
            hint = "options={'isolate': False} compiles in this process"
            raise CompileError(error.message, backend=order.group.backend, cluster=order.name, hint=hint) from error

    def _note_changed(self, changed: Sequence[str], where: str, backend: str, name: str) -> None:
        if message := told_changes(changed, where):
            self._note(message, Stage.LOAD, backend, name)

    def _note_unsaved(self, problem: str, backend: str, name: str) -> None:
        if problem:
            self._note(UNSAVED.format(problem), Stage.COMPILE, backend, name)

    def _note(self, message: str, stage: Stage, backend: str, name: str) -> None:
        self.notes.append(Event(kind=EventKind.NOTE, stage=stage, backend=backend, cluster=name, message=message))


def _check_threads(changes: Sequence[str], cluster: Cluster, backend: str) -> None:
    """Raise ContractError where loading a cluster would change what other threads of this process see."""
    if reason := refusal_beside_threads(changes):
        hint = "compile the model before other threads are started"
        raise ContractError(f"not loaded: {reason}", backend=backend, cluster=cluster.name, hint=hint)


def observe(registry: Registry, hook: str, **facts: Any) -> None:
    """Call an observer hook of every plugin; what one raises is its own affair and stops nobody."""
    for implementation in getattr(registry.manager.hook, hook).get_hookimpls():
        try:
            implementation.function(**{name: facts[name] for name in implementation.argnames})
        except BaseException as error:
            if not is_plugins(error):
                raise
            _log.warning("%s of plugin %s raised %s", hook, implementation.plugin_name, text_of(error))
