"""Checks that results are equal bit for bit, and that keys and registration are the same in every process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from hub.errors import HubError
from hub.testing.conformance.elsewhere import ELSEWHERE
from hub.testing.conformance.finding import Finding, trouble
from hub.testing.conformance.identity import Identity, identity
from hub.testing.conformance.judge import run, same_bits
from hub.testing.conformance.programs import Program
from hub.testing.conformance.target import Target, judged_main

RESULTS, KEYS = "results", "keys"
SUBJECTS = (RESULTS, KEYS)
_CALLS = 6
_PART = 0.5


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for the main program."""
    return judged_main("determinism", subject, target, _results if subject == RESULTS else _keys)


def _results(target: Target, program: Program) -> Iterator[str]:
    """Compare results of repeated calls, on one thread so that sums have one order."""
    cluster, inputs = program.draw()
    executable = target.compile(cluster)
    first = [output.clone() for output in run(executable, cluster, inputs)]
    for call in range(2, _CALLS + 1):
        if not same_bits(run(executable, cluster, inputs), first):
            yield f"{program.name}: call {call} returned other bits than call 1, from the same inputs"
            return


def _keys(target: Target, program: Program) -> Iterator[str]:
    mine = identity(target.name, program.name)
    try:
        theirs: Identity = ELSEWHERE.ask("identity", _PART * target.limit_s, backend=target.name, program=program.name)
    except HubError as error:
        yield trouble(error)
        return
    for part in sorted(set(mine.parts) | set(theirs.parts)):
        if mine.parts.get(part) != theirs.parts.get(part):
            yield f"part {part!r} of the artefact's key is {mine.parts.get(part)} here, {theirs.parts.get(part)} elsewhere"
    for field in fields(mine.info):
        here, there = (getattr(found.info, field.name) for found in (mine, theirs))
        if here != there:
            yield f"BackendInfo.{field.name} is {here!r} here, {there!r} in another process"
