"""A planning session: worker processes that compile, verify and time candidates and plans, outside the user's process."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from hub.backend import CompileSettings
from hub.compilation.channel import Worker
from hub.compilation.transfer import Sample, write_sample
from hub.cost import Cost
from hub.dispatch.codegen import Step
from hub.errors import CompileError, PluginError
from hub.partition.group import Group
from hub.pricing.clock import Clock
from hub.pricing.timing import measured_cost

LOAD_LIMIT_S = 120.0
"""Seconds that starting a worker may take: importing PyTorch and reading the graph."""
COMPILE_LIMIT_S = 600.0
"""Seconds that compiling one cluster may take."""
RUN_LIMIT_S = 120.0
"""Seconds that one request to run something may take, beyond its own length."""
ALONE_S = 0.2
"""Seconds for which a cluster is timed alone: it only has to tell which plans are worth timing whole."""
_STEP_S = 0.1
"""Seconds between two looks at the clock while a worker compiles."""


@dataclass(frozen=True, slots=True)
class Order:
    """One cluster to compile: for which backend, under which settings, and where to save it."""

    name: str
    group: Group
    settings: CompileSettings
    folder: Path | None
    """Where it is saved; None where only its price is wanted."""
    inputs: tuple[str, ...]
    """Names of the values it reads, weights left out."""
    is_needed: bool = True
    """False where it only helps to find a better plan, and so must not take time from those that are needed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What came of an order: a price, or the reason why there is none."""

    order: Order
    cost: Cost | None = None
    compile_s: float = 0.0
    is_saved: bool = False
    failure: PluginError | None = None
    is_late: bool = False
    """True where the failure is only that the time for compiling was over: nothing is wrong with the candidate."""


@dataclass(slots=True)
class Lane:
    """A whole plan in a worker of its own, with what was measured of it so far."""

    name: str
    steps: tuple[Step, ...]
    worker: Worker
    first_s: float = 0.0
    blocks_s: list[float] = field(default_factory=list)
    """Median seconds of a call, block by block."""
    laps_s: list[list[float]] = field(default_factory=list)
    """Seconds of each step, block by block."""
    calls: int = 0


class Session:
    """Owns the workers and a private folder; leaving it ends and removes all of them."""

    def __init__(self, sample: Sample, threads: int) -> None:
        self.sample = sample
        self.threads = threads
        self._folder = Path(tempfile.mkdtemp(prefix="hub-session-"))
        self._fault: CompileError | None = None
        """Why no worker can have the graph: found once, and not tried again."""
        self._workers: dict[str, Worker] = {}
        self._ready: set[str] = set()
        self._built: dict[str, list[Offer]] = {}
        """By worker: what it holds, so that a new one can take over from one that died."""
        self._lent: set[str] = set()
        self._is_over = False

    def __enter__(self) -> Session:
        write_sample(self._folder, self.sample)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._kill_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill_all(self) -> None:
        self._is_over = True
        for worker in self._workers.values():
            worker.kill()

    def start(self, names: Iterable[str]) -> None:
        """Starts workers by name without waiting for them."""
        for name in names:
            worker = Worker("hub.compilation.worker", self._folder / f"{name.replace(' ', '')}.log")
            self._workers[name] = worker
            self._ready.discard(name)
            worker.post("load", folder=str(self._folder), threads=self.threads)

    def await_start(self, name: str) -> None:
        """Waits until a worker has read the sample. Raises PluginError if it cannot."""
        if self._fault is not None:
            raise self._fault
        if name in self._ready:
            return
        try:
            self._workers[name].result(LOAD_LIMIT_S)
        except PluginError as error:
            if not self._workers[name].is_alive:
                raise  # that is about this worker, and a new one may be luckier
            self._fault = CompileError(f"a worker process cannot read the graph: {error.message}")
            raise self._fault from error
        self._ready.add(name)

    def compile_all(
        self,
        orders: Mapping[str, Sequence[Order]],
        done: Callable[[Offer], None],
        clock: Clock,
    ) -> tuple[Offer, ...]:
        """Compiles each backend's orders in its own worker, backends in parallel. Gives offers without prices.

        `done` hears of each offer, from any thread. What the clock does not let start comes back late; so does what is not
        ready when it ends, and then its worker is gone.
        """
        with ThreadPoolExecutor(max_workers=max(1, len(orders))) as pool:
            lanes = [pool.submit(self._compile_lane, backend, wanted, done, clock) for backend, wanted in orders.items()]
            try:
                return tuple(offer for lane in lanes for offer in lane.result())
            except BaseException:
                self._kill_all()  # else Ctrl-C would wait for the compilations to end
                raise

    def price(self, offer: Offer, at_least_s: float = ALONE_S) -> Offer:
        """Times a compiled cluster alone, in the worker that compiled it."""
        home = offer.order.group.backend
        try:
            worker = self._living(home)
            if all(held.order.name != offer.order.name for held in self._built.get(home, ())):
                return _late(offer.order)  # it went with a worker that died, and is not worth compiling again
            facts = {"name": offer.order.name, "spin": offer.order.settings.spin}
            timing = worker.ask("time_cluster", RUN_LIMIT_S, **facts, at_least_s=at_least_s)
        except PluginError as error:
            return Offer(offer.order, failure=error)
        cost = measured_cost(timing, offer.order.settings.threads)
        return Offer(offer.order, cost, offer.compile_s, offer.is_saved)

    def eager_prices(self) -> dict[str, float]:
        """Measures what each node costs in eager, in seconds. Raises PluginError if the worker fails."""
        return self._workers["eager"].ask("profile", RUN_LIMIT_S)

    def lane(self, name: str, steps: Sequence[Step], offers: Sequence[Offer], home: str | None, *, spin: bool) -> Lane:
        """Builds a whole plan in the worker `home`, which compiled all of it, or in a new one from saved clusters.

        Raises PluginError with the cause.
        """
        if home is None or home in self._lent:
            home = f"plan {name}"
            self.start([home])
            self.await_start(home)
            self._load_into(home, offers)
        worker = self._living(home)
        self._lent.add(home)
        lane = Lane(name, tuple(steps), worker)
        lane.first_s = lane.worker.ask("build_plan", RUN_LIMIT_S, steps=list(steps), spin=spin)
        return lane

    def time_lane(self, lane: Lane, at_least_s: float) -> None:
        """Times one block of calls of a whole plan. Raises PluginError if it fails."""
        samples, laps = lane.worker.ask("time_plan", RUN_LIMIT_S + at_least_s, at_least_s=at_least_s)
        lane.blocks_s.append(sorted(samples)[len(samples) // 2])
        lane.laps_s.append(laps)
        lane.calls += len(samples)

    def end(self, lane: Lane) -> None:
        """Ends a plan's worker, so that it takes no memory or cores from those that are still timed."""
        for name, worker in list(self._workers.items()):
            if worker is lane.worker:
                worker.kill()
                del self._workers[name]

    def _compile_lane(
        self, backend: str, orders: Sequence[Order], done: Callable[[Offer], None], clock: Clock
    ) -> list[Offer]:
        names = sorted({name for order in orders for name in order.inputs})
        offers: list[Offer] = []
        for order in orders:
            may_start = clock.may_start(backend, is_needed=order.is_needed)
            offers.append(self._compile(backend, order, names, clock) if may_start else _late(order))
            done(offers[-1])
        return offers

    def _compile(self, backend: str, order: Order, names: Sequence[str], clock: Clock) -> Offer:
        began_s = time.monotonic()
        # A worker that runs a whole plan by now must not be lost to a compilation that may have to be stopped.
        home = backend if backend not in self._lent else f"{backend} anew"
        try:
            worker = self._living(home)
            worker.ask("prepare", RUN_LIMIT_S, names=names)
            worker.post("compile_cluster", **_facts(order), folder=None if order.folder is None else str(order.folder))
            while not worker.is_ready(_STEP_S):
                if time.monotonic() > min(clock.compile_until(backend), began_s + COMPILE_LIMIT_S):
                    worker.kill()
                    return _late(order)
            compiled: Any = worker.result(RUN_LIMIT_S)
        except PluginError as error:
            return Offer(order, failure=error)
        offer = Offer(order, None, compiled.compile_s, compiled.is_saved)
        self._built.setdefault(home, []).append(offer)
        return offer

    def _living(self, name: str) -> Worker:
        """Gives a worker that has read the sample: the one there is, or a new one in place of one that ended.

        The new one holds what is needed of what the old one held: it may have died of a piece, or been too slow for one.
        """
        worker = self._workers.get(name)
        if (worker is None or not worker.is_alive) and not self._is_over:
            if worker is not None:
                worker.kill()
            self._built[name] = [offer for offer in self._built.get(name, ()) if offer.order.is_needed]
            self.start([name])
            self.await_start(name)
            if name not in self._lent:
                self._load_into(name, self._built[name])
        self.await_start(name)
        return self._workers[name]

    def _load_into(self, home: str, offers: Sequence[Offer]) -> None:
        worker = self._workers[home]
        inputs = sorted({name for offer in offers for name in offer.order.inputs})
        worker.ask("prepare", RUN_LIMIT_S, names=inputs)
        for offer in offers:
            order = offer.order
            if offer.is_saved:
                worker.ask("load_saved", COMPILE_LIMIT_S, **_facts(order), folder=str(order.folder))
            else:
                worker.ask("compile_cluster", COMPILE_LIMIT_S, **_facts(order), folder=None)


def _late(order: Order) -> Offer:
    error = CompileError(
        "not compiled within the budget",
        backend=order.group.backend,
        cluster=order.name,
        hint="raise `budget_s`, or run `hub tune`, which goes on where this stopped",
    )
    return Offer(order, failure=error, is_late=True)


def _facts(order: Order) -> dict[str, Any]:
    """Gives what a worker must know to compile or load a cluster."""
    return {"name": order.name, "backend": order.group.backend, "nodes": order.group.nodes, "settings": order.settings}
