"""A pytest plugin (`-p hub.testing.backends_ran`) that fails the session if a backend ran in too few of its tests.

A backend that refuses everything fails no comparison: eager is compared with eager. Therefore plans are observed in every
test with a backend's name among its parameters, and at the end each backend must have run in a share of each module's
tests: the module's `BACKENDS_RAN`, or `MIN_SHARE`. Of tests with the marker `sampled`, at least one must have run. The
process that collects reports does the counting, whichever worker ran which test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

MIN_SHARE = 0.5
"""Share of a module's tests in which a backend must run at least one cluster, unless the module states another."""
MIN_TESTS = 4
"""Number of tests of one module and backend below which no share is required: it would mean little."""
MIN_SAMPLED = 8
"""The same where only a sample of a module's tests runs, in which shares differ by chance."""
STATED = "BACKENDS_RAN"
"""Name of a module's own share: a number, or one for each backend by name."""
_PROPERTY = "hub-backend-ran"


@dataclass(slots=True)
class Tally:
    """Counts for the tests of one module on one backend."""

    module: str
    backend: str
    share: float
    is_sample: bool = False
    n_tests: int = 0
    n_ran: int = 0

    @property
    def complaint(self) -> str:
        """Return what is wrong, or "" if the backend ran often enough or too few tests were run to judge."""
        if self.is_sample:
            is_low = self.share and self.n_tests >= MIN_SAMPLED and not self.n_ran
            return f"{self.module}: {self.backend} ran in none of {self.n_tests} tests" if is_low else ""
        if self.n_tests < MIN_TESTS or self.n_ran >= self.share * self.n_tests:
            return ""
        return f"{self.module}: {self.backend} ran in {self.n_ran} of {self.n_tests} tests, {self.share:.0%} expected"


class Tallies:
    """A plugin that collects what tests report, and fails the session if a backend ran too rarely."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Tally] = {}

    @property
    def complaints(self) -> list[str]:
        """Return every complaint, by module and backend."""
        return [text for _, tally in sorted(self._found.items()) if (text := tally.complaint)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one test when it has ended."""
        if report.when != "teardown":
            return
        module = report.nodeid.partition("::")[0]
        for name, value in report.user_properties:
            if name == _PROPERTY:
                backend, has_run, share, is_sample = cast("tuple[str, bool, float, bool]", value)
                tally = self._found.setdefault((module, backend), Tally(module, backend, share, is_sample))
                tally.n_tests += 1
                tally.n_ran += has_run

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that has passed so far if there are complaints."""
        if self.complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Show which backend ran too rarely, and where."""
        if complaints := self.complaints:
            terminalreporter.section("backends that ran too little", red=True)
            for text in complaints:
                terminalreporter.line(text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the counter in the process that collects reports, not in workers of pytest-xdist."""
    config.addinivalue_line("markers", "sampled: one of a module's tests, of which others run at other times")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tallies(), "hub-backends-ran")


def note(request: pytest.FixtureRequest, backend: str, *, has_run: bool) -> None:
    """Report whether a backend ran in a test, for tests that do not go through `torch.compile`."""
    module: Any = cast("Any", request).module
    stated: Any = getattr(module, STATED, MIN_SHARE)
    share: float = stated.get(backend, MIN_SHARE) if hasattr(stated, "get") else stated
    is_sample = request.node.get_closest_marker("sampled") is not None
    request.node.user_properties.append((_PROPERTY, (backend, has_run, share, is_sample)))


@pytest.fixture(autouse=True)
def _backends_ran(request: pytest.FixtureRequest) -> Iterator[None]:
    """Observe the plans of a test that is named after a backend."""
    from hub.discovery.registry import registry
    from hub.frontend import record

    call: Any = getattr(request.node, "callspec", None)
    values = () if call is None else call.params.values()
    names = {value for value in values if isinstance(value, str) and value in registry().entries}
    if not names:
        yield
        return
    seen: list[frozenset[str]] = []
    observe = record.observe

    def observed(registry: Any, hook: str, **facts: Any) -> None:
        if hook == "hub_plan_made":
            seen.append(frozenset(cluster.backend for cluster in facts["plan"].clusters if cluster.nodes))
        observe(registry, hook, **facts)

    with pytest.MonkeyPatch.context() as patch:  # the fixture's would outlive those of a user's conftest.py
        patch.setattr(record, "observe", observed)
        yield
    for name in sorted(names) if seen else ():
        note(request, name, has_run=any(name in backends for backends in seen))
