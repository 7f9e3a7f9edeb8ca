"""Checks that the caller owns outputs: no later call writes to them."""

from __future__ import annotations

from collections.abc import Iterator

from hub.testing.conformance.finding import Finding
from hub.testing.conformance.judge import run, same_bits, storages
from hub.testing.conformance.programs import Program, other_inputs
from hub.testing.conformance.target import Target, judged_main

SUBJECTS = ("outputs of earlier calls",)
_CALLS = 4


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for the main program."""
    return judged_main("memory", subject, target, _problems)


def _problems(target: Target, program: Program) -> Iterator[str]:
    """Keep the outputs of some calls alive, so that no two may share memory and none may change."""
    cluster, inputs = program.draw()
    executable = target.compile(cluster)
    kept = [run(executable, cluster, other_inputs(inputs, 0))]
    copies = [[output.clone() for output in kept[0]]]
    for call in range(1, _CALLS):
        outputs = run(executable, cluster, other_inputs(inputs, call))
        if any(storages(outputs) & storages(earlier) for earlier in kept):
            yield f"{program.name}: call {call + 1} returned memory that an earlier call returned, which is still in use"
        if any(not same_bits(earlier, copy) for earlier, copy in zip(kept, copies, strict=True)):
            yield f"{program.name}: call {call + 1} wrote to the outputs of an earlier call"
            return
        kept.append(outputs)
        copies.append([output.clone() for output in outputs])
