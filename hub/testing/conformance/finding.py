"""Findings: the results of examinations, as frozen values that can be printed, compared and sent between processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The outcome of one check of one subject."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


CHECKS: Mapping[str, str] = {
    "handshake": "registers, loads, has the contract's methods and passes its probe; listing imports nothing heavy",
    "support": "takes what it declares: accepted calls compile and run, refusals carry a reason",
    "numerics": "results are as exact as eager's, whatever the strides, on small and empty tensors too",
    "memory": "inputs stay unchanged; outputs share memory with no input and with no earlier output",
    "dynamic": "one executable serves several sizes, 0 and 1 among them",
    "weights": "a cluster with other weights gives other results",
    "threads": "several threads may call one executable, and compile, at once",
    "saving": "saved executables load, here and elsewhere; damaged ones are noticed",
    "determinism": "equal inputs give equal bits; equal clusters have equal cache keys in every process",
    "interruption": "a compilation that is killed or interrupted harms no later one",
    "resources": "neither calls nor compilations pile up threads or open files",
    "overhead": "microseconds of a tiny call; reported, never failed",
}
"""Each check's name, with what a backend that passes it promises."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of one subject."""

    check: str
    """A key of `CHECKS`."""
    subject: str
    """The subject that was examined: an operator, a program, a step."""
    verdict: Verdict
    reason: str = ""
    """Reason why it failed or does not apply; if it passed, a figure worth reporting, or nothing."""

    def __str__(self) -> str:
        return f"{self.check}: {self.subject}: {self.verdict}{f': {self.reason}' if self.reason else ''}"


def passed(check: str, subject: str, told: str = "") -> Finding:
    """Return a finding that the check passed, with a figure worth reporting if there is one."""
    return Finding(check, subject, Verdict.PASSED, told)


def failed(check: str, subject: str, reason: str) -> Finding:
    """Return a finding that the backend broke a promise."""
    return Finding(check, subject, Verdict.FAILED, reason)


def not_applicable(check: str, subject: str, reason: str) -> Finding:
    """Return a finding that there was nothing to examine."""
    return Finding(check, subject, Verdict.NOT_APPLICABLE, reason)


def judged(check: str, subject: str, problems: Iterable[str]) -> Finding:
    """Return a finding from a list of problems: passed if there are none."""
    found = list(problems)
    shown = "; ".join(found[:_SHOWN_PROBLEMS])
    rest = f"; and {len(found) - _SHOWN_PROBLEMS} more" if len(found) > _SHOWN_PROBLEMS else ""
    return failed(check, subject, shown + rest) if found else passed(check, subject)


_SHOWN_PROBLEMS = 3


def trouble(error: BaseException) -> str:
    """Return an exception as one line of text. Never raise, though the text of a plugin's exception may."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - a plugin's __str__ is the plugin's code
        lines = ["its text is unavailable"]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
