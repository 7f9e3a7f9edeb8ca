"""Verifies an executable at leisure: kinds of inputs for which there was no time, and many calls one after the other."""

from __future__ import annotations

import time
from pathlib import Path

from hub.errors import AccuracyError, InputRefused, RunError
from hub.process.leftovers import MANY_LEFT, leftovers, more
from hub.process.state import kept_state
from hub.report.numbers import megabytes
from hub.verification.compare import Snapshot, check_inputs, check_untouched, real_error
from hub.verification.inputs import DRAWN_SIZES, KINDS, Kind
from hub.verification.reference import Reference
from hub.verification.verify import Trial

N_CALLS = 200
"""Calls in a row: what a plugin counts to, it counts to 10 or 100."""
ENDURANCE_S = 2.0
"""Seconds after which it may be fewer, of slow clusters."""
LEAK_BYTES = 64 << 20
"""Memory that the second half of the calls may add: allocators keep what they got, in pieces of some megabytes."""
_MIN_CALLS = 20
_STATUS = Path("/proc/self/status")


class Leisure:
    """A trial that goes on after the first answer. Each step may raise as `verify` does."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._reference: Reference | None = None

    def prepare(self, name: str) -> bool:
        """Run eager on a kind of generated inputs, before the executable: False where there are none, or it raises."""
        self._reference = self._trial.reference_of(_kind(name))
        return self._reference is not None

    def compare(self, name: str) -> str:
        """Run the executable on what was prepared. Returns what differs on unusual inputs, or ""."""
        kind, reference, self._reference = _kind(name), self._reference, None
        assert reference is not None, "only what was prepared is compared"
        try:
            self._trial.compare(kind, reference)
        except InputRefused:
            return ""
        except AccuracyError as error:
            if not kind.unusual:
                raise
            return error.message
        except RunError as error:
            if not kind.unusual:
                raise
            return f"raises on generated inputs ({kind.name}), where eager does not: {error.message}"
        return ""

    def endure(self) -> int:
        """Make many calls on the real inputs. Returns how many.

        Raises ContractError where they change something in the process, leave something behind, or take ever more memory,
        and AccuracyError where the last result is wrong.
        """
        trial, before = self._trial, leftovers()
        snapshot, copies = Snapshot(trial.inputs), tuple(output.clone() for output in trial.outputs)
        end_s, n_calls, half_bytes = time.monotonic() + ENDURANCE_S, 0, 0
        outputs = trial.outputs
        with kept_state() as changed:
            while n_calls < N_CALLS and (n_calls < _MIN_CALLS or time.monotonic() < end_s):
                outputs = tuple(trial.executable(*trial.inputs))
                n_calls += 1
                half_bytes = _own_bytes() if n_calls in (_MIN_CALLS, N_CALLS // 2) else half_bytes
        added = _own_bytes() - half_bytes
        if changed:
            raise trial.judge.broken(f"{n_calls} calls of it changed {', '.join(changed)}")
        if left := more(before, MANY_LEFT):
            raise trial.judge.broken(f"{n_calls} calls of it leave {left} behind")
        if added > LEAK_BYTES:
            raise trial.judge.broken(f"{n_calls} calls of it take {megabytes(added)} of memory, and do not give it back")
        check_inputs(trial.judge, snapshot)
        check_untouched(trial.judge, trial.outputs, copies)
        real_error(trial.judge, outputs, trial.reference, f"the real inputs, call {n_calls}")
        return n_calls


def _kind(name: str) -> Kind:
    return next(kind for kind in (*KINDS, *DRAWN_SIZES) if kind.name == name)


def _own_bytes() -> int:
    """Return the bytes of memory of this process's own; 0 where the system does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
