"""The cost of a tiny call next to eager's. It never fails: speed is the planner's business."""

from __future__ import annotations

from hub.pricing.timing import time_call
from hub.report.numbers import duration
from hub.testing.conformance.finding import Finding, not_applicable, passed
from hub.testing.conformance.judge import run
from hub.testing.conformance.programs import Program
from hub.testing.conformance.target import Target
from hub.testing.operators import SAMPLES

SUBJECTS = ("a tiny call",)
_TINY = (("aten.relu.default", 0), ("aten.add.Tensor", 0), ("aten.tanh.default", 0))
_AT_LEAST_S = 0.2


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding with the median time of a call with about a dozen elements."""
    programs = [Program(f"{name} {position}") for name, position in _TINY if name in SAMPLES]
    program = next((found for found in programs if target.works(found)), target.main)
    if program is None:
        return (not_applicable("overhead", subject, "no program works"),)
    cluster, inputs = program.draw()
    executable = target.compile(cluster)
    run(executable, cluster, inputs)
    mine = time_call(lambda: executable(*inputs), _AT_LEAST_S).median_s
    eager = time_call(lambda: cluster.module(*inputs), _AT_LEAST_S).median_s
    return (passed("overhead", subject, f"{duration(mine)} a call, eager {duration(eager)} ({program.name})"),)
