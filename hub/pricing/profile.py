"""What this machine can do, measured once by `hub doctor`: peaks, and what boundaries between clusters cost."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import combinations, count
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError

from hub.accelerators import free_unused, name_of, wait_for
from hub.cache.database import DATABASE
from hub.cache.measurements import Measurements, machine_digest
from hub.compilation.channel import Worker
from hub.errors import PluginError
from hub.graph import TensorSpec

BUDGET_S = 20.0
"""Seconds after which no further pair of backends is timed."""
_READY_LIMIT_S = 90.0
"""Seconds for one backend to start and to compile two clusters of one operator."""
_TIME_LIMIT_S = 60.0
_NOTE_LENGTH = 300
_EAGER = "eager"

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Profile:
    """What this machine can do with a number of threads."""

    threads: int
    flops_s: _Rate
    """Floating-point operations a second of a large float32 matrix product."""
    bytes_s: _Rate
    """Bytes a second, read and written, of a large copy."""
    call_s: Mapping[str, _Seconds]
    """Seconds to enter and leave one compiled cluster, by backend: a `relu` of 4x4, less what eager's takes."""
    copy_bytes_s: _Rate
    """Bytes a second, read and written, of making a strided tensor contiguous."""
    cast_bytes_s: _Rate
    """Bytes a second, read and written, of going from float32 to float16 and back."""
    mix_s: Mapping[str, _Seconds]
    """Seconds that a call takes longer where calls of two backends alternate, by "a+b" in alphabetical order."""
    made: str
    """When, in UTC, as ISO 8601."""
    notes: tuple[str, ...] = field(default=())
    """What could not be measured, and why."""

    def to_json(self) -> str:
        """Gives the JSON form."""
        return json.dumps(asdict(self), sort_keys=True)


_PROFILE = TypeAdapter(Profile)


@dataclass(frozen=True, slots=True)
class AcceleratorProfile:
    """What one kind of accelerator can do."""

    name: str
    flops_s: _Rate
    """As in `Profile`."""
    bytes_s: _Rate
    made: str
    """When, in UTC, as ISO 8601."""

    def to_json(self) -> str:
        """Gives the JSON form."""
        return json.dumps(asdict(self), sort_keys=True)


_ACCELERATOR = TypeAdapter(AcceleratorProfile)
_NO_THREADS = 0
"""Threads under which an accelerator's profile is kept: it has none of the CPU's."""


def measure_peaks(threads: int) -> tuple[float, float]:
    """Measures operations and bytes a second in about 0.1 s: a 512^3 float32 matrix product, and a copy of 64 MiB."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.ones(512, 512, device="cpu")  # the user's default may be another one
        block = torch.ones(1 << 24, device="cpu")
        target = torch.empty_like(block)
        flops_s = 2 * 512**3 / fastest_s(lambda: torch.mm(a, a))
        bytes_s = 2 * block.nbytes / fastest_s(lambda: target.copy_(block))
    finally:
        torch.set_num_threads(before)
    return flops_s, bytes_s


def measure_accelerator(device: torch.device) -> tuple[float, float]:
    """Measures operations and bytes a second of an accelerator: a 4096^3 float32 matrix product, and a copy of 256 MiB.

    Takes 0.7 GB of its memory for a moment. Raises whatever PyTorch raises, where there is not so much, say.
    """
    try:
        with torch.autocast(device.type, enabled=False):
            return _product_flops_s(device), _copy_bytes_s(device)
    finally:
        free_unused()


def _product_flops_s(device: torch.device) -> float:
    a = torch.ones(4096, 4096, device=device)
    return 2 * 4096**3 / fastest_s(lambda: torch.mm(a, a), awaited=(device,))


def _copy_bytes_s(device: torch.device) -> float:
    block = torch.ones(1 << 26, device=device)
    target = torch.empty_like(block)
    return 2 * block.nbytes / fastest_s(lambda: target.copy_(block), awaited=(device,))


@cache
def first_peaks(threads: int) -> tuple[float, float]:
    """Gives the peaks as this process measured them first: early, so that it shares no core with workers of its own."""
    return measure_peaks(threads)


def fastest_s(call: Callable[[], Any], calls: int = 5, awaited: Sequence[torch.device] = ()) -> float:
    """Gives the seconds of the fastest of some calls; each ends when the accelerators `awaited` have done their work."""
    best = math.inf
    wait_for(awaited)
    for _ in range(calls):
        start = time.perf_counter()
        call()
        wait_for(awaited)
        best = min(best, time.perf_counter() - start)
    return best


def stored_profile(root: Path, threads: int) -> Profile | None:
    """Gives the profile that was kept under a cache folder for this machine, or None. Makes no folder, raises nothing."""
    try:
        if not (root / DATABASE).exists():
            return None
    except OSError:
        return None
    kept, _ = Measurements.open(root)
    text = kept.profile(machine_digest(), threads)
    kept.close()
    try:
        return None if text is None else _PROFILE.validate_json(text)
    except ValidationError:  # as another version of the hub wrote it
        return None


def settled_profile(kept: Measurements, threads: int) -> Profile:
    """Gives the profile that is kept for this machine; without one, measures the peaks in 0.1 s and keeps those.

    So estimates agree between processes, as plans by estimates must.
    """
    text = kept.profile(machine_digest(), threads)
    with contextlib.suppress(ValidationError):  # as another version of the hub wrote it
        if text is not None:
            return _PROFILE.validate_json(text)
    flops_s, bytes_s = first_peaks(threads)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    note = "only the peaks were measured, while planning; `hub doctor` measures the rest"
    profile = Profile(threads, flops_s, bytes_s, {}, bytes_s, bytes_s, {}, made, (note,))
    kept.keep_profile(machine_digest(), threads, profile.to_json())
    return profile


def settled_accelerator(kept: Measurements, device: torch.device) -> AcceleratorProfile:
    """Gives the profile that is kept for an accelerator of this machine; without one, measures it and keeps that.

    Raises whatever PyTorch raises where the accelerator cannot be measured.
    """
    name = name_of(device)
    place = f"{machine_digest()} {name}"
    text = kept.profile(place, _NO_THREADS)
    with contextlib.suppress(ValidationError):  # as another version of the hub wrote it
        if text is not None:
            return _ACCELERATOR.validate_json(text)
    flops_s, bytes_s = measure_accelerator(device)
    profile = AcceleratorProfile(name, flops_s, bytes_s, datetime.now(UTC).isoformat(timespec="seconds"))
    kept.keep_profile(place, _NO_THREADS, profile.to_json())
    return profile


def boundary_s(profile: Profile, spec: TensorSpec) -> float:
    """Gives the seconds of copying a value once, where its layout must change: each byte is read and written."""
    return 2 * spec.nbytes / profile.copy_bytes_s


def mixing_s(profile: Profile, first: str, second: str) -> float:
    """Gives the extra seconds of a call where two backends alternate: 0 for one and the same backend.

    For a pair that was not measured it is the largest one that was, 0 where none was.
    """
    if first == second:
        return 0.0
    return profile.mix_s.get(_pair(first, second), max(profile.mix_s.values(), default=0.0))


def measure_profile(
    threads: int, backends: Sequence[str], advance: Callable[[str], None], budget_s: float = BUDGET_S
) -> Profile:
    """Measures this machine: about 10 s, half of it the start of processes.

    Each backend has a worker process of its own; a pair of backends shares one, in which calls of the two alternate. A
    backend that fails is left out, with the reason in `notes`. Pairs come last, as far as `budget_s` goes; `advance` hears
    of each step. Raises PluginError only where eager itself fails.
    """
    with tempfile.TemporaryDirectory(prefix="hub-profile-") as folder:
        profiling = _Profiling(threads, Path(folder), advance, time.monotonic() + budget_s)
        try:
            return profiling.measure(backends)
        finally:
            profiling.end()


def _pair(first: str, second: str) -> str:
    return "+".join(sorted((first, second)))


class _Profiling:
    """The workers of one profile and what they found. Compiling is parallel; what is timed runs alone."""

    def __init__(self, threads: int, folder: Path, advance: Callable[[str], None], end_s: float) -> None:
        self._threads = threads
        self._folder = folder
        self._advance = advance
        self._end_s = end_s
        self._numbers = count()
        self._workers: list[Worker] = []
        self._notes: list[str] = []
        self._call_s: dict[str, float] = {}
        self._mix_s: dict[str, float] = {}

    def measure(self, backends: Sequence[str]) -> Profile:
        """Gives the profile."""
        names = [name for name in dict.fromkeys(backends) if name != _EAGER]
        with ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="hub-profile") as pool:
            base = pool.submit(self._started)
            homes = dict(zip(names, pool.map(self._home_of, names), strict=True))
            eager = base.result()
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
        """Ends all workers."""
        for worker in self._workers:
            worker.kill()

    def _started(self) -> Worker:
        worker = Worker("hub.pricing.profile_worker", self._folder / f"{next(self._numbers)}.log")
        self._workers.append(worker)
        worker.ask("begin", _READY_LIMIT_S, threads=self._threads, folder=str(self._folder))
        return worker

    def _home_of(self, backend: str) -> Worker | None:
        """Starts a worker and compiles a backend's clusters there; None, with a note, if that fails."""
        try:
            worker = self._started()
            worker.ask("make", _READY_LIMIT_S, backend=backend)
        except PluginError as error:
            self._notes.append(f"{backend} was left out: {_one_line(error)}")
            return None
        self._advance(f"{backend} compiled")
        return worker

    def _time_backend(self, name: str, home: Worker) -> None:
        try:
            call_s = home.ask("time_call_of", _TIME_LIMIT_S, backend=name)
            self._mix_s[_pair(name, _EAGER)] = home.ask("time_mix", _TIME_LIMIT_S, first=name, second=_EAGER)
            self._call_s[name] = call_s
        except PluginError as error:
            self._notes.append(f"{name} was left out: {_one_line(error)}")
        self._advance(name)

    def _time_pairs(self, homes: Mapping[str, Worker]) -> None:
        """Times each pair in a worker that holds no third backend: the home of one of the two, or a new one."""
        free = dict(homes)
        for first, second in _ring(list(homes)):
            if time.monotonic() > self._end_s:
                self._notes.append(f"{first} and {second} alternating were not timed: no time was left")
                continue
            try:
                home, newcomers = self._place_for(free, first, second)
                for name in newcomers:
                    home.ask("make", _READY_LIMIT_S, backend=name)
                self._mix_s[_pair(first, second)] = home.ask("time_mix", _TIME_LIMIT_S, first=first, second=second)
            except PluginError as error:
                self._notes.append(f"{first} and {second} alternating were not timed: {_one_line(error)}")
            self._advance(f"{first} and {second}")

    def _place_for(self, free: dict[str, Worker], first: str, second: str) -> tuple[Worker, tuple[str, ...]]:
        """Gives a worker for a pair, and which of the two it still lacks."""
        for name, other in ((first, second), (second, first)):
            if home := free.pop(name, None):
                return home, (other,)
        return self._started(), (first, second)


def _one_line(error: PluginError) -> str:
    return " ".join(error.message.split())[:_NOTE_LENGTH]


def _ring(names: Sequence[str]) -> list[tuple[str, str]]:
    """Gives every pair, neighbours first: each of those can use the home of its first backend."""
    neighbours = [(name, names[(index + 1) % len(names)]) for index, name in enumerate(names)]
    pairs: dict[str, tuple[str, str]] = {}
    for first, second in (*neighbours, *combinations(names, 2)):
        if first != second:
            pairs.setdefault(_pair(first, second), (first, second))
    return list(pairs.values())
