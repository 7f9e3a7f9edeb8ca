"""The trial of one accepted cluster: compile it, call it several times, and sort problems by the promise they break."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hub.errors import InputRefused
from hub.plugin.backend import Executable
from hub.plugin.graph import Cluster
from hub.testing.conformance.cases import Case, wanted_of
from hub.testing.conformance.draw import Inputs
from hub.testing.conformance.finding import Finding, judged, trouble
from hub.testing.conformance.hard import hard_problems
from hub.testing.conformance.judge import Outputs, eager, form_problem, run, same_bits, storages, value_problem
from hub.testing.conformance.layouts import LAYOUTS, copied, differ_in_layout, expanded, laid_out
from hub.testing.conformance.target import Target
from hub.testing.conformance.trail import at
from hub.testing.operators import Reference

Answer = tuple[tuple[torch.Tensor, ...], Sequence[Reference | None]]


@dataclass(frozen=True, slots=True)
class Trial:
    """Problems of one compiled cluster, sorted by the promise that they break."""

    support: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A backend's reason for refusing a cluster."""

    reason: str
    is_in_table: bool
    """True if the operator table alone accepts it."""


def findings_of(subject: str, trials: Sequence[Trial]) -> tuple[Finding, ...]:
    """Return the problems of trials as findings; if nothing ran, only the finding for `support`."""
    checks = ("support", "numerics", "memory") if any(not trial.support for trial in trials) else ("support",)
    return tuple(
        judged(check, subject, [problem for trial in trials for problem in getattr(trial, check)]) for check in checks
    )


def try_case(target: Target, case: Case, *, has_layouts: bool) -> Trial | Refusal:
    """Return the problems of one case, or its refusal."""
    at(str(case))
    cluster, inputs = case.build()
    try:
        if reason := target.refusal(cluster):
            return Refusal(reason, is_in_table=target.is_in_table(cluster))
    except Exception as error:  # noqa: BLE001 - anything a plugin raises is the finding
        return Trial(support=(f"{case}: {trouble(error)}",))
    answer = wanted_of(case.overload, case.sample)
    return tried(
        target,
        str(case),
        cluster,
        inputs,
        answer,
        has_values=case.sample.has_values,
        has_layouts=has_layouts,
        has_hard=has_layouts and target.has_hard,
    )


def tried(
    target: Target,
    name: str,
    cluster: Cluster,
    inputs: Inputs,
    answer: Answer,
    *,
    has_values: bool = True,
    has_layouts: bool = True,
    has_hard: bool = False,
) -> Trial:
    """Compile an accepted cluster and call it, twice with its own inputs and then with others, optionally hard values."""
    try:
        executable = target.compile(cluster)
        mine = copied(inputs)
        first = _own_run(executable, cluster, mine)
    except Exception as error:  # noqa: BLE001 - anything a plugin raises is the finding
        return Trial(support=(f"{name}: {trouble(error)}",))
    if problem := form_problem(first, answer[0]):
        return Trial(support=(f"{name}: {problem}",))
    memory = _memory_problems(name, inputs, mine, first)
    if not has_values:
        return Trial(memory=memory)
    problems = [value_problem(first, *answer)]
    problems.append(_later(lambda: run(executable, cluster, inputs), answer, "in a second call: "))
    if has_layouts:
        problems += _layout_problems(executable, cluster, inputs, answer)
    if has_hard:
        problems += hard_problems(target, cluster, executable, inputs)
    return Trial(numerics=tuple(f"{name}: {problem}" for problem in problems if problem), memory=memory)


def _own_run(executable: Executable, cluster: Cluster, inputs: Inputs) -> Outputs:
    """Run one call on the inputs themselves, not on copies."""
    try:
        return executable(*inputs)
    except InputRefused:
        return eager(cluster, inputs)


def _memory_problems(name: str, before: Inputs, after: Inputs, outputs: Outputs) -> tuple[str, ...]:
    problems: list[str] = []
    if not same_bits(after, before):
        problems.append(f"{name}: an input was written to")
    if storages(outputs) & storages(after):
        problems.append(f"{name}: an output shares memory with an input")
    return tuple(problems)


def _later(call: Callable[[], Outputs], answer: Answer, when: str) -> str:
    try:
        problem = value_problem(call(), *answer)
    except Exception as error:  # noqa: BLE001 - as above
        problem = trouble(error)
    return f"{when}{problem}" if problem else ""


def _layout_problems(executable: Executable, cluster: Cluster, inputs: Inputs, answer: Answer) -> Iterator[str]:
    for layout, lay_out in LAYOUTS.items():
        other = laid_out(inputs, lay_out)
        if differ_in_layout(other, inputs):
            yield _later(lambda other=other: run(executable, cluster, other), answer, f"with {layout} inputs: ")
    yield _expanded_problem(executable, cluster, laid_out(inputs, expanded))


def _expanded_problem(executable: Executable, cluster: Cluster, inputs: Inputs) -> str:
    """Compare with the executable's own result for the same values without stride 0.

    Eager's result is not used: repeated values are a hard case for variances and the like, which is not tested here.
    """
    try:
        packed = run(executable, cluster, laid_out(inputs, torch.Tensor.contiguous))
        wanted = tuple(output.clone() for output in packed)
    except Exception:  # noqa: BLE001 - an operator may refuse repeated values
        return ""
    return _later(lambda: run(executable, cluster, inputs), (wanted, ()), "with expanded inputs: ")
