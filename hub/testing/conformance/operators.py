"""Checks of what a backend accepts: sample calls of each declared operator and dtype, and small programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from hub.plugin.entry import Entry
from hub.testing.conformance.cases import (
    SPREAD,
    Case,
    cases_of,
    is_captured,
    joined,
    joined_answer,
    operators_of,
    small_cases,
    spread_of,
)
from hub.testing.conformance.finding import Finding, failed, judged, not_applicable
from hub.testing.conformance.judge import eager, exact
from hub.testing.conformance.pairs import calls_of_each, pair_findings
from hub.testing.conformance.programs import PROGRAMS, Program
from hub.testing.conformance.retyped import ROLES, calls_in, is_in
from hub.testing.conformance.target import Target, table_of
from hub.testing.conformance.trail import at
from hub.testing.conformance.trial import Refusal, Trial, findings_of, tried, try_case
from hub.testing.operators import SAMPLES, case_cluster, overload_of

OUTSIDE = "outside the table"
_DTYPE = "dtype "
_PROGRAM = "program "
_IN_EACH = " in each dtype"
_LAID_OUT_CASES = 2
"""Accepted cases of each operator that are also called with other layouts; the first one also with other sizes."""


def subjects(entry: Entry) -> tuple[str, ...]:
    """Return what to examine: operators in their dtypes (or groups if there is no table), dtypes, programs."""
    table = table_of(entry)
    operators = tuple(SPREAD) if table is None else (*sorted(table.rows), OUTSIDE)
    dtypes = (_DTYPE + name for name in entry.info.dtypes)
    groups = (group + _IN_EACH for group in SPREAD) if table is None else ()
    return (*operators, *dtypes, *(_PROGRAM + name for name in PROGRAMS), *groups)


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the findings for one subject: under `support` and, if anything was accepted, `numerics` and `memory`."""
    _ = target.table  # raises if it cannot be read
    if subject == OUTSIDE:
        return (judged("support", subject, _undeclared_but_accepted(target)),)
    if subject.startswith(_DTYPE):
        return _dtype_findings(target, subject)
    if subject.startswith(_PROGRAM):
        return _program_findings(target, subject, PROGRAMS[subject.removeprefix(_PROGRAM)])
    group = subject.removesuffix(_IN_EACH)
    if group in SPREAD:
        cases = spread_of(group) if group == subject else calls_of_each(operators_of(group), target.entry.info.dtypes)
        return _group_findings(target, subject, cases)
    return _operator_findings(target, subject)


def _operator_findings(target: Target, overload: str) -> tuple[Finding, ...]:
    if overload not in SAMPLES:
        return (not_applicable("support", overload, "hub.testing.operators has no sample call of it yet"),)
    if not _exists(overload):
        return (not_applicable("support", overload, f"torch {torch.__version__} has no such operator"),)
    answers = list(_answers(target, cases_of(overload, dynamic=target.entry.info.dynamic_shapes)))
    trials = [answer for _, answer in answers if isinstance(answer, Trial)]
    if not trials:
        return (failed("support", overload, "the table declares it, and every sample call of it is refused"),)
    return (*findings_of(overload, trials), *pair_findings(target, overload, answers))


def _exists(overload: str) -> bool:
    try:
        overload_of(overload)
    except AttributeError:
        return False
    return True


def _answers(target: Target, cases: Iterable[Case]) -> Iterator[tuple[Case, Trial | Refusal]]:
    """Try each case; the first accepted ones also in other layouts, the very first also with other sizes."""
    accepted = 0
    for case in cases:
        answer = try_case(target, case, has_layouts=accepted < _LAID_OUT_CASES)
        yield case, answer
        if isinstance(answer, Refusal):
            continue
        if not accepted:
            yield from ((other, try_case(target, other, has_layouts=True)) for other in small_cases(case))
        accepted += 1


def _group_findings(target: Target, subject: str, cases: Iterable[Case]) -> tuple[Finding, ...]:
    """Try cases in one program and, if that is not right, one by one, so that the findings name the faulty ones."""
    accepted = [case for case in cases if not target.refusal(case.build()[0])]
    if not accepted:
        return (not_applicable("support", subject, "no sample call is accepted"),)
    together = _tried_together(target, subject, accepted)
    if together is not None and together == Trial():
        return findings_of(subject, [together])
    alone = [answer for _, answer in _answers(target, accepted) if isinstance(answer, Trial)]
    if together is None or any(trial != Trial() for trial in alone):
        return findings_of(subject, alone)
    return findings_of(subject, [together])


def _tried_together(target: Target, subject: str, cases: Sequence[Case]) -> Trial | None:
    """Try cases in one program; return None if the backend refuses it, which is no fault.

    It may refuse a copy at the program's end, or be a partitioner that makes several clusters of it.
    """
    cluster, inputs = joined(cases)
    if target.refusal(cluster):
        return None
    at(subject)
    return tried(target, subject, cluster, inputs, joined_answer(cases))


def _program_findings(target: Target, subject: str, program: Program) -> tuple[Finding, ...]:
    trials: list[Trial] = []
    for dynamic in (False, True) if target.entry.info.dynamic_shapes else (False,):
        name = f"{program.name}{' [dynamic]' if dynamic else ''}"
        at(name)
        cluster, inputs = program.draw(dynamic=dynamic)
        if not target.refusal(cluster):
            answer = eager(cluster, inputs), exact(cluster, inputs)
            trials.append(tried(target, name, cluster, inputs, answer))
    if not trials:
        return (not_applicable("support", subject, "one of its operators is refused"),)
    return findings_of(subject, trials)


def _dtype_findings(target: Target, subject: str) -> tuple[Finding, ...]:
    """Try the first accepted call that has tensors of a dtype. The dtype is declared, so there must be one."""
    dtype = getattr(torch, subject.removeprefix(_DTYPE), None)
    names = SAMPLES if target.table is None else [name for name in target.table.rows if name in SAMPLES]
    refused = 0
    for case in _cases_with(dtype, list(filter(_exists, names))) if isinstance(dtype, torch.dtype) else ():
        answer = try_case(target, case, has_layouts=False)
        if isinstance(answer, Trial):
            return findings_of(subject, [answer])
        refused += 1
    if not refused:
        return (not_applicable("support", subject, "no sample call of a declared operator has it"),)
    return (failed("support", subject, f"declared, and all {refused} sample calls that have it are refused"),)


def _cases_with(dtype: torch.dtype, names: Sequence[str]) -> Iterator[Case]:
    """Yield the samples of operators that are written in a dtype, then those that can be converted to it."""
    for name in names:
        for sample in SAMPLES[name]:
            if any(is_in(sample, role, dtype) for role in ROLES):
                yield Case(name, sample)
    for name in names:
        yield from filter(is_captured, (Case(name, sample) for sample in calls_in(name, "values", dtype)))


def _undeclared_but_accepted(target: Target) -> Iterator[str]:
    table = target.table
    for overload in SAMPLES:
        if table is not None and overload not in table:
            at(overload)
            if not target.refusal(case_cluster(overload, SAMPLES[overload][0])[0]):
                yield f"{overload} is accepted, though not declared"
