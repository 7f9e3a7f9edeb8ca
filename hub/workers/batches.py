"""Compile many clusters at once: assign them to workers, order them, and handle failures."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from hub.cache.keys import available_cores
from hub.errors import WorkerError
from hub.process.family import WATCH_S
from hub.process.phases import Work
from hub.workers.candidate import Candidate, Done
from hub.workers.clock import Clock
from hub.workers.compiling import Compiler
from hub.workers.crew import Crew
from hub.workers.queue import Queue
from hub.workers.turns import Turns

QUEUED_S = 60.0
"""Maximum seconds that a backend waits for a core of its own before it compiles anyway: another backend may hang."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """State shared by all backends of one batch."""

    done: Done
    clock: Clock
    turns: Turns
    pool: ThreadPoolExecutor


class Batches:
    """Parallel compilation of many clusters in the workers of a crew."""

    def __init__(self, crew: Crew, compiler: Compiler) -> None:
        self._crew = crew
        self._compiler = compiler

    def try_out_all(
        self, candidates: Sequence[Candidate], most: Mapping[str, int], done: Done, meanwhile: Callable[[], None]
    ) -> Sequence[Candidate]:
        """Compile clusters outside any budget, with as many workers as `most` allows.

        `most` limits how many clusters of each backend are compiled at once. `done` is called with each candidate, from any
        thread, and `meanwhile` is called in this thread while workers compile. After a failure no compilation starts:
        without that cluster the plan changes. Return the compiled candidates. Those that were not started, or for which no
        worker was available, are left out.
        """
        queue = Queue([candidate.backend for candidate in candidates], most)
        tried: list[Candidate] = []
        is_begun = threading.Event()

        def work(suffix: str) -> None:
            while (place := queue.take()) is not None:
                candidate, is_failed = candidates[place], False
                try:
                    names = sorted(candidate.inputs)
                    candidate = self._compiler.compile(candidate, names, None, is_begun.set, suffix=suffix)
                    tried.append(candidate)
                    is_failed = candidate.failure is not None
                except WorkerError:
                    return  # other workers go on; if there are none, the error recurs when the clusters are needed
                finally:
                    if is_failed:
                        queue.close()
                    queue.done(place)
                done(candidate)

        n_workers = min(len(candidates), self._at_once(most))
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
                self._crew.kill_all()  # else Ctrl-C would wait until the compilations end
                raise
        return tried

    def compile_all(
        self,
        candidates: Mapping[str, Sequence[Candidate]],
        done: Done,
        clock: Clock,
        most: Mapping[str, int],
        *,
        first: Collection[str],
        alone_s: float,
    ) -> tuple[Candidate, ...]:
        """Compile each backend's candidates in its own worker, as many at once as there are cores, or as the settings say.

        Needed candidates go before optional ones, and earlier backends before later ones.

        With more at once, each would take longer, and the slowest would run alone in the end. If there are fewer backends
        than cores, further workers compile a backend's saved candidates, up to `most` at once. Return candidates without
        prices, in order. `done` is called with each, from any thread. A candidate that the clock does not let start is
        returned as late. So is one that is not ready when the budget ends; its worker is then killed.

        With `first`, the other backends begin only if those named are not done after `alone_s` seconds: one of them may
        hang. Candidates that were not begun are left out.
        """
        at_once = self._at_once(most)
        ahead: list[Future[list[Candidate]]] = []
        ranked = sorted(candidates, key=lambda backend: backend not in first)
        with ThreadPoolExecutor(max_workers=max(1, at_once * len(candidates)), thread_name_prefix="hub-session") as pool:
            batch = _Batch(done, clock, Turns(at_once), pool)

            def share(rank: int, backend: str, rivals: int) -> list[Candidate]:
                if ahead and backend not in first and not wait(ahead, alone_s).not_done:
                    return []
                n_workers = min(max(1, at_once // rivals), most.get(backend, 1))
                return self._compile_share(batch, backend, candidates[backend], rank, n_workers)

            shares: list[Future[list[Candidate]]] = []
            for rank, backend in enumerate(ranked):
                is_ahead = backend in first
                shares.append(pool.submit(share, rank, backend, len(first) if is_ahead else len(candidates)))
                ahead += shares[-1:] if is_ahead else []
            try:
                return tuple(candidate for share in shares for candidate in share.result())
            except BaseException as error:  # noqa: BLE001 - raised again below
                self._crew.kill_all()  # else Ctrl-C would wait until the compilations end
                failure = error
        # If a worker was unavailable, the measurements are useless, but plans by estimates need workers, too.
        self._crew.forget_all(is_over=not isinstance(failure, Exception))
        raise failure

    def _compile_share(
        self, batch: _Batch, backend: str, candidates: Sequence[Candidate], rank: int, n_workers: int
    ) -> list[Candidate]:
        """Compile one backend's candidates with `n_workers` workers. A lower rank gets earlier turns."""
        names = sorted({name for candidate in candidates for name in candidate.inputs})
        n_saved = sum(candidate.folder is not None for candidate in candidates)
        queue = Queue([backend] * len(candidates), {backend: n_workers})
        tried: dict[int, Candidate] = {}

        def work(suffix: str = "") -> list[int]:
            made: list[int] = []
            while (place := queue.take(lambda each: not suffix or candidates[each].folder is not None)) is not None:
                candidate = candidates[place]
                try:
                    with contextlib.ExitStack() as turn:
                        with self._crew.phases.during(Work.WAIT, backend):
                            turn.enter_context(batch.turns.turn((not candidate.is_needed, rank), QUEUED_S))
                        may_start = batch.clock.may_start(
                            backend, is_needed=candidate.is_needed, expected_s=candidate.expected_s
                        )
                        if may_start:
                            candidate = self._compiler.compile(candidate, names, batch.clock, suffix=suffix)
                        else:
                            candidate = candidate.late()
                except BaseException as error:
                    queue.done(place, is_left=True)
                    if suffix and isinstance(error, WorkerError):
                        return made  # the backend's own worker compiles what is left
                    queue.close()
                    raise
                queue.done(place)
                tried[place] = candidate
                made.append(place)
                batch.done(candidate)
            return made

        others = [batch.pool.submit(work, _suffix(number)) for number in range(1, min(n_workers, n_saved))]
        work()
        for other in others:
            for place in other.result():
                tried[place] = self._compiler.take_over(tried[place], batch.clock)
        work()
        return [tried[place] for place in range(len(candidates))]

    def _at_once(self, most: Mapping[str, int]) -> int:
        """Return how many clusters are compiled at once, across all backends."""
        return max(self._crew.options.workers.count or available_cores(), *most.values(), 1)


def _suffix(number: int) -> str:
    """Return the suffix of the name of a backend's further workers; "" for the first one."""
    return f" {number + 1}" if number else ""
