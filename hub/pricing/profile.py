"""Profile of this machine, measured once by `hub doctor`: peaks, and the cost of boundaries between clusters."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError

from hub.cache.database import DATABASE
from hub.cache.measurements import Measurements, machine_digest
from hub.plugin.graph import TensorSpec
from hub.process.accelerators import free_unused, name_of, wait_for
from hub.process.threads import using_threads

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Profile:
    """Performance of this machine with a number of threads."""

    threads: int
    flops_s: _Rate
    """Floating-point operations per second of a large float32 matrix product."""
    bytes_s: _Rate
    """Bytes per second, read and written, of a large copy."""
    call_s: Mapping[str, _Seconds]
    """Seconds to enter and leave one compiled cluster, by backend: a `relu` of 4x4, minus eager's time."""
    copy_bytes_s: _Rate
    """Bytes per second, read and written, of making a strided tensor contiguous."""
    cast_bytes_s: _Rate
    """Bytes per second, read and written, of converting float32 to float16 and back."""
    mix_s: Mapping[str, _Seconds]
    """Extra seconds of a call if calls of two backends alternate, by "a+b" in alphabetical order."""
    made: str
    """Time of the measurement, in UTC, as ISO 8601."""
    notes: tuple[str, ...] = field(default=())
    """Parts that could not be measured, and why."""

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps(asdict(self), sort_keys=True)


_PROFILE = TypeAdapter(Profile)


@dataclass(frozen=True, slots=True)
class AcceleratorProfile:
    """Performance of one kind of accelerator."""

    name: str
    flops_s: _Rate
    """As in `Profile`."""
    bytes_s: _Rate
    made: str
    """Time of the measurement, in UTC, as ISO 8601."""

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps(asdict(self), sort_keys=True)


MIX_S = 100e-6
"""Seconds to switch between thread pools if `hub doctor` has not measured it.

On 2 cores, 2026-11, 0 (ONNX Runtime and OpenVINO) to 250 us (OpenVINO after OpenMP) were measured.
"""
_ACCELERATOR = TypeAdapter(AcceleratorProfile)
_NO_THREADS = 0
"""Thread count under which an accelerator's profile is stored, since it uses no CPU threads."""


def measure_peaks(threads: int) -> tuple[float, float]:
    """Measure operations and bytes per second in about 0.1 s: a 512^3 float32 matrix product, and a copy of 64 MiB."""
    with using_threads(threads):
        a = torch.ones(512, 512, device="cpu")  # the user's default device may be another one
        block = torch.ones(1 << 24, device="cpu")
        target = torch.empty_like(block)
        flops_s = 2 * 512**3 / fastest_s(lambda: torch.mm(a, a))
        bytes_s = 2 * block.nbytes / fastest_s(lambda: target.copy_(block))
    return flops_s, bytes_s


def measure_accelerator(device: torch.device) -> tuple[float, float]:
    """Measure operations and bytes per second of an accelerator: a 4096^3 float32 matrix product and a copy of 256 MiB.

    Takes 0.7 GB of its memory temporarily. Raises any PyTorch error, for example for lack of that memory.
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
    """Return the peaks, measured once per process, and early, so that its own workers do not compete for cores."""
    return measure_peaks(threads)


def fastest_s(call: Callable[[], Any], calls: int = 5, awaited: Sequence[torch.device] = ()) -> float:
    """Return the seconds of the fastest of some calls; each ends when the accelerators `awaited` are done."""
    best = math.inf
    wait_for(awaited)
    for _ in range(calls):
        start = time.perf_counter()
        call()
        wait_for(awaited)
        best = min(best, time.perf_counter() - start)
    return best


def stored_profile(root: Path, threads: int) -> Profile | None:
    """Return the stored profile of this machine under a cache folder, or None. Creates no folder, raises nothing."""
    try:
        if not (root / DATABASE).exists():
            return None
    except OSError:
        return None
    kept, _ = Measurements.inspect(root)
    text = kept.profile(machine_digest(), threads)
    kept.close()
    try:
        return None if text is None else _PROFILE.validate_json(text)
    except ValidationError:  # written by another version of the hub
        return None


def settled_profile(kept: Measurements, threads: int) -> Profile:
    """Return the stored profile of this machine; if there is none, measure the peaks in 0.1 s and store them.

    Then estimates agree between processes, as plans by estimates must.
    """
    text = kept.profile(machine_digest(), threads)
    with contextlib.suppress(ValidationError):  # written by another version of the hub
        if text is not None:
            return _PROFILE.validate_json(text)
    flops_s, bytes_s = first_peaks(threads)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    note = "only the peaks were measured, while planning; `hub doctor` measures the rest"
    profile = Profile(threads, flops_s, bytes_s, {}, bytes_s, bytes_s, {}, made, (note,))
    kept.keep_profile(machine_digest(), threads, profile.to_json())
    return profile


def settled_accelerator(kept: Measurements, device: torch.device) -> AcceleratorProfile:
    """Return the stored profile of an accelerator of this machine; if there is none, measure and store it.

    Raises any PyTorch error if the accelerator cannot be measured.
    """
    name = name_of(device)
    place = f"{machine_digest()} {name}"
    text = kept.profile(place, _NO_THREADS)
    with contextlib.suppress(ValidationError):  # written by another version of the hub
        if text is not None:
            return _ACCELERATOR.validate_json(text)
    flops_s, bytes_s = measure_accelerator(device)
    profile = AcceleratorProfile(name, flops_s, bytes_s, datetime.now(UTC).isoformat(timespec="seconds"))
    kept.keep_profile(place, _NO_THREADS, profile.to_json())
    return profile


def boundary_s(profile: Profile, spec: TensorSpec) -> float:
    """Return the seconds to copy a value once to change its layout: each byte is read and written."""
    return 2 * spec.nbytes / profile.copy_bytes_s


def mixing_s(profile: Profile, first: str, second: str) -> float:
    """Return the extra seconds of a call if two backends alternate; 0 for the same backend.

    For a pair that was not measured, this is the largest measured value, `MIX_S` if there is none.
    """
    if first == second:
        return 0.0
    return profile.mix_s.get(pair_key(first, second), max(profile.mix_s.values(), default=MIX_S))


def pair_key(first: str, second: str) -> str:
    """Return the key of `Profile.mix_s` for two backends."""
    return "+".join(sorted((first, second)))
