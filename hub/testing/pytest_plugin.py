"""The conformance suite under pytest: `pytest --hub-backend NAME`. Without the option this plugin does nothing.

pytest loads it in every environment that has the hub, so it imports nothing until the option is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from hub.testing.conformance.score import Score
    from hub.testing.conformance.step import Step
    from hub.testing.conformance.suite import Suite

_PROPERTY = "hub-findings"
_PACKAGE = "hub-package"
_PLACE = "hub-place"


class BrokenPromise(Exception):  # noqa: N818 - shown in reports; not an error of the suite
    """A promise that a backend broke, in words."""


class ConformanceItem(pytest.Item):
    """One subject of one examination."""

    def __init__(self, *, suite: Suite, step: Step, place: int, **node: Any) -> None:
        super().__init__(**node)  # pyright: ignore[reportUnknownMemberType] - pytest's signature has no annotations
        self._suite = suite
        self._step = step
        self._place = place

    def runtest(self) -> None:
        """Examine the subject in a child process."""
        from hub.testing.conformance.finding import Verdict

        findings = self._suite.examine(self._step)
        self.user_properties.append((_PACKAGE, self._suite.package))
        self.user_properties.append((_PLACE, self._place))
        self.user_properties.append(
            (_PROPERTY, [asdict(finding) | {"verdict": finding.verdict.value} for finding in findings])
        )
        if broken := [finding for finding in findings if finding.verdict is Verdict.FAILED]:
            raise BrokenPromise("\n".join(f"{finding.check}: {finding.reason}" for finding in broken))
        if all(finding.verdict is Verdict.NOT_APPLICABLE for finding in findings):
            pytest.skip("; ".join(dict.fromkeys(finding.reason for finding in findings)) or "nothing to look at")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show what was broken, without a traceback through the suite."""
        if isinstance(excinfo.value, BrokenPromise):
            return f"backend {self._suite.backend}, {self._step.subject}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Return the name of this item in reports."""
        return self.path, None, f"{self._step.examination}: {self._step.subject}"


class ConformanceCollector(pytest.Collector):
    """The collector of all subjects to examine for one backend."""

    def __init__(self, *, suite: Suite, **node: Any) -> None:
        super().__init__(**node)
        self._suite = suite

    def collect(self) -> Iterator[ConformanceItem]:
        """Yield an item for each subject."""
        for place, step in enumerate(self._suite.steps()):
            name = f"{step.examination}::{step.subject}"
            yield ConformanceItem.from_parent(  # pyright: ignore[reportUnknownMemberType] - pytest's signature has no annotations
                self, name=name, suite=self._suite, step=step, place=place
            )


class Conformance:
    """The suite in one pytest session."""

    def __init__(self, suite: Suite, json: str | None) -> None:
        """Take the suite; `json` is the file to which the score is written, None for none."""
        self._suite = suite
        self._json = json
        self._package = ""
        self._found: dict[int, Any] = {}
        """Findings of each step, by its position among the steps."""

    @pytest.hookimpl(tryfirst=True)  # before -k and -m deselect
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the suite to the collected tests. Raise UsageError if there is no such backend."""
        from hub.errors import HubError

        collector = ConformanceCollector.from_parent(  # pyright: ignore[reportUnknownMemberType] - pytest's signature has no annotations
            session, name=self._suite.backend, nodeid=f"hub-backend={self._suite.backend}", suite=self._suite
        )
        try:
            items.extend(collector.collect())
        except HubError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_unconfigure(self) -> None:
        """End the child processes."""
        self._suite.close()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the findings of a step. Under xdist other processes examine, and only their reports arrive here."""
        facts = dict(report.user_properties)
        if report.when == "call" and _PROPERTY in facts:
            self._package = str(facts[_PACKAGE])
            self._found[cast("int", facts[_PLACE])] = facts[_PROPERTY]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the score as JSON if requested, in the leading process."""
        is_ended = exitstatus not in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR)
        if self._json is not None and is_ended and not hasattr(session.config, "workerinput"):
            from hub.testing.conformance.score import write_score

            write_score(self._score(), self._json)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the score."""
        from hub.testing.conformance.score import score_lines

        if not self._found:
            return
        terminalreporter.section(f"conformance of {self._suite.backend}")
        for line in score_lines(self._score()):
            terminalreporter.write_line(line)

    def _score(self) -> Score:
        """Return the score of what was examined, in the suite's order: under xdist reports arrive in any order."""
        from hub.plugin.entry import installed_version
        from hub.testing.conformance.finding import Finding, Verdict
        from hub.testing.conformance.score import Score

        kept = [facts for place in sorted(self._found) for facts in self._found[place]]
        findings = tuple(Finding(**{**facts, "verdict": Verdict(facts["verdict"])}) for facts in kept)
        return Score(self._suite.backend, self._package, installed_version("compiler-hub") or "", findings)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("hub", "compiler hub")
    group.addoption(
        "--hub-backend",
        metavar="NAME",
        help="run the hub's conformance suite on this backend, in addition to the tests named on the command line",
    )
    group.addoption("--hub-json", metavar="FILE", help="write the score as JSON, as hub check-plugin --json does")


def pytest_configure(config: pytest.Config) -> None:
    """Register the suite if the option is given. Then only explicitly named tests run in addition to it."""
    backend, json = config.getoption("--hub-backend"), config.getoption("--hub-json")
    if backend is None:
        if json is not None:
            raise pytest.UsageError("--hub-json writes the score of a backend: name it with --hub-backend NAME")
        return
    from pathlib import Path

    from hub.errors import OptionError
    from hub.report.output import check_output
    from hub.testing.conformance.suite import Suite

    if json is not None:
        try:
            check_output(Path(json))
        except OptionError as error:
            raise pytest.UsageError(str(error)) from None
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    config.pluginmanager.register(Conformance(Suite(str(backend)), json), "hub-conformance")
