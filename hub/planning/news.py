"""Messages from the planning process to the serving one, as files: the best plan so far, and the current stage."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hub.plan import Plan
from hub.process.phases import Phase
from hub.report.progress import Progress

_BETTER, _STAGE = "better.json", "stage"


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of the planning process."""

    plan: Plan
    began_s: float
    """Monotonic clock, in seconds, when planning began, after the imports."""
    phases: tuple[Phase, ...]


def tell_better(folder: Path, plan: Plan) -> None:
    """Publish a plan, replacing one that was not taken yet. A removed folder or a full disk is ignored."""
    with contextlib.suppress(OSError):
        _write(folder / _BETTER, plan.model_dump_json())


def take_better(folder: Path) -> Plan | None:
    """Return the plan published since the last call; None if there is none."""
    taken = folder / f"{_BETTER}.taken"
    try:
        (folder / _BETTER).replace(taken)
    except FileNotFoundError:
        return None
    return Plan.model_validate_json(taken.read_text(encoding="utf-8"))


def stage_of(folder: Path) -> str:
    """Return the current stage of planning, such as "compiling, 2 of 3"; "" before it begins."""
    with contextlib.suppress(OSError):
        return (folder / _STAGE).read_text(encoding="utf-8")
    return ""


class StageFile(Progress):
    """Progress display that writes the current stage to a file. A removed folder or a full disk is ignored."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _STAGE
        self._name, self._steps, self._total = "", 0, 0

    def stage(self, name: str, total: int | None = None) -> None:
        """Write the name of a stage."""
        self._name, self._steps, self._total = name, 0, total or 0
        self._tell()

    def advance(self, detail: str = "") -> None:  # noqa: ARG002 - steps are counted, not named
        """Count one step."""
        self._steps += 1
        self._tell()

    def done(self) -> None:
        """Keep the last stage: the process ends soon."""

    def _tell(self) -> None:
        steps = f", {min(self._steps, self._total)} of {self._total}" if self._total else ""
        with contextlib.suppress(OSError):
            _write(self._path, f"{self._name}{steps}")


def _write(path: Path, text: str) -> None:
    """Write a file atomically: a concurrent reader sees the old one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
