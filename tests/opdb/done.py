"""Cases that passed in an earlier run, one a line, each behind the version of PyTorch that it passed with."""

from __future__ import annotations

from pathlib import Path

import torch


def passed_before(file: Path | None) -> frozenset[str]:
    """Return the cases that passed with this PyTorch; lines of another one do not count."""
    if file is None or not file.exists():
        return frozenset()
    start = _line("")
    return frozenset(line.removeprefix(start) for line in file.read_text().splitlines() if line.startswith(start))


def note(file: Path | None, case: str) -> None:
    """Record that a case passed, if there is a file for it."""
    if file is not None:
        with file.open("a") as open_file:
            open_file.write(f"{_line(case)}\n")


def _line(case: str) -> str:
    return f"torch {torch.__version__}: {case}"
