"""The conformance suite under pytest: `pytest --hub-backend NAME`. Without the option this plugin does nothing.

pytest loads it wherever the hub is installed, so it imports nothing until the option is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from hub.testing.conformance.finding import Finding
    from hub.testing.conformance.step import Step
    from hub.testing.conformance.suite import Suite

_PROPERTY = "hub-findings"
_PACKAGE = "hub-package"


class BrokenPromise(Exception):  # noqa: N818 - what a report shows, and no error of the suite
    """What a backend did wrong, in words."""


class ConformanceItem(pytest.Item):
    """One subject of one examination."""

    def __init__(self, *, suite: Suite, step: Step, **node: Any) -> None:
        super().__init__(**node)  # pyright: ignore[reportUnknownMemberType] - pytest's signature has no annotations
        self._suite = suite
        self._step = step

    def runtest(self) -> None:
        """Examines the subject in a child process."""
        findings = self._suite.examine(self._step)
        self.user_properties.append((_PACKAGE, self._suite.package))
        self.user_properties.append((_PROPERTY, [asdict(finding) for finding in findings]))
        if broken := [finding for finding in findings if finding.verdict == "failed"]:
            raise BrokenPromise("\n".join(f"{finding.check}: {finding.reason}" for finding in broken))
        if all(finding.verdict == "not applicable" for finding in findings):
            pytest.skip("; ".join(dict.fromkeys(finding.reason for finding in findings)) or "nothing to look at")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Shows what was broken, and no traceback through the suite."""
        if isinstance(excinfo.value, BrokenPromise):
            return f"backend {self._suite.backend}, {self._step.subject}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Gives the name under which reports show this."""
        return self.path, None, f"{self._step.examination}: {self._step.subject}"


class ConformanceCollector(pytest.Collector):
    """Everything that there is to examine about one backend."""

    def __init__(self, *, suite: Suite, **node: Any) -> None:
        super().__init__(**node)
        self._suite = suite

    def collect(self) -> Iterator[ConformanceItem]:
        """Gives an item a subject."""
        for step in self._suite.steps():
            name = f"{step.examination}::{step.subject}"
            yield ConformanceItem.from_parent(  # pyright: ignore[reportUnknownMemberType] - pytest's signature has no annotations
                self, name=name, suite=self._suite, step=step
            )


class Conformance:
    """Brings the suite into one pytest session."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    @pytest.hookimpl(tryfirst=True)  # before -k and -m choose
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Adds the suite to whatever else was collected. Raises UsageError if there is no such backend."""
        from hub.errors import HubError

        collector = ConformanceCollector.from_parent(  # pyright: ignore[reportUnknownMemberType] - pytest's signature has no annotations
            session, name=self._suite.backend, nodeid=f"hub-backend={self._suite.backend}", suite=self._suite
        )
        try:
            items.extend(collector.collect())
        except HubError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_unconfigure(self) -> None:
        """Ends the child processes."""
        self._suite.close()

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Prints the score, made from reports, because under xdist other processes examined."""
        from hub.registry import installed_version
        from hub.testing.conformance.score import Score, score_lines

        reports = [report for group in terminalreporter.stats.values() for report in group]
        findings = tuple(finding for report in reports for finding in _findings_in(report))
        if not findings:
            return
        package = next(value for report in reports for name, value in _properties(report) if name == _PACKAGE)
        terminalreporter.section(f"conformance of {self._suite.backend}")
        score = Score(self._suite.backend, package, installed_version("compiler-hub") or "", findings)
        for line in score_lines(score):
            terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("hub", "compiler hub")
    group.addoption(
        "--hub-backend",
        metavar="NAME",
        help="run the hub's conformance suite on this backend, beside the tests that are named on the command line",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begins the suite where the option is given. Then only tests that are named run beside it."""
    backend = config.getoption("--hub-backend")
    if backend is None:
        return
    from hub.testing.conformance.suite import Suite

    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    config.pluginmanager.register(Conformance(Suite(str(backend))), "hub-conformance")


def _findings_in(report: Any) -> Iterator[Finding]:
    from hub.testing.conformance.finding import Finding

    if getattr(report, "when", None) == "call":
        for name, value in _properties(report):
            if name == _PROPERTY:
                yield from (Finding(**facts) for facts in value)


def _properties(report: Any) -> list[tuple[str, Any]]:
    return list(getattr(report, "user_properties", ()))
