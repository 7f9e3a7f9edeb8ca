"""What is counted in a process while other threads come and go."""

from __future__ import annotations

import sys
import threading

import pytest

from hub.compilation.leftovers import leftovers


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
