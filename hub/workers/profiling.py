"""Measure this machine: peaks, the cost of a call to each backend, and the cost of alternating between two."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import combinations
from itertools import count as counter
from pathlib import Path

from hub.cache.keys import available_cores
from hub.errors import PluginError, WorkerError
from hub.pricing.profile import Profile, pair_key
from hub.process.scratch import scratch
from hub.report.numbers import count
from hub.workers.channel import Worker

BUDGET_S = 20.0
"""Seconds after which no further pair of backends is timed."""
_READY_LIMIT_S = 90.0
"""Seconds for one backend to start and to compile two clusters of one operator."""
_TIME_LIMIT_S = 60.0
_NOTE_LENGTH = 300
_EAGER = "eager"


def measure_profile(
    threads: int, backends: Sequence[str], advance: Callable[[str], None], budget_s: float = BUDGET_S
) -> Profile:
    """Measure this machine. This takes about 10 s, half of it for starting processes.

    Each backend has a worker process of its own. A pair of backends shares one, in which their calls alternate. A backend
    that fails is left out, with the reason in `notes`. Pairs come last, as far as `budget_s` allows. `advance` is called
    with each step. Raise PluginError if eager itself fails, and WorkerError if no process can be started for it.
    """
    with scratch("profile") as folder:
        profiling = _Profiling(threads, folder, advance, time.monotonic() + budget_s)
        try:
            return profiling.measure(backends)
        finally:
            profiling.end()


class _Profiling:
    """The workers of one profile and their results. Compilation is parallel; timed code runs alone."""

    def __init__(self, threads: int, folder: Path, advance: Callable[[str], None], end_s: float) -> None:
        self._threads = threads
        self._folder = folder
        self._advance = advance
        self._end_s = end_s
        self._numbers = counter()
        self._workers: list[Worker] = []
        self._is_over = False
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._call_s: dict[str, float] = {}
        self._mix_s: dict[str, float] = {}

    def measure(self, backends: Sequence[str]) -> Profile:
        """Measure all backends and return the profile."""
        names = [name for name in dict.fromkeys(backends) if name != _EAGER]
        with ThreadPoolExecutor(max_workers=available_cores(), thread_name_prefix="hub-profile") as pool:
            try:
                base = pool.submit(self._started)
                homes = dict(zip(names, pool.map(self._home_of, names), strict=True))
                eager = base.result()
            except BaseException:
                self.end()  # else Ctrl-C would wait until the compilations end
                raise
        flops_s, bytes_s = eager.ask("peaks", _TIME_LIMIT_S)
        copy_bytes_s, cast_bytes_s = eager.ask("moves", _TIME_LIMIT_S)
        self._advance("peaks")
        for name, home in homes.items():
            if home is not None:
                self._time_backend(name, home)
        self._time_pairs({name: home for name, home in homes.items() if home is not None and name in self._call_s})
        return Profile(
            threads=self._threads,
            flops_s=flops_s,
            bytes_s=bytes_s,
            call_s=self._call_s,
            copy_bytes_s=copy_bytes_s,
            cast_bytes_s=cast_bytes_s,
            mix_s=self._mix_s,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            notes=tuple(self._notes),
        )

    def end(self) -> None:
        """End all workers, and start no new ones."""
        with self._lock:
            self._is_over = True
            workers = tuple(self._workers)
        for worker in workers:
            worker.kill()

    def _started(self) -> Worker:
        with self._lock:
            if self._is_over:
                raise WorkerError("the machine is no longer measured")
            worker = Worker("hub.workers.profile_worker", self._folder / f"{next(self._numbers)}.log")
            self._workers.append(worker)
        worker.ask("begin", _READY_LIMIT_S, threads=self._threads, folder=str(self._folder))
        return worker

    def _home_of(self, backend: str) -> Worker | None:
        """Start a worker and compile a backend's clusters there. Return None, with a note, if that fails."""
        try:
            worker = self._started()
            worker.ask("make", _READY_LIMIT_S, backend=backend)
        except (PluginError, WorkerError) as error:
            self._notes.append(f"{backend} was left out: {_one_line(error)}")
            return None
        self._advance(f"{backend} compiled")
        return worker

    def _time_backend(self, name: str, home: Worker) -> None:
        try:
            call_s = home.ask("time_call_of", _TIME_LIMIT_S, backend=name)
            self._mix_s[pair_key(name, _EAGER)] = home.ask("time_mix", _TIME_LIMIT_S, first=name, second=_EAGER)
            self._call_s[name] = call_s
        except PluginError as error:
            self._notes.append(f"{name} was left out: {_one_line(error)}")
        self._advance(name)

    def _time_pairs(self, homes: Mapping[str, Worker]) -> None:
        """Time each pair in a worker that holds no third backend: the worker of one of the two, or a new one."""
        free, untimed = dict(homes), 0
        for first, second in _ring(list(homes)):
            if time.monotonic() > self._end_s:
                untimed += 1
                continue
            try:
                home, newcomers = self._place_for(free, first, second)
                for name in newcomers:
                    home.ask("make", _READY_LIMIT_S, backend=name)
                self._mix_s[pair_key(first, second)] = home.ask("time_mix", _TIME_LIMIT_S, first=first, second=second)
            except (PluginError, WorkerError) as error:
                self._notes.append(f"{first} next to {second} was not timed: {_one_line(error)}")
            self._advance(f"{first} and {second}")
        if untimed:
            self._notes.append(f"no time was left for {count(untimed, 'pair')} of backends")

    def _place_for(self, free: dict[str, Worker], first: str, second: str) -> tuple[Worker, tuple[str, ...]]:
        """Return a worker for a pair, and which of the two backends it still lacks."""
        for name, other in ((first, second), (second, first)):
            if home := free.pop(name, None):
                return home, (other,)
        return self._started(), (first, second)


def _one_line(error: PluginError | WorkerError) -> str:
    return " ".join(error.message.split())[:_NOTE_LENGTH]


def _ring(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return every pair, neighbours first: each of these can use the worker of its first backend."""
    neighbours = [(name, names[(index + 1) % len(names)]) for index, name in enumerate(names)]
    pairs: dict[str, tuple[str, str]] = {}
    for first, second in (*neighbours, *combinations(names, 2)):
        if first != second:
            pairs.setdefault(pair_key(first, second), (first, second))
    return list(pairs.values())
