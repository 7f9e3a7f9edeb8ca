"""The process that runs architectures for a suite, each in a fork of it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
SPARE_S = 120
"""Seconds beyond an architecture's own limit, in which the process starts and says that it hangs."""


class Server:
    """`python -m tests.architectures.one`, asked for one name after the other."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s + SPARE_S
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HUB_PROGRESS": "off"}
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.architectures.one"),
            cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def row(self, name: str) -> dict[str, Any]:
        """Return the result row of an architecture. Raise RuntimeError if the process ended or does not answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{name}\n".encode())
        stdin.flush()
        if not select.select([stdout], [], [], self._limit_s)[0] or not (line := stdout.readline()):
            raise RuntimeError(f"{name}: the process that runs architectures ended or hangs")
        return json.loads(line)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
