"""What one process found out about a cluster that it compiled, or loaded: plain data, as a worker sends it."""

from __future__ import annotations

from dataclasses import dataclass

from hub.process.phases import Phase
from hub.verification.fingerprint import Fingerprint
from hub.verification.standing import UNKNOWN, Standing


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of an executable that can be trusted."""

    compile_s: float = 0.0
    """Seconds of compiling, verifying and saving it; 0 where it was loaded."""
    verify_s: float = 0.0
    """Seconds in which it was compared with eager."""
    is_saved: bool = False
    problem: str = ""
    """Why it could not be saved, where that was tried."""
    is_finite_only: bool = False
    """True where calls with infinities or NaN are left to eager."""
    notes: tuple[str, ...] = ()
    """What verification found out beside that it can be trusted."""
    changed: tuple[str, ...] = ()
    """What the plugin changed in the process while it compiled, saved or loaded, and what was restored."""
    fingerprint: Fingerprint | None = None
    """What it gave on the real inputs after it was saved and loaded back; None where it was not."""
    standing: Standing = UNKNOWN
    phases: tuple[Phase, ...] = ()
    """What went on meanwhile."""

    @property
    def unsaved(self) -> str:
        """What a plan says where a backend that saves did not; "" elsewhere."""
        text = "the executable could not be saved, so the next process compiles it again"
        return f"{text}: {self.problem}" if self.problem else ""


UNREPORTED = Report()
"""Of a cluster that nobody has compiled."""
