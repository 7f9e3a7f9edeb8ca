"""Processes that share a cache may be killed at any time: the next one finds all in order, or nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).parent / "kill_server.py"
AT_ONCE = 16


def rounds(cache: Path, number: int, seed: int) -> dict[str, Any]:
    """Run rounds of 16 processes, each killed at a random time; return the summary."""
    command = [sys.executable, str(SERVER), str(cache), str(number), str(AT_ONCE), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(summary: dict[str, Any], number: int) -> None:
    """Check for no wrong result, no crash, no held lock, nothing corrupt, and at most one compilation each."""
    assert summary["problems"] == []
    assert summary["rounds"] == number
    # Else nothing was tried: processes have to be killed at work, and others have to come through.
    assert summary["killed"] > number
    assert summary["finished"] > 3 * number
    assert summary["compiled"] > number
    assert summary["loaded"] > 4 * number


def test_killed_processes_leave_a_cache_in_order(tmp_path: Path) -> None:
    """A few rounds; `make test-cache` runs a thousand."""
    check(rounds(tmp_path / "cache", 6, seed=1), 6)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_rounds_of_killed_processes_leave_a_cache_in_order(tmp_path: Path) -> None:
    """Some were killed in the middle of saving: what they left is removed in the end."""
    summary = rounds(tmp_path / "cache", 1000, seed=2)
    check(summary, 1000)
    assert summary["leftovers"] > 0
