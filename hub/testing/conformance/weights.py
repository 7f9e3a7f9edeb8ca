"""Checks that an executable uses the weights that it was compiled with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hub.testing.conformance.finding import Finding, judged, not_applicable
from hub.testing.conformance.judge import Outputs, eager, run
from hub.testing.conformance.programs import Program
from hub.testing.conformance.target import Target

SUBJECTS = ("changed weights",)
_MIN_SHARE = 0.5
"""Share of the difference between eager's results that must be visible: apart from rounding, it is all of it."""


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for the first program that has float weights."""
    program = next((found for found in target.working() if _has_weights(found)), None)
    if program is None:
        return (not_applicable("weights", subject, "no program with weights works"),)
    return (judged("weights", subject, _problems(target, program)),)


def _has_weights(program: Program) -> bool:
    cluster, inputs = program.draw()
    return bool(inputs) and any(value.is_floating_point() for value in cluster.constants.values())


def _problems(target: Target, program: Program) -> Iterator[str]:
    """Compile two clusters of one structure, alive at once; each must use its own weights."""
    (first, inputs), (second, _) = program.draw(seed=0), program.draw(seed=1)
    wanted = distance(eager(first, inputs), eager(second, inputs))
    one = target.compile(first)
    before = [output.clone() for output in run(one, first, inputs)]
    other = target.compile(second)
    if distance(run(other, second, inputs), before) < _MIN_SHARE * wanted:
        yield f"{program.name}: compiled again with other weights, it gives the results of the first ones"
    if distance(run(one, first, inputs), before) > _MIN_SHARE * wanted:
        yield f"{program.name}: once it was compiled with other weights, the first executable gives other results"


def distance(these: Outputs, those: Sequence[torch.Tensor]) -> float:
    """Return the largest difference between finite float elements of two sequences of tensors."""
    gaps = [
        torch.nan_to_num(this.double() - that.double(), nan=0.0, posinf=0.0, neginf=0.0).abs().max()
        for this, that in zip(these, those, strict=True)
        if that.is_floating_point() and that.numel()
    ]
    return max(map(float, gaps), default=0.0)
