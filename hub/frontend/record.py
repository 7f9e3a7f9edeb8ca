"""What is known of one graph's plan in service: its events, the candidates that failed, and what the user was told."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hub.config.options import Options
from hub.discovery.registry import registry
from hub.dispatch.shadow import Drift
from hub.errors import text_of, warn_user
from hub.partition.group import Group
from hub.plan import TROUBLE, DecidedBy, Event, EventKind, Plan, Stage
from hub.planning.building import observe
from hub.planning.failures import reason_of, remember_failure_in_service
from hub.process.forks import freed_in_forks
from hub.report.numbers import count
from hub.workers.candidate import Candidate

_warned_folders: set[str] = set()
"""Unusable cache folders that this process has warned about: every graph would repeat the warning."""


class Record:
    """The plan in use of one graph and what has happened to it. Thread-safe."""

    def __init__(self, graph_name: str, options: Options) -> None:
        """Begin without a plan."""
        self._graph_name, self._options = graph_name, options
        self.plan: Plan | None = None
        self._earlier: Plan | None = None
        """The plan from before, for other weights, while one is made."""
        self._is_final = True
        """False while the plan only stands for what is being made, or serves until that is ready."""
        self.demoted: dict[Group, str] = {}
        """Candidates that failed at run time, with the reason. Later bindings skip them, even if a cache holds them."""
        self._warned: set[str] = set()
        self._cache_problem = ""
        self._is_news = False
        self._lock = freed_in_forks(threading.RLock())

    @property
    def known(self) -> Plan | None:
        """The plan, unless a better one is still being made, or it stands for one that could not be made."""
        with self._lock:
            is_made = self._is_final and self.plan is not None and self.plan.decided_by is not DecidedBy.NOT_CAPTURED
            return self.plan if is_made else None

    def begin(self, pending: Plan) -> None:
        """Replace the plan by one that stands for what is being made."""
        with self._lock:
            if self._is_final:
                self._earlier = self.plan
            self.plan, self._is_final = pending, False

    def end(self) -> None:
        """Return to the earlier plan if planning ended without one."""
        with self._lock:
            if not self._is_final:
                self.plan, self._is_final = self._earlier, True

    def enter(self, plan: Plan) -> None:
        """Enter a plan that is not built yet, or stands for one that could not be made."""
        with self._lock:
            self.plan, self._is_final = plan, True

    def made(self, plan: Plan, cache_problem: str, *, is_final: bool) -> None:
        """Enter a new plan, which serves only until planning ends unless it `is_final`.

        `cache_problem` is why nothing of it could be saved, "" if it was.
        """
        with self._lock:
            self.plan, self._is_final, self._cache_problem = plan, is_final, cache_problem
        observe(registry(), "hub_plan_made", plan=plan)

    # --- Events -------------------------------------------------------------------------------------------------------

    def note(self, stage: Stage, text: str) -> None:
        """Add a note to the plan."""
        with self._lock:
            if self.plan is not None:
                self.plan = self.plan.with_events(Event(kind=EventKind.NOTE, stage=stage, message=text))

    def note_background(self, problem: str, n_waited: int) -> None:
        """Note how a plan was made while `n_waited` calls ran. `problem` is why that was not in a process of its own."""
        if problem:
            self.note(Stage.LOAD, f"not planned in a separate process: {problem}")
        if self.plan is not None and self.plan.decided_by is DecidedBy.MEASURED_PLANS:
            self.note(Stage.TIME, f"timed in the gaps between {count(n_waited, 'call')} of the model")

    def replace_note(self, stage: Stage, event: Event) -> None:
        """Add an event in place of the earlier note of a stage on its cluster."""
        with self._lock:
            if self.plan is not None:
                others = (old for old in self.plan.events if (old.stage, old.cluster) != (stage, event.cluster))
                self.plan = self.plan.model_copy(update={"events": (*others, event)})

    def drifted(self, backend: str, cluster: str, drift: Drift) -> None:
        """Note what shadow mode has found so far."""
        event = Event(kind=EventKind.NOTE, stage=Stage.SHADOW, backend=backend, cluster=cluster, message=str(drift))
        self.replace_note(Stage.SHADOW, event)

    # --- Failures -----------------------------------------------------------------------------------------------------

    def failed(
        self, served: Mapping[str, Candidate], backend: str, cluster: str, error: BaseException, *, is_final: bool
    ) -> None:
        """Record, and tell the user, that a cluster failed in a call. `is_final`: it runs in eager from now on."""
        if is_final:
            self.demote(served[cluster], error)
        message = text_of(error)
        event = Event(
            kind=EventKind.FALLBACK,
            stage=Stage.RUN,
            backend=backend,
            cluster=cluster,
            message=message,
            error=type(error).__name__,
        )
        with self._lock:
            if self.plan is None:
                return
            is_news = event not in self.plan.events  # background checks may have recorded the same failure before
            self.plan = self.plan.with_events(event) if is_news else self.plan
        if is_news:
            _tell_observers(event)
        elif not is_final:
            return  # such values were rejected and reported before
        duration = "from now on" if is_final else "for such calls"
        self._warn_once(f"{backend} failed on {cluster} of {self._graph_name}, which runs in eager {duration}: {message}")

    def failed_later(self, candidate: Candidate, event: Event, error: BaseException) -> None:
        """Drop a candidate that checks after the first answer have found wrong."""
        self.demote(candidate, error)
        _tell_observers(event)

    def demote(self, candidate: Candidate, error: BaseException) -> None:
        """Exclude a candidate that failed from later bindings, and from the plans of later captures and processes."""
        with self._lock:
            if candidate.group in self.demoted:
                return
            self.demoted[candidate.group] = reason_of(error)
        remember_failure_in_service(candidate, error)

    # --- What the user is told ----------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Let the next call tell what happened while the plan was made in the background."""
        self._is_news = True

    def tell_news(self) -> None:
        """Warn about what happened during background planning. Called in a user's thread."""
        if self._is_news:
            self._is_news = False
            self.warn()

    def warn(self) -> None:
        """Warn about each failure that the plan holds, once, and about a cache that cannot be written to."""
        folder = str(self._options.cache.root)
        if self._cache_problem and folder not in _warned_folders:
            _warned_folders.add(folder)
            warn_user(f"nothing is saved for later processes: {self._cache_problem}")
        for event in () if self.plan is None else self.plan.events:
            if event.kind in TROUBLE:
                _tell_observers(event)
                self._warn_once(f"{event.backend or 'the hub'}: {event.stage}: {event.message}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn_user(text)


def _tell_observers(event: Event) -> None:
    observe(registry(), "hub_fallback", backend=event.backend or "", cluster=event.cluster or "", reason=event.message)
