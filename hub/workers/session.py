"""A planning session: worker processes that compile, verify and time candidates and plans, outside the user's process."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from hub.backend import CompileSettings
from hub.cache.keys import available_cores
from hub.dispatch.codegen import Step
from hub.errors import ContractError, LimitExceeded, PluginError, WorkerError, text_of
from hub.modes import modes
from hub.options import Options
from hub.partition.group import EAGER, Group
from hub.partition.proposals import Offered
from hub.partition.verdicts import Answers
from hub.pricing.roofline import peaks, settled_accelerators
from hub.pricing.timing import measured_cost
from hub.process.family import WATCH_S
from hub.process.scratch import scratch_folder
from hub.process.state import Said
from hub.process.traffic import GAPS
from hub.workers.channel import Worker
from hub.workers.clock import Clock
from hub.workers.limits import Limits, Saving
from hub.workers.orders import Block, Lane, Offer, Order, late
from hub.workers.pool import POOL
from hub.workers.queue import Queue
from hub.workers.transfer import Sample, write_sample
from hub.workers.turns import Turns

LOAD_LIMIT_S = 120.0
"""Seconds that starting a worker may take: importing PyTorch and reading the graph."""
ASK_LIMIT_S = 120.0
"""Seconds that a backend may take to load and to say what it supports, at most; less where compiling may take less."""
LEAST_ASK_S = 10.0
"""Seconds for it at least: importing a library takes some, however fast it compiles."""
ESTIMATE_LIMIT_S = 10.0
"""Seconds that a backend may take to predict one price."""
RUN_LIMIT_S = 120.0
"""Seconds that one request to run something may take, beyond its own length."""
QUEUED_S = 60.0
"""Seconds that a backend waits at most for a core of its own before it compiles: some other one may hang."""
ALONE_S = 0.2
"""Seconds for which a cluster is timed alone: it only has to tell which plans are worth timing whole."""
_FACTS = (
    *("compile_s", "is_saved", "problem", "is_finite_only", "notes", "verify_s", "changed", "fingerprint"),
    *("untried", "differs"),
)
"""What an offer says in the worker's words."""
DEFAULTS = Options()
"""The limits of workers that nobody set options for."""
_SHARED = "shared"
"""The one worker of a session in which nothing is timed."""


SAVED_PER_WEIGHT = 8
"""Bytes that may be saved for each byte of the graph's weights, beside `output_limit_mb`: four bits may become 32."""


class Session:
    """Owns the workers of one planning, and a private folder; leaving it lets go of all of them.

    Nothing is written and no process started before something is asked. With `is_timed`, each backend has a worker of its
    own, because they compile in parallel and are timed; without, one does for all, as long as none of them ends it.
    """

    def __init__(
        self,
        sample: Sample,
        threads: int,
        limits: Limits,
        *,
        options: Options = DEFAULTS,
        is_timed: bool = True,
    ) -> None:
        self.sample = sample
        self.options = _plain(options)
        self.threads = threads
        self.limits = limits
        self.modes = modes()
        """PyTorch's settings in this process, for every worker."""
        self.is_timed = is_timed
        self.estimating: set[str] = set()
        """Backends that predict prices of their own."""
        self._folder: Path | None = None
        self._fault: WorkerError | None = None
        """Why no worker can have this graph: found once, and not tried again."""
        self._workers: dict[str, Worker] = {}
        self._ready: set[str] = set()
        self._built: dict[str, list[Offer]] = {}
        """By worker: what it holds, so that a new one can take over from one that died."""
        self._lent: set[str] = set()
        """Workers that run whole plans."""
        self._asked: set[str] = set()
        """Workers that were asked for a backend's answers, and whose result nobody has read yet."""
        self._suspects: set[str] = set()
        """Workers in which a plugin failed, and which so may be no good for other sessions."""
        self._is_over = False
        self._lock = threading.Lock()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._kill_all()  # Ctrl-C: nobody waits for workers to tidy up
        self._is_over = True
        for name, worker in self._workers.items():
            if name in self._lent | self._suspects | self._asked or name not in self._ready or not worker.is_alive:
                worker.kill()
            else:
                POOL.take_back(name, worker)
        self._workers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kill_all(self) -> None:
        self._is_over = True
        for worker in list(self._workers.values()):  # a thread that compiles may be about to add one
            worker.kill()

    def start(self, names: Iterable[str]) -> None:
        """Starts workers by name without waiting for them. Raises WorkerError where that, or sending the graph, fails."""
        folder = self._sent()
        for name in names:
            if name not in self._workers or not self._workers[name].is_alive:
                worker = POOL.lend(name, self.limits)
                self._workers[name] = worker
                self._ready.discard(name)
                with contextlib.suppress(PluginError):  # `await_start` meets its end again
                    traffic = None if GAPS.path is None else str(GAPS.path)
                    facts = {"threads": self.threads, "modes": self.modes, "options": self.options, "traffic": traffic}
                    worker.post("load", folder=str(folder), **facts)

    def await_start(self, name: str) -> None:
        """Waits until a worker has read the sample. Raises WorkerError if it cannot."""
        if self._fault is not None:
            raise self._fault
        if name in self._ready:
            return
        try:
            try:
                self._workers[name].result(LOAD_LIMIT_S)
            except PluginError:
                if self._workers[name].is_alive:
                    raise
                self.start([name])  # it may have been about to end, having rested for too long
                self._workers[name].result(LOAD_LIMIT_S)
        except PluginError as error:
            fault = WorkerError(f"a worker process cannot read the graph: {error.message}")
            worker = self._workers.pop(name)
            self._fault = fault if worker.is_alive else None  # one that died says little about the graph
            worker.kill()
            raise fault from error
        self._ready.add(name)

    def _sent(self) -> Path:
        """Gives the folder with the graph, written when first asked for. Raises WorkerError where it cannot be written."""
        with self._lock:
            if self._fault is not None:
                raise self._fault
            if self._folder is None:
                folder = scratch_folder("session")
                try:
                    write_sample(folder, self.sample)
                except Exception as error:
                    shutil.rmtree(folder, ignore_errors=True)
                    self._fault = WorkerError(f"the graph cannot be sent to a worker process: {text_of(error)}")
                    raise self._fault from error
                self._folder = folder
            return self._folder

    @property
    def is_apart(self) -> bool:
        """True: what plugins do, they do outside the user's process."""
        return True

    @property
    def is_unreadable(self) -> bool:
        """True where no worker can have this graph, whatever the machine does: it holds what only this process knows."""
        return self._fault is not None and not isinstance(self._fault.__cause__, OSError)

    @property
    def was_needed(self) -> bool:
        """True where workers were asked for: then the graph was written."""
        return self._folder is not None

    def hand_over(self) -> Path | None:
        """Return the folder with the graph away, for whoever removes it; None where it cannot be written."""
        with contextlib.suppress(WorkerError):
            folder = self._sent()
            self._folder = None
            return folder
        return None

    # --- Questions ----------------------------------------------------------------------------------------------------

    def ask_early(self, backends: Iterable[str], options: Options) -> None:
        """Starts what `answers` will need, all at once. Raises WorkerError where no worker can have the graph."""
        if not self.is_timed:
            self.start([_SHARED])
            return
        names = tuple(backends)
        self.start([*names, EAGER] if len(names) > 1 else names)
        for name in names:
            with contextlib.suppress(PluginError):  # `answers` meets the worker's end again, and says whose it was
                self._workers[name].post("answers", backend=name, options=_plain(options))
                self._asked.add(name)

    def answers(self, backend: str, options: Options) -> Answers:
        """Gives what a backend says about the graph's nodes. Raises HubError where it cannot be loaded, or dies of it."""
        home = self._home(backend)
        asked = self._workers.get(home) if home in self._asked else None
        self._asked.discard(home)
        if asked is not None:
            self.await_start(home)
        if asked is not None and self._workers[home] is asked:
            found: Answers = self._result(home, self._ask_limit_s)
        else:
            found = self._ask(home, "answers", self._ask_limit_s, backend=backend, options=_plain(options))
        if found.estimates:
            self.estimating.add(backend)
        return found

    def estimate(self, found: Group, settings: CompileSettings) -> Said:
        """Gives what a backend predicts of a cluster, None where it predicts nothing. Raises HubError where it fails."""
        if found.backend not in self.estimating:
            return Said(None)
        facts = {"backend": found.backend, "nodes": found.nodes, "settings": settings}
        facts |= {"peaks": peaks(settings.threads), "accelerators": settled_accelerators()}
        return self._ask(self._home(found.backend), "estimate", ESTIMATE_LIMIT_S, **facts)

    def explain(self, found: Group, name: str, settings: CompileSettings) -> Said:
        """Gives what a backend tells of a cluster on the sample. Raises HubError where it fails, or takes too long."""
        facts = {"name": name, "backend": found.backend, "nodes": found.nodes, "settings": settings}
        return self._ask(self._home(found.backend), "explain", RUN_LIMIT_S, **facts)

    def offered(self) -> tuple[Offered, ...]:
        """Gives what plugins propose; where one of them ends the worker, or hangs in it, nobody proposes anything."""
        try:
            return self._ask(_SHARED, "offered", self._ask_limit_s)
        except PluginError as error:
            return (Offered("unknown", fault=f"failed: {error.message}"),)

    def _ask(self, home: str, command: str, limit_s: float, **facts: Any) -> Any:
        self._living(home).post(command, **facts)
        return self._result(home, limit_s)

    def _result(self, home: str, limit_s: float) -> Any:
        try:
            return self._workers[home].result(limit_s)
        except PluginError:
            self._suspects.add(home)
            raise

    @property
    def _ask_limit_s(self) -> float:
        return min(ASK_LIMIT_S, max(LEAST_ASK_S, self.limits.compile_s))

    def _home(self, backend: str) -> str:
        return backend if self.is_timed else _SHARED

    # --- Compiling ----------------------------------------------------------------------------------------------------

    def try_out(self, order: Order, meanwhile: Callable[[], None] = lambda: None) -> Offer:
        """Compiles, runs, verifies and, where possible, saves one cluster, outside any budget. Raises WorkerError.

        `meanwhile` is called while the worker compiles.
        """
        names = sorted(order.inputs)
        return self._compile(order.group.backend, order, names, None, meanwhile)

    def try_out_all(
        self,
        orders: Sequence[Order],
        most: Mapping[str, int],
        done: Callable[[Order], None],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Mapping[Order, Offer]:
        """Does for several clusters at once what `try_out` does for one, with as many workers as `most` allows.

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
                    names = sorted(order.inputs)
                    offer = self._compile(order.group.backend, order, names, None, is_begun.set, suffix=suffix)
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
                self._kill_all()  # else Ctrl-C would wait for the compilations to end
                raise
        return offers

    def _at_once(self, most: Mapping[str, int]) -> int:
        """Gives how many clusters are compiled at once, of whatever backends."""
        return max(self.options.compile_workers or available_cores(), *most.values(), 1)

    def tried(self, found: Group, settings: CompileSettings) -> Offer | None:
        """Gives what came of such a cluster in this session, where it was compiled and verified; else None."""
        offers = (offer for held in self._built.values() for offer in held)
        return next((offer for offer in offers if (offer.order.group, offer.order.settings) == (found, settings)), None)

    def end_plans(self) -> None:
        """Ends the workers that run whole plans, so that they take no memory or cores from what comes now."""
        for name in self._lent & self._workers.keys():
            self._workers.pop(name).kill()

    def compile_all(
        self,
        orders: Mapping[str, Sequence[Order]],
        done: Callable[[Offer], None],
        clock: Clock,
        most: Mapping[str, int] = MappingProxyType({}),
        *,
        first: Collection[str] = (),
        alone_s: float = 0.0,
    ) -> tuple[Offer, ...]:
        """Compile each backend's orders in its own worker, as many at once as there are cores, or as options say.

        What is needed goes before what only might help, and the backends that come first before the others.

        More at once would each take longer, and the slowest would be left alone in the end. Where there are fewer backends,
        further workers compile for one what it has saved, up to as many at once as `most` says of it. Gives offers without
        prices, in order; `done` hears of each, from any thread. What the clock does not let start comes back late; so does
        what is not ready when it ends, and then its worker is gone.

        With `first`, the other backends begin only if those named are not done after `alone_s` seconds: one of them may
        hang. What was not begun has no offer.
        """
        at_once = self._at_once(most)
        turns = Turns(at_once)
        ahead: list[Future[list[Offer]]] = []
        ranked = sorted(orders, key=lambda backend: backend not in first)
        with ThreadPoolExecutor(max_workers=max(1, at_once * len(orders)), thread_name_prefix="hub-session") as pool:

            def lane(rank: int, backend: str, rivals: int) -> list[Offer]:
                if ahead and backend not in first and not wait(ahead, alone_s).not_done:
                    return []
                n_workers = min(max(1, at_once // rivals), most.get(backend, 1))
                return self._compile_lane(backend, orders[backend], done, clock, turns, rank, n_workers, pool)

            lanes: list[Future[list[Offer]]] = []
            for rank, backend in enumerate(ranked):
                is_ahead = backend in first
                lanes.append(pool.submit(lane, rank, backend, len(first) if is_ahead else len(orders)))
                ahead += lanes[-1:] if is_ahead else []
            try:
                return tuple(offer for lane in lanes for offer in lane.result())
            except BaseException as error:  # noqa: BLE001 - raised again below
                self._kill_all()  # else Ctrl-C would wait for the compilations to end
                failure = error
        # Where a worker could not be had, what was measured is of no use, but plans by estimates need workers, too.
        self._is_over = not isinstance(failure, Exception)
        self._workers.clear()
        self._ready.clear()
        raise failure

    def price(self, offer: Offer, at_least_s: float = ALONE_S) -> Offer:
        """Times a compiled cluster alone, in the worker that compiled it."""
        try:
            home = self._holder(offer.order)
            worker = None if home is None else self._living(home)
            if worker is None or home != self._holder(offer.order):
                return late(offer.order)  # it went with a worker that died, and is not worth compiling again
            facts = {"name": offer.order.name, "spin": offer.order.settings.spin}
            timing = worker.ask("time_cluster", RUN_LIMIT_S, **facts, at_least_s=at_least_s)
        except PluginError as error:
            return Offer(offer.order, failure=error)
        cost = measured_cost(timing, offer.order.settings.threads)
        return replace(offer, cost=cost)

    def _holder(self, order: Order) -> str | None:
        """Return the name of the worker that holds a compiled cluster."""
        held = ((home, offer) for home, offers in self._built.items() for offer in offers)
        return next((home for home, offer in held if offer.order.name == order.name), None)

    def eager_prices(self) -> dict[str, float]:
        """Measures what each node costs in eager, in seconds. Raises PluginError if the worker fails."""
        return self._living(self._home(EAGER)).ask("profile", RUN_LIMIT_S)

    def lane(self, name: str, steps: Sequence[Step], offers: Sequence[Offer], home: str | None, *, spin: bool) -> Lane:
        """Build a whole plan in the worker `home`, which compiled all of it, or in a new one from saved clusters.

        Raises PluginError with the cause.
        """
        if home is not None and home not in self._lent:
            self._living(home)  # a new one in place of one that ended holds what is needed only
        if home is None or home in self._lent or not self._holds(home, offers):
            home = self._plan_home(name, offers)
        self._lent.add(home)
        lane = Lane(name, tuple(steps), tuple(offers), spin, self._living(home))
        self._build_plan(lane)
        return lane

    def revive(self, lane: Lane) -> None:
        """Build a whole plan again, in a new worker, after its own has gone. Raises PluginError, or WorkerError."""
        self.end(lane)
        home = self._plan_home(lane.name, lane.offers)
        self._lent.add(home)
        lane.worker = self._living(home)
        self._build_plan(lane)

    def _plan_home(self, name: str, offers: Sequence[Offer]) -> str:
        """Return the name of a new worker that holds these clusters."""
        home = f"plan {name}"
        self.start([home])
        self.await_start(home)
        self._load_into(home, offers)
        return home

    def _holds(self, home: str, offers: Sequence[Offer]) -> bool:
        """True where a worker holds these clusters."""
        held = {offer.order.name for offer in self._built.get(home, ())}
        return held >= {offer.order.name for offer in offers}

    def _build_plan(self, lane: Lane) -> None:
        lane.worker.ask("build_plan", RUN_LIMIT_S, steps=list(lane.steps), spin=lane.spin)

    def time_lane(self, lane: Lane, at_least_s: float) -> Block:
        """Time one block of calls of a whole plan. Raises PluginError if it fails."""
        timing, laps = lane.worker.ask("time_plan", RUN_LIMIT_S + at_least_s, at_least_s=at_least_s)
        return Block(timing.median_s, tuple(laps), len(timing.samples_s), timing.beside)

    def end(self, lane: Lane) -> None:
        """Ends a plan's worker, so that it takes no memory or cores from those that are still timed."""
        for name, worker in list(self._workers.items()):
            if worker is lane.worker:
                worker.kill()
                del self._workers[name]

    def _compile_lane(
        self,
        backend: str,
        orders: Sequence[Order],
        done: Callable[[Offer], None],
        clock: Clock,
        turns: Turns,
        rank: int,
        n_workers: int,
        pool: ThreadPoolExecutor,
    ) -> list[Offer]:
        names = sorted({name for order in orders for name in order.inputs})
        n_saved = sum(order.folder is not None for order in orders)
        queue = Queue([backend] * len(orders), {backend: n_workers})
        offers: dict[int, Offer] = {}

        def work(suffix: str = "") -> list[int]:
            made: list[int] = []
            while (place := queue.take(lambda each: not suffix or orders[each].folder is not None)) is not None:
                order = orders[place]
                try:
                    with turns.turn((not order.is_needed, rank), QUEUED_S):
                        may_start = clock.may_start(backend, is_needed=order.is_needed)
                        offer = self._compile(backend, order, names, clock, suffix=suffix) if may_start else late(order)
                except BaseException as error:
                    queue.done(place, is_left=True)
                    if suffix and isinstance(error, WorkerError):
                        return made  # the backend's own worker compiles what is left
                    queue.close()
                    raise
                queue.done(place)
                offers[place] = offer
                made.append(place)
                done(offer)
            return made

        others = [pool.submit(work, _suffix(number)) for number in range(1, min(n_workers, n_saved))]
        work()
        for other in others:
            for place in other.result():
                offers[place] = self._taken_over(backend, offers[place], clock)
        work()
        return [offers[place] for place in range(len(orders))]

    def _taken_over(self, backend: str, offer: Offer, clock: Clock) -> Offer:
        """Has a backend's own worker, where it will be timed, load what another one has compiled and saved."""
        if offer.failure is not None:
            return offer
        home = self._compiling_home(offer.order, clock)
        try:
            self._living(home)
            self._load_into(home, [offer])
        except PluginError as error:
            error.backend = error.backend or backend
            error.cluster = error.cluster or offer.order.name
            self._suspects.add(home)
            return Offer(offer.order, failure=error)
        self._built.setdefault(home, []).append(offer)
        return offer

    def _compiling_home(self, order: Order, clock: Clock | None) -> str:
        """Return the name of the worker that compiles for a backend.

        A compilation may have to be stopped, which ends its worker. So it is never one that runs a whole plan, and, where
        the cluster only might help, never one that holds what is needed.
        """
        home = self._home(order.group.backend)
        if home in self._lent:
            return f"{home} anew"
        is_spare = clock is not None and not order.is_needed
        return f"{home} spare" if is_spare and any(held.order.is_needed for held in self._built.get(home, ())) else home

    def _compile(
        self,
        backend: str,
        order: Order,
        names: Sequence[str],
        clock: Clock | None,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        suffix: str = "",
    ) -> Offer:
        """Compiles one cluster; with a suffix, in a further worker, which keeps nothing that is to be timed."""
        home = self._compiling_home(order, clock) + suffix
        is_kept = self.is_timed and not suffix
        try:
            worker = self._living(home)
            worker.ask("prepare", RUN_LIMIT_S, names=names)
            worker.saving = None if order.folder is None else Saving(order.folder, self._most_saved_bytes)
            facts = {**_facts(order), **_folder_of(worker.saving)}
            worker.post("compile_cluster", **facts, is_kept=is_kept)
            meanwhile()
            if not self._is_compiled(worker, backend, clock):
                return late(order)
            compiled: Any = worker.result(RUN_LIMIT_S)
        except PluginError as error:
            error.backend = error.backend or backend
            error.cluster = error.cluster or order.name
            self._suspects.add(home)
            if isinstance(error, ContractError):
                self._workers[home].kill()  # its weights or its state may not be what they were: the next one gets another
            return Offer(order, failure=error)
        worker.saving = None
        offer = Offer(order, **{name: getattr(compiled, name) for name in _FACTS})
        if is_kept or clock is None:
            self._built.setdefault(home, []).append(offer)
        return offer

    @property
    def _most_saved_bytes(self) -> int:
        weights = sum(weight.numel() * weight.element_size() for weight in self.sample.weights.values())
        return self.limits.output_bytes + SAVED_PER_WEIGHT * weights

    def _is_compiled(self, worker: Worker, backend: str, clock: Clock | None) -> bool:
        """Waits for a compilation; False where the budget ended first, and then the worker is gone. Raises CompileError."""
        last_s = time.monotonic() + self.limits.compile_s
        while not worker.is_ready(WATCH_S):
            if reason := worker.excess():
                worker.kill()
                raise LimitExceeded(reason, hint="raise the limit, or exclude the backend")
            if time.monotonic() > last_s:
                worker.kill()
                text = f"not compiled within {self.limits.compile_s:.0f} s (`compile_limit_s`)"
                raise LimitExceeded(text, hint="raise the limit, or exclude the backend")
            if clock is not None and time.monotonic() > clock.compile_until(backend):
                worker.kill()
                return False
        return True

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
                worker.ask("load_saved", self.limits.compile_s, **_facts(order), folder=str(order.folder))
            else:
                worker.ask("compile_cluster", self.limits.compile_s, **_facts(order), folder=None, is_kept=True)


def _suffix(number: int) -> str:
    """Gives what the name of a backend's further workers ends with; "" for its first."""
    return f" {number + 1}" if number else ""


def _folder_of(saving: Saving | None) -> dict[str, Any]:
    return {"folder": str(saving.folder), "most_saved_bytes": saving.most_bytes} if saving else {"folder": None}


def _plain(options: Options) -> Options:
    return options.model_copy(update={"origins": {}})


def _facts(order: Order) -> dict[str, Any]:
    """Gives what a worker must know to compile or load a cluster."""
    return {"name": order.name, "backend": order.group.backend, "nodes": order.group.nodes, "settings": order.settings}
