"""A cold start: a model in fresh processes with empty caches, and what the wait for its plan consists of."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from hub.bench.machine import Machine, this_machine
from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.errors import CaptureError, HubError
from hub.process.phases import Phase, Work

_CODE = """
import time
marks = [time.monotonic()]
import torch
marks.append(time.monotonic())
import hub.frontend.dynamo
marks.append(time.monotonic())
from hub.bench.cold_process import main
main(marks)
"""
"""Program of a process: nothing of the hub is imported before PyTorch, so that each import is timed separately."""
_CAPTURE = frozenset({Work.CAPTURE, Work.DYNAMO})
UNKNOWN = "nothing of this"
"""The row for time that no phase covers."""


class Start(BaseModel):
    """The report of one process. Seconds of phases count from the first call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    torch_s: float = 0.0
    """Seconds spent on importing PyTorch."""
    hub_s: float = 0.0
    """Seconds spent on importing the hub after that, up to what `torch.compile` calls."""
    model_s: float = 0.0
    first_s: float = 0.0
    """Seconds of the first call."""
    second_s: float = 0.0
    in_use_s: float = 0.0
    """Seconds from the first call until the final plan is in use; with Inductor, of the first call."""
    verified_s: float | None = None
    """Seconds from the first call until everything is verified."""
    phases: tuple[Phase, ...] = ()
    plans: tuple[str, ...] = ()
    """The backends of each plan: "inductor + eager"."""
    failure: str = ""
    is_uncaptured: bool = False
    """True if the failure is that PyTorch captures nothing of the model."""


class Cold(BaseModel):
    """A model's cold start with the hub, and with Inductor as shipped in PyTorch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    batch: int | None
    options: dict[str, Any]
    command: str
    date: str
    machine: Machine
    hub: Start
    inductor: Start

    def to_json(self) -> str:
        """Return the JSON form; `Cold.model_validate_json` turns it back into an equal value."""
        return self.model_dump_json(indent=1)


def cold_start(
    model: str, *, batch: int | None = None, options: Mapping[str, Any] | None = None, small: bool = False
) -> Cold:
    """Return the cold start of a model, named as for `hub bench`. Raise HubError if it cannot run.

    Raise CaptureError if PyTorch captures nothing of it. A failure of Inductor is part of the result.
    """
    given = dict(options or {})
    chosen = resolve(given, os.environ, working_folder())
    machine = this_machine()
    request = {"model": model, "batch": batch, "small": small, "threads": chosen.threads}
    hub = _in_new_process({**request, "way": "hub", "given": given})
    if hub.failure:
        raise (CaptureError if hub.is_uncaptured else HubError)(hub.failure, hint="`hub explain MODEL` says more")
    return Cold(
        model=model,
        batch=batch,
        options=json.loads(chosen.model_dump_json(include={*given, "own"})),
        command=shlex.join((Path(sys.argv[0]).name, *sys.argv[1:])),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine,
        hub=hub,
        inductor=_in_new_process({**request, "way": "inductor", "given": {}}),
    )


def _in_new_process(request: Mapping[str, Any]) -> Start:
    """Run one way of starting in a fresh process with empty caches, which are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="hub-cold-") as text:
        folder = Path(text)
        caches = {"HUB": "hub", "TORCHINDUCTOR": "inductor", "TRITON": "triton"}
        environment = {**os.environ, **{f"{name}_CACHE_DIR": str(folder / place) for name, place in caches.items()}}
        if request["threads"] is not None:
            environment["OMP_NUM_THREADS"] = str(request["threads"])
        asked = json.dumps({**request, "folder": text})
        command = [sys.executable, "-P", "-c", _CODE, asked]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        answer = folder / "start.json"
        if answer.exists():
            return Start.model_validate_json(answer.read_text(encoding="utf-8"))
        return Start(failure=(done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])


def shared_out(phases: Sequence[Phase], end_s: float) -> Mapping[tuple[str, str], float]:
    """Split the seconds from 0 to `end_s` among kinds of work, each with the backend that it was for.

    If several overlap, the time counts for the one that comes first in `Work`; among equal ones, for the earliest. Time
    that no phase covers is `UNKNOWN`'s. The sum is `end_s`.
    """
    rank = {work: number for number, work in enumerate(Work)}
    ranked = sorted(_within(phases, end_s), key=lambda phase: (rank[phase.work], phase.began_s))
    edges = sorted({0.0, end_s, *(edge for phase in ranked for edge in (phase.began_s, phase.ended_s))})
    shares: dict[tuple[str, str], float] = {}
    for left, right in pairwise(edges):
        mine = next((phase for phase in ranked if phase.began_s <= left and phase.ended_s >= right), None)
        key = (UNKNOWN, "") if mine is None else (mine.work.value, mine.who)
        shares[key] = shares.get(key, 0.0) + right - left
    return shares


def lengths(phases: Sequence[Phase], end_s: float) -> Mapping[tuple[str, str], float]:
    """Return for each work and backend the seconds from 0 to `end_s` in which it was in progress; overlaps count once."""
    grouped: dict[tuple[str, str], list[Phase]] = {}
    for phase in _within(phases, end_s):
        grouped.setdefault((phase.work.value, phase.who), []).append(phase)
    return {key: _union_s(group) for key, group in grouped.items()}


def kinds(start: Start) -> Mapping[str, float]:
    """Return the shares of the wait due to the compilers, PyTorch's capture, the model, and the hub."""
    total_s = start.in_use_s or 1.0
    found = {"compilers": 0.0, "the hub": 0.0, "PyTorch's capture": 0.0, "the model": 0.0}
    for (work, _), seconds in shared_out(start.phases, start.in_use_s).items():
        found[_kind(work)] += seconds / total_s
    return found


def _kind(work: str) -> str:
    if work == Work.COMPILE:
        return "compilers"
    if work in _CAPTURE:
        return "PyTorch's capture"
    return "the model" if work == Work.ANSWER else "the hub"


def _within(phases: Sequence[Phase], end_s: float) -> list[Phase]:
    """Return the parts of phases between 0 and `end_s`."""
    cut = (replace(one, began_s=max(0.0, one.began_s), ended_s=min(end_s, one.ended_s)) for one in phases)
    return [one for one in cut if one.ended_s > one.began_s]


def _union_s(phases: Sequence[Phase]) -> float:
    total_s, reached_s = 0.0, 0.0
    for phase in sorted(phases, key=lambda phase: phase.began_s):
        total_s += max(0.0, phase.ended_s - max(reached_s, phase.began_s))
        reached_s = max(reached_s, phase.ended_s)
    return total_s
