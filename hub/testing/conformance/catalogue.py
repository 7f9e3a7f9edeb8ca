"""All examinations in the order in which they run: what each looks at, and the checks under which it reports findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hub.plugin.entry import Entry
from hub.testing.conformance import (
    determinism,
    handshake,
    interruption,
    memory,
    operators,
    overhead,
    resources,
    saving,
    sizes,
    threads,
    weights,
)
from hub.testing.conformance.finding import Finding
from hub.testing.conformance.step import HANDSHAKE
from hub.testing.conformance.target import Target


@dataclass(frozen=True, slots=True)
class Examination:
    """One kind of examination of a backend, subject by subject."""

    checks: tuple[str, ...]
    """Keys of `CHECKS` under which it reports findings; a crash counts against the first one."""
    subjects: Callable[[Entry], tuple[str, ...]]
    examine: Callable[[Target, str], tuple[Finding, ...]]


def _fixed(*subjects: str) -> Callable[[Entry], tuple[str, ...]]:
    return lambda _: subjects


def _handshake(target: Target, subject: str) -> tuple[Finding, ...]:
    return handshake.examine(target.name, subject, target.limit_s)


EXAMINATIONS: Mapping[str, Examination] = {
    HANDSHAKE: Examination((HANDSHAKE,), _fixed(*handshake.SUBJECTS), _handshake),
    "operators": Examination(("support", "numerics", "memory"), operators.subjects, operators.examine),
    "memory": Examination(("memory",), _fixed(*memory.SUBJECTS), memory.examine),
    "sizes": Examination(("dynamic",), sizes.subjects, sizes.examine),
    "weights": Examination(("weights",), _fixed(*weights.SUBJECTS), weights.examine),
    "threads": Examination(("threads",), _fixed(*threads.SUBJECTS), threads.examine),
    "saving": Examination(("saving",), _fixed(*saving.SUBJECTS), saving.examine),
    "determinism": Examination(("determinism",), _fixed(*determinism.SUBJECTS), determinism.examine),
    "interruption": Examination(("interruption",), _fixed(*interruption.SUBJECTS), interruption.examine),
    "resources": Examination(("resources",), _fixed(*resources.SUBJECTS), resources.examine),
    "overhead": Examination(("overhead",), _fixed(*overhead.SUBJECTS), overhead.examine),
}
