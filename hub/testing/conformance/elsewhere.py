"""A second process in another working directory and with another hash seed, which shares nothing but files."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hub.workers.channel import Worker

MODULE = "hub.testing.conformance.worker"
_HASH_SEED = "4711"
"""Seed under which sets and hashes of text have another order, so that any dependence on the order shows."""


class Elsewhere:
    """A process that is started at the first request, and restarted after it died."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def ask(self, command: str, limit_s: float, **arguments: Any) -> Any:
        """Run a task of `hub.testing.conformance.tasks` there. Raise what it raises, CompileError if the process dies."""
        if self._worker is None or not self._worker.is_alive:
            folder = tempfile.mkdtemp(prefix="hub-elsewhere-")  # in the suite's own folder, which the suite removes
            self._worker = process(Path(folder), {"PYTHONHASHSEED": _HASH_SEED})
            self._worker.ask("move", limit_s, folder=folder)
        return self._worker.ask(command, limit_s, **arguments)


def process(folder: Path, environment: Mapping[str, str]) -> Worker:
    """Start a fresh process that runs tasks; its log is in the folder."""
    return Worker(MODULE, folder / "log.txt", environment=dict(environment))


def packed(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return tensors as bytes: torch would send them through shared memory, which only its own processes can open."""
    buffer = io.BytesIO()
    torch.save([tensor.detach().clone() for tensor in tensors], buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> list[torch.Tensor]:
    """Return the tensors from the bytes of `packed`."""
    return torch.load(io.BytesIO(data), weights_only=True)


ELSEWHERE = Elsewhere()
"""One process for all examinations: starting one takes seconds."""
