"""Checks that threads may share an executable, and may compile concurrently."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from hub.plugin.backend import Executable
from hub.plugin.graph import Cluster
from hub.testing.conformance.draw import Inputs
from hub.testing.conformance.finding import Finding, trouble
from hub.testing.conformance.judge import Outputs, run, value_problem
from hub.testing.conformance.programs import Program, other_inputs
from hub.testing.conformance.target import Target, judged_main

CALLING, COMPILING = "calls at once", "compilations at once"
SUBJECTS = (CALLING, COMPILING)
_THREADS = 4
_CALLS = 40
_SWITCH_S = 1e-5
"""Interval of thread switches in seconds; Python's default of 5 ms is longer than most calls take."""


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for the main program."""
    return judged_main("threads", subject, target, _calling if subject == CALLING else _compiling)


def _calling(target: Target, program: Program) -> Iterator[str]:
    """Call from threads with inputs of their own, and compare with earlier results of the same executable, run alone."""
    cluster, inputs = program.draw()
    executable = target.compile(cluster)
    mine = [other_inputs(inputs, seed) for seed in range(_THREADS)]
    alone = [_kept(run(executable, cluster, values)) for values in mine]

    def caller(index: int) -> Callable[[], str]:
        return lambda: _first_problem(executable, cluster, mine[index], alone[index])

    for problem in at_once([caller(index) for index in range(_THREADS)]):
        yield f"{program.name}, {_THREADS} threads: {problem}"


def _first_problem(executable: Executable, cluster: Cluster, inputs: Inputs, alone: Outputs) -> str:
    calls = (value_problem(run(executable, cluster, inputs), tuple(alone)) for _ in range(_CALLS))
    return next((problem for problem in calls if problem), "")


def _compiling(target: Target, program: Program) -> Iterator[str]:
    """Compile in threads, each with its own weights, and compare with an earlier compilation of the same, run alone."""
    drawn = [program.draw(seed=seed) for seed in range(_THREADS)]
    alone = [_kept(run(target.compile(cluster), cluster, inputs)) for cluster, inputs in drawn]

    def compiler(index: int) -> Callable[[], str]:
        cluster, inputs = drawn[index]
        return lambda: value_problem(run(target.compile(cluster), cluster, inputs), tuple(alone[index]))

    for problem in at_once([compiler(index) for index in range(_THREADS)]):
        yield f"{program.name}, {_THREADS} threads: {problem}"


def at_once(jobs: Sequence[Callable[[], str]]) -> list[str]:
    """Run jobs in threads that start together; return the problems that they report, exceptions included."""
    gate = threading.Barrier(len(jobs))
    problems: list[str] = []

    def work(job: Callable[[], str]) -> None:
        gate.wait()
        try:
            problem = job()
        except BaseException as error:  # noqa: BLE001 - anything a plugin raises is the finding, even SystemExit
            problem = trouble(error)
        if problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    with _switching_fast():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return problems


@contextmanager
def _switching_fast() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _kept(outputs: Outputs) -> Outputs:
    return [output.clone() for output in outputs]
