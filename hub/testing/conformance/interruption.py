"""Checks that a compilation that is killed, or interrupted by Ctrl-C, harms no later one."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from hub.errors import CompileError, HubError
from hub.testing.conformance.elsewhere import process, unpacked
from hub.testing.conformance.finding import Finding, judged, not_applicable, trouble
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.programs import Program
from hub.testing.conformance.target import Target
from hub.testing.conformance.trail import at
from hub.workers.channel import Worker

KILLED, INTERRUPTED = "killed while compiling", "Ctrl-C while compiling"
SUBJECTS = ("a broken compilation",)
_PART = 0.3
"""Share of an examination's time that one child may take."""
_MIN_S = 0.02
"""Shortest wait; a shorter one would end before the child compiles."""
_SEED = 1
"""Seed of the weights. Compilation with the same weights is broken off and then repeated: half-written files are theirs."""


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return a finding for each way of breaking off. Children share folders of their own for everything that is cached."""
    program = target.main
    if program is None:
        return (not_applicable("interruption", subject, "no program works"),)
    wait_s = max(_MIN_S, 0.5 * _compile_s(target, program))
    with tempfile.TemporaryDirectory(prefix="hub-interruption-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _kill_one(target, program, folder, wait_s)
        child = process(folder, _own_places(folder))
        try:
            return (
                judged("interruption", KILLED, _problem_of_next(child, target, program)),
                judged("interruption", INTERRUPTED, _problem_of_interrupted(child, target, program, folder, wait_s)),
            )
        finally:
            child.kill()


def _own_places(folder: Path) -> dict[str, str]:
    """Return variables that keep files left by a killed compiler out of the user's own folders."""
    places = {"TMPDIR": folder / "tmp", "XDG_CACHE_HOME": folder / "cache", "HUB_CACHE_DIR": folder / "hub"}
    for place in places.values():
        place.mkdir(exist_ok=True)
    return {name: str(place) for name, place in places.items()}


def _compile_s(target: Target, program: Program) -> float:
    """Return the seconds of a compilation with weights that were never compiled before."""
    cluster, _ = program.draw(seed=100)
    start = time.perf_counter()
    target.compile(cluster)
    return time.perf_counter() - start


def _kill_one(target: Target, program: Program, folder: Path, wait_s: float) -> None:
    at(f"{program.name}, to be killed while compiling")
    child = process(folder, _own_places(folder))
    marker = folder / "killed"
    child.post("compile_on_and_on", backend=target.name, program=program.name, seed=_SEED, marker=str(marker))
    _wait_for(marker, child, _PART * target.limit_s)
    time.sleep(wait_s)
    child.kill()


def _problem_of_next(child: Worker, target: Target, program: Program) -> list[str]:
    at(f"{program.name}, after one was killed")
    try:
        answer = child.ask("compile_and_run", _PART * target.limit_s, backend=target.name, program=program.name, seed=_SEED)
    except HubError as error:
        return [f"{program.name} does not compile in the next process: {trouble(error)}"]
    return _wrong(answer, program)


def _problem_of_interrupted(child: Worker, target: Target, program: Program, folder: Path, wait_s: float) -> list[str]:
    """Send the signal of Ctrl-C, and have the same process compile again."""
    at(f"{program.name}, to be interrupted while compiling")
    marker, limit_s = folder / "interrupted", _PART * target.limit_s
    try:
        pid = child.ask("process_id", limit_s)
        child.post("compile_until_interrupted", backend=target.name, program=program.name, seed=_SEED, marker=str(marker))
        _wait_for(marker, child, limit_s)
        time.sleep(wait_s)
        os.kill(pid, signal.SIGINT)
        return _wrong(child.result(limit_s), program)
    except (HubError, OSError) as error:
        return [f"{program.name} does not compile afterwards, in the same process: {trouble(error)}"]


def _wait_for(marker: Path, child: Worker, limit_s: float) -> None:
    """Wait until a child is about to compile, or has ended. Raise CompileError if it takes too long."""
    deadline = time.monotonic() + limit_s
    while not marker.exists() and not child.is_ready(0.002):
        if time.monotonic() > deadline:
            child.kill()
            raise CompileError(f"a child did not begin to compile within {limit_s:.0f} s")


def _wrong(answer: bytes, program: Program) -> list[str]:
    cluster, inputs = program.draw(seed=_SEED)
    problem = value_problem(unpacked(answer), eager(cluster, inputs), exact(cluster, inputs))
    return [f"{program.name}, compiled afterwards, is wrong: {problem}"] if problem else []
