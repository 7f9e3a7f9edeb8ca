"""Tasks for a process of the suite: to examine one subject, or to play a part in an examination by another process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hub.discovery.registry import registry
from hub.errors import HubError
from hub.testing.conformance.catalogue import EXAMINATIONS
from hub.testing.conformance.elsewhere import packed
from hub.testing.conformance.finding import Finding, failed, not_applicable, trouble
from hub.testing.conformance.handshake import examine as examine_handshake
from hub.testing.conformance.identity import identity
from hub.testing.conformance.judge import run
from hub.testing.conformance.programs import program_of
from hub.testing.conformance.step import HANDSHAKE, Description, Step
from hub.testing.conformance.target import SETTINGS, Target, load_target
from hub.testing.conformance.trail import at

UNREADABLE = "operator table"
"""Subject that stands for all operators if the table cannot be read."""
_ON_AND_ON_S = 60.0


def describe(backend: str, only: tuple[str, ...]) -> Description:
    """Return the steps to examine for a backend; this lists everything and loads nothing."""
    entries = registry().entries
    if backend not in entries:
        return Description(tuple(entries), "", ())
    entry = entries[backend]
    steps: list[Step] = []
    for name, examination in EXAMINATIONS.items():
        if only and not set(only) & set(examination.checks):
            continue
        try:
            subjects = examination.subjects(entry)
        except Exception:  # noqa: BLE001 - the table is the plugin's; the examination then reports what is wrong
            subjects = (UNREADABLE,)
        steps += (Step(name, subject, examination.checks[0]) for subject in subjects)
    return Description(tuple(entries), f"{entry.package} {entry.package_version}", tuple(steps))


def examine(backend: str, step: Step, limit_s: float, *, has_hard: bool = True) -> tuple[Finding, ...]:
    """Examine one subject. Anything that the plugin raises, even SystemExit and KeyboardInterrupt, becomes a finding."""
    at(f"{step.examination}, {step.subject}")
    try:
        if step.examination == HANDSHAKE:
            return examine_handshake(backend, step.subject, limit_s)
        try:
            target = _target(backend, limit_s, has_hard=has_hard)
        except HubError:
            return (not_applicable(step.check, step.subject, "the backend does not load"),)
        return EXAMINATIONS[step.examination].examine(target, step.subject)
    except BaseException as error:  # noqa: BLE001 - see the docstring
        return (failed(step.check, step.subject, trouble(error)),)


@cache
def _target(backend: str, limit_s: float, *, has_hard: bool) -> Target:
    return load_target(backend, limit_s, has_hard=has_hard)


# --- Parts in examinations elsewhere ----------------------------------------------------------------------------------


def move(folder: str) -> None:
    """Change the working directory."""
    os.chdir(folder)


def process_id() -> int:
    """Return the id of this process."""
    return os.getpid()


def load_and_run(backend: str, program: str, folder: str) -> bytes:
    """Load a saved program and run it. Raise what the backend raises."""
    cluster, inputs = program_of(program).draw()
    executable = registry().backend(backend).load(Path(folder), cluster, SETTINGS)
    return packed([torch.as_tensor(output) for output in run(executable, cluster, inputs)])


def try_to_load(backend: str, program: str, folder: str) -> bytes | None:
    """Load a damaged program and run it; return None if that raises, as it should."""
    at(f"loading {program} from damaged files")
    try:
        return load_and_run(backend, program, folder)
    except Exception:  # noqa: BLE001 - any exception is a correct answer
        return None


def compile_and_run(backend: str, program: str, seed: int) -> bytes:
    """Compile a program with weights from a seed, and run it. Raise what the backend raises."""
    target = load_target(backend, 0.0)
    cluster, inputs = program_of(program).draw(seed=seed)
    return packed([torch.as_tensor(output) for output in run(target.compile(cluster), cluster, inputs)])


def compile_on_and_on(backend: str, program: str, seed: int, marker: str) -> None:
    """Compile a program repeatedly, until this process is killed or a minute has passed."""
    target = load_target(backend, 0.0)
    cluster, _ = program_of(program).draw(seed=seed)  # once: the suite's own tracing must not be interrupted
    end = time.monotonic() + _ON_AND_ON_S
    Path(marker).touch()
    while time.monotonic() < end:
        target.compile(cluster)


def compile_until_interrupted(backend: str, program: str, seed: int, marker: str) -> bytes:
    """Compile repeatedly until something is raised, for example by Ctrl-C, then compile once more and run the result."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it in background jobs
    try:
        compile_on_and_on(backend, program, seed, marker)
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt, or what the compiler turned it into
        at(f"{program}, after {trouble(error)}")
    return compile_and_run(backend, program, seed)


HANDLERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        describe,
        examine,
        move,
        process_id,
        load_and_run,
        try_to_load,
        identity,
        compile_and_run,
        compile_on_and_on,
        compile_until_interrupted,
    )
}
