"""The ledger of long tests: what passed, at which commit, and what a later run leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ledger

ROOT = Path(__file__).parent.parent
CONFTEST = "from tests import ledger\ndef pytest_configure(config):\n    ledger.install(config)\n"
CONFTEST += "def pytest_collection_modifyitems(items):\n    ledger.skip_passed(items, ledger.SINCE, ledger.passed())\n"
TESTS = """
import pytest
@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_long(n): assert n == 1
def test_short(): pass
"""


def test_what_passed_is_entered_and_later_entries_replace_earlier_ones(tmp_path: Path) -> None:
    """The file is sorted, so that a commit shows what changed."""
    file = tmp_path / "passed.json"
    assert ledger.passed(file) == {}
    for name, commit in (("b", "1"), ("a", "1"), ("b", "2")):
        ledger.enter(name, commit, file)
    assert list(ledger.passed(file).items()) == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_run_enters_long_tests_that_pass_and_the_next_one_skips_them(options: tuple[str, ...], tmp_path: Path) -> None:
    """Failures and short tests are not entered. An entry of a commit before the one that is asked for does not count."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "ledger.py").write_text(Path(ledger.__file__).read_text())
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\npythonpath = .\n")
    commits = [_commit(tmp_path)]
    assert _run(tmp_path, commits[0], options) == "1 failed, 2 passed"
    entered = ledger.passed(tmp_path / "tests" / "passed.json")
    assert entered == {"test_some.py::test_long[1]": commits[0]}
    commits.append(_commit(tmp_path))
    assert _run(tmp_path, commits[0], options) == "1 failed, 1 passed, 1 skipped"
    assert _run(tmp_path, commits[1], options) == "1 failed, 2 passed"
    assert list(ledger.passed(tmp_path / "tests" / "passed.json").values()) == [commits[1]]


def _commit(folder: Path) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*own, "commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run(("git", *words), cwd=folder, check=True)
    words = ("git", "rev-parse", "--short=9", "HEAD")
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _run(folder: Path, since: str, options: tuple[str, ...]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, ledger.VARIABLE: since},
    )
    return done.stdout.splitlines()[-1].partition(" in ")[0]


def test_entries_are_of_files_that_exist() -> None:
    """Entries of a file that was renamed would stay for ever."""
    for name in ledger.passed():
        assert (ROOT / name.partition("::")[0]).is_file(), name
