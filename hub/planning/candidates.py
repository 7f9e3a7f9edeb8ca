"""What was compiled for one decision: orders workers to compile clusters, keeps what came of each, and times it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hub.backend import CompileSettings
from hub.errors import AccuracyError, ContractError, InputRefused
from hub.partition.group import Group
from hub.plan import Event, EventKind, Stage
from hub.planning.explore import Wanted
from hub.planning.failures import known_failure, remember_failure
from hub.planning.pricebook import PriceBook
from hub.planning.scene import Draft, Scene
from hub.planning.schedule import reads
from hub.process.state import WORKER, told_changes
from hub.report.numbers import count
from hub.workers.clock import Clock
from hub.workers.orders import UNSAVED, Offer, Order
from hub.workers.session import ALONE_S

_GO_ON = "`hub tune` goes on from here, and a larger `budget_s` gives more time"

Key = tuple[Group, CompileSettings]


class Candidates:
    """Clusters that were compiled, or that failed, each once for one decision."""

    def __init__(self, scene: Scene, book: PriceBook, clock: Clock) -> None:
        self.events: list[Event] = []
        self._scene, self._book, self._clock = scene, book, clock
        self._offers: dict[Key, Offer] = {}
        self._names: dict[Key, str] = {}
        self._late: Counter[str] = Counter()

    @property
    def n_compiled(self) -> int:
        """Clusters that can be had."""
        return sum(offer.failure is None for offer in self._offers.values())

    def offers_of(self, draft: Draft) -> Mapping[Group, Offer]:
        """Return what came of each cluster of a plan. Raise KeyError for one that was not compiled."""
        return {found: self._offers[found, draft.settings] for found in draft.assignment.clusters}

    def is_known(self, found: Group, settings: CompileSettings) -> bool:
        """Return whether a cluster was compiled, or failed."""
        return (found, settings) in self._offers

    def is_ready(self, draft: Draft) -> bool:
        """Return whether all that a plan needs can be had."""
        return all(
            (offer := self._offers.get((found, draft.settings))) is not None and offer.failure is None
            for found in draft.assignment.clusters
        )

    def is_decided(self, draft: Draft) -> bool:
        """Return whether all that a plan needs was compiled, or failed."""
        return all(self.is_known(found, draft.settings) for found in draft.assignment.clusters)

    def is_servable(self, draft: Draft) -> bool:
        """Return whether other processes can load all that a plan needs."""
        clusters = draft.assignment.clusters
        return self.is_ready(draft) and all(self._offers[found, draft.settings].is_saved for found in clusters)

    def piece_orders(self, wanted: Iterable[Wanted]) -> list[Order]:
        """Return orders for pieces that only might help: they are not saved."""
        settings = self._scene.settings(spin=False)
        return [self._order(item.piece, settings, is_needed=False, is_saved=False) for item in wanted]

    def orders(self, drafts: Iterable[Draft], *, is_needed: bool = True) -> list[Order]:
        """Return one order for each cluster of any plan; backends alone come first, because one of them is the fallback."""
        keys = {
            (found, draft.settings): None
            for draft in sorted(drafts, key=lambda draft: len(draft.assignment.clusters))
            for found in draft.assignment.clusters
        }
        return [self._order(found, settings, is_needed=is_needed) for found, settings in keys]

    def _order(self, found: Group, settings: CompileSettings, *, is_needed: bool = True, is_saved: bool = True) -> Order:
        name = self._names.setdefault((found, settings), f"k{len(self._names)}")
        folder = self._scene.folder(found, settings) if is_saved else None
        return Order(name, found, settings, folder, reads(self._scene.graph, found), is_needed)

    def compile(self, orders: Sequence[Order], beside: Sequence[Order] = (), alone_s: float = 0.0) -> list[Offer]:
        """Compile what was not compiled yet. Of equal orders the first one counts: pieces come last, and are not saved.

        `beside` begins only where the orders are not done after `alone_s` seconds; what was not begun has no offer.
        """
        new: dict[Key, Order] = {}
        for order in (*orders, *beside):
            if (order.group, order.settings) not in self._offers:
                new.setdefault((order.group, order.settings), order)
        if not new:
            return []
        self._scene.progress.stage("compiling", len(new))
        away = self._put_away(new.values())
        for offer in away:
            if offer.order.is_needed:
                self._clock.arrived(offer.order.group.backend)
        hopeless = {offer.order for offer in away}
        by_backend: dict[str, list[Order]] = {}
        for order in new.values():
            if order not in hopeless:
                by_backend.setdefault(order.group.backend, []).append(order)
        most = {backend: self._most_at_once(backend) for backend in by_backend}
        first = {order.group.backend for order in orders} & by_backend.keys() if beside else ()
        made = self._scene.session.compile_all(by_backend, self._heard, self._clock, most, first=first, alone_s=alone_s)
        found = [*away, *made]
        self._offers |= {_key(offer): offer for offer in found}
        for offer in found:
            self._note_failure(offer)
            self._note_oddities(offer)
        return found

    def _most_at_once(self, backend: str) -> int:
        """Return how many clusters of a backend are compiled at once: another worker has to save what it has made."""
        return self._scene.compile_workers(backend) if self._scene.registry.entries[backend].info.saveable else 1

    def _put_away(self, orders: Iterable[Order]) -> list[Offer]:
        """Return those orders that failed in an earlier process: nobody tries them again."""
        known = ((order, known_failure(self._scene, order.group, order.settings)) for order in orders)
        return [Offer(order, failure=failure, is_remembered=True) for order, failure in known if failure is not None]

    def _heard(self, offer: Offer) -> None:
        order = offer.order
        if order.is_needed:
            self._clock.arrived(order.group.backend)
        self._scene.progress.advance(f"{order.group.backend}, {len(order.group.nodes)} nodes")
        if offer.failure is None:
            self._clock.compiled(order.group.backend, offer.compile_s)
            if order.is_needed:
                self._clock.begin()

    def _note_failure(self, offer: Offer) -> None:
        if offer.failure is None:
            return
        if (not offer.is_late or offer.order.is_needed) and not self._has_other(offer.order):
            self._book.fail(offer.order.group, str(offer.failure).splitlines()[0])
        if not offer.is_late and not offer.is_remembered:
            remember_failure(self._scene, offer.order.group, offer.order.settings, offer.failure)
        if not offer.is_late:
            self.events.append(_failure(offer))
        elif offer.order.is_needed:
            self._late[offer.order.group.backend] += 1

    def _note_oddities(self, offer: Offer) -> None:
        """Note what costs a backend no candidate: once, though it may happen to each of its clusters."""
        problem = UNSAVED.format(offer.problem) if offer.problem else ""
        for message in filter(None, (told_changes(offer.changed, WORKER), problem)):
            note = Event(kind=EventKind.NOTE, stage=Stage.COMPILE, backend=offer.order.group.backend, message=message)
            self.events += [] if note in self.events else [note]

    def _has_other(self, order: Order) -> bool:
        """Return whether the same cluster was compiled under other settings: the backend can have it then."""
        same = (offer for (found, _), offer in self._offers.items() if found == order.group)
        return any(offer.failure is None for offer in same)

    def time_alone(self) -> None:
        """Time every compiled cluster that has no price yet, one after the other."""
        todo = [offer for offer in self._offers.values() if offer.failure is None and not self._is_priced(offer)]
        self._scene.progress.stage("timing clusters", len(todo))
        for offer in todo:
            at_least_s = ALONE_S if offer.order.is_needed or self._scene.options.tune == "full" else ALONE_S / 2
            priced = self._scene.session.price(offer, at_least_s)
            self._offers[_key(offer)] = priced
            self._book.keep(priced)
            self._note_failure(priced)
            self._scene.progress.advance(f"{offer.order.group.backend}, {len(offer.order.group.nodes)} nodes")

    def _is_priced(self, offer: Offer) -> bool:
        return self._book.measured(offer.order.group, offer.order.settings) is not None

    def late_notes(self) -> Iterable[Event]:
        """Return a note for each backend on how much there was no time for."""
        for backend, number in self._late.items():
            message = f"{count(number, 'cluster')} not compiled within the budget of {self._clock.budget_s:.0f} s: {_GO_ON}"
            yield Event(kind=EventKind.NOTE, stage=Stage.COMPILE, backend=backend, message=message)


def _failure(offer: Offer) -> Event:
    return Event(
        kind=_kind(offer),
        stage=Stage.VERIFY if isinstance(offer.failure, AccuracyError | ContractError) else Stage.COMPILE,
        backend=offer.order.group.backend,
        cluster=offer.order.name,
        message=str(offer.failure),
        error=type(offer.failure).__name__,
    )


def _kind(offer: Offer) -> EventKind:
    """Return how grave a failure is: a piece without a price, or without time for it, takes nothing from anybody."""
    if offer.is_late or not offer.order.is_needed:
        return EventKind.NOTE
    is_known = offer.is_remembered or isinstance(offer.failure, InputRefused)
    return EventKind.REFUSED if is_known else EventKind.FAILED


def _key(offer: Offer) -> Key:
    return offer.order.group, offer.order.settings
