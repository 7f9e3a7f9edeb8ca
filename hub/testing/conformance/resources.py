"""Checks that calls and compilations leak no threads and no open files."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hub.testing.conformance.finding import Finding, not_applicable
from hub.testing.conformance.judge import run
from hub.testing.conformance.programs import Program
from hub.testing.conformance.target import Target, judged_main

CALLS, COMPILATIONS = "calls", "compilations"
SUBJECTS = (CALLS, COMPILATIONS)
_PROCESS = Path("/proc/self")
_ROUNDS = {CALLS: 60, COMPILATIONS: 2}
"""Repetitions between two counts. Growth is reported if every count exceeds the one before."""
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Held:
    """Resources held by this process."""

    threads: int
    files: int


def held() -> Held:
    """Count this process's threads, including those of libraries, and its open files."""
    gc.collect()
    return Held(*(sum(1 for _ in (_PROCESS / name).iterdir()) for name in ("task", "fd")))


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for the main program."""
    if not (_PROCESS / "task").is_dir():
        return (not_applicable("resources", subject, "this system has no /proc to count in"),)
    return judged_main("resources", subject, target, _calling if subject == CALLS else _compiling)


def _calling(target: Target, program: Program) -> Iterator[str]:
    cluster, inputs = program.draw()
    executable = target.compile(cluster)
    yield from growth(lambda: run(executable, cluster, inputs), _ROUNDS[CALLS], CALLS)


def _compiling(target: Target, program: Program) -> Iterator[str]:
    cluster, inputs = program.draw()
    yield from growth(lambda: run(target.compile(cluster), cluster, inputs), _ROUNDS[COMPILATIONS], COMPILATIONS)


def growth(act: Callable[[], object], rounds: int, what: str) -> Iterator[str]:
    """Yield what accumulates while an action is repeated. The first round, which may fill pools, does not count."""
    looks: list[Held] = []
    for _ in range(_LOOKS):
        for _ in range(rounds):
            act()
        looks.append(held())
    for kind in ("threads", "files"):
        counts = [getattr(look, kind) for look in looks]
        if all(later > earlier for earlier, later in pairwise(counts)):
            yield f"open {kind} grow: {', '.join(map(str, counts))} after {rounds}, {2 * rounds}, {3 * rounds} {what}"
