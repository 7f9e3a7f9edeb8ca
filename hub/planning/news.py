"""What the process that plans tells the one that serves, as files: the best plan so far, and where planning stands."""

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
    """The answer of the process that plans."""

    plan: Plan
    began_s: float
    """Seconds of the monotonic clock at which it began to plan, its imports done."""
    phases: tuple[Phase, ...]


def tell_better(folder: Path, plan: Plan) -> None:
    """Lay down a plan, in place of one that nobody has taken yet."""
    _write(folder / _BETTER, plan.model_dump_json())


def take_better(folder: Path) -> Plan | None:
    """Return the plan that was laid down since this was asked last; None where there is none."""
    taken = folder / f"{_BETTER}.taken"
    try:
        (folder / _BETTER).replace(taken)
    except FileNotFoundError:
        return None
    return Plan.model_validate_json(taken.read_text(encoding="utf-8"))


def stage_of(folder: Path) -> str:
    """Return where planning stands: "compiling, 2 of 3"; nothing before it has begun."""
    with contextlib.suppress(OSError):
        return (folder / _STAGE).read_text(encoding="utf-8")
    return ""


class StageFile(Progress):
    """Writes where planning stands to a file. A folder that is gone has no reader, and a full disk costs the file only."""

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
        """Leave the last stage as it is: the process ends soon."""

    def _tell(self) -> None:
        steps = f", {min(self._steps, self._total)} of {self._total}" if self._total else ""
        with contextlib.suppress(OSError):
            _write(self._path, f"{self._name}{steps}")


def _write(path: Path, text: str) -> None:
    """Write a file as a whole: whoever reads meanwhile reads the old one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
