"""Checks of each declared operator in each declared dtype, on samples written in it and others converted to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

import torch

from hub.plugin.table import tensors_of
from hub.testing.conformance.cases import Case, is_captured, tensors_in
from hub.testing.conformance.finding import Finding, failed, not_applicable
from hub.testing.conformance.retyped import ROLES, Role, calls_in, is_in
from hub.testing.conformance.target import Target
from hub.testing.conformance.trial import Refusal, Trial, findings_of, try_case
from hub.testing.operators import SAMPLES

_EACH = 2
"""Converted calls that are compiled for each dtype without samples of its own."""

Answers = Sequence[tuple[Case, Trial | Refusal]]


def pair_findings(target: Target, overload: str, known: Answers) -> Iterator[Finding]:
    """Yield the findings for one operator in each dtype that the backend declares.

    `known` holds the answers to the samples as written: what they show about a dtype is not tried again.
    """
    for name in target.entry.info.dtypes:
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):  # the handshake reports any other
            yield from _findings_in(target, overload, dtype, known)


def calls_of_each(overloads: Sequence[str], dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield one call of each operator in each dtype in which eager accepts one."""
    for overload, name in product(overloads, dtypes):
        if case := next(filter(is_captured, _calls(overload, getattr(torch, name))), None):
            yield case


def _calls(overload: str, dtype: torch.dtype) -> Iterator[Case]:
    written = (sample for sample in SAMPLES[overload] if is_in(sample, "values", dtype))
    yield from (Case(overload, sample) for sample in chain(written, calls_in(overload, "values", dtype)))


def _findings_in(target: Target, overload: str, dtype: torch.dtype, known: Answers) -> tuple[Finding, ...]:
    name = str(dtype).removeprefix("torch.")
    subject = f"{overload} in {name}"
    answers = [answer for role in ROLES for answer in _answers(target, overload, role, dtype, known)]
    trials = [answer for answer in answers if isinstance(answer, Trial)]
    if trials:
        return findings_of(subject, trials)
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    if not refusals:
        return (not_applicable("support", subject, f"eager takes no sample call of it in {name}"),)
    is_named = target.table is not None and target.table.names(overload, name) and not _is_in_accepted_call(dtype, known)
    if is_named or any(refusal.is_in_table for refusal in refusals):
        return (failed("support", subject, f"its row names {name}, and every call in it is refused: {refusals[0].reason}"),)
    return (not_applicable("support", subject, f"refused: {refusals[0].reason}"),)


def _is_in_accepted_call(dtype: torch.dtype, known: Answers) -> bool:
    """Return whether an accepted call has tensors of this dtype among arguments or results: a row names it for these."""
    accepted = [case for case, answer in known if isinstance(answer, Trial)]
    return any(tensor.dtype is dtype for case in accepted for node in case.build()[0].nodes for tensor in tensors_of(node))


def _answers(target: Target, overload: str, role: Role, dtype: torch.dtype, known: Answers) -> Iterator[Trial | Refusal]:
    written = [answer for case, answer in known if is_in(case.sample, role, dtype)]
    yield from written
    if not any(isinstance(answer, Trial) for answer in written):
        yield from _converted_answers(target, overload, role, dtype)


def _converted_answers(target: Target, overload: str, role: Role, dtype: torch.dtype) -> Iterator[Trial | Refusal]:
    """Try converted calls until two are accepted: a plain one, then one as in models."""
    accepted = 0
    for case in filter(is_captured, (Case(overload, sample) for sample in calls_in(overload, role, dtype))):
        for form in (_as_in_models(target, case),) if accepted else _plain_forms(case):
            answer = try_case(target, form, has_layouts=not accepted)
            yield answer
            if isinstance(answer, Trial):
                accepted += 1
                break
        if accepted == _EACH:
            return


def _plain_forms(case: Case) -> Iterator[Case]:
    """Yield a call unchanged and, for backends that need constants, with weights."""
    yield case
    if len(tensors_in(case.sample)) > 1:
        yield replace(case, has_weights=True)


def _as_in_models(target: Target, case: Case) -> Case:
    """Return a call with weights and symbolic sizes."""
    count = len(tensors_in(case.sample))
    return replace(case, dynamic=target.entry.info.dynamic_shapes and count > 0, has_weights=count > 1)
