"""The commit at which each test of the long suites last passed: `tests/passed.json`.

The long suites take hours. With `HUB_TESTS_SINCE=COMMIT` a run skips tests that passed at that commit or a later one, and
enters what passes now; without it, nothing is skipped or entered.
`python -m tests.ledger` prints how many tests passed at each commit, by file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

LEDGER = Path(__file__).with_name("passed.json")
VARIABLE = "HUB_TESTS_SINCE"
SINCE = os.environ.get(VARIABLE, "")
"""Read when tests are collected: the hub's variables are unset while tests run."""


def passed(file: Path = LEDGER) -> Mapping[str, str]:
    """Return the commit at which each test, by node ID, last passed."""
    return json.loads(file.read_text()) if file.exists() else {}


def enter(name: str, commit: str, file: Path = LEDGER) -> None:
    """Record that a test passed. The file is replaced as a whole: a run that is interrupted keeps what it has."""
    news = dict(sorted({**passed(file), name: commit}.items()))
    part = file.with_suffix(".part")
    part.write_text(json.dumps(news, indent=0) + "\n")
    part.replace(file)


@cache
def commits_since(first: str) -> frozenset[str]:
    """Return the short names of the commits from `first` to the present one. Raise CalledProcessError if unknown."""
    here = Path(__file__).parent
    command = ("git", "rev-list", "--abbrev-commit", "--abbrev=9", f"{first}..HEAD")
    later = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.split()
    return frozenset((*later, _short(first)))


@cache
def _short(commit: str) -> str:
    command = ("git", "rev-parse", "--short=9", commit)
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def skip_passed(items: list[pytest.Item], first: str, known: Mapping[str, str]) -> None:
    """Mark the tests that have passed since a commit as skipped."""
    since = commits_since(first)
    for item in items:
        if (commit := known.get(item.nodeid)) in since:
            item.add_marker(pytest.mark.skip(f"passed at {commit}: {VARIABLE}"))


class Entering:
    """A plugin of pytest that enters long tests as they pass. With xdist it belongs to the controller."""

    def __init__(self, commit: str) -> None:
        self._commit = commit

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Enter a long test whose call passed."""
        is_long = "slow" in report.keywords or "drawn" in report.keywords
        if is_long and report.when == "call" and report.outcome == "passed":
            enter(report.nodeid, self._commit)


def install(config: pytest.Config) -> None:
    """Enter what passes, if the environment asks for it."""
    if SINCE and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Entering(_short("HEAD")))


def _table() -> str:
    counts = Counter((name.partition("::")[0], commit) for name, commit in passed().items())
    return "\n".join(f"{n:5}  {commit}  {file}" for (file, commit), n in sorted(counts.items()))


if __name__ == "__main__":
    sys.stdout.write(f"{_table()}\n")
