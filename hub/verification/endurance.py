"""Verifies an executable in the background: kinds of inputs left out for lack of time, and many calls in a row."""

from __future__ import annotations

import math
import time
from pathlib import Path

from hub.process.leftovers import MANY_LEFT, leftovers, more
from hub.process.state import kept_state
from hub.report.numbers import megabytes
from hub.verification.compare import Snapshot, check_inputs, check_untouched
from hub.verification.inputs import DRAWN_SIZES, KINDS, Kind
from hub.verification.reference import Reference
from hub.verification.verify import Trial

N_CALLS = 200
"""Calls in a row: a plugin that counts calls is likely to act at 10 or 100."""
ENDURANCE_S = 2.0
"""Seconds after which fewer calls suffice, for slow clusters."""
LEAK_BYTES = 64 << 20
"""Bytes that the second half of the calls may add: allocators keep memory in pieces of some megabytes."""
MIN_CALLS = 20
"""Calls before which memory is not compared: the first ones allocate what later calls use again."""
MAX_SLOW_S = 20.0
"""Seconds after which two calls suffice: a cluster may take seconds a call, and its worker's patience ends."""
_STATUS = Path("/proc/self/status")


class Leisure:
    """A trial that continues after the first answer. Each step may raise as `verify` does."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._reference: Reference | None = None

    def prepare(self, name: str) -> bool:
        """Run eager on a kind of generated inputs, before the executable. Return False if there are none, or it raises."""
        self._reference = self._trial.reference_of(_kind(name))
        return self._reference is not None

    def compare(self, name: str) -> str | None:
        """Run the executable on the prepared inputs. Return what differs on unusual inputs, "" if nothing does.

        Return None if there was nothing to compare: the executable refused the inputs, or its settings cut values off.
        """
        reference, self._reference = self._reference, None
        assert reference is not None, "only what was prepared is compared"
        trial, kind = self._trial, _kind(name)
        n_differences, n_agreed = len(trial.differences), len(trial.agreed)
        trial.compare(kind, reference)
        differences = trial.differences[n_differences:]
        return "".join(differences) if differences or len(trial.agreed) > n_agreed else None

    def endure(self) -> int:
        """Make many calls on the real inputs and return how many.

        Raises ContractError if they change something in the process, leave something behind, or use ever more memory, and
        AccuracyError if the last result is wrong.
        """
        trial, before = self._trial, leftovers()
        snapshot, copies = Snapshot(trial.inputs), tuple(output.clone() for output in trial.outputs)
        start_s, n_calls, half_bytes = time.monotonic(), 0, 0
        outputs = trial.outputs
        with kept_state() as changed:
            while n_calls < N_CALLS and time.monotonic() < _end_s(start_s, n_calls):
                outputs = tuple(trial.executable(*trial.inputs))
                n_calls += 1
                half_bytes = _own_bytes() if n_calls in (MIN_CALLS, N_CALLS // 2) else half_bytes
        added = _own_bytes() - half_bytes if n_calls >= MIN_CALLS else 0
        if changed:
            raise trial.judge.broken(f"{n_calls} calls of it changed {', '.join(changed)}")
        if left := more(before, MANY_LEFT):
            raise trial.judge.broken(f"{n_calls} calls of it leave {left} behind")
        if added > LEAK_BYTES:
            raise trial.judge.broken(f"{n_calls} calls of it take {megabytes(added)} of memory, and do not give it back")
        check_inputs(trial.judge, snapshot)
        check_untouched(trial.judge, trial.outputs, copies)
        trial.check_real(outputs, f"the real inputs, call {n_calls}")
        return n_calls


def _end_s(start_s: float, n_calls: int) -> float:
    """Return until when another call is made after so many."""
    if n_calls < 2:
        return math.inf
    return start_s + (MAX_SLOW_S if n_calls < MIN_CALLS else ENDURANCE_S)


def _kind(name: str) -> Kind:
    return next(kind for kind in (*KINDS, *DRAWN_SIZES) if kind.name == name)


def _own_bytes() -> int:
    """Return the bytes of this process's private memory; 0 if the system does not report it."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
