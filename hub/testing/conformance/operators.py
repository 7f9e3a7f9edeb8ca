"""Tries what a backend accepts: sample calls of each declared operator and dtype, and small programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hub.backend import Executable
from hub.errors import InputRefused
from hub.graph import Cluster
from hub.registry import Entry
from hub.testing.conformance.cases import (
    SPREAD,
    Case,
    cases_of,
    dtypes_in,
    joined,
    joined_answer,
    small_cases,
    spread_of,
    wanted_of,
)
from hub.testing.conformance.draw import Inputs
from hub.testing.conformance.finding import Finding, failed, judged, not_applicable, trouble
from hub.testing.conformance.judge import Outputs, eager, exact, form_problem, run, same_bits, storages, value_problem
from hub.testing.conformance.layouts import LAYOUTS, copied, differ_in_layout, expanded, laid_out
from hub.testing.conformance.programs import PROGRAMS, Program
from hub.testing.conformance.target import Target, table_of
from hub.testing.conformance.trail import at
from hub.testing.operators import SAMPLES, Reference, case_cluster, overload_of

OUTSIDE = "outside the table"
_DTYPE = "dtype "
_PROGRAM = "program "
_LAID_OUT_CASES = 2
"""Accepted cases of each operator that are also called with other layouts, and the first one with other sizes."""

Answer = tuple[tuple[torch.Tensor, ...], Sequence[Reference | None]]


@dataclass(frozen=True, slots=True)
class Trial:
    """What one compiled cluster did wrong, sorted by the promise that it broke."""

    support: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


def subjects(entry: Entry) -> tuple[str, ...]:
    """Gives what is to be looked at: operators (or groups of them where there is no table), dtypes, programs."""
    table = table_of(entry)
    operators = tuple(SPREAD) if table is None else (*sorted(table.rows), OUTSIDE)
    dtypes = (_DTYPE + name for name in entry.info.dtypes)
    return (*operators, *dtypes, *(_PROGRAM + name for name in PROGRAMS))


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Gives the findings about one subject: under `support`, and where anything was accepted, `numerics` and `memory`."""
    _ = target.table  # raises for one that cannot be read
    if subject == OUTSIDE:
        return (judged("support", subject, _undeclared_but_accepted(target)),)
    if subject.startswith(_DTYPE):
        return _dtype_findings(target, subject)
    if subject.startswith(_PROGRAM):
        return _program_findings(target, subject, PROGRAMS[subject.removeprefix(_PROGRAM)])
    return _group_findings(target, subject) if subject in SPREAD else _operator_findings(target, subject)


# --- What is tried ----------------------------------------------------------------------------------------------------


def _operator_findings(target: Target, overload: str) -> tuple[Finding, ...]:
    if overload not in SAMPLES:
        return (not_applicable("support", overload, "hub.testing.operators has no sample call of it yet"),)
    if not _exists(overload):
        return (not_applicable("support", overload, f"torch {torch.__version__} has no such operator"),)
    trials = list(_trials(target, cases_of(overload, dynamic=target.entry.info.dynamic_shapes)))
    if not trials:
        return (failed("support", overload, "the table declares it, and every sample call of it is refused"),)
    return _findings(overload, trials)


def _exists(overload: str) -> bool:
    try:
        overload_of(overload)
    except AttributeError:
        return False
    return True


def _trials(target: Target, cases: Iterable[Case]) -> Iterator[Trial]:
    """Tries each case that is accepted; the first ones also in other layouts, the very first also with other sizes."""
    count = 0
    for case in cases:
        found = _try_case(target, case, has_layouts=count < _LAID_OUT_CASES)
        if found is None:
            continue
        yield found
        if not count:
            small = (_try_case(target, other, has_layouts=True) for other in small_cases(case))
            yield from (trial for trial in small if trial is not None)
        count += 1


def _try_case(target: Target, case: Case, *, has_layouts: bool) -> Trial | None:
    """Gives what one case did wrong, or None where it is refused."""
    at(str(case))
    cluster, inputs = case.build()
    try:
        if target.refusal(cluster):
            return None
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the finding
        return Trial(support=(f"{case}: {trouble(error)}",))
    answer = wanted_of(case.overload, case.sample)
    return _tried(target, str(case), cluster, inputs, answer, has_values=case.sample.has_values, has_layouts=has_layouts)


def _group_findings(target: Target, group: str) -> tuple[Finding, ...]:
    accepted = [case for case in spread_of(group) if not target.refusal(case.build()[0])]
    if not accepted:
        return (not_applicable("support", group, "no sample call is accepted"),)
    cluster, inputs = joined(accepted)
    if target.refusal(cluster):  # a copy at its end, perhaps; then one by one
        return _findings(group, list(_trials(target, accepted)))
    at(group)
    return _findings(group, [_tried(target, group, cluster, inputs, joined_answer(accepted))])


def _program_findings(target: Target, subject: str, program: Program) -> tuple[Finding, ...]:
    trials: list[Trial] = []
    for dynamic in (False, True) if target.entry.info.dynamic_shapes else (False,):
        name = f"{program.name}{' [dynamic]' if dynamic else ''}"
        at(name)
        cluster, inputs = program.draw(dynamic=dynamic)
        if not target.refusal(cluster):
            answer = eager(cluster, inputs), exact(cluster, inputs)
            trials.append(_tried(target, name, cluster, inputs, answer))
    if not trials:
        return (not_applicable("support", subject, "one of its operators is refused"),)
    return _findings(subject, trials)


def _dtype_findings(target: Target, subject: str) -> tuple[Finding, ...]:
    """Tries the first accepted call that reads tensors of a dtype. It is declared, so there has to be one."""
    dtype = getattr(torch, subject.removeprefix(_DTYPE), None)
    names = SAMPLES if target.table is None else [name for name in target.table.rows if name in SAMPLES]
    cases = [Case(name, sample) for name in names for sample in SAMPLES[name] if dtype in dtypes_in(sample)]
    if not cases:
        return (not_applicable("support", subject, "no sample call of a declared operator has it"),)
    tried = (_try_case(target, case, has_layouts=False) for case in cases)
    first = next((trial for trial in tried if trial is not None), None)
    if first is None:
        return (failed("support", subject, f"declared, and all {len(cases)} sample calls that have it are refused"),)
    return _findings(subject, [first])


def _undeclared_but_accepted(target: Target) -> Iterator[str]:
    table = target.table
    for overload in SAMPLES:
        if table is not None and overload not in table:
            at(overload)
            if not target.refusal(case_cluster(overload, SAMPLES[overload][0])[0]):
                yield f"{overload} is accepted, though not declared"


def _findings(subject: str, trials: Sequence[Trial]) -> tuple[Finding, ...]:
    """Sorts what trials did wrong by check; of what never ran, nothing but `support` can be said."""
    checks = ("support", "numerics", "memory") if any(not trial.support for trial in trials) else ("support",)
    return tuple(
        judged(check, subject, [problem for trial in trials for problem in getattr(trial, check)]) for check in checks
    )


# --- One trial --------------------------------------------------------------------------------------------------------


def _tried(
    target: Target,
    name: str,
    cluster: Cluster,
    inputs: Inputs,
    answer: Answer,
    *,
    has_values: bool = True,
    has_layouts: bool = True,
) -> Trial:
    """Compiles an accepted cluster and calls it, twice with its own inputs and then with others."""
    try:
        executable = target.compile(cluster)
        mine = copied(inputs)
        first = _own_run(executable, cluster, mine)
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the finding
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
    return Trial(numerics=tuple(f"{name}: {problem}" for problem in problems if problem), memory=memory)


def _own_run(executable: Executable, cluster: Cluster, inputs: Inputs) -> Outputs:
    """Runs one call on these very inputs, and not on copies."""
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
    """Compares with the executable's own answer to the same values without stride 0.

    Not with eager's: repeated values are a hard case of variances and the like, which is not the question here.
    """
    try:
        packed = run(executable, cluster, laid_out(inputs, torch.Tensor.contiguous))
        wanted = tuple(output.clone() for output in packed)
    except Exception:  # noqa: BLE001 - repeated values need not be values that an operator takes
        return ""
    return _later(lambda: run(executable, cluster, inputs), (wanted, ()), "with expanded inputs: ")
