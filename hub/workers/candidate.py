"""A cluster on a backend, from the first thought of it until it serves: what is asked for, and what is known so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hub.cache.measurements import Subject
from hub.compilation.report import UNREPORTED, Report
from hub.errors import CompileError, PluginError
from hub.partition.group import Group
from hub.plugin.backend import CompileSettings
from hub.plugin.cost import Cost

Key = tuple[Group, CompileSettings]
"""What makes two candidates the same one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One cluster for one backend under some settings. Each step returns another one, which knows more."""

    name: str
    group: Group
    settings: CompileSettings
    inputs: tuple[str, ...]
    """Names of the values it reads, weights left out."""
    folder: Path | None = None
    """Where it is saved, or would be; None where only its price is wanted."""
    is_needed: bool = True
    """False where it only helps to find a better plan, and so must not take time from those that are needed."""
    report: Report = UNREPORTED
    """What the last process that compiled or loaded it found out."""
    cost: Cost | None = None
    """What it took when it was timed alone."""
    failure: PluginError | None = None
    """Why it cannot be had."""
    is_remembered: bool = False
    """True where the failure is an earlier process's."""
    is_late: bool = False
    """True where the failure is only that the time for compiling was over: nothing is wrong with it."""
    subject: Subject | None = None
    """What a failure is kept under, once it serves."""

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.group, self.settings

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.group.backend

    @property
    def saved_in(self) -> Path | None:
        """Where it is saved; None where it is not, and so has to be compiled again."""
        return self.folder if self.report.is_saved else None

    def late(self) -> Candidate:
        """Return the same, for which the time was over."""
        error = CompileError(
            "not compiled within the budget",
            backend=self.backend,
            cluster=self.name,
            hint="raise `budget_s`, or run `hub tune`, which goes on where this stopped",
        )
        return replace(self, failure=error, is_late=True)


Done = Callable[[Candidate], None]
"""Hears of a candidate once a worker is done with it, from any thread."""
