"""Record of the candidates that failed, so that the next process does not try them again."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from hub.cache.artifacts import discard_artifact
from hub.cache.keys import digest_of
from hub.cache.measurements import Failure, Measurements, Subject
from hub.errors import (
    AccuracyError,
    CompileError,
    ConstantsRefused,
    ContractError,
    InputRefused,
    LimitExceeded,
    PluginError,
    RunError,
    WorkerDied,
    WorkerGone,
    text_of,
)
from hub.partition.group import Group
from hub.plan import Stage
from hub.planning.context import PlanningContext, limits_of
from hub.workers.candidate import Candidate

_ERRORS: Mapping[Stage, type[PluginError]] = {
    Stage.VERIFY: AccuracyError,
    Stage.RUN: RunError,
    Stage.SERVE: RunError,
}
FORGET = "`hub cache forget` makes the hub try again"


def known_failure(context: PlanningContext, candidate: Candidate) -> PluginError | None:
    """Return the recorded failure of an equal cluster under equal settings and versions, as an error; None if none.

    With `strict` or `renew`, users want to see every failure happen again, so none is known.
    """
    if context.options.strict or context.options.renew:
        return None
    subject = context.failure_subject(candidate.group, candidate.settings)
    failures = context.measurements.find_failures((subject, _under_limits(context, subject)))
    return next((_error_of(failure, candidate.group) for failure in failures.values()), None)


def failure_in_service(context: PlanningContext, candidate: Candidate) -> PluginError | None:
    """Return why a candidate must not serve again, even if a saved executable exists; None if it may.

    A failure in this process counts even with `strict` or `renew`, which ignore failures recorded by other processes.
    """
    found = candidate.group
    if found in context.demoted:
        return RunError(f"it failed while it served: {context.demoted[found]}", backend=found.backend)
    if context.options.strict or context.options.renew:
        return None
    subject = context.failure_subject(found, candidate.settings)
    failure = context.measurements.find_failures((subject,)).get(subject)
    return None if failure is None or failure.stage is not Stage.SERVE else _error_of(failure, found)


def forget_failures(context: PlanningContext, candidates: Iterable[Candidate]) -> None:
    """Forget the failures of candidates that were tried again, as the user asked, and were right."""
    context.measurements.forget_subjects(context.failure_subject(one.group, one.settings) for one in candidates)


def _error_of(failure: Failure, found: Group) -> PluginError:
    node = None if failure.node is None else found.nodes[failure.node]
    text = f"disabled since {failure.made[:10]}: {failure.reason}"
    return _ERRORS.get(failure.stage, CompileError)(text, backend=found.backend, node=node, hint=FORGET)


def remember_failure(context: PlanningContext, candidate: Candidate) -> None:
    """Record why a candidate failed, and discard what was saved; skip failures that values, weights or others cause.

    Failures are stored by structure. A worker that dies after it has saved an executable leaves one that would be loaded.
    A failure at a limit counts only under equal limits, since it may not occur under others. An accelerator whose memory
    was full is no evidence: other processes, and the user's own model, contributed to it. Nor is the first worker that
    was killed: a user or the system may have done it. The second is: a backend may make the system kill it each time.
    """
    error, (found, settings) = candidate.failure, candidate.key
    if error is None or isinstance(error, InputRefused | ConstantsRefused | WorkerGone):
        return
    discard_artifact(candidate.folder or context.folder(found, settings), is_damaged=False)
    if error.is_device_full:
        return
    subject, reason = context.failure_subject(found, settings), reason_of(error)
    if isinstance(error, WorkerDied) and error.was_ended_from_outside:
        first = _killed_once(subject)
        if not context.measurements.find_failures((first,)):
            subject, reason = first, f"{reason} (once: it is tried again)"
    if isinstance(error, LimitExceeded):
        subject = _under_limits(context, subject)
    node = found.nodes.index(error.node) if error.node in found.nodes else None
    context.measurements.keep_failure(Failure(subject, stage_of(error), reason, node, _now()))


def _under_limits(context: PlanningContext, subject: Subject) -> Subject:
    limits = asdict(limits_of(context.options.workers))
    return replace(subject, modes=digest_of({"modes": subject.modes, "limits": limits}))


def _killed_once(subject: Subject) -> Subject:
    """Return the subject of a record by which nothing is refused."""
    return replace(subject, modes=digest_of({"modes": subject.modes, "killed": 1}))


def remember_failure_in_service(candidate: Candidate, error: BaseException) -> None:
    """Record that an executable failed while it served, and remove what was saved of it.

    It passed verification, and would pass again in the next process, until it fails there.
    """
    folder, subject = candidate.folder, candidate.subject
    assert folder is not None and subject is not None, "it serves"
    discard_artifact(folder, is_damaged=False)
    root = folder.parents[2]
    if not root.exists():
        return  # a folder for one plan only, since there is no cache
    kept, _ = Measurements.open(root)
    with contextlib.closing(kept):
        kept.keep_failure(Failure(subject, Stage.SERVE, reason_of(error), None, _now()))


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = (error.message if isinstance(error, PluginError) else text_of(error)).splitlines()
    return lines[0] if lines else type(error).__name__


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def stage_of(error: PluginError) -> Stage:
    """Return the stage at which a backend failed: verifying, running or compiling."""
    if isinstance(error, AccuracyError | ContractError):
        return Stage.VERIFY
    return Stage.RUN if isinstance(error, RunError) else Stage.COMPILE
