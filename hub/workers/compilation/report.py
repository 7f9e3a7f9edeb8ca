"""Report of one process on a cluster that it compiled or loaded: plain data, as a worker sends it."""

from __future__ import annotations

from dataclasses import dataclass

from hub.process.phases import Phase
from hub.verification.fingerprint import Fingerprint
from hub.verification.standing import UNKNOWN, Standing


@dataclass(frozen=True, slots=True)
class Report:
    """Findings on an executable that can be trusted."""

    compile_s: float = 0.0
    """Seconds of compiling, verifying and saving it; 0 if it was loaded."""
    verify_s: float = 0.0
    """Seconds spent comparing it with eager."""
    may_be_saved: bool = False
    """True if its backend loads what it saved, whether or not it was asked to save this."""
    is_saved: bool = False
    problem: str = ""
    """Reason why saving it failed; "" if it did not fail or was not tried."""
    is_finite_only: bool = False
    """True if calls with infinities or NaN run in eager."""
    notes: tuple[str, ...] = ()
    """Further findings of the verification."""
    changed: tuple[str, ...] = ()
    """Process state that the plugin changed while it compiled, saved or loaded, and what was restored."""
    fingerprint: Fingerprint | None = None
    """Fingerprint of its results on the real inputs after it was saved and loaded back; None if it was not."""
    standing: Standing = UNKNOWN
    phases: tuple[Phase, ...] = ()
    """Phases of the work."""

    @property
    def unsaved(self) -> str:
        """Return the plan's note if a backend that saves executables did not save this one; "" if there was no problem."""
        text = "the executable could not be saved, so the next process compiles it again"
        return f"{text}: {self.problem}" if self.problem else ""


UNREPORTED = Report()
"""Report of a cluster that was not compiled."""
