"""A cluster on a backend, from its proposal until it is in use: the request, and the results so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hub.cache.measurements import Subject
from hub.errors import CompileError, PluginError
from hub.partition.group import Group
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost
from hub.workers.compilation.report import UNREPORTED, Report

Key = tuple[Group, CompileSettings]
"""Identity of a candidate: two candidates with equal keys are the same."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One cluster for one backend under some settings. Each step returns a copy with more results."""

    name: str
    group: Group
    settings: CompileSettings
    inputs: tuple[str, ...]
    """Names of the values that it reads, without weights."""
    folder: Path | None = None
    """The folder where it is or would be saved; None if only its price is wanted."""
    is_needed: bool = True
    """False if it may only improve the plan, so that it must not take time from candidates that are needed."""
    expected_s: float = math.inf
    """Seconds that compiling is expected to take, for one that is not needed."""
    report: Report = UNREPORTED
    """The report of the last process that compiled or loaded it."""
    cost: Cost | None = None
    """Its cost when it was timed alone."""
    failure: PluginError | None = None
    """The error that makes it unavailable."""
    is_remembered: bool = False
    """True if the failure is from an earlier process."""
    is_late: bool = False
    """True if the failure is only that the time for compiling was over: nothing is wrong with it."""
    subject: Subject | None = None
    """The key under which a failure at run time is stored."""

    @property
    def key(self) -> Key:
        """The candidate's identity."""
        return self.group, self.settings

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.group.backend

    @property
    def saved_in(self) -> Path | None:
        """The folder in which it is saved; None if it is not saved, so that it has to be compiled again."""
        return self.folder if self.report.is_saved else None

    def late(self) -> Candidate:
        """Return a copy that failed because the time for compiling was over."""
        error = CompileError(
            "not compiled within the budget",
            backend=self.backend,
            cluster=self.name,
            hint="raise `budget_s`, or run `hub tune`, which goes on where this stopped",
        )
        return replace(self, failure=error, is_late=True)


Done = Callable[[Candidate], None]
"""Callback that receives a candidate once a worker is done with it, from any thread."""
