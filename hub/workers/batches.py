"""Compiling many clusters at once: which of them in how many workers, in which order, and what happens when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from hub.cache.keys import available_cores
from hub.errors import WorkerError
from hub.process.family import WATCH_S
from hub.workers.clock import Clock
from hub.workers.compiling import Compiler
from hub.workers.crew import Crew
from hub.workers.orders import Offer, Order, late
from hub.workers.queue import Queue
from hub.workers.turns import Turns

QUEUED_S = 60.0
"""Seconds that a backend waits at most for a core of its own before it compiles: some other one may hang."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """What all backends of one batch share."""

    done: Callable[[Offer], None]
    clock: Clock
    turns: Turns
    pool: ThreadPoolExecutor


class Batches:
    """Compiles many clusters at once, in workers of a crew."""

    def __init__(self, crew: Crew, compiler: Compiler) -> None:
        self._crew = crew
        self._compiler = compiler

    def try_out_all(
        self, orders: Sequence[Order], most: Mapping[str, int], done: Callable[[Order], None], meanwhile: Callable[[], None]
    ) -> Mapping[Order, Offer]:
        """Compile clusters outside any budget, with as many workers as `most` allows.

        That says how many clusters of each backend are compiled at once. `done` hears of each, from any thread, and
        `meanwhile` is called in this one while workers compile. After a failure none is started: without that cluster, the
        plan will be another. What was not started, and what no worker could be had for, has no offer.
        """
        queue = Queue([order.group.backend for order in orders], most)
        offers: dict[Order, Offer] = {}
        is_begun = threading.Event()

        def work(suffix: str) -> None:
            while (place := queue.take()) is not None:
                order, is_failed = orders[place], False
                try:
                    offer = self._compiler.compile(order, sorted(order.inputs), None, is_begun.set, suffix=suffix)
                    offers[order] = offer
                    is_failed = offer.failure is not None
                except WorkerError:
                    return  # the others go on; where there are none, whoever needs the clusters meets it again
                finally:
                    if is_failed:
                        queue.close()
                    queue.done(place)
                done(order)

        n_workers = min(len(orders), self._at_once(most))
        with ThreadPoolExecutor(max_workers=max(1, n_workers), thread_name_prefix="hub-session") as pool:
            try:
                working = [pool.submit(work, _suffix(number)) for number in range(n_workers)]
                while not is_begun.wait(WATCH_S) and not all(item.done() for item in working):
                    pass
                if is_begun.is_set():
                    meanwhile()
                for item in working:
                    item.result()
            except BaseException:
                queue.close()
                self._crew.kill_all()  # else Ctrl-C would wait for the compilations to end
                raise
        return offers

    def compile_all(
        self,
        orders: Mapping[str, Sequence[Order]],
        done: Callable[[Offer], None],
        clock: Clock,
        most: Mapping[str, int],
        *,
        first: Collection[str],
        alone_s: float,
    ) -> tuple[Offer, ...]:
        """Compile each backend's orders in its own worker, as many at once as there are cores, or as options say.

        What is needed goes before what only might help, and the backends that come first before the others.

        More at once would each take longer, and the slowest would be left alone in the end. Where there are fewer backends,
        further workers compile for one what it has saved, up to as many at once as `most` says of it. Return offers without
        prices, in order; `done` hears of each, from any thread. What the clock does not let start comes back late; so does
        what is not ready when it ends, and then its worker is gone.

        With `first`, the other backends begin only if those named are not done after `alone_s` seconds: one of them may
        hang. What was not begun has no offer.
        """
        at_once = self._at_once(most)
        ahead: list[Future[list[Offer]]] = []
        ranked = sorted(orders, key=lambda backend: backend not in first)
        with ThreadPoolExecutor(max_workers=max(1, at_once * len(orders)), thread_name_prefix="hub-session") as pool:
            batch = _Batch(done, clock, Turns(at_once), pool)

            def share(rank: int, backend: str, rivals: int) -> list[Offer]:
                if ahead and backend not in first and not wait(ahead, alone_s).not_done:
                    return []
                n_workers = min(max(1, at_once // rivals), most.get(backend, 1))
                return self._compile_share(batch, backend, orders[backend], rank, n_workers)

            shares: list[Future[list[Offer]]] = []
            for rank, backend in enumerate(ranked):
                is_ahead = backend in first
                shares.append(pool.submit(share, rank, backend, len(first) if is_ahead else len(orders)))
                ahead += shares[-1:] if is_ahead else []
            try:
                return tuple(offer for share in shares for offer in share.result())
            except BaseException as error:  # noqa: BLE001 - raised again below
                self._crew.kill_all()  # else Ctrl-C would wait for the compilations to end
                failure = error
        # Where a worker could not be had, what was measured is of no use, but plans by estimates need workers, too.
        self._crew.forget_all(is_over=not isinstance(failure, Exception))
        raise failure

    def _compile_share(
        self, batch: _Batch, backend: str, orders: Sequence[Order], rank: int, n_workers: int
    ) -> list[Offer]:
        """Compile one backend's orders with so many workers; the lower its rank, the earlier it has its turns."""
        names = sorted({name for order in orders for name in order.inputs})
        n_saved = sum(order.folder is not None for order in orders)
        queue = Queue([backend] * len(orders), {backend: n_workers})
        offers: dict[int, Offer] = {}

        def work(suffix: str = "") -> list[int]:
            made: list[int] = []
            while (place := queue.take(lambda each: not suffix or orders[each].folder is not None)) is not None:
                order = orders[place]
                try:
                    with batch.turns.turn((not order.is_needed, rank), QUEUED_S):
                        may_start = batch.clock.may_start(backend, is_needed=order.is_needed)
                        if may_start:
                            offer = self._compiler.compile(order, names, batch.clock, suffix=suffix)
                        else:
                            offer = late(order)
                except BaseException as error:
                    queue.done(place, is_left=True)
                    if suffix and isinstance(error, WorkerError):
                        return made  # the backend's own worker compiles what is left
                    queue.close()
                    raise
                queue.done(place)
                offers[place] = offer
                made.append(place)
                batch.done(offer)
            return made

        others = [batch.pool.submit(work, _suffix(number)) for number in range(1, min(n_workers, n_saved))]
        work()
        for other in others:
            for place in other.result():
                offers[place] = self._compiler.take_over(offers[place], batch.clock)
        work()
        return [offers[place] for place in range(len(orders))]

    def _at_once(self, most: Mapping[str, int]) -> int:
        """Return how many clusters are compiled at once, of whatever backends."""
        return max(self._crew.options.compile_workers or available_cores(), *most.values(), 1)


def _suffix(number: int) -> str:
    """Return what the name of a backend's further workers ends with; "" for its first."""
    return f" {number + 1}" if number else ""
