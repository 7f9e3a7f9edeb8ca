"""What is left behind in a process is counted, so that a plugin that leaves something at each call can be disabled."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hub.process.leftovers import leftovers, more


def test_nothing_left_is_nothing_said(tmp_path: Path) -> None:
    """Threads that ended and files that were closed do not count."""
    before = leftovers()
    thread = threading.Thread(target=(tmp_path / "file").touch)
    thread.start()
    thread.join()
    assert more(before) == ""


def test_threads_files_and_processes_are_counted(tmp_path: Path) -> None:
    """What is left is described in words; few threads and files only if requested, a process always."""
    before = leftovers()
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    child = subprocess.Popen(["sleep", "60"])
    with (tmp_path / "file").open("w"):
        found = more(before), more(before, at_least=3)
    child.kill()
    child.wait()
    end.set()
    for thread in threads:
        thread.join()
    assert found == ("2 threads, 1 open file, 1 process", "1 process")
    assert more(before) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files")
def test_threads_that_end_meanwhile_change_no_other_count() -> None:
    """A thread that is gone when its children are counted does not make files look like none, and later ones new."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            short = threading.Thread(target=lambda: None)
            short.start()
            short.join()

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        assert all(leftovers()["open file"] > 0 for _ in range(500))
    finally:
        stop.set()
        churning.join()
