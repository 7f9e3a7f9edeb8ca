"""A cluster in torch-mlir's dialects, for people: torch, StableHLO, linalg after fusion, and MHLO.

DISC compiles none of these; they show the cluster as other MLIR compilers would receive it. torch-mlir aborts its process
on some programs. A debug folder must not cost the user's process, so torch-mlir runs in one of its own.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hub.plugin import (
    Cluster,
    CompileError,
    HubError,
    LimitExceeded,
    PluginError,
    Worker,
    WorkerError,
    serve,
)

from .bindings import bindings
from .compiler import NAME
from .mhlo import TO_BACKEND, TO_STABLEHLO, imported, program
from .recording import read_cluster

TO_LINALG = (
    "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline,func.func(linalg-fuse-elementwise-ops),"
    "canonicalize,cse)"
)
STAGE_S = 120.0
"""Timeout of one stage in seconds, including the start of the process."""
IDLE_S = 20.0
"""Seconds for which the idle process is kept for the next folder, because starting it takes seconds."""


def _passed(cluster: Cluster, *pipelines: str) -> str:
    """Return the text of a cluster after some pipelines. Raise CompileError if torch-mlir cannot express it."""
    manager = bindings("passmanager").PassManager
    try:
        with bindings("ir").Context() as context:
            module = imported(cluster, context)
            for passes in pipelines:
                manager.parse(passes).run(module.operation)
            return f"{module}\n"
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:2000]}"
        raise CompileError(f"torch-mlir cannot express it: {reason}", backend=NAME, cluster=cluster.name) from error


STAGES: Mapping[str, Callable[[Cluster], str]] = {
    "torch": lambda cluster: _passed(cluster, TO_BACKEND),
    "stablehlo": lambda cluster: _passed(cluster, TO_BACKEND, TO_STABLEHLO),
    "linalg": lambda cluster: _passed(cluster, TO_BACKEND, TO_LINALG),
    "mhlo": program,
}


def file_of(stage: str) -> str:
    """Return the name of a stage's file."""
    return f"cluster.{stage}.mlir"


def write_stages(folder: Path) -> list[str]:
    """Write the missing stages of the cluster recorded in a folder; return a message for each one not written."""
    missing: list[str] = []
    is_hopeless = False  # after one timeout, do not wait for the others
    for stage in STAGES:
        if (folder / file_of(stage)).exists():
            continue
        error = None if is_hopeless else _PROCESS.write(folder, stage)
        reason = "torch-mlir was not asked again" if is_hopeless else _reason_of(error)
        is_hopeless = is_hopeless or isinstance(error, LimitExceeded)
        if reason:
            missing.append(f"{file_of(stage)} is not there: {reason}")
    return missing


def _reason_of(error: Exception | None) -> str:
    return error.message if isinstance(error, HubError) else "" if error is None else str(error)


class Process:
    """The process in which torch-mlir runs. It starts when first needed, and again after it died."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._worker: Worker | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def write(self, folder: Path, stage: str) -> Exception | None:
        """Write one file; return the error, None if there was none."""
        with self._lock:
            try:
                facts: dict[str, Any] = {"folder": str(folder.absolute()), "stage": stage, "idle_s": IDLE_S}
                self._living().ask("write", STAGE_S, **facts)
            except (PluginError, WorkerError, OSError) as error:
                return error
        return None

    def _living(self) -> Worker:
        """Return the running process. Raise WorkerError or OSError if none can be started."""
        if self._worker is None or not self._worker.is_alive:
            self.close()
            self._folder = tempfile.TemporaryDirectory(prefix="disc-stages-")
            self._worker = Worker(self._module, Path(self._folder.name) / "log")
        return self._worker

    def close(self) -> None:
        """End the process. In a fork of the process that started it, do nothing."""
        if os.getpid() != self._owner:
            return
        if self._worker is not None:
            self._worker.kill()
        if self._folder is not None:
            self._folder.cleanup()
        self._worker = self._folder = None


_PROCESS = Process(f"{__package__}.stages")
atexit.register(_PROCESS.close)


def write(folder: str, stage: str) -> None:
    """Write one stage of a recorded cluster completely, or not at all; runs in the process. Raise HubError if it fails."""
    path = Path(folder) / file_of(stage)
    text = STAGES[stage](read_cluster(Path(folder)))
    try:
        path.write_text(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    serve({"write": write})
