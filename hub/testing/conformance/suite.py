"""The leading process of the suite: has each subject examined in a child process, and reports crashes and hangs."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

from hub.config.suggest import did_you_mean
from hub.errors import HubError, OptionError, WorkerDied
from hub.plugin.entry import installed_version
from hub.report.progress import Progress
from hub.testing.conformance.finding import CHECKS, Finding, Verdict, failed, not_applicable
from hub.testing.conformance.score import Score
from hub.testing.conformance.step import HANDSHAKE, Description, Step
from hub.testing.conformance.trail import last_place
from hub.workers.channel import Worker

LIMIT_S = 600.0
"""Longest time for one subject: an operator with some thirty forms, each of which a slow compiler compiles."""
_MODULE = "hub.testing.conformance.worker"
_START_LIMIT_S = 300.0
_PATIENCE = 24
"""Crashes in one examination after which the rest of it is skipped: each new process takes seconds."""
_HANG = 8
"""Number of crashes that a hang counts for, because it takes the whole limit."""
_LISTED = Step(HANDSHAKE, "registration", HANDSHAKE)


class Suite:
    """The suite for one backend, step by step. Close it after use; only one thread may use it."""

    def __init__(self, backend: str, *, only: Sequence[str] = (), limit_s: float = LIMIT_S, has_hard: bool = True) -> None:
        """Prepare the suite without starting anything. `only` holds keys of `CHECKS`; none means all.

        With `has_hard`, operators are also tried on hard values: NaN, infinities, ties, extreme integers. Raise OptionError
        for an unknown check or an invalid limit.
        """
        check_names(only)
        if not (math.isfinite(limit_s) and limit_s > 0):
            text = f"the limit must be a number of seconds above 0, got {limit_s!r}"
            raise OptionError(text, hint="for example --limit 600")
        self.backend = backend
        self._only = tuple(only)
        self._limit_s = limit_s
        self._has_hard = has_hard
        self._folder = tempfile.TemporaryDirectory(prefix="hub-conformance-", ignore_cleanup_errors=True)
        self._worker: Worker | None = None
        self._description: Description | None = None
        self._unlisted = ""
        """The way in which the process ended while it listed the plugin; empty if it did not."""
        self._is_unloadable = False
        self._deaths: Counter[str] = Counter()

    def __enter__(self) -> Suite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def package(self) -> str:
        """Distribution and version that provide the backend; empty before `steps`, and if listing it crashed."""
        return "" if self._description is None else self._description.package

    def steps(self) -> tuple[Step, ...]:
        """Return the steps to examine. Raise OptionError if no plugin registers a backend of this name."""
        if self._unlisted:
            return (_LISTED,)
        try:
            described = self._description or self._described()
        except HubError as error:
            self._unlisted = f"listing the plugins ended the process: {_first_line(error)}"
            self._end_worker()
            return (_LISTED,)
        if self.backend not in described.names:
            near = did_you_mean(self.backend, described.names)
            known = ", ".join(described.names) or "none installed"
            raise OptionError(f"no backend is named {self.backend!r}{near}", hint=f"choose from {known}")
        self._description = described
        return described.steps

    def examine(self, step: Step) -> tuple[Finding, ...]:
        """Return the findings of one step for the selected checks. Nothing that a plugin does makes this raise."""
        findings = self._examined(step)
        if step.examination == HANDSHAKE and step.subject == "factory":
            self._is_unloadable = any(finding.verdict is Verdict.FAILED for finding in findings)
        return tuple(finding for finding in findings if not self._only or finding.check in self._only)

    def close(self) -> None:
        """End the processes and remove their files."""
        self._end_worker()
        self._folder.cleanup()

    def _described(self) -> Description:
        return self._asked("describe", _START_LIMIT_S, backend=self.backend, only=self._only)

    def _examined(self, step: Step) -> tuple[Finding, ...]:
        if self._unlisted:
            return (failed(step.check, step.subject, self._unlisted),)
        if self._is_unloadable and step.examination != HANDSHAKE:
            return (not_applicable(step.check, step.subject, "the backend does not load"),)
        if self._deaths[step.examination] >= _PATIENCE:
            return (failed(step.check, step.subject, "not tried, because so many before it crashed or hung"),)
        try:
            facts = {"backend": self.backend, "step": step, "limit_s": self._limit_s, "has_hard": self._has_hard}
            return self._asked("examine", self._limit_s, **facts)
        except HubError as error:
            place = last_place(self._log)
            self._deaths[step.examination] += 1 if isinstance(error, WorkerDied) else _HANG
            self._end_worker()
            return (failed(step.check, step.subject, f"{_first_line(error)}{f', at {place}' if place else ''}"),)

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "log.txt"

    def _asked(self, command: str, within_s: float, **arguments: object) -> Any:
        if self._worker is None:
            self._worker = Worker(_MODULE, self._log, environment=self._own_places())
            self._worker.ask("process_id", _START_LIMIT_S)  # the limit is for a subject, not for importing PyTorch
        return self._worker.ask(command, within_s, **arguments)

    def _own_places(self) -> dict[str, str]:
        """Return variables that direct files of the examined backend to a folder that is removed at the end."""
        places = {"HUB_CACHE_DIR": Path(self._folder.name) / "cache", "TMPDIR": Path(self._folder.name) / "tmp"}
        places["TMPDIR"].mkdir(exist_ok=True)
        return {name: str(place) for name, place in places.items()}

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def check_backend(
    backend: str, *, only: Sequence[str] = (), limit_s: float = LIMIT_S, progress: Progress | None = None
) -> Score:
    """Run the suite on a backend and return its score. Raise HubError for an unknown name or check, or an invalid limit."""
    shown = Progress() if progress is None else progress
    findings: list[Finding] = []
    with Suite(backend, only=only, limit_s=limit_s) as suite:
        try:
            shown.stage("begin")
            for name, group in groupby(suite.steps(), lambda step: step.examination):
                steps = list(group)
                shown.stage(name, len(steps))
                for step in steps:
                    findings += suite.examine(step)
                    shown.advance(step.subject)
        finally:
            shown.done()
        return Score(backend, suite.package, installed_version("compiler-hub") or "", tuple(findings))


def check_names(only: Sequence[str]) -> None:
    """Raise OptionError for a name that is not a check's."""
    for name in only:
        if name not in CHECKS:
            raise OptionError(
                f"no check is named {name!r}{did_you_mean(name, CHECKS)}", hint=f"choose from {', '.join(CHECKS)}"
            )


def _first_line(error: HubError) -> str:
    return error.message.splitlines()[0]
