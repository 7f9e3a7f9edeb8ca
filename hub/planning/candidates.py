"""Candidates of one decision: compile clusters in workers, keep each result, and time it in isolation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hub.errors import AccuracyError, ContractError, InputRefused
from hub.partition.group import Group
from hub.plan import Event, EventKind, Stage
from hub.planning.context import CandidatePlan, PlanningContext
from hub.planning.explore import Wanted
from hub.planning.failures import known_failure, remember_failure
from hub.planning.pricebook import PriceBook
from hub.plugin.backend import CompileSettings
from hub.process.state import WORKER, told_changes
from hub.report.numbers import count
from hub.workers.candidate import Candidate, Key
from hub.workers.clock import Clock
from hub.workers.session import ALONE_S

_GO_ON = "`hub tune` goes on from here, and a larger `budget_s` gives more time"


class Candidates:
    """Clusters that were compiled, or that failed, each once per decision."""

    def __init__(self, context: PlanningContext, book: PriceBook, clock: Clock) -> None:
        self.events: list[Event] = []
        self._context, self._book, self._clock = context, book, clock
        self._known: dict[Key, Candidate] = {}
        self._names: dict[Key, str] = {}
        self._late: Counter[tuple[str, int]] = Counter()
        """Number of clusters that did not fit into the budget, by backend and number of threads."""
        self._lock = threading.Lock()
        self._left: Counter[str] = Counter()
        """Needed clusters of each backend that are not decided yet: until then it has no whole plan."""

    @property
    def n_compiled(self) -> int:
        """Return the number of clusters that compiled."""
        return sum(candidate.failure is None for candidate in self._known.values())

    def of(self, plan: CandidatePlan) -> Mapping[Group, Candidate]:
        """Return the candidate of each cluster of a plan. Raise KeyError for a cluster that was not compiled."""
        return {found: self._known[found, plan.settings] for found in plan.assignment.clusters}

    def is_known(self, found: Group, settings: CompileSettings) -> bool:
        """Return whether a cluster was compiled, or failed."""
        return (found, settings) in self._known

    def is_kept(self, found: Group, settings: CompileSettings) -> bool:
        """Return whether a cluster was compiled as a part of a plan, or failed: a plan need not compile it again.

        As a piece it was compiled for its cost alone, and not saved, even if its backend can save.
        """
        known = self._known.get((found, settings))
        return known is not None and not (known.failure is None and known.folder is None and known.report.may_be_saved)

    def is_ready(self, plan: CandidatePlan) -> bool:
        """Return whether every cluster of a plan was compiled."""
        return self.is_decided(plan) and all(candidate.failure is None for candidate in self.of(plan).values())

    def is_decided(self, plan: CandidatePlan) -> bool:
        """Return whether every cluster of a plan was compiled, or failed."""
        return all(self.is_known(found, plan.settings) for found in plan.assignment.clusters)

    def is_servable(self, plan: CandidatePlan) -> bool:
        """Return whether other processes can load every cluster of a plan."""
        return self.is_ready(plan) and all(candidate.report.is_saved for candidate in self.of(plan).values())

    def pieces(self, wanted: Iterable[Wanted]) -> list[Candidate]:
        """Return candidates for pieces that may only improve the decision; they are not saved."""
        settings = self._context.settings(busy_wait=False)
        found = [self._new(item.piece, settings, is_needed=False, is_saved=False) for item in wanted]
        return [replace(piece, expected_s=self._book.compile_s(*piece.key)) for piece in found]

    def clusters(self, plans: Iterable[CandidatePlan], *, is_needed: bool = True) -> list[Candidate]:
        """Return a candidate per cluster of the plans, single-backend plans first, because one of them is the fallback."""
        keys = {
            (found, plan.settings): None
            for plan in sorted(plans, key=lambda plan: len(plan.assignment.clusters))
            for found in plan.assignment.clusters
        }
        return [self._new(found, settings, is_needed=is_needed) for found, settings in keys]

    def _new(self, found: Group, settings: CompileSettings, *, is_needed: bool, is_saved: bool = True) -> Candidate:
        name = self._names.setdefault((found, settings), f"k{len(self._names)}")
        return self._context.candidate(name, found, settings, is_needed=is_needed, is_saved=is_saved)

    def compile(
        self, candidates: Sequence[Candidate], concurrent: Sequence[Candidate] = (), alone_s: float = 0.0
    ) -> list[Candidate]:
        """Compile what was not compiled yet. Of equal candidates the first counts: pieces come last and are not saved.

        A piece that a plan turns out to need is compiled again and saved: else the race and the user's process would do so.
        `concurrent` starts only if the others are not done after `alone_s` seconds; what never started is left out.
        """
        new: dict[Key, Candidate] = {}
        for candidate in (*candidates, *concurrent):
            is_done = self.is_known if candidate.folder is None else self.is_kept
            if not is_done(*candidate.key):
                new.setdefault(candidate.key, candidate)
        if not new:
            return []
        self._context.progress.stage("compiling", len(new))
        away: list[Candidate] = []
        by_backend: dict[str, list[Candidate]] = {}
        for candidate in new.values():
            if (failure := known_failure(self._context, candidate)) is None:
                by_backend.setdefault(candidate.backend, []).append(candidate)
                continue
            away.append(replace(candidate, failure=failure, is_remembered=True))  # it is not tried again
        self._left = Counter(
            candidate.backend for found in by_backend.values() for candidate in found if candidate.is_needed
        )
        for candidate in away:
            if candidate.is_needed and not self._left[candidate.backend]:
                self._clock.arrived(candidate.backend)
        most = {backend: self._most_at_once(backend) for backend in by_backend}
        first = {candidate.backend for candidate in candidates} & by_backend.keys() if concurrent else ()
        made = self._context.session.compile_all(by_backend, self._heard, self._clock, most, first=first, alone_s=alone_s)
        found = [*away, *made]
        self._known |= {candidate.key: candidate for candidate in found}
        for candidate in found:
            if candidate.failure is None:
                self._note_oddities(candidate)
            else:
                self._note_failure(candidate)
        return found

    def _most_at_once(self, backend: str) -> int:
        """Return how many clusters of a backend compile at once; 1 if it cannot save, since extra workers have to save."""
        return self._context.compile_workers(backend) if self._context.workers.overrides(backend, "load") else 1

    def _heard(self, candidate: Candidate) -> None:
        self._advance(candidate)
        if candidate.failure is None:
            self._clock.compiled(candidate.backend, candidate.report.compile_s)
        if candidate.is_needed:
            with self._lock:
                self._left[candidate.backend] -= 1
                is_last = not self._left[candidate.backend]
            if is_last:
                self._clock.arrived(candidate.backend)
            if candidate.failure is None:
                self._clock.begin(is_whole=is_last)

    def _advance(self, candidate: Candidate) -> None:
        self._context.progress.advance(f"{candidate.backend}, {len(candidate.group.nodes)} nodes")

    def _note_failure(self, candidate: Candidate) -> None:
        if (not candidate.is_late or candidate.is_needed) and not self._has_other(candidate.group):
            self._book.fail(candidate.group, str(candidate.failure).splitlines()[0])
        if not candidate.is_late:
            if not candidate.is_remembered:
                remember_failure(self._context, candidate)
            self.events.append(_failure(candidate))
        elif candidate.is_needed:
            self._late[candidate.backend, candidate.settings.threads] += 1

    def _note_oddities(self, candidate: Candidate) -> None:
        """Note oddities that cost a backend no candidate, once even if they occur in each of its clusters."""
        for message in filter(None, (told_changes(candidate.report.changed, WORKER), candidate.report.unsaved)):
            note = Event(kind=EventKind.NOTE, stage=Stage.COMPILE, backend=candidate.backend, message=message)
            self.events += [] if note in self.events else [note]

    def _has_other(self, found: Group) -> bool:
        """Return whether the same cluster compiled under other settings, so that the backend does support it."""
        return any(candidate.group == found and candidate.failure is None for candidate in self._known.values())

    def time_alone(self) -> None:
        """Time every compiled cluster without a measurement, one after the other."""
        compiled = [candidate for candidate in self._known.values() if candidate.failure is None]
        todo = [candidate for candidate in compiled if self._book.measured(*candidate.key) is None]
        self._context.progress.stage("timing clusters", len(todo))
        for candidate in todo:
            at_least_s = ALONE_S if candidate.is_needed or self._context.options.tune == "full" else ALONE_S / 2
            priced = self._context.session.price(candidate, at_least_s)
            self._known[candidate.key] = priced
            self._book.keep(priced)
            if priced.failure is not None:
                self._note_failure(priced)
            self._advance(candidate)

    def late_notes(self) -> Iterable[Event]:
        """Yield a note for each backend and number of threads on the clusters that did not fit into the budget."""
        for (backend, threads), number in self._late.items():
            apart = "" if threads == self._context.threads else f" for {count(threads, 'thread')}"
            late = f"{count(number, 'cluster')} not compiled{apart} within the budget of {self._clock.budget_s:.0f} s"
            yield Event(kind=EventKind.NOTE, stage=Stage.COMPILE, backend=backend, message=f"{late}: {_GO_ON}")


def _failure(candidate: Candidate) -> Event:
    return Event(
        kind=_kind(candidate),
        stage=Stage.VERIFY if isinstance(candidate.failure, AccuracyError | ContractError) else Stage.COMPILE,
        backend=candidate.backend,
        cluster=candidate.name,
        message=str(candidate.failure),
        error=type(candidate.failure).__name__,
    )


def _kind(candidate: Candidate) -> EventKind:
    """Return the severity of a failure: pieces without a cost, and clusters without time, are only notes."""
    if candidate.is_late or not candidate.is_needed:
        return EventKind.NOTE
    is_known = candidate.is_remembered or isinstance(candidate.failure, InputRefused)
    return EventKind.REFUSED if is_known else EventKind.FAILED
