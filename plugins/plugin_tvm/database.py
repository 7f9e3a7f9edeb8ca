"""Tuned kernels on disk: one folder per structure of a kernel and target, shared by all models and processes.

A folder holds MetaSchedule's own two files, to which each measured schedule adds a line: an interrupted run loses only the
line that it was writing. An unreadable folder is set aside with a warning, and tuning creates it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.plugin import DAMAGED, HubWarning, note_use

WORKLOAD = "database_workload.json"
RECORDS = "database_tuning_record.json"
FAILED_S = 1e9
"""Seconds; this or more means that a schedule did not run."""


@dataclass(frozen=True)
class Found:
    """The best result of tuning for a kernel."""

    function: Any
    run_s: float


class Database:
    """Schedules by the structure of kernels, for one target."""

    def __init__(self, root: Path, target: Any) -> None:
        self._root = root
        self._target = target
        self._target_text = str(target)

    def folder(self, module: Any) -> Path:
        """Return the folder of a kernel, given as a module of its own; it may not exist."""
        text = f"{self._target_text}\n{module.script()}"
        return self._root / hashlib.sha256(text.encode()).hexdigest()[:32]

    def opened(self, module: Any) -> Any:
        """Return MetaSchedule's database of a kernel. A missing one is created, an unreadable one set aside."""
        folder = self.folder(module)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return _opened(folder)
        except Exception as error:  # noqa: BLE001 - TVM raises anything for a corrupt file
            _put_aside(folder, error)
            folder.mkdir(parents=True, exist_ok=True)
            return _opened(folder)

    def keep(self, module: Any, trace: Any, run_s: float) -> None:
        """Add a schedule of a kernel, with its seconds."""
        from tvm.s_tir.meta_schedule.database import TuningRecord

        found = self.opened(module)
        found.commit_tuning_record(TuningRecord(trace, found.commit_workload(module), [run_s], self._target))

    def best(self, module: Any) -> Found | None:
        """Return the fastest schedule of a kernel; None if it was not tuned or its entry is unreadable."""
        folder = self.folder(module)
        if not (folder / RECORDS).exists():
            return None
        try:
            found = self._best(_opened(folder), module)
            note_use(folder)
            return found
        except Exception as error:  # noqa: BLE001 - as above
            _put_aside(folder, error)
            return None

    def schedule(self, module: Any) -> Any | None:
        """Return tuning's function for a kernel; None if it was not tuned."""
        found = self.best(module)
        return None if found is None else found.function

    def _best(self, database: Any, module: Any) -> Found | None:
        record = database.query_tuning_record(module, self._target, "main")
        if record is None:
            return None
        run_s = min(float(getattr(second, "value", second)) for second in record.run_secs)
        schedule = database.query_schedule(module, self._target, "main")
        if schedule is None or run_s >= FAILED_S:
            return None
        return Found(schedule.mod["main"].without_attr("global_symbol"), run_s)


def _opened(folder: Path) -> Any:
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    for name in (WORKLOAD, RECORDS):
        _end_with_a_line(folder / name)
    return JSONDatabase(str(folder / WORKLOAD), str(folder / RECORDS))


def _end_with_a_line(path: Path) -> None:
    """Remove an incomplete last line, left by an interrupted run."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            path.write_bytes(data[: data.rfind(b"\n") + 1])


def _put_aside(folder: Path, error: Exception) -> None:
    aside = next(
        place for number in range(1000) if not (place := folder.with_name(f"{folder.name}{DAMAGED}{number}")).exists()
    )
    with contextlib.suppress(OSError):
        folder.rename(aside)
        note_use(aside)  # starts the week after which it is pruned
    warnings.warn(
        f"tvm: tuned schedules in {folder} cannot be read and were set aside as {aside.name}: "
        f"{type(error).__name__}: {str(error)[:200]}; `hub tune` finds them again",
        HubWarning,
        stacklevel=3,
    )


def state_of(root: Path) -> str:
    """Return a digest of a database's contents: a program compiled with other contents is compiled again."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        kept = (path for path in sorted(root.glob(f"*/{RECORDS}")) if DAMAGED not in path.parent.name)
        found.extend(f"{path.parent.name} {path.stat().st_size}" for path in kept)
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""
