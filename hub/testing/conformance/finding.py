"""Findings: what one look at a backend found out, as frozen values that print, compare and travel between processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What became of one check of one subject."""

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
    "overhead": "microseconds of a tiny call; told, never failed",
}
"""Name of each check -> what a backend that passes it promises."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found out about one subject."""

    check: str
    """A key of `CHECKS`."""
    subject: str
    """What was looked at: an operator, a program, a step."""
    verdict: Verdict
    reason: str = ""
    """Why it failed or does not apply; where it passed, a figure worth telling, or nothing."""

    def __str__(self) -> str:
        return f"{self.check}: {self.subject}: {self.verdict}{f': {self.reason}' if self.reason else ''}"


def passed(check: str, subject: str, told: str = "") -> Finding:
    """Return a finding that all is well, with a figure worth telling where there is one."""
    return Finding(check, subject, Verdict.PASSED, told)


def failed(check: str, subject: str, reason: str) -> Finding:
    """Return a finding that the backend broke a promise."""
    return Finding(check, subject, Verdict.FAILED, reason)


def not_applicable(check: str, subject: str, reason: str) -> Finding:
    """Return a finding that there was nothing to look at."""
    return Finding(check, subject, Verdict.NOT_APPLICABLE, reason)


def judged(check: str, subject: str, problems: Iterable[str]) -> Finding:
    """Return a finding from what went wrong: passed where nothing did."""
    found = list(problems)
    shown = "; ".join(found[:_SHOWN_PROBLEMS])
    rest = f"; and {len(found) - _SHOWN_PROBLEMS} more" if len(found) > _SHOWN_PROBLEMS else ""
    return failed(check, subject, shown + rest) if found else passed(check, subject)


_SHOWN_PROBLEMS = 3


def trouble(error: BaseException) -> str:
    """Return an exception in one line. Raises nothing, though a plugin's exception may."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - a plugin's __str__ is a plugin's code
        lines = ["its text cannot be had"]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
