"""Building of a decided plan: load or compile each cluster, after a worker process has run it safely."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hub.cache.store import Store
from hub.discovery.plugin_fault import is_plugins
from hub.discovery.registry import Registry
from hub.dispatch.assemble import Loaded
from hub.dispatch.codegen import Step
from hub.errors import CompileError, ContractError, InputRefused, PluginError, WeightsChanged, WorkerError, text_of
from hub.partition.group import EAGER, Group
from hub.plan import Event, EventKind, Stage
from hub.planning.context import PlanningContext, limits_of
from hub.planning.decision import Decision
from hub.planning.failures import failure_in_service, known_failure, remember_failure, stage_of
from hub.planning.steps import plain_names, steps_for
from hub.plugin.graph import Cluster
from hub.process.phases import Work
from hub.process.state import HERE, WORKER, is_alone, kept_state, refusal_due_to_threads, told_changes
from hub.workers.candidate import Candidate, Key
from hub.workers.compilation.build import Built, build_cluster, changes_of, load_and_verify, plugin_edge
from hub.workers.compilation.report import Report
from hub.workers.compilation.values import may_draw, values_at
from hub.workers.session import Session
from hub.workers.transfer import cut_sample

_log = logging.getLogger("hub")


class ClusterFailed(Exception):  # noqa: N818 - a signal between Builder and Maker, never seen outside
    """Signal that a cluster of a decision cannot be built."""

    def __init__(self, group: Group, error: PluginError, *, is_whole: bool) -> None:
        super().__init__(str(error))
        self.group = group
        self.error = error
        self.is_whole = is_whole
        """True if the backend's partitioner chose the cluster, which must then not be split."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes to take from the backend: the one named by the error, else the whole cluster."""
        return (self.error.node,) if self.error.node in self.group.nodes and not self.is_whole else self.group.nodes

    @property
    def event(self) -> Event:
        """Return the event that the plan records for the failure."""
        return Event(
            kind=EventKind.REFUSED if isinstance(self.error, InputRefused) else EventKind.FALLBACK,
            stage=stage_of(self.error),
            backend=self.group.backend,
            cluster=self.error.cluster,
            message=str(self.error),
            error=type(self.error).__name__,
        )


class Builder:
    """Builder of plans for one context. It saves executables in the store, and looks them up there."""

    def __init__(self, context: PlanningContext, store: Store, is_current: Callable[[], bool] = lambda: True) -> None:
        """Build for one context. `is_current` returns False once the user has changed a weight."""
        self._is_current = is_current
        self.context = context
        self.store = store
        self.phases = context.session.crew.phases
        self.notes: list[Event] = []
        """Notes for users on problems that cost no candidate."""
        self.verify_s = 0.0
        """Seconds spent comparing executables with eager, in workers included."""
        self.served: dict[str, Candidate] = {}
        """Candidates of the plan's clusters, by name, each with this process's report."""
        self._ahead: dict[Key, Candidate] = {}
        """Results of clusters that were compiled in parallel, until their turn comes."""
        self._told: set[str] = set()
        """Clusters of this decision whose compilation was reported to observers."""

    def build(self, decision: Decision) -> tuple[tuple[Step, ...], dict[str, Loaded]]:
        """Return the schedule and its verified executables. Raises ClusterFailed, or WeightsChanged."""
        groups = decision.assignment.groups
        names = plain_names(groups)
        self._told.clear()
        self.served.clear()
        self.context.session.runners.end_all()
        steps = steps_for(self.context.graph, groups, names)
        candidates = [
            self.context.candidate(name, found, decision.settings, is_needed=False)
            for name, found in zip(names, groups, strict=True)
            if found.backend != EAGER
        ]
        self._compile_ahead(candidates)
        self.context.progress.stage("building the plan", len(candidates))
        needed = {name for candidate in candidates for name in candidate.inputs}
        with self.phases.during(Work.SAMPLE):
            values = self._values(needed)
        loaded: dict[str, Loaded] = {}
        for candidate in candidates:
            try:
                loaded[candidate.name] = self._build_cluster(candidate, values)
            except PluginError as error:
                self._check_current(error)
                is_whole = self.context.workers.overrides(candidate.backend, "partition")
                raise ClusterFailed(candidate.group, error, is_whole=is_whole) from error
            self.context.progress.advance(f"{candidate.backend} {candidate.name}")
        return steps, loaded

    def _check_current(self, error: PluginError) -> None:
        """Raise WeightsChanged if a weight has changed since the plan was begun: then no plugin is at fault."""
        if not self._is_current():
            raise WeightsChanged("a weight changed while a plan was built for it") from error

    def _values(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return values that clusters read, from one run of the graph in eager.

        A graph that draws random numbers runs in a worker: in this process other threads would get numbers twice.
        """
        context = self.context
        if not names:
            return {}
        if context.workers.is_apart and may_draw(context.graph) and not context.sample.by_name.keys() >= {*names}:
            with contextlib.suppress(WorkerError, PluginError):  # this process can do it as well
                return context.workers.values(names)
        return values_at(context.graph, context.sample.values, names)

    def _compile_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Compile missing clusters in several workers at once; each result waits until its cluster's turn.

        Clusters after one that is known to fail are skipped: without it, the plan will be different.
        """
        context = self.context
        new = self._new(candidates)
        most = {candidate.backend: context.compile_workers(candidate.backend) for candidate in new}
        if not context.workers.is_apart or len(new) < 2 or max(most.values()) < 2:
            return
        context.progress.stage("compiling", len(new))
        by_backend = {candidate.backend: candidate for candidate in new}

        def get_ready() -> None:
            for candidate in by_backend.values():
                self._get_ready(candidate)

        def advance(candidate: Candidate) -> None:
            context.progress.advance(f"{candidate.backend} {candidate.name}")

        tried = context.workers.try_out_all(new, most, advance, get_ready)
        self._ahead |= {candidate.key: candidate for candidate in tried}

    def _new(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        found: dict[Path, Candidate] = {}
        for candidate in candidates:
            folder = _folder(candidate)
            if folder.exists() or candidate.key in self._ahead or self._tried(candidate) is not None:
                continue
            if failure_in_service(self.context, candidate) or known_failure(self.context, candidate):
                break
            found.setdefault(folder, candidate)
        return list(found.values())

    def _build_cluster(self, candidate: Candidate, values: Mapping[str, Any]) -> Loaded:
        folder = _folder(candidate)
        cluster = self.context.cluster(candidate.group, candidate.name)
        inputs = [values[node] for node in cluster.input_names]
        if (known := failure_in_service(self.context, candidate)) is not None:
            raise known
        if (ahead := self._ahead.pop(candidate.key, None)) is not None:
            self._learn(replace(ahead, name=candidate.name))
        elif (earlier := self._tried(candidate)) is not None:
            self._heard(earlier.report, candidate)  # found while plans were measured
        for _ in range(2):
            if not self._has_artifact(folder, candidate):
                self._try_out(candidate, values)
                if not self._has_artifact(folder, candidate):
                    break
            _check_threads(changes_of(folder), candidate)
            try:
                return self._loaded(candidate, folder, cluster, inputs)
            except InputRefused:
                raise  # it concerns these values only; the executable is still good
            except PluginError as error:
                self._check_current(error)
                message = f"the saved executable is unusable, compiled again: {error.message}"
                self._note(message, Stage.LOAD, candidate)
                self.store.discard(folder)
        return self._compiled_here(candidate, cluster, inputs)

    def _has_artifact(self, folder: Path, candidate: Candidate) -> bool:
        has_one = self.store.has_artifact(folder)
        for text in self.store.take_notes():
            self._note(f"{text}, compiled again", Stage.LOAD, candidate)
        return has_one

    def _heard(self, report: Report, candidate: Candidate) -> None:
        """Record a worker's findings on a trusted cluster."""
        self.verify_s += report.verify_s
        for text in report.notes:
            self._note(text, Stage.VERIFY, candidate)

    def _serving(self, candidate: Candidate, built: Built) -> Loaded:
        """Record this process's findings on a serving cluster, and what is left to verify after the first answer."""
        report, standing = built.report, built.report.standing
        self.phases.add(report.phases)
        self.verify_s += report.verify_s
        self._note(told_changes(report.changed, HERE), Stage.LOAD, candidate)
        self._note(report.unsaved, Stage.COMPILE, candidate)
        untried = f"not verified yet, for lack of time: {', '.join(standing.untried)}" if standing.untried else ""
        self._note(standing.later or untried, Stage.LATER, candidate)
        subject = self.context.failure_subject(candidate.group, candidate.settings)
        self.served[candidate.name] = replace(candidate, report=report, subject=subject)
        return built.loaded

    def _loaded(self, candidate: Candidate, folder: Path, cluster: Cluster, inputs: Sequence[Any]) -> Loaded:
        earlier = self._tried(candidate)
        built = load_and_verify(
            cluster,
            candidate.backend,
            candidate.settings,
            folder,
            inputs=inputs,
            registry=self.context.registry,
            fingerprint=None if earlier is None else earlier.report.fingerprint,
        )
        return self._serving(candidate, built)

    def _compiled_here(self, candidate: Candidate, cluster: Cluster, inputs: Sequence[Any]) -> Loaded:
        context = self.context
        earlier = self._tried(candidate)
        own = None if context.workers.is_apart else candidate.folder  # a worker compiled it but could not save it
        _check_threads(() if earlier is None else earlier.report.changed, candidate)
        built = build_cluster(
            cluster,
            candidate.backend,
            candidate.settings,
            inputs=inputs,
            registry=context.registry,
            folder=own,
            known=None if earlier is None else earlier.report,
        )
        if candidate.name not in self._told:  # otherwise a worker compiled it before, and that was reported
            self._tell_compiled(candidate, built.report)
        return self._serving(candidate, built)

    def _tell_compiled(self, candidate: Candidate, report: Report) -> None:
        self._told.add(candidate.name)
        facts = {"backend": candidate.backend, "cluster": candidate.name, "compile_s": report.compile_s}
        observe(self.context.registry, "hub_cluster_compiled", **facts)

    def _tried(self, candidate: Candidate) -> Candidate | None:
        """Return a worker's result for a cluster; None if it was compiled without saving, since only its cost was wanted.

        Compiled here, it would not be saved either, and the next process would compile it once more.
        """
        found = self.context.workers.tried(candidate)
        return None if found is not None and found.folder is None and found.report.may_be_saved else found

    def _try_out(self, candidate: Candidate, values: Mapping[str, Any]) -> None:
        """Have a worker compile, run, verify and save a cluster not tried yet. Raises PluginError with the cause."""
        workers = self.context.workers
        if not workers.is_apart or self._tried(candidate) is not None:
            return
        if (known := known_failure(self.context, candidate)) is not None:
            raise known
        try:
            tried = workers.try_out(candidate, lambda: self._get_ready(candidate))
        except WorkerError:
            tried = self._tried_alone(candidate, values)
        self._learn(tried)

    def _learn(self, tried: Candidate) -> None:
        """Record the result of trying a cluster. Raises PluginError if it failed; the failure is remembered."""
        if tried.failure is not None:
            tried.failure.cluster = tried.name
            remember_failure(self.context, tried)
            raise tried.failure
        self._heard(tried.report, tried)
        self._note(told_changes(tried.report.changed, WORKER), Stage.LOAD, tried)
        self._note(tried.report.unsaved, Stage.COMPILE, tried)
        self._tell_compiled(tried, tried.report)

    def _get_ready(self, candidate: Candidate) -> None:
        """Import a backend's library while a worker, which has imported it safely, compiles with it.

        If other Python threads run, import it later: the worker must first report how the import changes the process.
        """
        if not is_alone():
            return
        backend, name = candidate.backend, candidate.name
        with kept_state() as changed, contextlib.suppress(PluginError), plugin_edge(backend, name, "load"):
            self.context.registry.backend(backend)
        self._note(told_changes(changed, HERE), Stage.LOAD, candidate)

    def _tried_alone(self, candidate: Candidate, values: Mapping[str, Any]) -> Candidate:
        """Try a cluster in a worker that receives nothing else, because the graph holds something only this process knows.

        Raises CompileError if no worker is available; this says nothing about the backend and is not remembered.
        """
        sample, options = cut_sample(self.context.sample, candidate.group.nodes, values), self.context.options
        try:
            with Session(
                sample, self.context.threads, limits_of(options.workers), options=options, is_timed=False
            ) as session:
                return session.try_out(candidate)
        except WorkerError as error:
            hint = "options={'isolate': False} compiles in this process"
            raise CompileError(error.message, backend=candidate.backend, cluster=candidate.name, hint=hint) from error

    def _note(self, message: str, stage: Stage, candidate: Candidate) -> None:
        """Record a note for users; ignore an empty message."""
        if message:
            backend, name = candidate.backend, candidate.name
            self.notes.append(Event(kind=EventKind.NOTE, stage=stage, backend=backend, cluster=name, message=message))


def _folder(candidate: Candidate) -> Path:
    assert candidate.folder is not None, "a plan's clusters are saved where they can be"
    return candidate.folder


def _check_threads(changes: Sequence[str], candidate: Candidate) -> None:
    """Raise ContractError if loading a cluster would change process state that other threads see."""
    if reason := refusal_due_to_threads(changes):
        hint = "compile the model before other threads are started"
        raise ContractError(f"not loaded: {reason}", backend=candidate.backend, cluster=candidate.name, hint=hint)


def observe(registry: Registry, hook: str, **facts: Any) -> None:
    """Call an observer hook of every plugin; log what a hook raises and go on with the others."""
    for plugin in registry.plugins:
        try:
            plugin.call(hook, **facts)
        except BaseException as error:
            if not is_plugins(error):
                raise
            _log.warning("%s of plugin %s raised %s", hook, plugin.name, text_of(error))
