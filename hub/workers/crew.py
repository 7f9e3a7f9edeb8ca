"""The worker processes of one planning session: their start, the clusters that they hold, and their end."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hub.config.options import Options
from hub.errors import PluginError, WorkerError, text_of
from hub.process.modes import modes
from hub.process.phases import Phases, Work
from hub.process.scratch import scratch_folder
from hub.process.traffic import GAPS
from hub.workers.candidate import Candidate
from hub.workers.channel import Worker
from hub.workers.limits import LOAD_LIMIT_S, RUN_LIMIT_S, Limits
from hub.workers.pool import POOL
from hub.workers.transfer import Sample, write_sample

SHARED = "shared"
"""Name of the worker that answers for all backends, the only one of a crew in which nothing is timed."""


class Crew:
    """The workers of one session, by name, and a private folder with the graph that all of them read.

    Nothing is written and no process is started before the first request. With `is_timed`, each backend has a worker of
    its own, because they compile in parallel and are timed. Without it, all backends share one, unless one of them ends it.
    """

    def __init__(self, sample: Sample, threads: int, limits: Limits, options: Options, *, is_timed: bool) -> None:
        self.sample = sample
        self.threads = threads
        self.limits = limits
        self.options = options.for_workers()
        self.is_timed = is_timed
        self.modes = modes()
        """PyTorch's settings in this process, for every worker."""
        self.phases = Phases()
        """The phases of the session, with their times."""
        self._folder: Path | None = None
        self._fault: WorkerError | None = None
        """The reason why this graph cannot be sent to workers. It is found once, and not tried again."""
        self._workers: dict[str, Worker] = {}
        self._ready: set[str] = set()
        self._built: dict[str, list[Candidate]] = {}
        """The clusters that each worker holds, so that a new one can take over from one that died."""
        self._lent: set[str] = set()
        """Workers that run whole plans."""
        self._asked: set[str] = set()
        """Workers with an early request whose result has not been read yet."""
        self._suspects: set[str] = set()
        """Workers in which a plugin failed, so that they may be unfit for other sessions."""
        self._is_over = False
        self._lock = threading.Lock()

    def leave(self) -> None:
        """Release all workers, and remove the folder. Workers that are as good as new go back to the pool."""
        self._is_over = True
        for name, worker in self._workers.items():
            if name in self._lent | self._suspects | self._asked or name not in self._ready or not worker.is_alive:
                worker.kill()
            else:
                POOL.take_back(name, worker)
        self._workers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- The graph ----------------------------------------------------------------------------------------------------

    @property
    def is_unreadable(self) -> bool:
        """Return whether this graph cannot be sent to workers, because it holds objects that only this process knows."""
        return self._fault is not None and not isinstance(self._fault.__cause__, OSError)

    @property
    def was_needed(self) -> bool:
        """Return whether workers were needed: then the graph was written."""
        return self._folder is not None

    def hand_over(self) -> Path | None:
        """Return the folder with the graph and give up ownership: the caller removes it. None if it cannot be written."""
        with contextlib.suppress(WorkerError):
            folder = self._sent()
            self._folder = None
            return folder
        return None

    def _sent(self) -> Path:
        """Return the folder with the graph, written at the first call. Raise WorkerError if it cannot be written."""
        with self._lock:
            if self._fault is not None:
                raise self._fault
            if self._folder is None:
                folder: Path | None = None
                try:
                    folder = scratch_folder("session")
                    write_sample(folder, self.sample)
                except Exception as error:
                    if folder is not None:
                        shutil.rmtree(folder, ignore_errors=True)
                    self._fault = WorkerError(f"the graph cannot be sent to a worker process: {text_of(error)}")
                    raise self._fault from error
                self._folder = folder
            return self._folder

    # --- Start and end ------------------------------------------------------------------------------------------------

    def home_of(self, backend: str) -> str:
        """Return the name of the worker that serves a backend."""
        return backend if self.is_timed else SHARED

    def start(self, names: Iterable[str]) -> None:
        """Start workers by name without waiting for them. Raise WorkerError if that, or sending the graph, fails."""
        folder = self._sent()
        for name in names:
            if name not in self._workers or not self._workers[name].is_alive:
                with self.phases.during(Work.START, name):  # the fork server may still be importing PyTorch
                    worker = POOL.lend(name, self.limits)
                self._workers[name] = worker
                self._ready.discard(name)
                with contextlib.suppress(PluginError):  # `await_start` will raise it
                    traffic = None if GAPS.path is None else str(GAPS.path)
                    facts = {"threads": self.threads, "modes": self.modes, "options": self.options, "traffic": traffic}
                    worker.post("load", folder=str(folder), **facts)

    def await_start(self, name: str) -> None:
        """Wait until a worker has read the sample. Raise WorkerError if it cannot."""
        if self._fault is not None:
            raise self._fault
        if name in self._ready:
            return
        try:
            with self.phases.during(Work.START, name):
                self._await_load(name)
        except PluginError as error:
            fault = WorkerError(f"a worker process cannot read the graph: {error.message}")
            worker = self._workers.pop(name)
            self._fault = fault if worker.is_alive else None  # the death of a worker is no evidence against the graph
            worker.kill()
            raise fault from error
        self._ready.add(name)

    def _await_load(self, name: str) -> None:
        try:
            self._workers[name].result(LOAD_LIMIT_S)
        except PluginError:
            if self._workers[name].is_alive:
                raise
            self.start([name])  # it may have reached the end of its idle time
            self._workers[name].result(LOAD_LIMIT_S)

    def living(self, name: str) -> Worker:
        """Return a worker that has read the sample: the present one, or a new one if that has ended.

        The new one holds only the needed clusters of the old one, which may have died of, or been too slow for, an optional
        one.
        """
        worker = self._workers.get(name)
        if (worker is None or not worker.is_alive) and not self._is_over:
            if worker is not None:
                worker.kill()
            self._built[name] = [held for held in self._built.get(name, ()) if held.is_needed]
            self.start([name])
            self.await_start(name)
            if name not in self._lent:
                self.load_into(name, self._built[name])
        self.await_start(name)
        return self._workers[name]

    def kill(self, name: str) -> None:
        """Kill a worker. The next request for it starts another."""
        self._workers[name].kill()

    def kill_all(self) -> None:
        """Kill all workers, and start no new ones."""
        self._is_over = True
        for worker in list(self._workers.values()):  # a thread that compiles may be about to add one
            worker.kill()

    def forget_all(self, *, is_over: bool) -> None:
        """Kill and forget all workers, even those that a thread has just started. With `is_over`, start no new ones."""
        self._is_over = is_over
        for worker in list(self._workers.values()):
            worker.kill()
        self._workers.clear()
        self._ready.clear()

    # --- Whole plans --------------------------------------------------------------------------------------------------

    def lend(self, name: str) -> Worker:
        """Return a living worker that runs a whole plan from now on, and no longer compiles."""
        self._lent.add(name)
        return self.living(name)

    def is_lent(self, name: str) -> bool:
        """Return whether a worker runs, or ran, a whole plan."""
        return name in self._lent

    def end(self, worker: Worker) -> None:
        """Kill a worker and forget it."""
        for name, known in list(self._workers.items()):
            if known is worker:
                worker.kill()
                del self._workers[name]

    def end_lent(self) -> None:
        """Kill the workers that run whole plans and forget them."""
        for name in self._lent & self._workers.keys():
            self._workers.pop(name).kill()

    # --- What workers hold --------------------------------------------------------------------------------------------

    def keep(self, name: str, candidate: Candidate) -> None:
        """Record that a worker holds a compiled cluster."""
        self._built.setdefault(name, []).append(candidate)

    def held(self, name: str) -> Sequence[Candidate]:
        """Return the clusters that a worker holds."""
        return tuple(self._built.get(name, ()))

    def all_held(self) -> Iterator[Candidate]:
        """Return the clusters that all workers hold."""
        return (candidate for held in self._built.values() for candidate in held)

    def holder(self, candidate: Candidate) -> str | None:
        """Return the name of the worker that holds a compiled cluster; None if none does."""
        held = ((home, one.name) for home, candidates in self._built.items() for one in candidates)
        return next((home for home, name in held if name == candidate.name), None)

    def load_into(self, name: str, candidates: Sequence[Candidate]) -> None:
        """Make a worker load these clusters, or compile again those that were not saved. Raise PluginError if one fails."""
        inputs = sorted({value for candidate in candidates for value in candidate.inputs})
        self.ask_present(name, "prepare", RUN_LIMIT_S, names=inputs)
        for candidate in candidates:
            self.ask_present(name, "hold", self.limits.compile_s, candidate=candidate)

    # --- Requests -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, command: str, limit_s: float, /, **facts: Any) -> Any:
        """Return a worker's answer; a new worker's if it has ended. If it raises, mark it as a suspect and raise that."""
        self.living(name)
        return self.ask_present(name, command, limit_s, **facts)

    def ask_present(self, name: str, command: str, limit_s: float, /, **facts: Any) -> Any:
        """Do the same for a worker that is not replaced if it has ended, because a new one would not hold what it holds."""
        self._workers[name].post(command, **facts)
        return self._result(name, limit_s)

    def ask_early(self, name: str, command: str, /, **facts: Any) -> None:
        """Send a request to a started worker without waiting for the answer. `early_answer` raises if the worker ended."""
        with contextlib.suppress(PluginError):
            self._workers[name].post(command, **facts)
            self._asked.add(name)

    def early_answer(self, name: str, limit_s: float) -> Any:
        """Return the answer to `ask_early`, once; None if there was no request, or if the worker has been replaced."""
        asked = self._workers.get(name) if name in self._asked else None
        self._asked.discard(name)
        if asked is None:
            return None
        self.await_start(name)
        return self._result(name, limit_s) if self._workers[name] is asked else None

    def suspect(self, name: str) -> None:
        """Record that a plugin failed in a worker, so that no other session gets it."""
        self._suspects.add(name)

    def _result(self, name: str, limit_s: float) -> Any:
        try:
            return self._workers[name].result(limit_s)
        except PluginError:
            self.suspect(name)
            raise
